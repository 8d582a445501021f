"""The lister process: lists the source, writes the table into a memfd, says how it went, and is gone with its garbage.

It tells its parent through a pipe, one JSON object: a report, or the error that stopped it.
"""

import gc
import json
import logging
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass

import trio
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from fastfuse.errors import FastfuseError, ServiceError
from fastfuse.listing.lister import Listing, ListingProgress, ProgressCallback, list_source
from fastfuse.listing.snapshot import save_snapshot
from fastfuse.mount.children import fork_child, heard, tell_error, wait_child
from fastfuse.sources.uri import S3Uri
from fastfuse.store.base import ConnectionConfig
from fastfuse.store.boto import BotoPageSource
from fastfuse.store.session import S3Session

__all__ = ["IndexReport", "run_lister"]

_log = logging.getLogger(__name__)

# Between two progress lines where there is no terminal to draw on.
_LOG_EVERY_S = 10.0


@dataclass(frozen=True, slots=True)
class IndexReport:
    """What was listed."""

    files: int
    directories: int
    total_bytes: int
    refused: int
    requests: int
    elapsed_s: float

    def __str__(self) -> str:
        rate = self.files / self.elapsed_s if self.elapsed_s else 0.0
        return f"{self.files:,} objects, {self.total_bytes:,} bytes, {self.elapsed_s:.1f} s, {rate:,.0f} objects/s"


def run_lister(
    source: S3Uri, connection: ConnectionConfig, *, strict: bool, allow_empty: bool
) -> tuple[int, IndexReport]:
    """List in a process of its own; returns the memfd with the snapshot (the caller's to close) and the report.

    Raises:
        FastfuseError: what stopped the lister, as it was raised there.
    """
    snapshot_fd = os.memfd_create("fastfuse-index", os.MFD_CLOEXEC)
    reading_fd, writing_fd = os.pipe()

    def work() -> None:
        try:
            report = _list(source, connection, snapshot_fd, strict=strict, allow_empty=allow_empty)
            os.write(writing_fd, json.dumps(asdict(report)).encode())
        except FastfuseError as error:
            tell_error(writing_fd, error)

    child = fork_child(work)
    os.close(writing_fd)
    try:
        with os.fdopen(reading_fd, "rb") as pipe:
            told = pipe.read()
        exit_code, child = wait_child(child), 0
        if not told:
            how = f"was killed by signal {-exit_code}" if exit_code < 0 else "failed (see the log)"
            raise ServiceError(f"the lister {how}", hint="out of memory?" if exit_code == -signal.SIGKILL else "")
        return snapshot_fd, IndexReport(**heard(told))
    except BaseException:
        os.close(snapshot_fd)
        if child:  # interrupted: nobody wants its result any more
            os.kill(child, signal.SIGKILL)
            wait_child(child)
        raise


def _list(
    source: S3Uri, connection: ConnectionConfig, snapshot_fd: int, *, strict: bool, allow_empty: bool
) -> IndexReport:
    gc.disable()  # the lister makes millions of objects that all live until it exits
    started_s = time.monotonic()
    with _progress(source) as progress:
        listing = trio.run(_list_and_close, source, connection, strict, allow_empty, progress)
    save_snapshot(listing.table, snapshot_fd)
    metadata = listing.table.metadata
    return IndexReport(
        files=metadata.file_count,
        directories=metadata.directory_count,
        total_bytes=metadata.total_bytes,
        refused=listing.refusals.total,
        requests=listing.request_count,
        elapsed_s=time.monotonic() - started_s,
    )


async def _list_and_close(
    source: S3Uri, connection: ConnectionConfig, strict: bool, allow_empty: bool, progress: ProgressCallback
) -> Listing:
    pages = BotoPageSource(S3Session(connection), source.bucket)
    try:
        return await list_source(pages, source, strict=strict, allow_empty=allow_empty, progress=progress)
    finally:
        await pages.aclose()


@contextmanager
def _progress(source: S3Uri) -> Iterator[ProgressCallback]:
    """A bar on a terminal, a log line now and then elsewhere; yields what is to be told how far the listing is."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _LoggedProgress(source)
        return
    columns = (
        SpinnerColumn(),
        TextColumn("listing {task.description}"),
        TextColumn("{task.completed:,} objects"),
        TextColumn("{task.speed:,.0f} objects/s"),
        TextColumn("{task.fields[in_flight]} requests in flight, {task.fields[throttled]} throttled"),
        TextColumn("{task.fields[share]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(escape(str(source)), total=None, in_flight=0, throttled=0, share="")
        yield lambda listed: bar.update(
            task,
            completed=listed.objects,
            in_flight=listed.in_flight,
            throttled=listed.throttled,
            share=_percent(listed),
        )


class _LoggedProgress:
    def __init__(self, source: S3Uri) -> None:
        self._source = source
        self._started_s = self._told_s = time.monotonic()

    def __call__(self, listed: ListingProgress) -> None:
        now_s = time.monotonic()
        if now_s - self._told_s >= _LOG_EVERY_S:
            self._told_s = now_s
            elapsed_s = now_s - self._started_s
            _log.info(
                "listing %s: %d objects, %.0f objects/s, %d requests in flight, %d throttled%s",
                self._source,
                listed.objects,
                listed.objects / elapsed_s,
                listed.in_flight,
                listed.throttled,
                _percent(listed),
            )


def _percent(listed: ListingProgress) -> str:
    return "" if listed.share is None else f", about {listed.share:.0%}"
