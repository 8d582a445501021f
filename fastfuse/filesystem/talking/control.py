"""Ask a running mount, through an abstract Unix socket, for a refresh, its status and more.

A request is one line of JSON, ``{"fastfuse": 1, "request": "status"}``, the protocol's version and one of `REQUESTS`.
The answer is one JSON object, the result or an error, and the end of the connection. Only the mount's user and root are
served. `filesystem.processes.sockets` makes the socket, and docs/OPERATIONS.md describes the protocol.
"""

import json
import logging
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from functools import partial
from io import BufferedReader
from math import inf
from pathlib import Path
from typing import Any, Final

from fastfuse.errors import MountError
from fastfuse.filesystem.mounting.mountpoint import (
    MountEntry,
    fastfuse_file_systems,
    find_mount,
    is_dead,
)
from fastfuse.filesystem.processes import sockets
from fastfuse.filesystem.processes.children import error_message, heard
from fastfuse.filesystem.processes.sockets import addresses, connect_in_turn, control_prefix, peer_uid, raise_sigio

_log = logging.getLogger(__name__)

PROTOCOL: Final = 1
INDEX: Final = "index"
REFRESH: Final = "refresh"
STATUS: Final = "status"
TRACE: Final = "trace"
TOP: Final = "top"
LOG_LEVEL: Final = "log-level"
STACK: Final = "stack"
TASKS: Final = "tasks"
RECORD: Final = "record"
REQUESTS: Final = (INDEX, REFRESH, STATUS, TRACE, TOP, LOG_LEVEL, STACK, TASKS, RECORD)

_BACKLOG = 128
# After a turn in which strangers were refused: they may connect without end, and the mount has other things to do.
_STRANGERS_PAUSE_S = 0.05
_MOST_REQUEST_BYTES = 4096
# The members of a request that mean something. A worker is handed no more than it takes in one message.
_MEMBERS = ("fastfuse", "request", "level", "sample", "every_s")
_MOST_LETTERS = 64
# A record of a week has 4 MB.
_MOST_ANSWER_BYTES = 32 << 20
# The most that `fastfuse top` gets in a line: 64 files with paths of 4 KiB, escaped, have less than 2 MB.
MOST_LINE_BYTES: Final = 4 << 20
# A client sends its line at once.
_ASK_WITHIN_S = 5.0
# A mount answers between two looks a second apart, but may have a table to hand over.
_STATUS_WITHIN_S = 20.0
# The kernel tells at once that a mount is dead.
_DEAD_WITHIN_S = 2.0
_LEAST_WAIT_S = 0.01
# One try of each socket.
_ROUND_S = 0.5


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


class ControlSocket:
    """The socket of one mount. A connection, and what it sends, is a SIGIO of this process; nothing here waits."""

    def __init__(self, device: str) -> None:
        """Listen for the mount with this ``major:minor``.

        Raises:
            OSError: no socket can be made; the mount does without.
        """
        self._listener = sockets.listen(control_prefix(device), backlog=_BACKLOG, raises_sigio=True)
        # Clients that have not said yet what they want, and until when they may.
        self._silent: list[tuple[socket.socket, float]] = []
        self._accepts_at_s = 0.0

    def requests(self) -> Iterator[tuple[Mapping[str, Any], socket.socket]]:
        """Yield each request that has come, and the connection on which to answer it.

        Its ``request`` is one of `REQUESTS`; of the rest, only numbers and short words are passed on.
        """
        self._accept()
        silent, self._silent = self._silent, []
        for connection, until_s in silent:
            try:
                line = connection.recv(_MOST_REQUEST_BYTES)
            except BlockingIOError:
                if time.monotonic() < until_s:
                    self._silent.append((connection, until_s))
                else:
                    send_answer(connection, error_message(MountError("no request came")))
                continue
            except OSError:
                line = b""
            request = _request_of(line)
            if request:
                yield request, connection
            else:
                hint = "ask with the fastfuse that mounted it"
                send_answer(connection, error_message(MountError("the mount does not know this request", hint=hint)))

    def close(self) -> None:
        """Hang up on every client, or in a child let go of copies that would keep clients from seeing their end."""
        self._listener.close()
        for connection, _ in self._silent:
            connection.close()

    def _accept(self) -> None:
        if time.monotonic() < self._accepts_at_s:
            return
        for _ in range(_BACKLOG):
            try:
                connection, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                _log.warning("a request has to wait: %s", error)
                return
            if peer_uid(connection) not in {0, os.geteuid()}:
                connection.close()
                self._accepts_at_s = time.monotonic() + _STRANGERS_PAUSE_S
                continue
            connection.setblocking(False)
            raise_sigio(connection)
            self._silent.append((connection, time.monotonic() + _ASK_WITHIN_S))


def send_answer(connection: socket.socket, message: bytes) -> None:
    """Send `message`, without waiting for a client that does not read, and end the connection."""
    with connection, suppress(OSError):  # the client may have gone
        connection.setblocking(False)
        connection.send(message)
        connection.shutdown(socket.SHUT_RDWR)  # even if a child still holds a copy


def request_refresh(mountpoint: Path, *, within_s: float = _STATUS_WITHIN_S) -> RefreshReport:
    """Have the mount at `mountpoint` list its source again, and wait until it shows the result.

    A listing may take long. The mount has `within_s` to answer what it is asked meanwhile.

    Raises:
        MountError: there is no mount of fastfuse, it is not yours, or it does not answer.
        FastfuseError: the mount could not list; the same error would have kept it from starting.
    """
    entry = entry_of(mountpoint)
    found = ask(entry, REFRESH, within_s=within_s, meanwhile=partial(ask_status, entry, within_s=within_s))
    return RefreshReport(*(found[field.name] for field in fields(RefreshReport)))


def ask_status(entry: MountEntry, *, within_s: float = _STATUS_WITHIN_S) -> dict[str, Any]:
    """Return the status of a mount, as `filesystem.figures.status` makes it, as `ask` does."""
    return ask(entry, STATUS, within_s=within_s)


def ask(
    entry: MountEntry,
    request: str,
    *,
    within_s: float = _STATUS_WITHIN_S,
    meanwhile: Callable[[], object] | None = None,
    **more: str | None,
) -> dict[str, Any]:
    """Return the answer of a mount, which may take `within_s`.

    If the answer may take longer, `meanwhile` is called after each silence of that length, and raises an error if there
    will be none.

    Raises:
        MountError: it is not yours, does not answer, or is of another version.
        FastfuseError: the answer is an error.
    """
    until_s = time.monotonic() + within_s if meanwhile is None else inf
    for connection in _connections(entry, {"request": request, **more}, within_s=within_s):
        answer = bytearray()
        with suppress(ConnectionError, TimeoutError):
            while (received := _received(connection, meanwhile)) and len(answer) <= _MOST_ANSWER_BYTES:
                answer += received
                if time.monotonic() > until_s:
                    raise _no_answer(entry)
        if answer:
            return answer_of(bytes(answer), request)
    raise _no_answer(entry)


def _received(connection: socket.socket, meanwhile: Callable[[], object] | None) -> bytes:
    while True:
        try:
            return connection.recv(1 << 16)
        except TimeoutError:
            if meanwhile is None:
                raise
            meanwhile()


def answer_of(message: bytes, request: str) -> dict[str, Any]:
    """Return what a mount answered to a `request`.

    Raises:
        MountError: that is of another version, or cut off.
        FastfuseError: it is an error.
    """
    try:
        found = heard(message)
        if found["fastfuse"] != PROTOCOL:
            raise ValueError("another version")
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise MountError(
            f"the mount answered what is no {request}", hint="ask with the fastfuse that mounted it"
        ) from error
    return found


def take_index(entry: MountEntry) -> int:
    """Return a descriptor of the snapshot that a mount shows now; the caller closes it.

    Raises:
        MountError: it is not yours, does not answer, or is of another version.
    """
    for connection in _connections(entry, {"request": INDEX}, within_s=_STATUS_WITHIN_S):
        with suppress(ConnectionError, TimeoutError):
            message, descriptors, _, _ = socket.recv_fds(connection, 1 << 16, 1)
            if descriptors:
                return descriptors[0]
            if message:
                heard(message)
    raise _no_answer(entry)


@contextmanager
def watching(
    entry: MountEntry, asked: Mapping[str, Any], *, within_s: float = _STATUS_WITHIN_S
) -> Iterator[BufferedReader]:
    """Ask a mount to be told what its worker does; yield what it tells, a line of JSON each, until that worker ends.

    Raises:
        MountError: it is not yours, does not answer, is of another version, or has no worker now.
    """
    until_s = time.monotonic() + within_s
    for connection in _connections(entry, asked, within_s=within_s):
        with connection.makefile("rb") as told:
            first = b""
            with suppress(OSError):
                while not first.endswith(b"\n") and (received := connection.recv(1)) and time.monotonic() < until_s:
                    first += received
            if first:
                answer_of(first, asked["request"])
                connection.settimeout(None)
                yield told
                return
    raise _no_answer(entry)


def entry_of(mountpoint: Path) -> MountEntry:
    """Return the mount of fastfuse at `mountpoint`.

    Raises:
        MountError: there is none, or another mount covers it.
    """
    entry = find_mount(mountpoint)
    if entry is None or not entry.is_ours:
        if entry is not None and any(one.path == entry.path for one in fastfuse_file_systems()):
            raise MountError(
                f"a mount of type {entry.file_system_type} covers that of fastfuse at {mountpoint}",
                hint=f"umount {mountpoint} takes away the one above",
            )
        raise MountError(f"nothing of fastfuse is mounted at {mountpoint}", hint="fastfuse mount mounts it")
    return entry


def _request_of(line: bytes) -> Mapping[str, Any]:
    """Return what a client asks for; nothing for what is no request of this version."""
    try:
        found: dict[str, Any] = json.loads(line)
        is_known = found["fastfuse"] == PROTOCOL and found["request"] in REQUESTS and line.endswith(b"\n")
    except (ValueError, TypeError, KeyError, RecursionError):
        return {}
    return {name: found[name] for name in _MEMBERS if name in found and _is_plain(found[name])} if is_known else {}


def _is_plain(value: object) -> bool:
    """Return whether a member is a number, or as short as the words that mean something."""
    return len(value) <= _MOST_LETTERS if isinstance(value, str) else value is None or isinstance(value, int | float)


def _no_answer(entry: MountEntry) -> MountError:
    if is_dead(entry.path, _DEAD_WITHIN_S):
        return DeadMountError(
            f"the mount at {entry.path} is dead: no process serves it", hint=f"fastfuse unmount {entry.path}"
        )
    if os.geteuid() not in {0, entry.owner_uid}:
        return ForeignMountError(
            f"the mount at {entry.path} is of user {entry.owner_uid}, and answers only that user and root",
            hint=f"ask as user {entry.owner_uid}, or as root",
        )
    return MountError(
        f"the mount at {entry.path} does not answer", hint="it may hang, or be of another container: see its log"
    )


def _connections(entry: MountEntry, asked: Mapping[str, Any], *, within_s: float) -> Iterator[socket.socket]:
    """Yield a connection to each socket of the mount at which its user or root listens, once `asked` is sent.

    Before it is known whose they are, all of them together are waited for a moment only, and those without room again.
    """
    until_s = time.monotonic() + within_s
    found = addresses(control_prefix(entry.device))
    while found:
        address = found.pop(0)
        left_s = max(until_s - time.monotonic(), _LEAST_WAIT_S)  # one user may have many sockets
        # A security module, too, may refuse it.
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection, suppress(OSError):
            try:
                connect_in_turn(connection, address, min(left_s, _ROUND_S / (len(found) + 1)))
            except BlockingIOError:  # also a mount that hangs has no room, once some connections were made
                if time.monotonic() < until_s:
                    found.append(address)
                continue
            connection.settimeout(left_s)
            if peer_uid(connection) in {0, entry.owner_uid}:
                connection.sendall(json.dumps({"fastfuse": PROTOCOL, **asked}).encode() + b"\n")
                yield connection


class DeadMountError(MountError):
    """The connection of the mount has ended, and the kernel answers every access with an error."""


class ForeignMountError(MountError):
    """The mount is another user's, and answers only that user and root."""
