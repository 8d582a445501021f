"""Announce in which order files of a mount will be opened, so that they are fetched ahead although it is shuffled.

For training scripts, in three ways; each needs nothing but the standard library::

    with fastfuse.hints.order(paths, "/mnt/train"):        # around whatever opens them
        ...
    sampler = fastfuse.hints.HintedSampler(sampler, paths, "/mnt/train")   # for PyTorch's DataLoader(sampler=...)
    $ shuf files | fastfuse hint /mnt/train                # from a shell

A hint never fails a training: without a mount, without permission, out of reach (the mount must be in the same network
namespace) the files are read all the same, only not ahead, and one log line says so. What is said over the socket is
described in `fastfuse/filesystem/processes/sockets.py`.
"""

import io
import logging
import os
import socket
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from fastfuse.errors import MountError
from fastfuse.filesystem.mounting.mountpoint import find_mount
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

__all__ = ["HintedSampler", "hand_over", "order", "paths_in"]

AnyPath: TypeAlias = str | bytes | os.PathLike[str] | os.PathLike[bytes]

_log = logging.getLogger(__name__)

# What the kernel may hold of an order that its reader has not asked for yet; the rest stays with whoever makes it.
_SEND_BUFFER_BYTES = 16 << 10

# So many paths are sent at once where they are quick to make. Each send gives up the interpreter's lock, and a busy
# training script takes 5 ms to give it back (sys.getswitchinterval).
_MAX_CHUNK_PATHS = 256
# Where they are made as they are needed they are sent one by one, and none waits for the next.
_QUICK_S = 0.005

_READ_BYTES = 64 << 10

# A worker's death is over in less than a second, its mount's new start in a few.
_ATTEMPTS = 10
_RETRY_PAUSE_S = 0.5

# The paths that are sent again to the next worker: fewer than one takes before any is read (readahead/announced.py), so
# that it comes to those that are not read yet. With 100 bytes each they take 10 MB.
_SENT_AGAIN_PATHS = 64_000

# The samples that are drawn and announced before a data loader asks for them: as many files as may be fetched ahead
# (readahead/shelves.py). A mount takes more before their readers open any, so it never waits for a sampler.
_LOOK_AHEAD_SAMPLES = 16 << 10
# The samples that wait to be sent. A loader may draw a whole epoch before its workers open a file; beyond this number
# the samples of a longer epoch are not announced, so that an endless sampler that nobody hears takes no more memory.
_MAX_UNSENT_SAMPLES = 1 << 20

# For the thread to see that it is over; it does not while it waits for the next of somebody's paths.
_JOIN_S = 1.0

# Orders may wait for their turn for as long as others are taken.
_TURN_S = 20.0

_warned: set[str] = set()


@contextmanager
def order(paths: Iterable[AnyPath], mountpoint: AnyPath) -> Iterator[None]:
    """Within the block `paths` are fetched ahead, in this order, as far as the mount's memory allows.

    They are absolute below `mountpoint`, or relative to it; what is not there is passed over. They are taken one by one
    from a thread of their own, no faster than files are opened, so an endless iterator will do.

    Raises:
        NotADirectoryError: `mountpoint` is none. Nothing else is raised, before, in or after the block.
    """
    sender = _Sender(paths, _directory(mountpoint))
    sender.start()
    try:
        yield
    finally:
        sender.close()


def hand_over(paths: Iterable[AnyPath], mountpoint: AnyPath, *, meanwhile: Callable[[], object] | None = None) -> None:
    """Announce `paths` as `order` does, and return when the last is taken; the order then stands until the worker ends.

    `meanwhile` is called after each 20 s in which the turn of this order has not come, and may raise an error.

    Raises:
        MountError: there is no mount of fastfuse, nobody listens, or it does not listen to this user.
    """
    sender = _Sender(paths, Path(os.path.abspath(os.fsdecode(mountpoint))), meanwhile)
    try:
        sender.send()
        sender.finish()
    finally:
        sender.close()


def paths_in(listing: io.BufferedReader, end: bytes) -> Iterator[bytes]:
    """The paths of a list in which `end` ends each, as they come; empty ones are left out."""
    rest = b""
    while received := listing.read1(_READ_BYTES):
        *paths, rest = (rest + received).split(end)
        yield from filter(None, paths)
    if rest:
        yield rest


_Key = TypeVar("_Key", contravariant=True)


class _Paths(Protocol[_Key]):
    """A list, an array, a mapping: whatever knows the path of a sample."""

    def __getitem__(self, index: _Key, /) -> Any: ...  # noqa: ANN401 -- a path, be it in an array's own type


_Sample = TypeVar("_Sample")


class HintedSampler(Generic[_Sample]):
    """A PyTorch sampler that announces the files of an epoch in the order in which it draws them.

    ``DataLoader(dataset, sampler=HintedSampler(sampler, paths, mountpoint), num_workers=...)`` announces
    ``paths[sample]`` for each sample. The first 16,384 samples of `sampler` are drawn and announced at the start of the
    epoch, and then one more for each that the loader takes, so an endless sampler will do. Whatever else `sampler` has,
    such as ``set_epoch``, is there as well. One epoch at a time: the next one withdraws what is left of the last.

    Raises:
        NotADirectoryError: `mountpoint` is none.
    """

    def __init__(self, sampler: Iterable[_Sample], paths: _Paths[_Sample], mountpoint: AnyPath) -> None:
        self._sampler = sampler
        self._paths = paths
        self._mountpoint = _directory(mountpoint)
        self._withdraw: weakref.finalize[Any, Any] | None = None

    def __iter__(self) -> Iterator[_Sample]:
        samples = iter(self._sampler)
        ahead = deque(islice(samples, _LOOK_AHEAD_SAMPLES))
        if self._withdraw is not None:
            self._withdraw()
        epoch = _Epoch(self._paths, self._mountpoint)
        # Not at the end of the iteration: a loader draws long before its workers have opened what it drew.
        self._withdraw = weakref.finalize(self, epoch.withdraw)
        epoch.announce(ahead)
        is_whole = False
        try:
            if len(ahead) == _LOOK_AHEAD_SAMPLES:
                for sample in samples:
                    epoch.announce([sample])
                    ahead.append(sample)
                    yield ahead.popleft()
            epoch.end()
            yield from ahead
            is_whole = True
        finally:
            if not is_whole:
                epoch.withdraw()

    def __len__(self) -> int:
        if not isinstance(self._sampler, Sized):
            raise TypeError(f"the sampler {self._sampler!r} has no length")
        return len(self._sampler)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 -- whatever the sampler has
        if name.startswith("_"):  # also `_sampler` itself, in an object that is just being unpickled
            raise AttributeError(name)
        return getattr(self._sampler, name)


class _Epoch(Generic[_Sample]):
    """The samples of one epoch on their way from the thread that draws them to the one that sends their paths."""

    def __init__(self, paths: _Paths[_Sample], mountpoint: Path) -> None:
        # None at its end.
        self._unsent: SimpleQueue[tuple[_Sample] | None] = SimpleQueue()
        self._sender = _Sender((paths[sample] for (sample,) in iter(self._unsent.get, None)), mountpoint)
        self._sender.start()

    def announce(self, samples: Iterable[_Sample]) -> None:
        for sample in samples:
            if self._unsent.qsize() < _MAX_UNSENT_SAMPLES:
                self._unsent.put((sample,))

    def end(self) -> None:
        """Say that no sample follows: the sender holds back up to 255 paths while it waits for the next."""
        self._unsent.put(None)

    def withdraw(self) -> None:
        self.end()
        self._sender.close()


class _Sender:
    """One order on its way to the mount, through one connection at a time."""

    def __init__(
        self, paths: Iterable[AnyPath], mountpoint: Path, meanwhile: Callable[[], object] | None = None
    ) -> None:
        self._meanwhile = meanwhile
        self._paths = iter(paths)
        self._mountpoint = mountpoint
        # What stands before an absolute path: the mountpoint, as it was given and without links.
        self._roots = {os.fsencode(mountpoint)}
        # Where a folder of the file system is mounted (``mount --bind``), and not the whole: it, with its slash.
        self._folder = b""
        self._is_over = threading.Event()
        # A worker that dies takes along what was sent last.
        self._sent: deque[bytes] = deque(maxlen=_SENT_AGAIN_PATHS)
        # Guards the connection: it is made in one thread and shut down by another.
        # A sampler that is collected closes in any of them.
        self._lock = threading.RLock()
        self._connection: socket.socket | None = None
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()

    def start(self) -> None:
        """Send from a thread, until `close`."""
        self._thread = threading.Thread(target=self._send_quietly, name="fastfuse-hints", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """The order is over."""
        if os.getpid() != self._pid:
            return  # a forked data loader's copy of an order that its parent goes on with
        self._is_over.set()
        with self._lock:
            if self._connection is not None:
                # Not only closed: forked processes may hold the descriptor, too, and a thread may wait in it.
                with suppress(OSError):
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
                self._connected().sendall(b"".join(lines), socket.MSG_NOSIGNAL)
            except OSError:
                self._send_again()

    def _send_again(self) -> None:
        """Go on with the next worker, unless it is over; raise `MountError` if there is none."""
        while not self._is_over.is_set():
            self._connect_again()
            with suppress(OSError):
                self._connected().sendall(b"".join(self._sent), socket.MSG_NOSIGNAL)
                return

    def _stay(self) -> None:
        """Send all again to each next worker, until `close`, or until there is none."""
        with suppress(MountError):
            while not self._is_over.is_set():
                with suppress(OSError):
                    self._connected().recv(1)  # until the worker hangs up
                if not self._is_over.wait(_RETRY_PAUSE_S):
                    self._send_again()

    def finish(self) -> None:
        """Say that this was the whole order, and wait until it is taken.

        If a worker dies before that, the next one gets the last paths again.
        """
        for _ in range(_ATTEMPTS):
            with suppress(OSError):
                self._connected().shutdown(socket.SHUT_WR)
                if self._connected().recv(1) == TAKEN:
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
        """What is sent for `path`; nothing if it cannot be in the mount."""
        name = os.fsencode(path)
        if name.startswith(b"/"):
            root = next((root for root in self._roots if name.startswith(root + b"/")), None)
            if root is None:
                _warn_once(f"paths that are not below {self._mountpoint} were announced; they are passed over")
                return b""
            name = name[len(root) + 1 :]
        name = self._folder + name
        return b"" if b"\0" in name or len(name) > MAX_PATH_BYTES else name + b"\0"

    def _connected(self) -> socket.socket:
        assert self._connection is not None
        return self._connection

    def _connect(self) -> None:
        """Connect and wait until it is our turn, or until `close`.

        Raises:
            MountError: why there will be none.
        """
        while not self._is_over.is_set() and not self._is_served():
            pass

    def _is_served(self) -> bool:
        """Try each address once, and wait for our turn at the mount's; return False if there was no room at one.

        Before it is known whose they are, all of them together are waited for a moment only.

        Raises:
            MountError: as `_connect`.
        """
        is_full = False
        entry = find_mount(self._mountpoint)
        if entry is None or not entry.is_ours:
            raise MountError(f"nothing of fastfuse is mounted at {self._mountpoint}", hint="fastfuse mount mounts it")
        self._roots.add(os.fsencode(entry.path))
        self._folder = os.fsencode(entry.root / "_")[1:-1]
        found = addresses(hint_prefix(entry.device))
        for address in found:
            with suppress(ConnectionError, PermissionError):
                if not self._dial(address, _RETRY_PAUSE_S / len(found)):
                    is_full = True
                    continue
                # Whoever else listens there is told nothing. `close` may have come too early to shut it down.
                if peer_uid(self._connected()) not in {0, entry.owner_uid} or self._is_over.is_set():
                    continue
                greeting = self._greeting()
                if greeting == SERVED:
                    return True
                if greeting == REFUSED:
                    raise MountError(
                        f"the mount at {self._mountpoint} takes no hints from this user",
                        hint="mount it as this user, or with --allow-other",
                    )
        if not is_full and not self._is_over.is_set():
            raise self._no_answer()
        return False

    def _greeting(self) -> bytes:
        """Return what the worker says once it is our turn."""
        connection = self._connected()
        try:
            while self._meanwhile is not None:
                connection.settimeout(_TURN_S)
                with suppress(TimeoutError):
                    return connection.recv(1)
                self._meanwhile()
            return connection.recv(1)
        finally:
            connection.settimeout(None)

    def _dial(self, address: str, within_s: float) -> bool:
        """Connect, and return whether there was room; `close` does not end the wait for it."""
        self._hang_up()
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with self._lock:
            self._connection = connection
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
        try:
            connect_in_turn(connection, address, within_s)
        except BlockingIOError:
            return False
        return True

    def _connect_again(self) -> None:
        """As `_connect`, for a mount that is about to go on."""
        for _ in range(_ATTEMPTS - 1):
            try:
                self._connect()
                return
            except MountError:
                if self._is_over.wait(_RETRY_PAUSE_S):
                    return
        self._connect()

    def _no_answer(self) -> MountError:
        return MountError(
            f"the mount at {self._mountpoint} takes no hints",
            hint="it may be dead, or be served in another network namespace: see its log",
        )

    def _hang_up(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None


def _chunks(paths: Iterator[AnyPath]) -> Iterator[list[AnyPath]]:
    """As many at once as come quickly, but none held back for long, nor more than went before it."""
    count = 1
    while True:
        started_s = time.monotonic()
        chunk = list(islice(paths, count))
        if not chunk:
            return
        count = min(2 * count, _MAX_CHUNK_PATHS) if time.monotonic() - started_s < _QUICK_S else 1
        yield chunk


def _directory(mountpoint: AnyPath) -> Path:
    place = Path(os.path.abspath(os.fsdecode(mountpoint)))
    # Whatever is mounted is one, and is not looked at: it may be dead.
    if find_mount(place) is None and not place.is_dir():
        raise NotADirectoryError(f"{place} is no directory, so nothing can be mounted there")
    return place


def _warn_once(message: str) -> None:
    if message not in _warned:
        _warned.add(message)
        _log.warning("%s", message)
