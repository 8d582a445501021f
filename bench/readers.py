"""Reader processes: the training job's side of a run, and the raw client's.

Each is a fresh interpreter (obstore does not survive a fork) that waits at a barrier until all are ready.
"""

import multiprocessing
import os
import resource
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, zip_longest
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

from fastfuse.demo.processes import peak_memory_bytes

__all__ = ["Outcome", "RawAccess", "Span", "read_mount", "read_raw"]

# What a reader asks for at once, as TensorFlow's and PyTorch's buffered readers for remote data do.
_READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Span:
    """The bytes ``[start, end)`` of the file `name`."""

    name: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one reader fared; `started_s` and `ended_s` are of the machine's monotonic clock, the same for all."""

    size_bytes: int
    started_s: float
    ended_s: float
    # From before open to the first byte, for every file opened; and to the last byte, for every span.
    first_bytes_s: list[float]
    spans_s: list[float]
    # Of the reader itself.
    cpu_s: float
    peak_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RawAccess:
    """Where the raw client reads, and how much of it at once."""

    endpoint_url: str
    bucket: str
    part_bytes: int
    requests_in_flight: int


def read_mount(root: Path, tasks: Sequence[Sequence[Span]]) -> list[Outcome]:
    """Read through a mount at `root`, one process for each of the `tasks`."""
    return _run([(_prepare_files, (root, spans)) for spans in tasks])


def read_raw(access: RawAccess, tasks: Sequence[Sequence[Span]]) -> list[Outcome]:
    """Read by ranged GETs, in one process with many threads: what a daemon could do at best."""
    # As concurrent readers would ask: the first part of each task, then the second of each.
    rounds = zip_longest(*([part for span in spans for part in _parts(span, access.part_bytes)] for spans in tasks))
    parts = [part for part in chain.from_iterable(rounds) if part is not None]
    return _run([(_prepare_parts, (access, parts))])


def _parts(span: Span, part_bytes: int) -> list[Span]:
    starts = range(span.start, span.end, part_bytes)
    return [Span(span.name, start, min(start + part_bytes, span.end)) for start in starts]


# Reads everything; returns the times of an `Outcome`: to first bytes, and of spans.
_Reading = Callable[[], tuple[list[float], list[float]]]
# Gets ready to read, untimed, in the process that will.
_Preparation = Callable[..., _Reading]


def _run(works: Sequence[tuple[_Preparation, tuple[Any, ...]]]) -> list[Outcome]:
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(len(works))
    queue: multiprocessing.SimpleQueue[Outcome | Exception] = context.SimpleQueue()
    processes = [
        context.Process(target=_reader_main, args=(prepare, arguments, barrier, queue), daemon=True)
        for prepare, arguments in works
    ]
    for process in processes:
        process.start()
    outcomes = [queue.get() for _ in processes]
    for process in processes:
        process.join()
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome
    return [outcome for outcome in outcomes if isinstance(outcome, Outcome)]


def _reader_main(
    prepare: _Preparation,
    arguments: tuple[Any, ...],
    barrier: Barrier,
    queue: "multiprocessing.SimpleQueue[Outcome | Exception]",
) -> None:
    try:
        read = prepare(*arguments)
        barrier.wait()
        usage_before = resource.getrusage(resource.RUSAGE_SELF)
        started_s = time.monotonic()
        first_bytes_s, spans_s = read()
        ended_s = time.monotonic()
        usage = resource.getrusage(resource.RUSAGE_SELF)
        queue.put(
            Outcome(
                size_bytes=sum(span.end - span.start for span in arguments[1]),
                started_s=started_s,
                ended_s=ended_s,
                first_bytes_s=first_bytes_s,
                spans_s=spans_s,
                cpu_s=usage.ru_utime + usage.ru_stime - usage_before.ru_utime - usage_before.ru_stime,
                peak_bytes=peak_memory_bytes(os.getpid()),
            )
        )
    except Exception as error:  # noqa: BLE001 - the parent raises it
        queue.put(error)


def _prepare_files(root: Path, spans: Sequence[Span]) -> _Reading:
    return lambda: _read_files(root, spans)


def _read_files(root: Path, spans: Sequence[Span]) -> tuple[list[float], list[float]]:
    buffer = bytearray(_READ_BYTES)
    first_bytes_s: list[float] = []
    spans_s: list[float] = []
    name, fd = "", -1
    for span in spans:
        started_s = time.monotonic()
        is_new = span.name != name
        if is_new:
            _close(fd)
            name, fd = span.name, os.open(root / span.name, os.O_RDONLY)
        offset = span.start
        while offset < span.end:
            got = os.preadv(fd, [memoryview(buffer)[: span.end - offset]], offset)
            if not got:
                raise EOFError(f"{span.name} ends at {offset}, not at {span.end}")
            if is_new:
                first_bytes_s.append(time.monotonic() - started_s)
                is_new = False
            offset += got
        spans_s.append(time.monotonic() - started_s)
    _close(fd)
    return first_bytes_s, spans_s


def _close(fd: int) -> None:
    # Every byte was read by then. rclone fails a close when a file's MD5 sum is not its ETag, which S3 promises for
    # small unencrypted objects only and the loopback server for none.
    with suppress(OSError):
        os.close(fd)


def _prepare_parts(access: RawAccess, parts: Sequence[Span]) -> _Reading:
    import obstore
    from obstore.store import S3Store

    store = S3Store(
        access.bucket,
        endpoint=access.endpoint_url,
        region="us-east-1",
        skip_signature=True,
        virtual_hosted_style_request=False,
        client_options={"allow_http": True, "pool_max_idle_per_host": str(access.requests_in_flight)},
    )

    def fetch(part: Span) -> float:
        started_s = time.monotonic()
        reply = obstore.get(store, part.name, options={"range": (part.start, part.end)}).bytes()
        if len(reply) != part.end - part.start:
            raise EOFError(f"{part.name} has {len(reply)} bytes from {part.start}, not {part.end - part.start}")
        return time.monotonic() - started_s

    # The runtime's threads and the trusted certificates are there before the first timed request.
    obstore.get(store, parts[0].name, options={"range": (0, 1)}).bytes()

    def read() -> tuple[list[float], list[float]]:
        with ThreadPoolExecutor(access.requests_in_flight) as executor:
            return [], list(executor.map(fetch, parts))

    return read
