"""Send an order of files to the worker of a mount, and again to the next worker if that one dies.

What is said over the socket is described in `fastfuse/filesystem/processes/sockets.py`.
"""

import logging
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TypeAlias

from fastfuse.errors import MountError
from fastfuse.filesystem.mounting.mountpoint import find_mount, mount_holding
from fastfuse.filesystem.processes.sockets import (
    MAX_PATH_BYTES,
    REFUSED,
    SERVED,
    TAKEN,
    addresses,
    connect_in_turn,
    hint_prefix,
    peer_uid,
)

AnyPath: TypeAlias = str | bytes | os.PathLike[str] | os.PathLike[bytes]
Meanwhile: TypeAlias = Callable[[Path], object] | None

_log = logging.getLogger(__name__)

# What the kernel may hold of an order that its reader has not asked for yet; the rest stays with whoever makes it.
_SEND_BUFFER_BYTES = 16 << 10

# So many paths are sent at once where they are quick to make. Each send gives up the interpreter's lock, and a busy
# training script takes 5 ms to give it back (sys.getswitchinterval).
_MAX_CHUNK_PATHS = 256
# Where they are made as they are needed they are sent one by one, and none waits for the next.
_QUICK_S = 0.005

# A worker's death is over in less than a second, its mount's new start in a few.
_ATTEMPTS = 10
_RETRY_PAUSE_S = 0.5

# The paths that are sent again to the next worker: fewer than one takes before any is read (readahead/orders.py), so
# that it comes to those that are not read yet. With 100 bytes each they take 10 MB.
_SENT_AGAIN_PATHS = 64_000

# For the thread to see that it is over; it does not while it waits for the next of somebody's paths.
_JOIN_S = 1.0

# Orders may wait for their turn for as long as others are taken.
_TURN_S = 20.0

_warned: set[str] = set()

# Stands for a connection that is not made yet. It has no descriptor: a script that has none left is not to fail here.
_UNCONNECTED = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
_UNCONNECTED.close()


class HintSender:
    """One order on its way to the mount, through one connection at a time."""

    def __init__(self, paths: Iterable[AnyPath], mountpoint: Path, meanwhile: Meanwhile = None) -> None:
        self._meanwhile = meanwhile
        self._paths = iter(paths)
        self._mountpoint = mountpoint
        # An absolute path begins with one of these: the mountpoint as it was given, or without links.
        self._roots = {os.fsencode(mountpoint)}
        # The folder of the file system, with its slash, that is mounted (``mount --bind``) or that `mountpoint` names.
        self._folder = b""
        self._is_over = threading.Event()
        # A worker that dies takes along what was sent last.
        self._sent: deque[bytes] = deque(maxlen=_SENT_AGAIN_PATHS)
        # One thread closes the connection, and another may shut it down: never a descriptor that means something else.
        # A sampler that is collected closes in any of them.
        self._lock = threading.RLock()
        self._connection = _UNCONNECTED
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()

    def start(self) -> None:
        """Send from a thread, until `close`."""
        thread = threading.Thread(target=self._send_quietly, name="fastfuse-hints", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # a limit on processes counts threads, too
            _warn_once(f"files are not fetched ahead in the announced order: {error}")
        else:
            self._thread = thread

    def close(self) -> None:
        """Stop sending, and hang up."""
        if os.getpid() != self._pid:
            return  # a forked data loader's copy of an order that its parent goes on with
        self._is_over.set()
        # Not only closed: forked processes may hold the descriptor, too, and a thread may wait in it.
        with self._lock, suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        if self._thread is None:
            self._hang_up()
        elif self._thread is not threading.current_thread():
            self._thread.join(_JOIN_S)

    def send(self) -> None:
        """Send every path, or as many as there is time for before `close`.

        Raises:
            MountError: they cannot be sent, or not any more.
        """
        self._connect()
        for chunk in _chunks(self._paths):
            lines = [self._line(path) for path in chunk]
            if self._is_over.is_set():
                return
            self._sent.extend(lines)
            try:
                self._connection.sendall(b"".join(lines), socket.MSG_NOSIGNAL)
            except OSError:
                self._send_again()

    def _send_again(self) -> None:
        """Go on with the next worker, unless it is over; raise `MountError` if there is none."""
        while not self._is_over.is_set():
            self._connect(_ATTEMPTS)
            with suppress(OSError):
                self._connection.sendall(b"".join(self._sent), socket.MSG_NOSIGNAL)
                return

    def _stay(self) -> None:
        """Send all again to each next worker, until `close`, or until there is none."""
        with suppress(MountError):
            while not self._is_over.is_set():
                with suppress(OSError):
                    self._connection.recv(1)  # until the worker hangs up
                if not self._is_over.wait(_RETRY_PAUSE_S):
                    self._send_again()

    def finish(self) -> None:
        """Say that this was the whole order, and wait until it is taken.

        If a worker dies before that, the next one gets the last paths again.
        """
        for _ in range(_ATTEMPTS):
            with suppress(OSError):
                self._connection.shutdown(socket.SHUT_WR)
                if self._connection.recv(1) == TAKEN:
                    return
            self._send_again()
        raise self._no_answer()

    def _send_quietly(self) -> None:
        try:
            self.send()
            self._stay()
        except MountError as error:
            if not self._is_over.is_set():
                _warn_once(f"files are not fetched ahead in the announced order: {error}")
        except Exception as error:  # noqa: BLE001 - whatever the caller's iterator raises is no reason to stop a training
            _warn_once(f"an announced order ends early: {type(error).__name__}: {error}")
        finally:
            self._hang_up()

    def _line(self, path: AnyPath) -> bytes:
        """Return the line to send for `path`, empty if it cannot be in the mount."""
        name = os.fsencode(path)
        if name.startswith(b"/"):
            root = next((root for root in self._roots if name.startswith(root + b"/")), None)
            if root is None:
                _warn_once(f"paths that are not below {self._mountpoint} were announced; they are passed over")
                return b""
            name = name[len(root) + 1 :]
        name = self._folder + name
        return b"" if b"\0" in name or len(name) > MAX_PATH_BYTES else name + b"\0"

    def _connect(self, attempts: int = 1) -> None:
        """Connect and wait until it is our turn, or until `close`; a mount that is about to go on takes some attempts.

        Raises:
            MountError: why there will be none.
        """
        while not self._is_over.is_set():
            try:
                if self._reach_worker():
                    return
            except MountError:
                attempts -= 1
                if attempts == 0:
                    raise
                self._is_over.wait(_RETRY_PAUSE_S)

    def _reach_worker(self) -> bool:
        """Try each address once, and wait for our turn at the mount's; return False if there was no room at one.

        Before it is known whose they are, all of them together are waited for a moment only.

        Raises:
            MountError: as `_connect`.
        """
        is_full = False
        entry = find_mount(self._mountpoint)
        place = Path(os.path.realpath(self._mountpoint)) if entry is None else entry.path
        entry = entry or mount_holding(place)
        if entry is None or not entry.is_ours:
            raise MountError(f"nothing of fastfuse is mounted at {self._mountpoint}", hint="fastfuse mount mounts it")
        self._roots.add(os.fsencode(place))
        self._folder = os.fsencode(entry.root / place.relative_to(entry.path) / "_")[1:-1]
        found = addresses(hint_prefix(entry.device))
        for address in found:
            with suppress(ConnectionError, PermissionError):
                if not self._dial(address, _RETRY_PAUSE_S / len(found)):
                    is_full = True
                    continue
                # Whoever else listens there is told nothing. `close` may have come too early to shut it down.
                if peer_uid(self._connection) not in {0, entry.owner_uid} or self._is_over.is_set():
                    continue
                greeting = self._greeting(entry.path)
                if greeting == SERVED:
                    return True
                if greeting == REFUSED:
                    raise MountError(
                        f"the mount at {self._mountpoint} takes no hints from this user",
                        hint="mount it as this user, or with --allow-other",
                    )
        if not is_full:
            raise self._no_answer()
        return False

    def _greeting(self, place: Path) -> bytes:
        """Return what the worker says once it is our turn."""
        try:
            while self._meanwhile is not None:
                self._connection.settimeout(_TURN_S)
                with suppress(TimeoutError):
                    return self._connection.recv(1)
                self._meanwhile(place)
            return self._connection.recv(1)
        finally:
            self._connection.settimeout(None)

    def _dial(self, address: str, within_s: float) -> bool:
        """Connect, and return whether there was room; `close` does not end the wait for it."""
        self._hang_up()
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._connection = connection
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
        try:
            connect_in_turn(connection, address, within_s)
        except BlockingIOError:
            return False
        return True

    def _no_answer(self) -> MountError:
        return MountError(
            f"the mount at {self._mountpoint} takes no hints",
            hint="it may be dead, or be served in another network namespace: see its log",
        )

    def _hang_up(self) -> None:
        with self._lock:
            self._connection.close()


def _chunks(paths: Iterator[AnyPath]) -> Iterator[list[AnyPath]]:
    """Yield as many paths at once as come quickly, and hold none back for long: each chunk at most doubles the last."""
    count = 1
    while True:
        started_s = time.monotonic()
        chunk = list(islice(paths, count))
        if not chunk:
            return
        count = min(2 * count, _MAX_CHUNK_PATHS) if time.monotonic() - started_s < _QUICK_S else 1
        yield chunk


def _warn_once(message: str) -> None:
    if message not in _warned:
        _warned.add(message)
        _log.warning("%s", message)
