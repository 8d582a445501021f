"""Abstract Unix sockets that belong to a mount: made by its supervisor, found by its device, trusted by credentials.

The kernel takes them away with the last process that holds them, so nothing is left behind by a mount that is killed.
"""

import os
import secrets
import socket
import struct
from pathlib import Path
from typing import Protocol

__all__ = ["addresses", "listen", "peer_uid"]

_PEER = struct.Struct("3i")  # pid, uid, gid: unix(7), SO_PEERCRED


def listen(prefix: str, *, backlog: int) -> socket.socket:
    """A socket for `addresses` to find; its accept never waits.

    Nobody can take its name before us: it ends in what cannot be guessed.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        listener.bind(f"\0{prefix}-{os.getpid()}-{secrets.token_hex(8)}")
        listener.listen(backlog)
    except BaseException:
        listener.close()
        raise
    return listener


def addresses(prefix: str) -> list[str]:
    """The sockets of that name in this network namespace (proc_net(5)), whoever made them."""
    lines = Path("/proc/net/unix").read_text(errors="replace").splitlines()
    paths = {line.split(" ")[-1] for line in lines}
    return sorted("\0" + path[1:] for path in paths if path.startswith(f"@{prefix}-"))


class _Connection(Protocol):
    """A socket, be it trio's."""

    def getsockopt(self, level: int, optname: int, buflen: int, /) -> bytes: ...


def peer_uid(connection: _Connection) -> int:
    """Who is at the other end; of a listener's connections, who listens there."""
    _, uid, _ = _PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    return int(uid)
