"""Resolves the names of hosts for `routes`, so that a resolver that fails stops nothing that has worked before.

The last answer for a name is kept, and holds while the resolver fails or is late. An address over which a connection
stalled is tried last for a minute: trio connects to the first that accepts, and one that hangs may accept.
"""

import socket
from time import monotonic
from typing import Any

import trio

# A lookup takes a round trip to a server that is near. One that takes longer goes on, and its answer is kept.
_LATE_S = 1.0
# A resolver that failed or was late is not asked for so long: each lookup takes a thread.
_REST_S = 10.0
_AVOIDED_FOR_S = 60.0


class Addresses(trio.abc.HostnameResolver):
    """The addresses of hosts, as `trio.socket.getaddrinfo` returns them."""

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], list[Any]] = {}
        self._asks_at_s = 0.0
        # Until when each is tried last.
        self._avoided: dict[str, float] = {}

    def avoid(self, address: str) -> None:
        """Try `address` last for a while. Threads may call it."""
        now_s = monotonic()
        avoided = {known: until_s for known, until_s in self._avoided.items() if until_s > now_s}
        self._avoided = avoided | {address: now_s + _AVOIDED_FOR_S}

    async def find(self, host: str, port: int) -> list[Any]:
        """Return the addresses of `host`, those to avoid last, as trio tries them.

        Raises:
            OSError, UnicodeError, RuntimeError: as `trio.socket.getaddrinfo` does.
        """
        self.use()
        return await trio.socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)

    def use(self) -> None:
        """Have all of this `trio.run` ask here, uploads too, until other `Addresses` are used."""
        trio.socket.set_custom_hostname_resolver(self)

    async def getaddrinfo(self, *asked: Any) -> list[Any]:  # noqa: ANN401 - as `socket.getaddrinfo` takes them
        """Return what trio connects to: see `find`."""
        if asked not in self._known:
            await self._look_up(*asked)
        elif monotonic() >= self._asks_at_s:
            try:
                with trio.fail_after(_LATE_S):
                    await self._look_up(*asked)
            except (OSError, RuntimeError, trio.TooSlowError):
                self._asks_at_s = monotonic() + _REST_S
        avoided, now_s = self._avoided, monotonic()
        return sorted(self._known[asked], key=lambda found: max(0.0, avoided.get(found[4][0], 0.0) - now_s))

    async def getnameinfo(self, *_: Any) -> tuple[str, str]:  # noqa: ANN401 - nobody calls it
        """Refuse: nobody asks for the name of an address."""
        raise NotImplementedError

    async def _look_up(self, *asked: Any) -> None:  # noqa: ANN401 - see above
        def look_up() -> None:
            self._known[asked] = socket.getaddrinfo(*asked)

        await trio.to_thread.run_sync(look_up, abandon_on_cancel=True)
