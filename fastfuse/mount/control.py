"""How other commands talk to a running mount: through an abstract Unix socket that is named after its device.

To connect is to ask for a refresh; the answer is one JSON object, a report or an error, and the end of the connection.
Nothing is left behind by a mount that is killed, and nobody but its user and root is listened to. No two sockets have
the same name: the kernel may give a device's number to the next mount while the last one's process still ends, and
nobody can take a name before us that he does not know.
"""

import fcntl
import logging
import os
import secrets
import socket
import struct
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from fastfuse.errors import MountError
from fastfuse.mount.children import heard
from fastfuse.mount.mountpoint import find_mount, listeners, socket_prefix

__all__ = ["RefreshReport", "accept_request", "listen", "request_refresh"]

_log = logging.getLogger(__name__)

_PEER = struct.Struct("3i")  # pid, uid, gid: unix(7), SO_PEERCRED
_BACKLOG = 16


@dataclass(frozen=True, slots=True)
class RefreshReport:
    """What a refresh changed."""

    added: int
    removed: int
    replaced: int
    files: int
    elapsed_s: float

    def __str__(self) -> str:
        return (
            f"{self.added:,} added, {self.removed:,} removed, {self.replaced:,} replaced; "
            f"{self.files:,} objects now, {self.elapsed_s:.1f} s"
        )


def listen(device: str) -> socket.socket:
    """The socket of the mount with this ``major:minor``; never waits. A connection is a SIGIO of this process.

    Raises:
        OSError: there can be none; the mount does without.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        listener.bind(f"{socket_prefix(device)}{secrets.token_hex(8)}")
        fcntl.fcntl(listener, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(listener, fcntl.F_SETFL, fcntl.fcntl(listener, fcntl.F_GETFL) | os.O_ASYNC)
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def accept_request(listener: socket.socket) -> socket.socket | None:
    """The next connection of somebody who may ask; None when there is no more, or no room for it."""
    while True:
        try:
            connection, _ = listener.accept()
        except BlockingIOError:
            return None
        except OSError as error:
            _log.warning("somebody who asks for a refresh has to wait: %s", error)
            return None
        if _peer_uid(connection) in {0, os.geteuid()}:
            return connection
        connection.close()


def request_refresh(mountpoint: Path) -> RefreshReport:
    """Have the mount at `mountpoint` list its source again, and wait until it shows what there is.

    Raises:
        MountError: there is no mount of fastfuse, it is not yours, or it does not answer.
        FastfuseError: why it could not list, as it would have kept the mount from starting.
    """
    entry = find_mount(mountpoint)
    if entry is None or not entry.is_ours:
        raise MountError(f"nothing of fastfuse is mounted at {mountpoint}", hint="fastfuse mount mounts it")
    for address in listeners(entry.device):
        told = _answer_of(address, {0, entry.owner_uid})
        if told:
            return RefreshReport(**heard(told))
    raise MountError(
        f"the mount at {mountpoint} does not answer",
        hint="it may be dead, another user's, or of another container: see its log, or send its process SIGHUP there",
    )


def _answer_of(address: str, trusted_uids: set[int | None]) -> bytes:
    """What is said there to who connects; nothing, if it is not one of `trusted_uids` that listens."""
    told = bytearray()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection, suppress(ConnectionError):
        connection.connect(address)
        if _peer_uid(connection) in trusted_uids:
            while received := connection.recv(4096):
                told += received
    return bytes(told)


def _peer_uid(connection: socket.socket) -> int:
    _, uid, _ = _PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    return int(uid)
