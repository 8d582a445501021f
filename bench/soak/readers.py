"""The readers of a soak: processes that read a mount in every way there is, and compare every byte.

Each notes in shared memory since when it is in a system call, so that the one who watches finds a reader that is stuck.
"""

import errno
import mmap
import multiprocessing
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import log2
from multiprocessing.connection import Connection
from pathlib import Path

from bench.processes import fork_with_pipe
from bench.soak.data import Kind, expected_bytes, is_size_right, version_of
from fastfuse.hints import order

# Buckets of latencies: so many for each doubling, that is 9 % wide.
_BUCKETS_A_DOUBLING = 8
_BLOCKS_BYTES = (4096, 65_536, 131_072, 1 << 20, 4 << 20)
# No reader stays with one large file for longer than this.
_MOST_BYTES_A_VISIT = 48 << 20
_READS_A_VISIT = 200
_SIGBUS_READS = 16


def bucket_of(latency_s: float) -> int:
    return int(log2(max(latency_s, 1e-7) * 1e7) * _BUCKETS_A_DOUBLING)


def latency_of(bucket: int) -> float:
    """Return the upper end of a bucket."""
    return float(2.0 ** ((bucket + 1) / _BUCKETS_A_DOUBLING) * 1e-7)


@dataclass(frozen=True, slots=True)
class Failure:
    """A read that failed, by its errno's name, `WRONG` or `SHORT`."""

    manner: str
    name: str
    key: str
    started_s: float
    ended_s: float
    detail: str = ""


# Wrong bytes, attributes or names.
WRONG = "WRONG"
# Right bytes, but too few: the kernel gives what it has when a later page cannot be had (read(2)).
SHORT = "SHORT"


@dataclass
class Share:
    """What one reader did; `latencies` counts by bucket, for each period of the run."""

    manner: str
    reads: int = 0
    read_bytes: int = 0
    slowest_s: float = 0.0
    latencies: dict[int, Counter[int]] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)


class Reader:
    """One reader, which visits files in its manner until it is told to end."""

    def __init__(self, manner: str, root: Path, kinds: list[Kind], seed: int, index: int, shared: "Shared") -> None:
        self._root = root
        self._kinds = kinds
        self._random = random.Random(seed)
        self._index = index
        self._shared = shared
        self._keys = {kind.prefix: kind.keys() for kind in kinds}
        self._key = ""
        self.share = Share(manner)

    def run(self) -> None:
        visit = MANNERS[self.share.manner]
        while not self._shared.is_over.value:
            try:
                visit(self)
            except OSError as error:
                self._fail(errno.errorcode.get(error.errno or 0, "other"))

    @contextmanager
    def call(self) -> Iterator[None]:
        """Time a call that reaches the mount, and count it as a read if it succeeds."""
        self._started_s = time.monotonic()
        self._shared.since_s[self._index] = self._started_s
        try:
            yield
        finally:
            took_s = time.monotonic() - self._started_s
            self._shared.since_s[self._index] = 0.0
            self.share.slowest_s = max(self.share.slowest_s, took_s)
        period = self._shared.period(self._started_s)
        self.share.latencies.setdefault(period, Counter())[bucket_of(took_s)] += 1

    def _fail(self, name: str, detail: str = "") -> None:
        failure = Failure(self.share.manner, name, self._key, self._started_s, time.monotonic(), detail)
        self.share.failures.append(failure)

    def check(self, got: bytes, version: int, start: int, end: int) -> None:
        self.share.reads += 1
        self.share.read_bytes += len(got)
        if got != expected_bytes(self._key, version, start, end):
            is_short = got == expected_bytes(self._key, version, start, min(end, start + len(got)))
            self._fail(SHORT if is_short else WRONG, f"version {version}, bytes {start}-{end}, got {len(got)}")

    @contextmanager
    def _opened(self, *prefixes: str, key: str = "") -> Iterator[tuple[int, int, int]]:
        """Open `key`, or an object below one of `prefixes` by chance; yield descriptor, version and size."""
        self._key = key or self._random.choice(self._keys[self._random.choice(prefixes)])
        with self.call():
            fd = os.open(self._root / self._key, os.O_RDONLY)
        try:
            with self.call():
                status = os.fstat(fd)
            version = version_of(status.st_mtime)
            if not is_size_right(self._kinds, self._key, version, status.st_size):
                self._fail(WRONG, f"version {version} with {status.st_size} bytes")
            yield fd, version, status.st_size
        finally:
            os.close(fd)

    def whole(self) -> None:
        for _ in range(_READS_A_VISIT):
            try:
                with self._opened("small/", "moving/") as (fd, version, size):
                    with self.call():
                        got = os.read(fd, size + 1)
                    self.check(got, version, 0, size)
            except OSError as error:
                self._fail(errno.errorcode.get(error.errno or 0, "other"))
            if self._shared.is_over.value:
                return

    def announced(self) -> None:
        """Read small objects in an order that is announced, from the page cache or past it, to the end or not."""
        keys = self._random.choices(self._keys["small/"] + self._keys["moving/"], k=_READS_A_VISIT)
        with order(keys, self._root):
            for key in keys:
                try:
                    with self._opened(key=key) as (fd, version, size):
                        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
                        block, start = self._random.choice(_BLOCKS_BYTES), self._random.choice((0, 0, 0, size // 2))
                        while start < size:
                            with self.call():
                                got = os.pread(fd, block, start)
                            self.check(got, version, start, min(start + block, size))
                            start += len(got) or block
                except OSError as error:
                    self._fail(errno.errorcode.get(error.errno or 0, "other"))
                if self._shared.is_over.value:
                    return

    def sequential(self) -> None:
        block = self._random.choice(_BLOCKS_BYTES)
        with self._opened("middle/", "large/") as (fd, version, size):
            start = 0
            while start < min(size, _MOST_BYTES_A_VISIT) and not self._shared.is_over.value:
                with self.call():
                    got = os.read(fd, block)
                self.check(got, version, start, min(start + block, size))
                start += len(got) or block

    def _span(self, size: int) -> tuple[int, int]:
        start = self._random.randrange(size)
        return start, min(size, start + 2 ** self._random.randrange(8, 20))

    def scattered(self) -> None:
        with self._opened("middle/", "large/", "moving/") as (fd, version, size):
            for _ in range(_READS_A_VISIT):
                start, end = self._span(size)
                with self.call():
                    got = os.pread(fd, end - start, start)
                self.check(got, version, start, end)
                if self._shared.is_over.value:
                    return

    def warm(self) -> None:
        """Read small pieces of one neighbourhood again and again, as a training job reads an index."""
        with self._opened("middle/") as (fd, version, size):
            base = self._random.randrange(max(1, size - (1 << 20)))
            for _ in range(_READS_A_VISIT * 10):
                start = min(size - 1, base + self._random.randrange(1 << 20))
                end = min(size, start + 4096)
                with self.call():
                    got = os.pread(fd, 4096, start)
                self.check(got, version, start, end)
                if self._shared.is_over.value:
                    return

    def vectored(self) -> None:
        with self._opened("middle/", "large/") as (fd, version, size):
            for _ in range(20):
                start, end = self._span(size)
                half = (end - start) // 2
                buffers = [bytearray(half), bytearray(end - start - half)]
                with self.call():
                    count = os.preadv(fd, buffers, start)
                self.check(b"".join(buffers)[:count], version, start, end)

    def sendfile(self) -> None:
        target = os.memfd_create("soak")
        try:
            with self._opened("middle/", "large/", "small/") as (fd, version, size):
                start, end = self._span(size)
                sent = 0
                while sent < end - start:
                    with self.call():
                        step = os.sendfile(target, fd, start + sent, end - start - sent)
                    if not step:
                        break
                    sent += step
                self.check(os.pread(target, end - start, 0), version, start, end)
        finally:
            os.close(target)

    def mapped(self) -> None:
        """Read mapped pages in a child: a page that cannot be had kills it with SIGBUS."""
        with self._opened("middle/", "large/") as (fd, version, size):
            spans = [self._span(size) for _ in range(_SIGBUS_READS)]
            with self.call():
                status = self._read_mapped(fd, version, spans)
            if status == 0:
                self.share.reads += len(spans)
                self.share.read_bytes += sum(end - start for start, end in spans)
            else:
                self._fail("EIO" if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGBUS else WRONG)

    def _read_mapped(self, fd: int, version: int, spans: list[tuple[int, int]]) -> int:
        child = os.fork()
        if not child:
            code = 1
            try:
                with mmap.mmap(fd, 0, prot=mmap.PROT_READ) as pages:
                    same = (pages[a:b] == expected_bytes(self._key, version, a, b) for a, b in spans)
                    code = 0 if all(same) else 1
            finally:
                os._exit(code)
        return os.waitpid(child, 0)[1]

    def found(self) -> None:
        """List a folder and look at each of its files, as `find -size` does."""
        kind = self._random.choice(self._kinds)
        self._key = kind.prefix
        with self.call():
            folders = sorted(os.listdir(self._root / kind.prefix))
        self._key = f"{kind.prefix}{self._random.choice(folders)}"
        with self.call():
            entries = list(os.scandir(self._root / self._key))
        if not kind.prefix.startswith("moving") and len(entries) != len(set(self._folder(kind, self._key))):
            self._fail(WRONG, f"{len(entries)} names")
        folder = self._key
        for entry in entries:
            self._key = f"{folder}/{entry.name}"
            with self.call():
                status = entry.stat()
            if not is_size_right(self._kinds, self._key, version_of(status.st_mtime), status.st_size):
                self._fail(WRONG, f"{status.st_size} bytes")

    def _folder(self, kind: Kind, folder: str) -> list[str]:
        return [key for key in self._keys[kind.prefix] if key.startswith(f"{folder}/")]


MANNERS: dict[str, Callable[[Reader], None]] = {
    "whole": Reader.whole,
    "announced": Reader.announced,
    "sequential": Reader.sequential,
    "scattered": Reader.scattered,
    "warm": Reader.warm,
    "vectored": Reader.vectored,
    "sendfile": Reader.sendfile,
    "mapped": Reader.mapped,
    "found": Reader.found,
}


class Shared:
    """What all readers and the one who watches them see."""

    def __init__(self, readers: int, period_s: float) -> None:
        self._started_s = time.monotonic()
        self._period_s = period_s
        self.is_over = multiprocessing.RawValue("b", 0)
        self.since_s = multiprocessing.RawArray("d", readers)

    def period(self, now_s: float) -> int:
        return int((now_s - self._started_s) / self._period_s)


class Readers:
    """One process for each manner of reading. Make it before this process has threads."""

    def __init__(self, root: Path, kinds: list[Kind], seed: int, manners: list[str], period_s: float) -> None:
        self._manners = manners
        self._shared = Shared(len(manners), period_s)
        self._readers = [
            fork_with_pipe(_read, manner, root, kinds, seed * 1000 + index, index, self._shared)
            for index, manner in enumerate(manners)
        ]

    def longest_call(self) -> tuple[float, str]:
        """Return for how many seconds the slowest call under way has lasted, and who makes it."""
        now_s = time.monotonic()
        calls = zip(self._shared.since_s, self._manners, strict=True)
        return max(((now_s - since_s, manner) for since_s, manner in calls if since_s), default=(0.0, ""))

    def end(self, timeout_s: float) -> tuple[list[Share], list[str]]:
        """Have the readers end; return what they did, and the manners of those that did not within `timeout_s`."""
        self._shared.is_over.value = 1
        until_s = time.monotonic() + timeout_s
        shares, stuck = [], []
        for manner, (process, pipe) in zip(self._manners, self._readers, strict=True):
            try:
                if pipe.poll(max(0.0, until_s - time.monotonic())):
                    shares.append(pipe.recv())
                else:
                    stuck.append(f"{manner} does not end")
            except EOFError:
                stuck.append(f"{manner} has died with {process.exitcode}")
        self.kill()
        return shares, stuck

    def kill(self) -> None:
        """End those that are left, whatever they do."""
        for process, pipe in self._readers:
            process.kill()
            process.join(1.0)
            pipe.close()


def _read(
    manner: str, root: Path, kinds: list[Kind], seed: int, index: int, shared: "Shared", result: Connection
) -> None:
    reader = Reader(manner, root, kinds, seed, index, shared)
    reader.run()
    result.send(reader.share)
