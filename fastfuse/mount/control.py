"""Ask a running mount for a refresh, through an abstract Unix socket (`mount.sockets`).

A connection is the request; the answer is one JSON object, a report or an error, and the end of the connection. Only
the mount's user and root are served.
"""

import logging
import os
import socket
from contextlib import suppress
from dataclasses import astuple, dataclass
from pathlib import Path

from fastfuse.errors import MountError
from fastfuse.mount import sockets
from fastfuse.mount.children import heard
from fastfuse.mount.mountpoint import find_mount
from fastfuse.mount.sockets import addresses, control_prefix, peer_uid

__all__ = ["RefreshReport", "accept_request", "listen", "report_of", "request_refresh"]

_log = logging.getLogger(__name__)

_BACKLOG = 16


@dataclass(frozen=True, slots=True)
class RefreshReport:
    """The changes that a refresh made."""

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
    """Return the socket of the mount with this ``major:minor``. A connection to it raises SIGIO in this process.

    Raises:
        OSError: no socket can be made; the mount does without.
    """
    return sockets.listen(control_prefix(device), backlog=_BACKLOG, raises_sigio=True)


def accept_request(listener: socket.socket) -> socket.socket | None:
    """Return the next connection of a user who may ask; None if there is none, or no descriptor for it."""
    while True:
        try:
            connection, _ = listener.accept()
        except BlockingIOError:
            return None
        except OSError as error:
            _log.warning("a request to refresh has to wait: %s", error)
            return None
        if peer_uid(connection) in {0, os.geteuid()}:
            return connection
        connection.close()


def request_refresh(mountpoint: Path) -> RefreshReport:
    """Have the mount at `mountpoint` list its source again, and wait until it shows the result.

    Raises:
        MountError: there is no mount of fastfuse, it is not yours, or it does not answer.
        FastfuseError: the mount could not list; the same error would have kept it from starting.
    """
    entry = find_mount(mountpoint)
    if entry is None or not entry.is_ours:
        raise MountError(f"nothing of fastfuse is mounted at {mountpoint}", hint="fastfuse mount mounts it")
    for address in addresses(control_prefix(entry.device)):
        answer = _ask(address, {0, entry.owner_uid})
        if answer:
            return report_of(answer)
    raise MountError(
        f"the mount at {mountpoint} does not answer",
        hint="it may be dead, another user's, or of another container: see its log, or send its process SIGHUP there",
    )


def report_of(answer: bytes) -> RefreshReport:
    """Return the report that a mount sent.

    Raises:
        MountError: the answer is none, or is cut off: the mount may be of another version.
        FastfuseError: it is an error.
    """
    try:
        found = RefreshReport(**heard(answer))
        if [type(value) for value in astuple(found)] != [int, int, int, int, float]:
            raise TypeError("a number that is none")
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise MountError(
            "the mount answered what is no report",
            hint="it may be of another version of fastfuse; its log tells what it did",
        ) from error
    return found


def _ask(address: str, trusted_uids: set[int | None]) -> bytes:
    """Connect to `address` and return what is sent there; nothing if none of `trusted_uids` listens."""
    answer = bytearray()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection, suppress(ConnectionError):
        connection.connect(address)
        if peer_uid(connection) in trusted_uids:
            while received := connection.recv(4096):
                answer += received
    return bytes(answer)
