"""Runs ``fastfuse demo``: files are made, served by a local S3 server, mounted, read, checked and removed."""

import os
import select
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table
from xxhash import xxh3_64

from fastfuse import api
from fastfuse.errors import ConfigurationError
from fastfuse.filesystem.figures.status import summary_lines
from fastfuse.sizes import format_size

_BUCKET = "demo"
# One process serves while another waits for the disk or the GIL. More would take cores from the readers.
_SERVER_PROCESSES = 2
# Files are slices of one block: they must not compress, and need not be made anew.
_NOISE_BYTES = 16 << 20
# The bytes of one read, as of a data loader with a sensible buffer.
_READ_BYTES = 1 << 20
_FILES_PER_FOLDER = 1000
# At most so many files that failed are named.
_FAILURES_SHOWN = 10
_END_WITHIN_S = 15.0
_INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoSettings:
    """The files that `fastfuse demo` makes, and how many are read at once."""

    shard_count: int
    shard_bytes: int
    small_file_count: int
    small_file_bytes: int
    reader_count: int


class DataFile(NamedTuple):
    """A file by its path below the mount, with the XXH3 of its bytes."""

    name: str
    size_bytes: int
    digest: int


class Pass(NamedTuple):
    """The figures of reading some files once."""

    size_bytes: int
    elapsed_s: float
    # The median over the files, from before open to the first byte.
    first_byte_s: float
    failures: list[str]


def run(settings: DemoSettings) -> int:
    """Show a mount at work; return 0 if every file had the right bytes, else 1.

    No mount, no process and no file is left behind, whatever happens.

    Raises:
        FastfuseError: the mount could not be started.
    """
    console = Console(highlight=False, markup=False, soft_wrap=not sys.stdout.isatty())
    try:
        with _interruptible(), ExitStack() as stack:
            return _show(settings, console, stack)
    except KeyboardInterrupt:
        console.print("interrupted; everything is cleaned up", style="yellow")
        return 128 + signal.SIGINT


def _show(settings: DemoSettings, console: Console, stack: ExitStack) -> int:
    place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fastfuse-demo-")))
    data, root = place / "data", place / "mount"
    console.print(
        f"==> making {settings.shard_count:,} shards of {format_size(settings.shard_bytes)} and "
        f"{settings.small_file_count:,} files of {format_size(settings.small_file_bytes)} in {data}",
        style="bold",
    )
    require_space(place, settings)
    shards = make_files(data, "shards", settings.shard_count, settings.shard_bytes)
    small = make_files(data, "small", settings.small_file_count, settings.small_file_bytes)
    with _uninterrupted():
        endpoint_url = stack.enter_context(_served(data))
        console.print(f"    served at {endpoint_url} by python -m fastfuse.demo_server")
        console.print(f"==> fastfuse mount s3://{_BUCKET} {root}", style="bold")
        stack.enter_context(_mounted(endpoint_url, root))
    console.print(f"    {_count(root, 'fastfuse_table_files'):,} objects listed")
    passes = (
        ("one shard", shards[:1], 1),
        ("other shards", shards[1:], settings.reader_count),
        ("small files", small, settings.reader_count),
        ("all again", [*shards, *small], settings.reader_count),
    )
    table = Table(
        "", *("readers", "files", "MB", "seconds", "MB/s", "files/s", "first byte", "GETs"), box=None, pad_edge=False
    )
    for column in table.columns[1:]:
        column.justify = "right"
    failures: list[str] = []
    for name, files, readers in passes:
        if files:
            console.print(f"==> reading {name}: {len(files):,}, {readers} at once", style="bold")
            gets_before = _count(root, "fastfuse_fetch_requests")
            done = read_files(root, files, readers)
            gets = _count(root, "fastfuse_fetch_requests") - gets_before
            table.add_row(
                *(name, f"{min(readers, len(files)):,}", f"{len(files):,}", f"{done.size_bytes / 1e6:,.0f}"),
                *(f"{done.elapsed_s:.2f}", f"{done.size_bytes / done.elapsed_s / 1e6:,.0f}"),
                *(f"{len(files) / done.elapsed_s:,.0f}", f"{done.first_byte_s * 1e3:.1f} ms", f"{gets:,}"),
            )
            failures += done.failures
    console.print("", table, "", *summary_lines(api.stats(root)["summary"]), sep="\n")
    _conclude(console, failures, sum(len(files) for _, files, _ in passes))
    console.print(f"==> unmounting {root} and removing {place}", style="bold")
    return 1 if failures else 0


def _conclude(console: Console, failures: Sequence[str], reads: int) -> None:
    if not failures:
        console.print(f"    every checksum matched: {reads:,} reads of whole files", style="green")
        return
    console.print(f"==> {len(failures):,} reads were not what they must be", style="bold red")
    for line in failures[:_FAILURES_SHOWN]:
        console.print(f"    {line}", style="red", soft_wrap=True)


def require_space(directory: Path, settings: DemoSettings) -> None:
    """Raise `ConfigurationError` unless the files fit on the file system of `directory`."""
    size_bytes = settings.shard_count * settings.shard_bytes + settings.small_file_count * settings.small_file_bytes
    free_bytes = shutil.disk_usage(directory).free
    if free_bytes < size_bytes:
        raise ConfigurationError(
            f"the demo's data set takes {format_size(size_bytes)} and {directory} has {format_size(free_bytes)} free",
            hint="lower --shards, --shard-size or --small-files, or name another directory in TMPDIR",
        )


def make_files(directory: Path, kind: str, count: int, size_bytes: int) -> list[DataFile]:
    """Write `count` files of noise below `directory`, in folders of a thousand."""
    random = np.random.default_rng(len(kind))
    block = memoryview(random.bytes(_NOISE_BYTES))
    files = []
    for number in range(count):
        name = f"{kind}/{number // _FILES_PER_FOLDER:04d}/{number:08d}.bin"
        path, digest, left_bytes = directory / name, xxh3_64(), size_bytes
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb", buffering=0) as file:
            while left_bytes:
                start = int(random.integers(_NOISE_BYTES // 2))
                piece = block[start : start + min(left_bytes, _NOISE_BYTES // 2)]
                left_bytes -= file.write(piece)
                digest.update(piece)
        files.append(DataFile(name, size_bytes, digest.intdigest()))
    return files


def read_files(root: Path, files: Sequence[DataFile], readers: int) -> Pass:
    """Read every file below `root` to its end, `readers` at once, and compare it with its digest.

    An interrupt ends every reader after the block that it is reading.
    """
    interrupted = threading.Event()
    with ThreadPoolExecutor(readers) as executor:
        began_s = time.perf_counter()
        try:
            read = list(executor.map(partial(_read_file, root, interrupted), files))
        except BaseException:
            interrupted.set()
            raise
        elapsed_s = time.perf_counter() - began_s
    return Pass(
        sum(file.size_bytes for file in files),
        elapsed_s,
        statistics.median(first_byte_s for first_byte_s, _ in read),
        [failure for _, failure in read if failure],
    )


def _read_file(root: Path, interrupted: threading.Event, file: DataFile) -> tuple[float, str]:
    """Return the time to the first byte, and what is wrong with the file."""
    began_s, digest, size_bytes = time.perf_counter(), xxh3_64(), 0
    try:
        with open(root / file.name, "rb", buffering=0) as opened:
            os.pread(opened.fileno(), 1, 0)
            first_byte_s = time.perf_counter() - began_s
            while (block := opened.read(_READ_BYTES)) and not interrupted.is_set():
                size_bytes += len(block)
                digest.update(block)
    except OSError as error:
        return 0.0, f"{file.name}: {error.strerror}"
    if (size_bytes, digest.intdigest()) == file[1:]:
        return first_byte_s, ""
    return first_byte_s, f"{file.name}: {size_bytes:,} bytes of {file.size_bytes:,}, or other bytes, were read"


@contextmanager
def _served(directory: Path) -> Iterator[str]:
    """Serve `directory` as a bucket until the end of the block, and yield the URL of the server."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        # -P: a file of the working directory must not take the place of a module.
        command = [sys.executable, "-P", "-m", "fastfuse.demo_server", str(directory), str(listener.fileno())]
        # Standard input is a pipe that nothing is written to: it ends, and the server with it, when this process ends.
        servers = [
            subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[listener.fileno()])
            for _ in range(_SERVER_PROCESSES)
        ]
        endpoint_url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    try:
        yield endpoint_url
    finally:
        for server in servers:
            with server:
                server.kill()


@contextmanager
def _mounted(endpoint_url: str, root: Path) -> Iterator[None]:
    """Mount the local server's bucket at `root`, and wait at the end until the daemon that serves it is gone."""
    options: dict[str, api.Option] = {"region": "us-east-1", "force_path_style": True, "no_sign_request": True}
    with api.mount(f"s3://{_BUCKET}", root, endpoint_url=endpoint_url, **options):
        pid = api.stats(root)["pid"]
        yield
    with suppress(OSError):  # it has ended
        select.select([os.pidfd_open(pid)], [], [], _END_WITHIN_S)


def _count(root: Path, name: str) -> int:
    """Return what the mount has counted in a metric, with all its labels."""
    counters = api.stats(root)["counters"]
    return int(sum(number for key, number in counters.items() if key.partition("{")[0] == name))


@contextmanager
def _interruptible() -> Iterator[None]:
    """Raise `KeyboardInterrupt` for the first signal that asks for an end; others must not disturb the cleaning up."""

    def interrupt(*_: object) -> None:
        for number in _INTERRUPTS:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in _INTERRUPTS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Let signals wait. Processes that are started meanwhile do not get them: Ctrl-C is sent to all of a terminal's."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _INTERRUPTS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
