"""Abstract Unix sockets of a mount: found by its device, trusted by credentials, and what hints say through theirs.

The supervisor makes them. The kernel removes them with the last process that holds them, so a killed mount leaves
nothing behind.

A client of the hint socket is greeted with `SERVED`, or with `REFUSED` and the end. Then it sends paths below the
mountpoint, each ended by a NUL, as fast as they are taken. If it shuts down its side (shutdown(2)), the order was
whole, and the worker sends `TAKEN` once it has announced the last path. If it hangs up, the order is withdrawn.
"""

import errno
import fcntl
import os
import secrets
import socket
import struct
from pathlib import Path
from typing import Protocol

SERVED = b"+"
REFUSED = b"-"
TAKEN = b"."

# A key has no more (https://docs.aws.amazon.com/AmazonS3/latest/userguide/object-keys.html).
MAX_PATH_BYTES = 1024

_PEER = struct.Struct("3i")  # pid, uid, gid: unix(7), SO_PEERCRED


class PathTooLongError(Exception):
    """A client of the hint socket sent a path that is longer than any key."""


def control_prefix(device: str) -> str:
    """Return the prefix of the sockets that take refreshes for the mount with this ``major:minor``."""
    return f"fastfuse-{device}"


def hint_prefix(device: str) -> str:
    """Return the prefix of the sockets that take hints for the mount with this ``major:minor``."""
    return f"fastfuse-hints-{device}"


def listen(prefix: str, *, backlog: int, raises_sigio: bool = False) -> socket.socket:
    """Return a new socket for `addresses` to find; its accept never waits.

    With `raises_sigio`, each connection to it is a SIGIO of this process.

    Its name ends in a random part, so that nobody can take it before us. A mount may get the device number of
    one whose last process is still ending, so several sockets may share a prefix.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        listener.bind(f"\0{prefix}-{os.getpid()}-{secrets.token_hex(8)}")
        if raises_sigio:
            raise_sigio(listener)
        listener.listen(backlog)
    except BaseException:
        listener.close()
        raise
    return listener


def bind_privately(listener: socket.socket, path: Path) -> None:
    """Bind `listener` to `path` with mode 0600; a later chmod would follow a link that has taken its place."""
    before = os.umask(0o177)
    try:
        listener.bind(os.fspath(path))
    finally:
        os.umask(before)


def connect_in_turn(connection: socket.socket, address: str, within_s: float) -> None:
    """Connect; where others wait for room, wait behind them in the kernel, as no timeout of Python's lets us.

    Raises:
        BlockingIOError: there was no room, or a signal came: Python takes a connect that it ended for a success.
    """
    timeval = struct.pack("ll", *divmod(int(within_s * 1_000_000), 1_000_000))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeval)
    connection.connect(address)
    if peer_uid(connection) == -1:
        raise BlockingIOError(errno.EINTR, os.strerror(errno.EINTR))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, bytes(len(timeval)))


def raise_sigio(end: socket.socket | int) -> None:
    """Have whatever arrives at `end` be a SIGIO of this process."""
    fcntl.fcntl(end, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(end, fcntl.F_SETFL, fcntl.fcntl(end, fcntl.F_GETFL) | os.O_ASYNC)


def raise_no_sigio(end: socket.socket) -> None:
    """Undo `raise_sigio`, before another process takes `end` over."""
    fcntl.fcntl(end, fcntl.F_SETFL, fcntl.fcntl(end, fcntl.F_GETFL) & ~os.O_ASYNC)


def addresses(prefix: str) -> list[str]:
    """Return the sockets with `prefix` in this network namespace (proc_net(5)), whoever made them."""
    # The bytes of a name come back when it is connected to: replaced ones could make it too long.
    lines = Path("/proc/net/unix").read_text(errors="surrogateescape").splitlines()
    paths = {line.split(" ")[-1] for line in lines}
    return sorted("\0" + path[1:] for path in paths if path.startswith(f"@{prefix}-"))


class _Connection(Protocol):
    """A socket, be it trio's."""

    def getsockopt(self, level: int, optname: int, buflen: int, /) -> bytes: ...


def peer_uid(connection: _Connection) -> int:
    """Return the user at the other end; for a client's connection, the user who listens there."""
    _, uid, _ = _PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    return int(uid)


def split_paths(rest: bytes, received: bytes) -> tuple[list[bytes], bytes]:
    """Return the paths that end in `received`, and the `rest` to put before what is received next.

    Raises:
        PathTooLongError: a path is longer than any key.
    """
    *paths, rest = (rest + received).split(b"\0")
    if any(len(path) > MAX_PATH_BYTES for path in (*paths, rest)):
        raise PathTooLongError(f"a path has more than {MAX_PATH_BYTES} bytes")
    return paths, rest
