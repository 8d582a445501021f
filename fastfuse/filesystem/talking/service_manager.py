"""The service manager's notification protocol, sd_notify(3): one datagram of ``NAME=value`` lines per event."""

import logging
import socket
import time
from math import inf

_logger = logging.getLogger(__name__)

# Far less than WatchdogSec= in systemd/fastfuse@.service; a third of a short one, for looks come a second apart.
_ALIVE_EVERY_S = 5.0
_SEND_WITHIN_S = 5.0


class Notifier:
    """Reports to the service manager how the mount is doing; without a socket it does nothing.

    `socket_path` is the value of ``$NOTIFY_SOCKET``: a path, or ``@name`` for Linux's abstract namespace. A message
    that cannot be delivered is logged and dropped. `watchdog_s` is that of ``$WATCHDOG_USEC``.
    """

    def __init__(self, socket_path: str | None, watchdog_s: float | None = None) -> None:
        self._socket_path = socket_path
        self._alive_every_s = min(_ALIVE_EVERY_S, watchdog_s / 3) if watchdog_s else _ALIVE_EVERY_S
        # Never before `ready`: the service manager watches from then on.
        self._says_alive_s = inf

    def ready(self) -> None:
        """Report that the mount is ready: units that wait for it may start."""
        self._says_alive_s = time.monotonic() + self._alive_every_s
        self._send("READY=1")

    def status(self, text: str) -> None:
        """Show `text` in ``systemctl status``; only its first line is sent, because a second one could assign."""
        self._send("STATUS=" + "".join(text.splitlines()[:1]))

    def stopping(self) -> None:
        """Report that the mount begins to shut down."""
        self._send("STOPPING=1")

    def alive(self) -> None:
        """Report every five seconds, or more often, that this process is not stuck; call it often."""
        now_s = time.monotonic()
        if now_s >= self._says_alive_s:
            self._says_alive_s = now_s + self._alive_every_s
            self._send("WATCHDOG=1", may_be_lost=True)

    def _send(self, message: str, *, may_be_lost: bool = False) -> None:
        if not self._socket_path:
            return
        address = "\0" + self._socket_path[1:] if self._socket_path.startswith("@") else self._socket_path
        try:
            # A new socket each time, so that no worker inherits one; a mount sends a handful.
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                # A manager that does not read must not stop the process that has to look after the mount.
                sender.settimeout(0 if may_be_lost else _SEND_WITHIN_S)
                sender.sendto(message.encode(errors="replace"), address)
        except OSError as error:
            if may_be_lost and isinstance(error, BlockingIOError):
                return
            _logger.warning("the service manager did not take %s: %s", message, error.strerror or error)
