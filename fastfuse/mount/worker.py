"""The process that serves: maps the table, owns the S3 clients and the read engine, and may die at any time.

Everything here can be rebuilt, so nothing here is told to anybody but through the shared counters. The supervisor's
signals are not for the worker: it lives until its session ends, or until it is killed. After a refresh it is handed
another table, through a socket.

One process and one thread take the requests and answer them; what is large, other threads write (`mount.replies`).
What more would bring was measured on four shared cores against a second process, and against an own loop (`readv`,
`struct`, `writev`, which lets other threads run while the kernel copies) with the same handlers, without and with a
thread that writes large replies. Best of four alternating runs from an engine that has every byte, in thousands a
second: small files by eight readers, 1 MiB reads of one reader and of four; then the same while 16 threads receive from
sockets.

========================  =======  ====  =====  =======  ====  =====
pyfuse3 with trio's lock     10.8   4.0    6.2      8.3   4.1    4.7
pyfuse3, `mount.loop`        18.7   3.8    6.5     14.3   5.2    5.9
own loop                     28.4   4.2    7.8     22.3   4.4    6.1
own loop, writing thread        -     -      -     20.8   4.7    6.1
own loop, two processes      31.3   5.8   11.7     22.7   5.3    9.1
========================  =======  ====  =====  =======  ====  =====

Through a whole mount nothing of an own loop or a second process is left for small files, of which the client takes
several times the CPU of all answers: 1172 and 1226 (own loop) a second. The ceiling of one thread is 18,000, five times
what four cores fetch; parts shared between processes are worth their while where fetching comes near it.
"""

import gc
import os
import signal
import socket
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache

import pyfuse3
import trio

from fastfuse.cgroup import shares_memory
from fastfuse.errors import FastfuseError
from fastfuse.index.made import MadeReader
from fastfuse.index.snapshot import open_snapshot
from fastfuse.malloc import tune_malloc
from fastfuse.metrics import Counters
from fastfuse.mount.children import error_message
from fastfuse.mount.hint_taker import HintTaker
from fastfuse.mount.operations import MountOperations
from fastfuse.mount.replies import threads_for
from fastfuse.readahead import ReadaheadConfig, ReadEngine
from fastfuse.s3.aws import S3Session
from fastfuse.s3.base import ConnectionConfig
from fastfuse.s3.buffers import PartBuffers
from fastfuse.s3.client import S3Client
from fastfuse.s3.trimmed import Trimmer

__all__ = ["READY", "SWAPPED", "WorkerTask", "run_worker"]

# What the worker writes to its supervisor's pipe once it takes requests.
READY = b"{}"

# And to the socket once it answers from the table that it was handed there.
SWAPPED = b"swapped"

# With all tasks busy pyfuse3 serves nothing, not even another file (D6): more than the kernel may have waiting
# in the background (mount/session.py) and a thread each of any sane data loader on top.
_MAX_TASKS = 2048

# So many that have nothing to do stay: one that begins and ends with every request that waits for a fetch costs 10 to
# 20 µs of CPU. Each holds a request buffer of 1 MiB, of which a request touches a page.
_IDLE_TASKS = 16

_MEASURE_EVERY_S = 1.0

# By thread: in which group it is takes 30 µs to see. One that is moved to another keeps what was seen first.
_MAX_REMEMBERED_READERS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerTask:
    """What a worker is forked for."""

    operations: MountOperations
    counters: Counters
    connection: ConnectionConfig
    readahead: ReadaheadConfig
    snapshot_fd: int
    # The connection to the kernel.
    session_fd: int
    # Is told `READY`, or the error that keeps the worker from serving.
    ready_fd: int
    # Descriptors of newer snapshots come through this, and are answered with `SWAPPED`.
    tables: socket.socket
    # Whoever of `hint_uids` connects here may announce files (None: everybody).
    hints: socket.socket | None
    hint_uids: frozenset[int] | None
    # The first large files are not fetched, and connections not prepared, before it is readable, if it is given.
    begin_fd: int | None


def run_worker(task: WorkerTask) -> None:
    """Serve the inherited session until it ends; to be called in a process that was just forked."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # a terminal's Ctrl-C reaches every process; the supervisor decides
    tune_malloc()
    # What is here stays: 75,000 objects, which a full collection looked through in 45 ms, and no reader was served.
    gc.freeze()
    try:
        trio.run(_serve, task)
    except FastfuseError as error:
        os.write(task.ready_fd, error_message(error))


async def _serve(task: WorkerTask) -> None:
    operations, counters, readahead = task.operations, task.counters, task.readahead
    limit_bytes = readahead.memory_limit_bytes
    buffers = PartBuffers(part_bytes=readahead.part_size_bytes, limit_bytes=limit_bytes, trimmer=Trimmer(limit_bytes))
    client = S3Client(S3Session(task.connection), buffers=buffers, counters=counters)
    async with trio.open_nursery() as nursery:
        made = MadeReader(client, lambda: operations.table)
        engine = ReadEngine(made, readahead, nursery, lambda: operations.table)
        may_store = lru_cache(_MAX_REMEMBERED_READERS)(shares_memory)
        buckets = _serve_table(operations, task.snapshot_fd, engine, may_store)
        if task.hints is not None:
            taker = HintTaker(lambda: operations.table, engine.new_order, counters, trusted_uids=task.hint_uids)
            nursery.start_soon(taker.run, task.hints)
        nursery.start_soon(_measure_pool, engine, counters)
        nursery.start_soon(_take_tables, task.tables, operations)
        nursery.start_soon(_begin, task, engine, client, buckets)
        os.write(task.ready_fd, READY)
        os.close(task.ready_fd)
        with operations.replies.written_by(threads_for(len(os.sched_getaffinity(0))), task.session_fd):
            await pyfuse3.main(min_tasks=_IDLE_TASKS, max_tasks=_MAX_TASKS)
        nursery.cancel_scope.cancel()


def _serve_table(
    operations: MountOperations,
    snapshot_fd: int,
    engine: ReadEngine,
    may_store: Callable[[int], bool],
) -> list[str]:
    """Answer from the snapshot in `snapshot_fd`, which is closed, and return its buckets.

    Nobody else refers to the table, so that its mapping goes when another takes its place.
    """
    table = open_snapshot(snapshot_fd).table
    os.close(snapshot_fd)
    operations.serve(table, engine, may_store)
    return table.buckets()


async def _begin(task: WorkerTask, engine: ReadEngine, client: S3Client, buckets: Iterable[str]) -> None:
    """Do what the first reads would otherwise wait for, which costs CPU time that others may need until `begin_fd`."""
    if task.begin_fd is not None:
        await trio.lowlevel.wait_readable(task.begin_fd)
    # Where a worker has died, readers are in the middle of what they read.
    if not task.counters.get("fastfuse_worker_respawns"):
        engine.begin()
    async with trio.open_nursery() as nursery:
        for bucket in buckets:
            nursery.start_soon(_prepare, client, bucket)


async def _prepare(client: S3Client, bucket: str) -> None:
    """Leave it to the first read to say what goes wrong."""
    with suppress(FastfuseError):
        await client.prepare(bucket)


async def _take_tables(tables: socket.socket, operations: MountOperations) -> None:
    while True:
        await trio.lowlevel.wait_readable(tables)
        _, descriptors, _, _ = socket.recv_fds(tables, 1, 1)
        if not descriptors:
            return  # the supervisor is dead, and so will we be
        operations.swap(open_snapshot(descriptors[0]).table)
        os.close(descriptors[0])
        tables.send(SWAPPED)


async def _measure_pool(engine: ReadEngine, counters: Counters) -> None:
    """Keep the gauge of the parts' memory; a scrape every few seconds needs it no fresher, and reads are not slowed."""
    slot = counters.slot("fastfuse_pool_bytes")
    while True:
        pool = engine.statistics().pool
        counters.set(slot, pool.reserved_bytes + pool.held_bytes)
        await trio.sleep(_MEASURE_EVERY_S)
