"""Reader processes: the training job's side of a run, and the raw client's.

They are forks of a small server process (a fresh interpreter for each of 64 readers takes seconds) and wait at a
barrier until all are ready.
"""

import multiprocessing
import os
import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

from bench.processes import peak_pss_bytes
from bench.reading import Manner, RawAccess, Reading, Span, Times, prepare_files, prepare_parts

__all__ = ["Outcome", "in_turns", "read_mount", "read_raw"]


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
    return _run([(prepare_files, spans, (root, manner)) for spans in tasks])


def read_raw(access: RawAccess, tasks: Sequence[Sequence[Span]]) -> list[Outcome]:
    """Read by ranged GETs, in one process with many threads: what a daemon could do at best."""
    return _run([(prepare_parts, in_turns([_parts(spans, access.part_bytes) for spans in tasks]), (access,))])


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
_Work = tuple[Callable[..., Reading], Sequence[Span], tuple[Any, ...]]


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
