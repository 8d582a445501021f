"""Reader processes: the training job's side of a run, through a mount, and the raw client's, by ranged GETs.

They are forks of a small server process (a fresh interpreter for each of 64 readers takes seconds) and wait at a
barrier until all are ready. Every one imports this module, so it imports nothing heavy before it must.
"""

import multiprocessing
import os
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, zip_longest
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

from bench.processes import peak_pss_bytes


@dataclass(frozen=True, slots=True)
class Span:
    """The bytes ``[start, end)`` of the file `name`."""

    name: str
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Manner:
    """How a reader goes about it: so many bytes at once, or TFRecords, by a library that training jobs use."""

    # 1 MiB as TensorFlow's and PyTorch's buffered readers for remote data do.
    read_bytes: int = 1 << 20
    is_records: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RawAccess:
    """Where the raw client reads, and how much of it at once."""

    endpoint_url: str
    bucket: str
    ca_bundle: Path | None
    part_bytes: int
    requests_in_flight: int


@dataclass(frozen=True, slots=True)
class Times:
    """From before open to the first byte, for every file opened; and to the last byte, for every span."""

    first_bytes_s: list[float]
    spans_s: list[float]


# Reads everything.
_Reading = Callable[[], Times]


def _prepare_files(spans: Sequence[Span], root: Path, manner: Manner) -> _Reading:
    if manner.is_records:
        from tfrecord.reader import tfrecord_iterator

        return lambda: _read_records(root, spans, tfrecord_iterator)
    return lambda: _read_files(root, spans, manner.read_bytes)


def _read_files(root: Path, spans: Sequence[Span], read_bytes: int) -> Times:
    buffer = bytearray(read_bytes)
    times = Times([], [])
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
                times.first_bytes_s.append(time.monotonic() - started_s)
                is_new = False
            offset += got
        times.spans_s.append(time.monotonic() - started_s)
    _close(fd)
    return times


def _close(fd: int) -> None:
    # Every byte was read by then. rclone fails a close when a file's MD5 sum is not its ETag, which S3 promises for
    # small unencrypted objects only and the loopback server for none.
    with suppress(OSError):
        os.close(fd)


# Of a record, beside its data: the length and two checksums.
_FRAMING_BYTES = 16


def _read_records(root: Path, spans: Sequence[Span], records: Callable[[str], Iterator[memoryview]]) -> Times:
    times = Times([], [])
    for span in spans:
        started_s = time.monotonic()
        size_bytes = 0
        for record in records(str(root / span.name)):
            if not size_bytes:
                times.first_bytes_s.append(time.monotonic() - started_s)
            size_bytes += len(record) + _FRAMING_BYTES
        if size_bytes != span.end:
            raise EOFError(f"{span.name} has records of {size_bytes} bytes, not {span.end}")
        times.spans_s.append(time.monotonic() - started_s)
    return times


def _prepare_parts(parts: Sequence[Span], access: RawAccess) -> _Reading:
    """Return what reads `parts` with fastfuse's own client, without a mount: GETs at once, and nothing read ahead.

    The sizes and versions of the objects are asked for before the reading.
    """
    import trio

    from fastfuse.objects import ObjectRef
    from fastfuse.s3.aws import S3Session
    from fastfuse.s3.base import ConnectionConfig
    from fastfuse.s3.buffers import PartBuffers
    from fastfuse.s3.client import S3Client

    def open_client() -> S3Client:
        config = ConnectionConfig(
            endpoint_url=access.endpoint_url,
            region="us-east-1",
            sign_request=False,
            ca_bundle=None if access.ca_bundle is None else str(access.ca_bundle),
            max_connections=access.requests_in_flight,
        )
        limit_bytes = access.requests_in_flight * access.part_bytes
        return S3Client(S3Session(config), buffers=PartBuffers(part_bytes=access.part_bytes, limit_bytes=limit_bytes))

    async def look_up(names: list[str], refs: dict[str, ObjectRef]) -> None:
        client = open_client()

        async def one(name: str) -> None:
            refs[name] = await client.head(access.bucket, name)

        async with trio.open_nursery() as nursery:
            for name in names:
                nursery.start_soon(one, name)
        await client.aclose()

    async def fetch_all(refs: dict[str, ObjectRef], times_s: list[float]) -> None:
        client = open_client()
        waiting = list(reversed(parts))

        async def fetch_some() -> None:
            while waiting:
                part = waiting.pop()
                started_s = time.monotonic()
                await client.get(refs[part.name], part.start, part.end)
                times_s.append(time.monotonic() - started_s)

        async with trio.open_nursery() as nursery:
            for _ in range(access.requests_in_flight):
                nursery.start_soon(fetch_some)
        await client.aclose()

    refs: dict[str, ObjectRef] = {}
    trio.run(look_up, list({part.name for part in parts}), refs)
    times_s: list[float] = []

    def read() -> Times:
        trio.run(fetch_all, refs, times_s)
        return Times([], times_s)

    return read


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one reader fared; `started_s` and `ended_s` are of the machine's monotonic clock, the same for all."""

    size_bytes: int
    started_s: float
    ended_s: float
    times: Times
    # Of the reader itself.
    cpu_s: float
    peak_bytes: int


def read_mount(root: Path, tasks: Sequence[Sequence[Span]], manner: Manner) -> list[Outcome]:
    """Read through a mount at `root`, one process for each of the `tasks`."""
    return _run([(_prepare_files, spans, (root, manner)) for spans in tasks])


def read_raw(access: RawAccess, tasks: Sequence[Sequence[Span]]) -> list[Outcome]:
    """Read by ranged GETs, in one process with many threads: what a daemon could do at best."""
    return _run([(_prepare_parts, in_turns([_parts(spans, access.part_bytes) for spans in tasks]), (access,))])


def in_turns(tasks: Sequence[Sequence[Span]]) -> list[Span]:
    """As concurrent readers ask: the first of each task, then the second of each."""
    return [span for span in chain.from_iterable(zip_longest(*tasks)) if span is not None]


def _parts(spans: Sequence[Span], part_bytes: int) -> list[Span]:
    return [
        Span(span.name, start, min(start + part_bytes, span.end))
        for span in spans
        for start in range(span.start, span.end, part_bytes)
    ]


# Gets ready to read the spans, untimed, in the process that will; and what else it must know.
_Work = tuple[Callable[..., _Reading], Sequence[Span], tuple[Any, ...]]


def _run(works: Sequence[_Work]) -> list[Outcome]:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["bench.readers"])
    barrier = context.Barrier(len(works))
    queue: multiprocessing.SimpleQueue[Outcome | Exception] = context.SimpleQueue()
    processes = [context.Process(target=_reader_main, args=(work, barrier, queue), daemon=True) for work in works]
    for process in processes:
        process.start()
    outcomes = [queue.get() for _ in processes]
    for process in processes:
        process.join()
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome
    return [outcome for outcome in outcomes if isinstance(outcome, Outcome)]


def _reader_main(work: _Work, barrier: Barrier, queue: "multiprocessing.SimpleQueue[Outcome | Exception]") -> None:
    prepare, spans, arguments = work
    try:
        read = prepare(spans, *arguments)
        barrier.wait()
        cpu_before_s = _cpu_s()
        started_s = time.monotonic()
        times = read()
        ended_s = time.monotonic()
        outcome = Outcome(
            size_bytes=sum(span.end - span.start for span in spans),
            started_s=started_s,
            ended_s=ended_s,
            times=times,
            cpu_s=_cpu_s() - cpu_before_s,
            peak_bytes=peak_pss_bytes(os.getpid()),
        )
        queue.put(outcome)
    except Exception as error:  # noqa: BLE001 - the parent raises it
        queue.put(error)
        # Whoever waits there must not wait for ever.
        barrier.abort()


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
