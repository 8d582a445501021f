"""Runs the demo: make the files, mount, read, check, report, clean up."""

import shlex
import signal
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import FrameType

from fastfuse.demo.dataset import DataFile
from fastfuse.demo.mounting import MountProcess
from fastfuse.demo.reading import Ledger, Pass, read_files
from fastfuse.demo.report import Reporter
from fastfuse.demo.source import DemoSettings, Source, files_below, open_source
from fastfuse.errors import FastfuseError

__all__ = ["run"]

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
        self._reporter.memory(mount.peak_memory_bytes(), sum(done.size_bytes for _, done, _ in self._rows))
        for line in mount.warnings():
            self._reporter.say(f"    {line}", style="yellow")
        if self._ledger.failures:
            self._reporter.say(f"==> {len(self._ledger.failures):,} reads were not what they must be", style="bold red")
            self._reporter.failures(self._ledger.failures)
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
