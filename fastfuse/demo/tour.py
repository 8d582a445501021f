"""Runs the demo: make the files or take a bucket of the user's, mount, read, check, report, clean up."""

import os
import shlex
import signal
import stat
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex
from types import FrameType

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fastfuse.demo.dataset import DataFile, Ledger, Pass, create_shards, create_small_files, read_files, require_space
from fastfuse.demo.mounting import MountProcess, connection_arguments, peak_memory_bytes
from fastfuse.errors import FastfuseError
from fastfuse.index.sources.uri import S3Uri
from fastfuse.s3.base import ConnectionConfig
from fastfuse.sizes import MIB, format_size
from fastfuse.terminal import can_redraw
from fastfuse.testing.process import ServerProcess

__all__ = ["DemoSettings", "Reporter", "Source", "files_below", "open_source", "run"]

# At most so many files that failed are named.
_FAILURES_SHOWN = 10


class Reporter:
    """Writes to standard output: in colour on a terminal, plainly elsewhere."""

    def __init__(self) -> None:
        self._console = Console(highlight=False)

    @contextmanager
    def step(self, text: str) -> Iterator[None]:
        """Print the step that begins; on a terminal with a spinner until it is done."""
        self.say(f"==> {text}", style="bold")
        # "line": not every encoding has the characters of the other spinners.
        with self._console.status("working", spinner="line") if can_redraw(self._console) else nullcontext():
            yield

    def say(self, text: str, style: str = "") -> None:
        # Printed without markup: object keys may have brackets.
        self._console.print(Text(text, style=style), soft_wrap=True)

    def table(self, rows: Sequence[tuple[str, Pass, int]]) -> None:
        """Print a row for each pass: its name, its figures, and the number of its GETs."""
        table = Table(box=None, pad_edge=False)
        table.add_column("")
        for heading in ("readers", "files", "MB", "seconds", "MB/s", "files/s", "first byte", "GETs"):
            table.add_column(heading, justify="right")
        for name, done, requests in rows:
            table.add_row(
                name,
                f"{done.readers:,}",
                f"{done.files:,}",
                f"{done.size_bytes / 1e6:,.0f}",
                f"{done.elapsed_s:.2f}",
                f"{done.size_bytes / done.elapsed_s / 1e6:,.0f}",
                f"{done.files / done.elapsed_s:,.0f}",
                f"{done.first_byte_s * 1e3:.1f} ms",
                f"{requests:,}",
            )
        self._console.print()
        self._console.print(table)
        self._console.print()


# Larger files of a real bucket are read as shards are; the mount fetches smaller ones with one request each.
SHARD_MIN_BYTES = 8 * MIB
# One process serves while another waits for the disk or the GIL. More would take cores from the readers.
_SERVER_PROCESSES = 2

_BUCKET = "demo"


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoSettings:
    """The settings of `fastfuse demo`: what it makes, reads and leaves behind."""

    # The data set of the built-in server: sequential shards, and many small files.
    shard_count: int
    shard_bytes: int
    small_file_count: int
    small_file_bytes: int
    reader_count: int
    # Leave the mount and the server up until interrupted, to look around.
    keep: bool
    # Read this instead of the built-in server's data set.
    source: S3Uri | None
    connection: ConnectionConfig
    # The environment of the processes that the demo starts. It may hold credentials, so it is not shown.
    environment: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Source:
    """A source with its options and environment. `files` are those that must be there, None if they are unknown."""

    uri: str
    arguments: list[str]
    environment: Mapping[str, str]
    files: tuple[list[DataFile], list[DataFile]] | None


@contextmanager
def open_source(settings: DemoSettings, directory: Path, reporter: Reporter) -> Iterator[Source]:
    """Open the user's bucket, or make a data set below `directory` and serve it until the end of the block."""
    inherited = {name: value for name, value in settings.environment.items() if not name.startswith("FASTFUSE_")}
    if settings.source is not None:
        yield Source(str(settings.source), connection_arguments(settings.connection), inherited, None)
        return
    files = _create_files(settings, directory, reporter)
    with _served(directory) as server:
        reporter.say(f"    served as s3://{_BUCKET} at {server.endpoint_url} by python -m fastfuse.testing")
        connection = ConnectionConfig(
            endpoint_url=server.endpoint_url,
            region="us-east-1",
            force_path_style=True,
            max_connections=settings.connection.max_connections,
        )
        yield Source(f"s3://{_BUCKET}", connection_arguments(connection), _isolated(inherited), files)


def files_below(root: Path, shard_count: int, small_file_count: int) -> tuple[list[DataFile], list[DataFile]]:
    """Return the first files of an unknown mount: at most so many large and so many small ones."""
    shards: list[DataFile] = []
    small: list[DataFile] = []
    for folder, _, names in os.walk(root):
        for name in names:
            path = Path(folder, name)
            status = path.lstat()
            if not stat.S_ISREG(status.st_mode):
                continue
            file = DataFile(str(path.relative_to(root)), status.st_size, None)
            kind, limit = (shards, shard_count) if file.size_bytes >= SHARD_MIN_BYTES else (small, small_file_count)
            if len(kind) < limit:
                kind.append(file)
        if len(shards) == shard_count and len(small) == small_file_count:
            break
    return shards, small


def _create_files(settings: DemoSettings, directory: Path, reporter: Reporter) -> tuple[list[DataFile], list[DataFile]]:
    shards_bytes = settings.shard_count * settings.shard_bytes
    small_bytes = settings.small_file_count * settings.small_file_bytes
    require_space(directory, shards_bytes + small_bytes)
    text = (
        f"making {settings.shard_count:,} TFRecord shards of {format_size(settings.shard_bytes)} and "
        f"{settings.small_file_count:,} files of {format_size(settings.small_file_bytes)} in {directory}"
    )
    with reporter.step(text):
        return (
            create_shards(directory, settings.shard_count, settings.shard_bytes),
            create_small_files(directory, settings.small_file_count, settings.small_file_bytes),
        )


@contextmanager
def _served(directory: Path) -> Iterator[ServerProcess]:
    with ExitStack() as stack:
        # Ctrl-C in a terminal would reach the server, too, which the mount needs until it is unmounted. A process
        # inherits the blocked signals.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            server = stack.enter_context(ServerProcess(directory, bucket=_BUCKET, workers=_SERVER_PROCESSES))
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        yield server


def _isolated(environment: Mapping[str, str]) -> dict[str, str]:
    """Return `environment` without the user's AWS settings and proxies, and with keys for the loopback server."""
    kept = {
        name: value
        for name, value in environment.items()
        if not name.startswith("AWS_") and not name.lower().endswith("_proxy")
    }
    return kept | {
        "AWS_ACCESS_KEY_ID": "AKIA" + token_hex(8).upper(),
        "AWS_SECRET_ACCESS_KEY": token_hex(20),
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "AWS_EC2_METADATA_DISABLED": "true",
    }


_INTERRUPTED_EXIT_CODE = 128 + signal.SIGINT
_REQUESTS = "fastfuse_fetch_requests_total"


def run(settings: DemoSettings) -> int:
    """Show a mount at work; return 0 if every file had the right bytes, else 1.

    No mount, no process and no file is left behind, whatever happens.

    Raises:
        FastfuseError: the mount or the server could not be started.
    """
    reporter = Reporter()
    try:
        with _interruptible():
            return _Tour(settings, reporter).run()
    except KeyboardInterrupt:
        reporter.say("interrupted; everything is cleaned up", style="yellow")
        return _INTERRUPTED_EXIT_CODE


@contextmanager
def _interruptible() -> Iterator[None]:
    """Raise `KeyboardInterrupt` for the first signal that asks for an end; others must not disturb the cleaning up."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        for number in numbers:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Tour:
    def __init__(self, settings: DemoSettings, reporter: Reporter) -> None:
        self._settings = settings
        self._reporter = reporter
        self._ledger = Ledger()
        self._files: list[DataFile] = []
        self._rows: list[tuple[str, Pass, int]] = []

    def run(self) -> int:
        with ExitStack() as stack:
            place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fastfuse-demo-")))
            data = place / "data"
            data.mkdir()
            source = stack.enter_context(open_source(self._settings, data, self._reporter))
            mount = _mount_of(source, place, "mount")
            with self._reporter.step(f"fastfuse mount {source.uri} {mount.mountpoint}"):
                stack.enter_context(mount)
            self._visit(mount, source)
            if source.files is None:
                # The checksums of these files are unknown, but two mounts must fetch the same bytes.
                with _mount_of(source, place, "second") as second:
                    self._read(second, "by another mount", self._files, self._settings.reader_count)
            self._conclude(mount)
            if self._settings.keep:
                self._keep(mount)
            self._reporter.say(f"==> unmounting {mount.mountpoint} and removing {place}", style="bold")
        return 1 if self._ledger.failures else 0

    def _visit(self, mount: MountProcess, source: Source) -> None:
        objects, rate = mount.listing()
        self._reporter.say(f"    {objects:,} objects listed, {rate:,} a second")
        shards, small = source.files or files_below(
            mount.mountpoint, self._settings.shard_count, self._settings.small_file_count
        )
        self._files = [*shards, *small]
        if not self._files:
            raise FastfuseError(f"{source.uri} has no file to read", hint="name another source with --uri")
        readers = self._settings.reader_count
        self._read(mount, "one shard", shards[:1], 1)
        self._read(mount, "other shards", shards[1:], readers)
        self._read(mount, "small files", small, readers)
        self._read(mount, "all again", self._files, readers)

    def _read(self, mount: MountProcess, name: str, files: Sequence[DataFile], readers: int) -> None:
        if not files:
            return
        readers = min(readers, len(files))
        requests_before = mount.metric(_REQUESTS)
        with self._reporter.step(f"reading {name}: {len(files):,}, {readers} at once"):
            done = read_files(mount.mountpoint, files, readers, self._ledger)
        self._rows.append((name, done, mount.metric(_REQUESTS) - requests_before))

    def _conclude(self, mount: MountProcess) -> None:
        self._reporter.table(self._rows)
        read_bytes = sum(done.size_bytes for _, done, _ in self._rows)
        self._reporter.say(
            f"    peak memory of the mount: {peak_memory_bytes(mount.pid) / MIB:,.0f} MiB resident "
            f"(VmHWM of its largest process, and the share of the others), for {format_size(read_bytes)} read"
        )
        for line in mount.warnings():
            self._reporter.say(f"    {line}", style="yellow")
        if failures := self._ledger.failures:
            self._reporter.say(f"==> {len(failures):,} reads were not what they must be", style="bold red")
            more = [f"and {len(failures) - _FAILURES_SHOWN:,} more"] if len(failures) > _FAILURES_SHOWN else []
            for line in (*failures[:_FAILURES_SHOWN], *more):
                self._reporter.say(f"    {line}", style="red")
        else:
            self._reporter.say(
                f"    every checksum matched: {self._ledger.checked_reads:,} reads of whole files", style="green"
            )

    def _keep(self, mount: MountProcess) -> None:
        place = mount.mountpoint
        self._reporter.say(f"==> {place} stays until Ctrl-C; try in another terminal:", style="bold")
        commands = (
            f"ls -l {place}",
            f"find {place} -type f | wc -l",
            f"dd if={shlex.quote(str(place / self._files[0].name))} of=/dev/null bs=1M",
            f"getfattr -d -m - {shlex.quote(str(place / self._files[-1].name))}",
            f"curl --noproxy '*' http://{mount.metrics_address}/metrics",
            f"fastfuse unmount {place}",
        )
        for command in commands:
            self._reporter.say(f"    {command}")
        with suppress(KeyboardInterrupt):
            mount.wait()


def _mount_of(source: Source, place: Path, name: str) -> MountProcess:
    mountpoint = place / name
    mountpoint.mkdir()
    return MountProcess(
        source.uri,
        mountpoint,
        log_path=place / f"{name}.log",
        environment=source.environment,
        arguments=source.arguments,
    )
