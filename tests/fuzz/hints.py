"""What a client of the hint socket sends, in whatever pieces it comes: the first byte says in which."""

from collections.abc import Sequence
from typing import Any, cast

import trio
import trio.testing

from fastfuse.filesystem.processes.sockets import MAX_PATH_BYTES, SERVED, TAKEN
from fastfuse.filesystem.talking.hint_taker import HintTaker
from fastfuse.metrics import Counters
from tests.index.indexes import table_of
from tests.tables import files_of

TOKENS = (
    *(b"\0", b"a/1\0", b"a/2\0", b"a/b/3\0", b"4\0", b"a\0", b"/", b"//", b"./", b"../", b"a/", b".", b".."),
    *(b"x" * 1024, b"x" * 1025, b"\xff", b"\n", b"\0\0"),
)


_TABLE = table_of(["4", "a/1", "a/2", "a/b/3", "ü/ä"])
_FILES = {path.encode(): inode for path, inode in files_of(_TABLE).items()}

_COUNTERS = Counters()


class _Order:
    def __init__(self) -> None:
        self.inodes: list[int] = []

    async def announce(self, inodes: Sequence[int]) -> None:
        self.inodes += inodes

    def withdraw(self) -> None:
        raise AssertionError("an order ends with its connection")


class _Connection:
    """A client that has sent all and shut down its side."""

    def __init__(self, data: bytes, piece_bytes: int) -> None:
        self._pieces = [data[at : at + piece_bytes] for at in range(0, len(data), piece_bytes)]
        self.answers = b""

    async def recv(self, _: int) -> bytes:
        return self._pieces.pop(0) if self._pieces else b""

    async def send(self, data: bytes) -> None:
        self.answers += data


def try_one(data: bytes) -> None:
    piece_bytes, sent = (data[0] * 8 or 1, data[1:]) if data else (1, b"")
    order, connection = _Order(), _Connection(sent, piece_bytes)
    taker = HintTaker(lambda: _TABLE, lambda: cast(Any, order), _COUNTERS, trusted_uids=frozenset(), takes_all=True)
    is_whole = trio.run(
        taker._take,
        cast("trio.socket.SocketType", connection),
        cast(Any, order),
        0,
        clock=trio.testing.MockClock(autojump_threshold=0),
    )
    *paths, rest = sent.split(b"\0")
    too_long = next((at for at, path in enumerate((*paths, rest)) if len(path) > MAX_PATH_BYTES), None)
    known = [inode for path in paths[:too_long] if (inode := _file(path)) is not None]
    if too_long is None:
        assert order.inodes == known
        assert is_whole == (not rest and bool(known))
    else:  # what came in the same piece as the long path is not taken either
        assert order.inodes == known[: len(order.inodes)]
        assert not is_whole
    assert connection.answers == SERVED + (TAKEN if too_long is None and not rest else b"")


def _file(path: bytes) -> int | None:
    """Return what the kernel would find: it walks a path without empty segments and dots."""
    folder, _, name = path.rpartition(b"/")
    segments = [segment for segment in folder.split(b"/") if segment not in (b"", b".")]
    return _FILES.get(b"/".join([*segments, name]))
