"""A bucket in this process and its mount in another, for one test."""

import mmap
import os
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.s3server import LoopbackServer, MemoryObjects, RequestRecord
from tests.mounting import Mount, mounted, run_fastfuse

BUCKET = "bucket"


@dataclass(frozen=True)
class Place:
    """What is served, who serves it, and where it is mounted."""

    objects: MemoryObjects
    server: LoopbackServer
    mount: Mount
    # Those that the mount has made until it was ready (L8).
    early_gets: int

    @property
    def path(self) -> Path:
        return self.mount.path

    def wait_for_gets(self, fewest: int) -> None:
        """Wait until readers have had so many objects asked for."""
        self.server.wait_until(lambda now: now.requests.get("GetObject", 0) >= self.early_gets + fewest, 60)


@contextmanager
def place(
    objects: MemoryObjects | Mapping[str, bytes] | Mapping[bytes, bytes],
    *options: str,
    uri: str = f"s3://{BUCKET}",
    change: str = "",
) -> Iterator[Place]:
    """Serve `objects` and mount them until the end of the block."""
    held = objects if isinstance(objects, MemoryObjects) else MemoryObjects(objects)
    with LoopbackServer({BUCKET: held}) as server, mounted(uri, server.endpoint_url, *options, change=change) as mount:
        yield Place(held, server, mount, server.statistics().requests.get("GetObject", 0))


def block_bytes(seed: int, size_bytes: int) -> bytes:
    """Bytes in which no page is like another, and of which nothing is zero for long."""
    numbers = np.arange(-(-size_bytes // 8), dtype="uint64") | np.uint64(seed + 1 << 32)
    return numbers.astype(">u8").tobytes()[:size_bytes]


def gets(here: Place) -> list[RequestRecord]:
    """The GETs of objects since the mount was ready."""
    return [record for record in here.server.requests if record.operation == "GetObject"][here.early_gets :]


def forget(path: Path) -> None:
    """Have the kernel drop what it holds of this mount that nobody uses; what it holds of others stays."""
    subprocess.run(["mount", "-i", "--options-mode=ignore", "-o", "remount,ro", path], check=True)


def direct_read(path: Path, size_bytes: int, offset: int = 0) -> bytes:
    """One read past the page cache: one request of the kernel, whose answer is the reader's."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        with mmap.mmap(-1, size_bytes) as buffer:
            return buffer[: os.preadv(descriptor, [buffer], offset)]
    finally:
        os.close(descriptor)


@contextmanager
def opened(path: Path, flags: int = os.O_RDONLY) -> Iterator[int]:
    """A descriptor whose mount may go away: then even closing it is an error."""
    file = os.open(path, flags)
    try:
        yield file
    finally:
        with suppress(OSError):
            os.close(file)


def errno_of(read: Callable[..., object], *arguments: object) -> int:
    """Return the errno that reading ends with; 0 where it succeeds."""
    try:
        read(*arguments)
    except OSError as error:
        return error.errno or -1
    return 0


def refresh(path: Path) -> str:
    """Refresh the mount, and return what the command says."""
    done = run_fastfuse("refresh", str(path))
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def tree(root: Path) -> dict[str, bytes]:
    """Return the content of every file by its path."""
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}
