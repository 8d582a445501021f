"""``python -m bench.pipe``: a channel in Pipe mode beside raw GETs, each cold, alternately; medians of the runs.

With them a FIFO alone: bytes from memory to the same reader, which is the most that any writer could bring through it.
Where the host takes free pages back, that is not the same from run to run, as each page of a pipe is a new one.

The reader is that of SageMaker's own examples: ``readinto`` with a buffer of 16 MiB, until the end of the epoch.
"""

import argparse
import fcntl
import json
import os
import select
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.processes import cpu_seconds, peak_pss_bytes
from bench.profiles import PROFILES
from bench.readers import read_raw
from bench.reading import RawAccess, Span
from bench.server import Server
from fastfuse.filesystem.children import fork_child, wait_child
from fastfuse.index.make import make_index
from fastfuse.index.origin import IndexOrigin
from fastfuse.index.snapshot import open_snapshot
from fastfuse.index.sources.uri import S3Uri
from fastfuse.s3.aws import S3Session
from fastfuse.s3.base import ConnectionConfig
from fastfuse.sagemaker.description.channel import Channel, InputMode
from fastfuse.sagemaker.pipe.pipe_channel import PipeSettings, stream_channel

__all__ = ["Figures", "main", "measure_fifo", "measure_pipe", "measure_raw"]

# As a channel writes, from memory that is no more in the processor's cache than parts are.
_WRITE_BYTES = 512 << 10
_MEMORY_BYTES = 256 << 20

WORKLOADS = {
    # 2 GiB in 20 shards of 110 MB, and 20,000 files of 39 KB.
    "shards": "count=20,size=107374182,layout=flat",
    "small": "count=20000,size=39000,layout=flat",
}
_READER = """
import json, os, sys, time
began = time.monotonic()
buffer, total, first_s = bytearray(16777216), 0, None
with open(sys.argv[1], "rb", buffering=0) as fifo:
    while count := fifo.readinto(buffer):
        first_s = first_s or time.monotonic() - began
        total += count
spent = os.times()
print(json.dumps([total, time.monotonic() - began, first_s, spent.user + spent.system]))
"""


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one run; CPU seconds of whoever fetches, without the reader and without the server."""

    size_bytes: int
    elapsed_s: float
    first_s: float
    cpu_s: float
    peak_bytes: int

    def __str__(self) -> str:
        return (
            f"{self.size_bytes / self.elapsed_s / 1e6:7.0f} MB/s  {self.cpu_s / self.size_bytes * 1e9:5.2f} CPU s/GB  "
            f"first bytes after {self.first_s * 1e3:4.0f} ms  {self.peak_bytes >> 20:5d} MiB"
        )


@contextmanager
def _index(server: Server) -> Iterator[int]:
    fd = os.memfd_create("index")
    connection = _connection(server)

    def work() -> None:
        make_index(S3Uri.parse(f"s3://{server.bucket}/"), IndexOrigin(), S3Session(connection), fd)

    if wait_child(fork_child(work)):
        raise RuntimeError("there is no index")
    try:
        yield fd
    finally:
        os.close(fd)


def _connection(server: Server) -> ConnectionConfig:
    return ConnectionConfig(
        endpoint_url=server.endpoint_url,
        region="us-east-1",
        sign_request=False,
        force_path_style=True,
        ca_bundle=str(server.ca_bundle) if server.ca_bundle else None,
    )


def measure_pipe(server: Server, fd: int, memory_bytes: int) -> Figures:
    """One epoch, the FIFO being there before it begins."""
    with tempfile.TemporaryDirectory() as place:
        channel = Channel(name="train", input_mode=InputMode.PIPE, source=S3Uri.parse(f"s3://{server.bucket}/"))
        settings = PipeSettings(
            channel=channel,
            connection=_connection(server),
            directory=Path(place),
            memory_target_bytes=memory_bytes,
        )
        ready_fd, told_fd = os.pipe()

        def ready() -> None:
            os.close(told_fd)

        child = fork_child(lambda: stream_channel(fd, settings, ready=ready, report=lambda _: None))
        os.close(told_fd)
        os.read(ready_fd, 1)
        os.close(ready_fd)
        total, elapsed_s, first_s = _read(Path(place, "train_0"))
        cpu_s, peak_bytes = cpu_seconds(child), peak_pss_bytes(child)
        os.kill(child, signal.SIGTERM)
        wait_child(child)
    return Figures(total, elapsed_s, first_s, cpu_s, peak_bytes)


def measure_fifo(size_bytes: int) -> Figures:
    """So many bytes from memory, with nothing to do but to write them."""
    with tempfile.TemporaryDirectory() as place:
        path = Path(place, "fifo")
        os.mkfifo(path)
        ready_fd, told_fd = os.pipe()
        child = fork_child(lambda: _write(path, size_bytes, told_fd))
        os.close(told_fd)
        os.read(ready_fd, 1)
        os.close(ready_fd)
        total, elapsed_s, first_s = _read(path)
        cpu_s = cpu_seconds(child)  # also where it has ended: nobody has waited for it yet
        wait_child(child)
    return Figures(total, elapsed_s, first_s, cpu_s, _MEMORY_BYTES)


def _read(path: Path) -> tuple[int, float, float]:
    """Bytes; seconds until all, and until the first of them."""
    command = [sys.executable, "-c", _READER, str(path)]
    run = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    total, elapsed_s, first_s, _ = json.loads(run.stdout)
    return total, elapsed_s, first_s


def _write(path: Path, size_bytes: int, told_fd: int) -> None:
    memory = memoryview(bytearray(b"x") * _MEMORY_BYTES)
    os.close(told_fd)
    fd = os.open(path, os.O_WRONLY)
    fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, 1 << 20)
    os.set_blocking(fd, False)
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    done = 0
    while done < size_bytes:
        begin = done % _MEMORY_BYTES
        try:
            done += os.write(fd, memory[begin : begin + min(_WRITE_BYTES, size_bytes - done)])
        except BlockingIOError:
            poll.poll()


def measure_raw(server: Server, spans: list[Span]) -> Figures:
    """As many GETs at once as the channel may have, of parts as large, thrown away."""
    access = RawAccess(
        endpoint_url=server.endpoint_url,
        bucket=server.bucket,
        ca_bundle=server.ca_bundle,
        part_bytes=8 << 20,
        requests_in_flight=64,
    )
    (outcome,) = read_raw(access, [spans])
    elapsed_s = outcome.ended_s - outcome.started_s
    return Figures(outcome.size_bytes, elapsed_s, 0.0, outcome.cpu_s, outcome.peak_bytes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--profile", choices=PROFILES, default="s3")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--memory-mib", type=int, default=1024)
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    options = parser.parse_args()
    for name in options.workloads:
        found: dict[str, list[Figures]] = {"raw": [], "fifo": [], "pipe": []}
        with Server(WORKLOADS[name], profile=PROFILES[options.profile]) as server, _index(server) as fd:
            table = open_snapshot(fd).table
            sizes = {table.key(inode): table.attributes(inode).size_bytes for inode in range(2, len(table) + 1)}
            spans = [Span(key, 0, size_bytes) for key, size_bytes in sizes.items()]
            for _ in range(options.runs):
                found["raw"].append(measure_raw(server, spans))
                found["fifo"].append(measure_fifo(sum(sizes.values())))
                found["pipe"].append(measure_pipe(server, fd, options.memory_mib << 20))
        for kind, figures in found.items():
            for one in figures:
                print(f"{options.profile} {name:6} {kind:4} {one}", flush=True)
        rates = {kind: statistics.median(one.size_bytes / one.elapsed_s for one in figures)
                 for kind, figures in found.items()}  # fmt: skip
        print(
            f"{options.profile} {name}: Pipe {rates['pipe'] / rates['raw']:.2f} of raw GETs, "
            f"a FIFO alone {rates['fifo'] / rates['raw']:.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
