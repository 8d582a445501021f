"""``python -m bench.download``: File mode beside GETs that go nowhere and beside ``cp``: MB/s and CPU seconds per GB.

Each round downloads to an empty directory. The server's CPU is not counted, but it takes its part of the machine; so
the rates are to be compared with those of the GETs in the same table. CPU is that of one process and its threads, which
leaves out what the kernel writes to the disk later.
"""

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import trio

from fastfuse.filesystem.children import fork_child
from fastfuse.index.inodes.table import InodeTable
from fastfuse.index.make import make_index
from fastfuse.index.origin import IndexOrigin
from fastfuse.index.snapshot import open_snapshot
from fastfuse.index.sources.uri import S3Uri
from fastfuse.s3.aws import S3Session
from fastfuse.s3.base import ConnectionConfig
from fastfuse.s3.client import S3Client
from fastfuse.sagemaker.download.file_channel import DownloadSettings, download_channel
from fastfuse.testing import Pace, ServerProcess

__all__ = ["main"]

_PART_BYTES = 8 << 20
_MEMORY_BYTES = 1 << 30
SOURCES = {
    "20 files of 110 MB": "count=20,size=110000000",
    "20,000 files of 39 KB": "count=20000,size=39000,layout=dirs,dirs=100",
}


class Cost(NamedTuple):
    elapsed_s: float
    cpu_s: float
    peak_bytes: int


def _cost(work: Callable[[], object]) -> Cost:
    """Of `work` in a process of its own."""
    started_s = time.perf_counter()
    _, status, usage = os.wait4(fork_child(work), 0)
    if status:
        raise SystemExit("it failed")
    return Cost(time.perf_counter() - started_s, usage.ru_utime + usage.ru_stime, usage.ru_maxrss << 10)


def _index(connection: ConnectionConfig, bucket: str) -> int:
    fd = os.memfd_create("bench")
    work = partial(make_index, S3Uri(bucket, ""), IndexOrigin(), S3Session(connection), fd)
    _cost(work)
    return fd


async def _get_all(table: InodeTable, connection: ConnectionConfig) -> None:
    reader = S3Client(S3Session(connection))
    limiter = trio.CapacityLimiter(connection.max_connections)

    async def get(inode: int, start: int, end: int) -> None:
        await reader.get(table.ref(inode), start, end)
        limiter.release_on_behalf_of((inode, start))

    async with trio.open_nursery() as nursery:
        for row in range(len(table)):
            inode, size_bytes = table.file_at(row) or (0, 0)
            for start in range(0, size_bytes, _PART_BYTES):
                await limiter.acquire_on_behalf_of((inode, start))
                nursery.start_soon(get, inode, start, min(start + _PART_BYTES, size_bytes))
    await reader.aclose()


def _download(fd: int, connection: ConnectionConfig, directory: Path) -> None:
    settings = DownloadSettings(
        directory=directory,
        memory_target_bytes=_MEMORY_BYTES,
        part_size_bytes=_PART_BYTES,
    )
    download_channel(fd, connection, settings, lambda _: None)


def _measure(source: str, pace: Pace, place: Path, rounds: int) -> None:
    with ServerProcess(source, workers=2, pace=pace) as server:
        connection = ConnectionConfig(endpoint_url=server.endpoint_url, region="us-east-1", sign_request=False)
        fd = _index(connection, server.bucket)
        table = open_snapshot(fd).table
        target, copy = place / "channel", place / "copy"
        works: dict[str, Callable[[], object]] = {
            "GETs to nowhere": lambda: trio.run(_get_all, table, connection),
            "download": partial(_download, fd, connection, target),
            "download again": partial(_download, fd, connection, target),
            "cp -r": lambda: os.execlp("cp", "cp", "-r", str(target), str(copy)),
        }
        for _ in range(rounds):
            for name, work in works.items():
                _print(name, _cost(work), table)
            for used in (target, copy):
                shutil.rmtree(used)


def _print(name: str, cost: Cost, table: InodeTable) -> None:
    gb, files = table.metadata.total_bytes / 1e9, table.metadata.file_count
    sys.stdout.write(
        f"{name:16} {cost.elapsed_s:7.2f} s {gb * 1e3 / cost.elapsed_s:8.0f} MB/s {files / cost.elapsed_s:8.0f} files/s"
        f" {cost.cpu_s / gb:6.2f} CPU s/GB {cost.cpu_s / files * 1e6:9.0f} µs/file {cost.peak_bytes >> 20:6} MiB peak\n"
    )
    sys.stdout.flush()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--place", type=Path, default=Path(tempfile.gettempdir()), help="where files are written")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--first-byte-delay-s", type=float, default=0.02)
    parser.add_argument("--rate-bytes-per-s", type=float, default=90e6)
    options = parser.parse_args()
    pace = Pace(first_byte_delay_s=options.first_byte_delay_s, rate_bytes_per_s=options.rate_bytes_per_s)
    for name, source in SOURCES.items():
        sys.stdout.write(f"== {name}\n")
        with tempfile.TemporaryDirectory(dir=options.place) as place:
            _measure(source, pace, Path(place), options.rounds)


if __name__ == "__main__":
    main()
