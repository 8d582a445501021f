"""Serve requests: map the table, own the S3 client and the read engine, and die at any time without loss.

The worker's state can be rebuilt, so it reports only through the shared counters. It takes no signal that ends a
supervisor (`processes.children.fork_child`): it lives until its session ends, or until it is killed. After a refresh it
is handed another table through a socket.

One thread takes the requests and answers them; others, without the interpreter, write large answers
(`filesystem.kernel.replies`) and fetch (`filesystem.kernel.direct_reads`). A second process, or a loop of our own,
gained nothing through a whole mount (docs/MEASUREMENTS.md, "Mount").
"""

import errno
import faulthandler
import gc
import json
import logging
import mmap
import os
import resource
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import trio

from fastfuse import awake, log
from fastfuse.cache.directory import OpenCache, open_or_none
from fastfuse.cache.reader import CachedReader, cached
from fastfuse.cache.settings import data_bytes
from fastfuse.errors import FastfuseError
from fastfuse.filesystem.figures.status import Board, TroubleGauges
from fastfuse.filesystem.kernel.fuse import direct_reads, interposed, replies
from fastfuse.filesystem.kernel.in_hand import ReadsInHand
from fastfuse.filesystem.kernel.loop import Requests
from fastfuse.filesystem.kernel.notices import pack_unwanted_pages, send_notices
from fastfuse.filesystem.mounting.mount_settings import MountSettings, most_worker_bytes
from fastfuse.filesystem.processes.credential_finder import ask_for_credentials
from fastfuse.filesystem.processes.hang_report import DUMP_SIGNAL, task_report
from fastfuse.filesystem.processes.health import BEAT_EVERY_S
from fastfuse.filesystem.processes.privileges import become_nobody, worker_uid
from fastfuse.filesystem.serving.direct_files import DirectFiles
from fastfuse.filesystem.serving.operations import MountOperations
from fastfuse.filesystem.serving.reads import Reads, stale_hint
from fastfuse.filesystem.talking.control import PROTOCOL, TASKS, send_answer
from fastfuse.filesystem.talking.hint_taker import HintTaker
from fastfuse.filesystem.talking.watching import RecordedReader, WatchedReads
from fastfuse.index.made import MadeReader
from fastfuse.index.snapshot import open_snapshot
from fastfuse.malloc import trim_malloc
from fastfuse.metrics import MEMORY_USES, Counters
from fastfuse.readahead import ReadaheadConfig, ReadEngine
from fastfuse.s3.aws import S3Session
from fastfuse.s3.buffers import PartBuffers, private_bytes
from fastfuse.s3.client import S3Client
from fastfuse.s3.retries import Retries

_log = logging.getLogger(__name__)

# What the worker says to its supervisor: it takes requests, and it answers from the table that came.
READY, SWAPPED = b"ready", b"swapped"

# The first byte of a message to the worker says what it is; a level comes without a descriptor.
TABLE, LOG_FILE, REQUEST, LOG_LEVEL = b"t", b"l", b"r", b"v"
# The longest is a client's request (`filesystem.talking.control`).
_MOST_MESSAGE_BYTES = 8192
# A thread that GETs has 264 KiB of buffer, and 256 of stack.
_BYTES_PER_THREAD = 2 << 20
# Collections of the middle generation between full ones; Python's default is 10. A full one looks through all that is
# held, and no reader is served for 40 to 200 ms. Hardly anything refers to itself; `_watch_memory` has it collected
# before it takes more than the data may.
_COLLECTIONS = 100
# Faults of maps whose notices wait for the one that waits for a READ, which may take until its deadline.
_MOST_UNSENT_NOTICES = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerTask:
    """Everything that a worker is forked with."""

    settings: MountSettings
    operations: MountOperations
    counters: Counters
    board: Board
    in_hand: ReadsInHand
    # The session went through `s3.routes.read_files`: the worker may not read the user's files.
    session: S3Session
    snapshot_fd: int
    # The connection to the kernel.
    session_fd: int
    # Outlives this process: the requests that it has not answered (`filesystem.kernel.replies`).
    requests: mmap.mmap
    # Gets `READY`. Brings what the supervisor hands over: newer snapshots, each of which is answered with `SWAPPED`,
    # newer log files, clients and log levels. Its end ends this process.
    messages: socket.socket
    # Answers with AWS credentials.
    credentials: socket.socket
    # The users `hint_uids` may announce files here, and everybody with --allow-other.
    hints: socket.socket | None
    hint_uids: frozenset[int]
    # Gets the stacks of all threads at `DUMP_SIGNAL`, for a worker that hangs.
    dump_fd: int


def run_worker(task: WorkerTask) -> None:
    """Serve the inherited session until it ends; the caller has just forked this process."""
    faulthandler.register(DUMP_SIGNAL, task.dump_fd, all_threads=True)
    # Shells give 1,024 descriptors, for programs that use select(), and allow more.
    most_files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with suppress(ValueError, OSError):  # fs.nr_open was lowered
        resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))
    # The objects up to here live on; a full collection would look through them, and no reader be served for 45 ms.
    gc.freeze()
    gc.set_threshold(*gc.get_threshold()[:2], _COLLECTIONS)
    cache = open_or_none(task.settings.cache, worker_uid())  # first: nobody may not open it
    become_nobody()
    ask_for_credentials(task.session, task.credentials)
    requests = Requests()
    awake.run(_serve, task, cache, requests, instruments=[requests])


async def _serve(task: WorkerTask, cache: OpenCache | None, requests: Requests) -> None:
    settings, operations, counters = task.settings, task.operations, task.counters
    readahead = ReadaheadConfig.within(
        data_bytes(settings.memory_target_bytes, settings.cache),
        part_size_bytes=settings.part_size_bytes,
        max_parts_in_flight=settings.connection.max_connections,
        expects_whole_files=settings.expects_whole_files,
        expects_every_file=settings.expects_every_file,
        read_deadline_s=settings.connection.deadline_s,
    )
    limit_bytes = readahead.memory_limit_bytes
    buffers = PartBuffers(part_bytes=readahead.part_size_bytes, limit_bytes=limit_bytes)
    retries = Retries(counters)
    if trouble := task.board.read().get("trouble"):  # of the worker before this one
        retries.take_over(trouble)
    client = S3Client(task.session, buffers=buffers, counters=counters, retries=retries)
    gets = RecordedReader(client)
    reader = cached(gets, cache, buffers, counters, task.session, settings.memory_target_bytes)
    async with trio.open_nursery() as nursery:
        made = MadeReader(reader, lambda: operations.table)
        engine = ReadEngine(made, readahead, nursery, lambda: operations.table)
        buckets = _serve_table(operations, task.snapshot_fd, engine)
        reads = Reads(
            operations, engine, counters, task.in_hand, nursery, task.session.config.deadline_s,
            stale_hint=stale_hint(settings.origin),
        )  # fmt: skip
        tier = reader if isinstance(reader, CachedReader) else None
        most_threads = min(client.max_connections, limit_bytes // _BYTES_PER_THREAD)
        direct_files = DirectFiles(
            reads, engine, client, gets, task.session_fd, buffers.take, most_threads=most_threads, tier=tier
        )
        nursery.start_soon(direct_files.run)
        engine.fetches.drop_pages = _drops_pages(task.session_fd, nursery)
        if task.hints is not None:
            taker = HintTaker(
                lambda: operations.table, engine.new_order, counters,
                trusted_uids=task.hint_uids, takes_all=settings.allow_other,
            )  # fmt: skip
            nursery.start_soon(taker.run, task.hints)
        retire = nursery.cancel_scope.cancel  # leaves the readers to the next worker
        report = _Report(counters, engine, reads)
        nursery.start_soon(report.beat)
        nursery.start_soon(_show, task.board, reads, retries, counters)
        nursery.start_soon(_watch_memory, limit_bytes, settings.memory_target_bytes, counters, retire)
        nursery.start_soon(_take_handed_over, task, WatchedReads(engine, reads, gets), direct_files, nursery, retire)
        nursery.start_soon(_connect, client, buckets, direct_files)
        task.messages.send(READY)
        _start_replies(task.session_fd)
        try:
            interposed.take_reads(reads.take)
            reads.came_s = replies.keep(task.requests)
            await requests.serve()
        finally:
            replies.finish()
            direct_files.tell()  # what threads got last is to be kept, too
        nursery.cancel_scope.cancel()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(report.beat)  # or a slow disk that the tier waits for would look like a hang
        await reader.aclose()
        nursery.cancel_scope.cancel()


def _drops_pages(session_fd: int, nursery: trio.Nursery) -> Callable[[int, list[tuple[int, int]]], None]:
    """Return what has the page cache drop ranges of an inode, by a thread: it may wait for pages that we answer."""
    give, take = trio.open_memory_channel[bytes](_MOST_UNSENT_NOTICES)

    async def send() -> None:
        async for notices in take:
            # There may be no room for a thread. Then the pages are read one by one.
            with suppress(RuntimeError):
                await trio.to_thread.run_sync(send_notices, session_fd, notices, abandon_on_cancel=True)

    def drop(inode: int, ranges: list[tuple[int, int]]) -> None:
        with suppress(trio.WouldBlock):  # the same holds for these
            give.send_nowait(pack_unwanted_pages(inode, ranges))

    nursery.start_soon(send)
    return drop


def _start_replies(session_fd: int) -> None:
    """Have threads write large answers, as many as there is room for."""
    if error := replies.start(session_fd, replies.threads_for(len(os.sched_getaffinity(0)))):
        reason = os.strerror(error)
        _log.warning("large files are read more slowly: %s; see ulimit -u and the cgroup's pids.max", reason)


def _serve_table(operations: MountOperations, snapshot_fd: int, engine: ReadEngine) -> list[str]:
    """Answer from the snapshot in `snapshot_fd`, close that, and return the table's buckets.

    No other reference to the table remains, so that its mapping goes when another replaces it.
    """
    table = open_snapshot(snapshot_fd).table
    os.close(snapshot_fd)
    operations.serve(table, engine)
    return table.buckets()


async def _connect(client: S3Client, buckets: Iterable[str], direct_files: DirectFiles) -> None:
    """Connect for the first reads."""
    async with trio.open_nursery() as nursery:
        for bucket in buckets:
            nursery.start_soon(_prepare, client, bucket)
    await direct_files.arm()


async def _prepare(client: S3Client, bucket: str) -> None:
    """Prepare the connections of `bucket`; the first read reports what goes wrong."""
    with suppress(FastfuseError):
        await client.prepare(bucket)


async def _take_handed_over(
    task: WorkerTask,
    watched: WatchedReads,
    direct_files: DirectFiles,
    nursery: trio.Nursery,
    retire: Callable[[], None],
) -> None:
    messages = task.messages
    while True:
        await trio.lowlevel.wait_readable(messages)
        message, descriptors, _, _ = socket.recv_fds(messages, _MOST_MESSAGE_BYTES, 1)
        if not message:  # the supervisor has unmounted, or is dead
            nursery.cancel_scope.cancel()
            return
        what, told = message[:1], message[1:]
        if what == LOG_LEVEL:
            log.set_level(told.decode())
        elif what == TABLE:
            try:
                _take_table(task.operations, descriptors)
            except OSError as error:
                _log.warning("the new table cannot be taken: %s; another worker takes over", error.strerror)
                retire()
                return
            messages.send(SWAPPED)
            nursery.start_soon(direct_files.arm)
        elif not descriptors:
            _log.warning("no descriptor is left for what the supervisor hands over; see ulimit -n")
        elif what == LOG_FILE:
            log.go_on_in(descriptors[0])
        else:
            connection, asked = socket.socket(fileno=descriptors[0]), json.loads(told)
            if asked["request"] == TASKS:
                send_answer(connection, json.dumps({"fastfuse": PROTOCOL, "tasks": task_report()}).encode())
            else:
                nursery.start_soon(watched.serve, connection, asked)


def _take_table(operations: MountOperations, descriptors: Sequence[int]) -> None:
    """Answer from the table in the one of `descriptors` from now on; raise `OSError` if none is left for it."""
    if not descriptors:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    operations.swap(open_snapshot(descriptors[0]).table)
    os.close(descriptors[0])


class _Report:
    """Shows what is not counted as it happens; a worker that is killed leaves out its last second."""

    def __init__(self, counters: Counters, engine: ReadEngine, reads: Reads) -> None:
        self._counters = counters
        self._engine = engine
        self._reads = reads
        self._served_before_bytes = counters.get("fastfuse_read_served_bytes")
        # Each number goes by the name of its metric and the value of its label.
        self._before: dict[tuple[str, str], int] = {}
        self._waited_us, self._requests = 0, counters.get("fastfuse_requests")
        self._waited_us = self._waited_for_cpu_us()

    async def beat(self) -> None:
        """Report every second, and show that requests are taken and answered."""
        try:
            while True:
                self._write()
                # This loop turns, so it takes requests; the threads that write large answers have to turn, too.
                if replies.are_moving():
                    self._counters.count("fastfuse_worker_beats")
                await trio.sleep(BEAT_EVERY_S)
        finally:
            self._write()

    def _write(self) -> None:
        """Set the gauges, and count by how much each counter has grown."""
        counters, engine, memory = self._counters, self._engine, self._engine.memory()
        counts, pool = engine.counts, engine.pool
        small_files, small_bytes = direct_reads.in_flight_now()
        memory["in flight"] += small_bytes
        counters.set("fastfuse_streams", engine.streams)
        counters.set("fastfuse_pool_bytes", sum(memory.values()))
        for use, size_bytes in zip(MEMORY_USES, memory.values(), strict=True):
            counters.set("fastfuse_memory_bytes", size_bytes, use)
        counters.set("fastfuse_gets_in_flight", pool.parts_in_flight + small_files)
        counters.set("fastfuse_table_bytes", self._reads.table.metadata.total_bytes)
        served_bytes = counters.get("fastfuse_read_served_bytes") - self._served_before_bytes
        grown = {
            ("fastfuse_fetched_parts", "demanded"): counts.demanded_parts,
            ("fastfuse_fetched_parts", "ahead"): counts.ahead_parts,
            ("fastfuse_fetched_parts", "prefetched"): counts.prefetched_parts,
            ("fastfuse_reads", "hit"): counts.hits,
            ("fastfuse_reads", "miss"): counts.waits,
            ("fastfuse_read_source_bytes", "ahead"): served_bytes - counts.waited_bytes,
            ("fastfuse_read_source_bytes", "demanded"): counts.waited_bytes,
            ("fastfuse_wasted_bytes", ""): pool.unread_dropped_bytes + direct_reads.wasted_ahead_bytes(),
            # The event loop runs in this thread.
            ("fastfuse_loop_cpu_seconds", ""): int(time.thread_time() * 1e6),
            ("fastfuse_cpu_seconds", ""): int(time.process_time() * 1e6),
        }
        counters.count("fastfuse_stalled_seconds", direct_reads.stalled_ns() // 1000)
        waited_us, requests = self._waited_for_cpu_us(), counters.get("fastfuse_requests")
        # The loop also wakes while nobody asks.
        if requests != self._requests or counters.get("fastfuse_waiting_reads"):
            counters.count("fastfuse_loop_cpu_wait_seconds", waited_us - self._waited_us)
        self._waited_us, self._requests = waited_us, requests
        for (name, value), number in grown.items():
            counters.count(name, number - self._before.get((name, value), 0), value)
        self._before = grown
        not_taken, error = replies.not_taken()
        if not_taken:
            counters.count("fastfuse_errors", not_taken, "EIO")
            _log.error("the kernel did not take %d answers, so these reads failed: %s", not_taken, os.strerror(error))

    def _waited_for_cpu_us(self) -> int:
        """Return for how long the loop, in the first thread, was ready to run and had no CPU, as far as it is known."""
        try:
            return int(Path("/proc/self/schedstat").read_text().split()[1]) // 1000
        except OSError:  # the kernel does not count it, or there is no descriptor for it now
            return self._waited_us


async def _show(board: Board, reads: Reads, retries: Retries, counters: Counters) -> None:
    """Show every second what `fastfuse status` and ``/healthz`` tell of this process."""
    gauges = TroubleGauges(counters)
    # Those that failed until now, since when, and what had been delivered then.
    failed, failing_since_s, delivered_then = dict[str, int](), 0.0, 0
    while True:
        trouble, now_s = retries.trouble(), trio.current_time()
        if gauges.look(trouble, now_s):
            (failed_for_s, failed), delivered_then = gauges.reads.failures(now_s), gauges.reads.delivered
            failing_since_s = now_s - failed_for_s
            trouble = trouble or {"since": time.time() - failed_for_s, "failures": failed, "requests": 0}
        elif failed and gauges.reads.delivered > delivered_then:
            told = ", ".join(f"{count} × {name}" for name, count in failed.items())
            _log.info("reads succeed again after %.0f s: %s", now_s - failing_since_s, told)
            failed = {}
        board.show({"trouble": trouble, "errors": list(reads.last_errors)})
        await trio.sleep(BEAT_EVERY_S)


async def _watch_memory(parts_bytes: int, target_bytes: int, counters: Counters, retire: Callable[[], None]) -> None:
    """Have the C library give back what it keeps beyond `parts_bytes` more than at the start.

    Call `retire` once this process has more of its own than `target_bytes` allows. The next worker goes on.
    """
    used_bytes, most_bytes = private_bytes(), most_worker_bytes(target_bytes)
    kept_bytes = used_bytes + parts_bytes
    while True:
        with suppress(OSError):  # no descriptor is left for now
            used_bytes = private_bytes()
            if used_bytes > kept_bytes:
                gc.collect()
                trim_malloc()  # takes 2 to 20 ms
                used_bytes = private_bytes()
                kept_bytes = max(kept_bytes, used_bytes)  # what could not be given back is in use
        counters.set("fastfuse_worker_memory_bytes", used_bytes)
        if used_bytes > most_bytes:
            break
        await trio.sleep(BEAT_EVERY_S)
    _log.warning(
        "the worker has %d MiB of memory, more than the %d MiB that --memory-target allows; another takes over",
        used_bytes >> 20,
        most_bytes >> 20,
    )
    retire()
