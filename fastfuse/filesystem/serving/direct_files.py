"""Lets `direct_reads` read small files and parts without the interpreter, and tells the others what it read.

With a local tier, small files that it may have are begun from here: threads read what it keeps, and get what it lacks.

That is right while the service answers, its credentials are current, no proxy is in between and `--verify` asks for no
more than the usual checks. `arm` hands over what requests need for a minute, and each look renews it. What a thread
returns is read by the handler of reads, as if the kernel had just asked.
"""

import ipaddress
import logging
import os
import re
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from math import inf
from time import monotonic, perf_counter, time
from typing import NamedTuple

import trio

from fastfuse.cache.reader import CachedReader, Place
from fastfuse.errors import FastfuseError
from fastfuse.filesystem.kernel.fuse import direct_reads, interposed, replies
from fastfuse.filesystem.serving.reads import Reads, Request
from fastfuse.filesystem.talking.watching import Access, RecordedReader
from fastfuse.objects import Buffer, ObjectRef
from fastfuse.readahead import ReadEngine
from fastfuse.readahead.shelves import Threads
from fastfuse.s3.aws import stall_timeout_s
from fastfuse.s3.client import S3Client
from fastfuse.s3.connection import SILENT_CALLS, TASK_BYTES
from fastfuse.s3.routes import Direct, quoted_key

_log = logging.getLogger(__name__)

_LOOK_EVERY_S = 1.0
# Threads that stopped by themselves rest for so long first. If the service throttles, the client finds its rate
# meanwhile.
_REST_S, _MOST_REST_S = 5.0, 80.0
# Parts rest by themselves after so many failures in a row: some services answer ranges as only the client takes it.
_MOST_PART_FAILURES = 3
# A signature is good for 15 minutes, and a worker that does not look for so long hangs.
_ARMED_FOR_S = 60.0
_RENEW_EVERY_S = 20.0
# A GET that brings nothing for so long is made again by the client, whose deadline begins then, and so is a read of the
# tier. So at most this share of the deadline is lost; S3 takes 0.2 s for all but a few. After one that drips, which may
# take `DIRECT_MOST_SILENCES` times as long, the client has what is left of the deadline.
_PATIENCE_S = 2.0
_PATIENCE_DIVISOR = 20

_FEW_THREADS = "small files are read more slowly: %s; see ulimit -u and the cgroup's pids.max"
# Refusals that say nothing of other objects: it was removed, or replaced.
_OF_ONE_OBJECT = 404, 412
# An ETag that a header can carry as it is.
_QUOTED = re.compile(r'"[\x20-\x7e]+"')
_IPV4, _IPV6 = struct.Struct("=H2s4s8x"), struct.Struct("=H2sI16sI")  # sockaddr_in, sockaddr_in6


class _Rest:
    """A time in which the client does all, after failures in a row; each time in a row is twice as long."""

    def __init__(self, most_failures: int = 1) -> None:
        self._most_failures = most_failures
        self._failures, self._until_s, self._next_s = 0, 0.0, _REST_S

    def failed(self, now_s: float) -> None:
        if self.lasts(now_s):
            return  # it was under way when the rest began
        self._failures += 1
        if self._failures >= self._most_failures:
            self._failures = 0
            self._until_s, self._next_s = now_s + self._next_s, min(2 * self._next_s, _MOST_REST_S)

    def lasts(self, now_s: float) -> bool:
        return now_s < self._until_s

    def end(self) -> None:
        """Note that threads have done it well."""
        self._failures, self._until_s, self._next_s = 0, 0.0, _REST_S


class _Part(NamedTuple):
    """A part under way: its key and memory, who is told of its end, its number in `RecordedReader`, when it began."""

    key: str
    is_whole: bool
    data: memoryview
    done: Callable[[Buffer | None], None]
    get: int
    began_s: float


class DirectFiles:
    """The small files and the parts that the threads of one worker fetch."""

    def __init__(
        self,
        reads: Reads,
        engine: ReadEngine,
        client: S3Client,
        gets: RecordedReader,
        session_fd: int,
        take: Callable[[int], memoryview],
        *,
        most_threads: int,
        tier: CachedReader | None,
    ) -> None:
        """Start nothing yet. `take` gives the memory of parts and of joined answers.

        A local `tier` keeps parts and says where small files lie.
        """
        self._reads = reads
        self._engine = engine
        self._client = client
        self._gets = gets
        self._take = take
        self._returned = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._armed_at_s = 0.0
        self._rest = _Rest()
        # The target of requests, and the identity of their table: the table itself would be kept after a refresh.
        self._goal: tuple[str, str, int] | None = None
        self._armed_table = 0
        # True if threads read at the last look.
        self._was_armed = False
        # The bucket, and the beginning of the keys, that threads read; and the parts under way, by number.
        self._source: tuple[str, str] = "", ""
        # The first is of ranges, the second of whole objects: each may fail where the others do not.
        self._parts_rests = _Rest(_MOST_PART_FAILURES), _Rest(_MOST_PART_FAILURES)
        self._parts: dict[int, _Part] = {}
        in_hand = reads.in_hand
        direct_reads.start(session_fd, self._returned, most_threads)
        for read in (*in_hand.suspects.values(), *in_hand.poisoned):
            direct_reads.claim(read.inode, is_for_ever=True)
        self._tier = tier
        if tier is not None:
            self._keep_in(tier)
        self._tellers: dict[int, Callable[..., None]] = {
            direct_reads.READ: self._tell_of,
            direct_reads.GOT_AHEAD: self._tell_of_get_ahead,
            direct_reads.READ_AHEAD: self._tell_of_read_ahead,
        }
        interposed.tell_of_reads(self.tell)
        threads = Threads(
            size_of=interposed.size_of_small, is_near=self._place_kept, drop=direct_reads.drop_ahead,
            fetch=lambda inode, size_bytes: interposed.fetch_ahead(inode, take(size_bytes)),
            bound_begun=direct_reads.bound_begun_ahead, held=direct_reads.held_ahead,
            claim=direct_reads.claim, release=direct_reads.release, is_read=direct_reads.is_read,
        )  # fmt: skip
        engine.fetch_small_by(threads)
        engine.fetches.take = take
        engine.fetches.begin = self.begin if tier is None else self._begin_with_tier

    def _keep_in(self, tier: CachedReader) -> None:
        cache, patience_s = tier.cache, _patience_s(self._client)
        filter_bytes = os.fstat(cache.filter_fd).st_size
        direct_reads.keep_in(cache.directory_fd, cache.claims_fd, cache.filter_fd, filter_bytes, patience_s)
        self._use_tier()
        tier.forgets = self._leave_tier
        self._reads.begins_elsewhere = self.begin_file

    async def run(self) -> None:
        """Answer what threads return, for ever."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._look)
            nursery.start_soon(self._keep_armed)
            await self._hear(nursery)

    async def _hear(self, nursery: trio.Nursery) -> None:
        while True:
            await trio.lowlevel.wait_readable(self._returned)
            os.eventfd_read(self._returned)
            self.tell()
            self._end_parts()
            for number, inode, offset, size_bytes, process, status, segment, since_s in direct_reads.returned():
                if status == direct_reads.STALLED and self._tier is not None:
                    self._tier.note_hang(segment, _patience_s(self._client))
                elif status >= 0 and not segment:
                    self._client.count_in_vain(status, self._source[0], self._key(inode))
                # Others have kept it meanwhile; or it is not kept any more where that was remembered.
                is_lost = segment > 0 and not status
                request = Request(number, inode, offset, size_bytes, process)
                is_other = is_lost or status == direct_reads.MAY_BE_KEPT
                if not (is_other and self._begin_again(request, is_lost=is_lost)):
                    if not offset:
                        self._engine.began(process)
                    is_late = since_s > 2 * _patience_s(self._client)
                    # No GET takes more, unless this process is stopped meanwhile, which is nobody's fault.
                    since_s = min(since_s, self._client.session.config.deadline_s / 2)
                    came_s = perf_counter() - since_s if is_late else inf
                    nursery.start_soon(partial(self._reads.answer, request, came_s=came_s))

    def _begin_again(self, request: Request, *, is_lost: bool) -> bool:
        try:
            is_begun = self.begin_file(request, is_lost=is_lost)
        except Exception:  # noqa: BLE001 - `answer` meets it again, and tells it
            return False
        if is_begun:
            direct_reads.end_wait()  # it waits for another thread now
        return is_begun

    def begin_file(self, request: Request, *, is_lost: bool = False) -> bool:
        """Have a thread answer a read of all of a small file, from the tier or for it; return whether one does.

        If it `is_lost`, because a thread could not read it from the tier, none reads it there again.
        """
        assert self._tier is not None
        number, inode, _, size_bytes, process = request
        ref, unread = self._reads.table.ref(inode), self._reads.table.unread_classes
        is_one = ref.bucket and ref.size_bytes <= size_bytes and ref.storage_class not in unread
        if not is_one or not direct_reads.may_read_kept(inode, ref.size_bytes):
            return False
        asked, found = (number, inode, size_bytes, process, ref.size_bytes), self._tier.look(ref)
        if isinstance(found, Place):
            return not is_lost and direct_reads.read_kept(*asked, *found)
        if found is None or not self._is_within_reach(ref):
            return False
        return direct_reads.get_file(*asked, self._path(ref), ref.etag.encode(), *found)

    def _place_kept(self, inode: int) -> bool:
        """Return whether the tier keeps a small file where a thread will read it when the kernel asks for it."""
        if direct_reads.is_placed(inode) or self._tier is None or not interposed.may_be_kept(inode):
            return direct_reads.is_placed(inode)
        found = self._tier.look(self._reads.table.ref(inode))
        if isinstance(found, Place):
            direct_reads.place_kept(inode, *found)
        return isinstance(found, Place)

    def _leave_tier(self) -> None:
        """Forget where files lie, and see at once whether the tier is used."""
        direct_reads.forget_kept()
        self._use_tier()

    def _use_tier(self) -> None:
        if self._tier is not None:
            direct_reads.use_tier(self._tier.is_used)

    def _is_within_reach(self, ref: ObjectRef) -> bool:
        """Return whether threads could ask for an object by what they were armed with."""
        bucket, prefix = self._source
        return ref.bucket == bucket and ref.key.startswith(prefix) and _QUOTED.fullmatch(ref.etag) is not None

    def _path(self, ref: ObjectRef) -> bytes:
        return quoted_key(ref.key[len(self._source[1]) :]).encode()

    def _begin_with_tier(self, ref: ObjectRef, start: int, end: int, done: Callable[[Buffer | None], None]) -> bool:
        # Another range would be refused, after a look into the index.
        return (
            self._tier is not None
            and _suits_thread(ref, start, end)
            and self._tier.begin(self.begin, ref, start, end, done)
        )

    def begin(self, ref: ObjectRef, start: int, end: int, done: Callable[[Buffer | None], None]) -> bool:
        """Begin to get a part, or all of a small file, as `BeginGet` says."""
        if not _suits_thread(ref, start, end) or not direct_reads.may_get_part():
            return False
        is_whole = end - start == ref.size_bytes
        if self._parts_rests[is_whole].lasts(monotonic()) or not self._is_within_reach(ref):
            return False
        data = self._take(end - start)
        number = direct_reads.get_part(self._path(ref), ref.etag.encode(), ref.size_bytes, start, data)
        if number < 0:
            return False
        get = self._gets.begin(ref, start, end)
        self._parts[number] = _Part(ref.key, is_whole, data, done, get, trio.current_time())
        return True

    def _end_parts(self) -> None:
        """Tell of the parts that have ended."""
        # Those who hear of one may begin another with its number.
        ended = [(self._parts.pop(end[0], None), end) for end in direct_reads.parts()]
        for part, (_, is_right, status, first_byte_s, is_checked) in ended:
            if part is None:
                continue  # no memory was left to note it, and the client got it
            self._gets.end(part.get)
            if is_right:
                self._parts_rests[part.is_whole].end()
                took_s = trio.current_time() - part.began_s
                had_checksum = is_checked if part.is_whole else None
                self._client.count_direct(len(part.data), took_s, first_byte_s, is_checked=had_checksum, key=part.key)
                part.done(part.data.toreadonly())
            else:
                self._client.count_in_vain(status, self._source[0], part.key)
                if status not in _OF_ONE_OBJECT:
                    self._parts_rests[part.is_whole].failed(monotonic())
                part.done(None)

    async def arm(self) -> None:
        """Let threads read if that is right now, and not otherwise."""
        table = self._reads.table
        metadata, way = table.metadata, None
        if metadata.bucket:
            with suppress(FastfuseError):  # the client's own requests tell
                way = self._client.direct(metadata.bucket, metadata.key_prefix)
        is_armed, now_s = direct_reads.is_armed(), monotonic()
        if self._was_armed and not is_armed and self._armed_table == id(table):
            self._rest.failed(now_s)
        self._was_armed = is_armed and way is not None
        if way is None or self._rest.lasts(now_s):
            direct_reads.disarm()
            return
        host, port = way.endpoint.host, way.endpoint.port
        goal = way.endpoint.scheme, host, port
        goes_on = is_armed and goal == self._goal
        if goes_on and now_s - self._armed_at_s < _RENEW_EVERY_S:
            return
        addresses = await _addresses(self._client, way)
        if goes_on:
            self._rest.end()
        if not addresses or self._reads.table is not table:
            return
        self._goal, config = goal, self._client.session.config
        direct_reads.arm(
            addresses=addresses,
            host=host.encode("idna"),
            port=port,
            is_address=_is_address(host),
            tls=0 if way.tls is None else way.tls.address,
            texts=way.texts,
            for_s=_ARMED_FOR_S,
            patience_s=_patience_s(self._client),
            # A silence amid the body is waited for twice (MSG_WAITALL).
            part_patience_s=stall_timeout_s(config) / SILENT_CALLS,
            part_limit_s=config.deadline_s,
            identity_begin=self._tier.identity_begin(metadata.bucket, metadata.key_prefix) if self._tier else b"",
        )
        self._source = metadata.bucket, metadata.key_prefix
        self._was_armed, self._armed_at_s, self._armed_table = True, now_s, id(table)

    def tell(self) -> None:
        """Tell everybody who counts what threads have read. Raise nothing."""
        for what, told in direct_reads.served():
            try:
                self._tellers[what](*told)
            except Exception:  # noqa: BLE001 - it is called in the middle of another request
                _log.exception("a small file that was read is not counted, for an unforeseen reason; the mount goes on")

    def _tell_of(
        self, inode: int, size_bytes: int, process: int, asked_bytes: int, ago_s: float, took_s: float,
        first_byte_s: float, is_checked: bool, segment: int, seed: int, object_id: int,
        body: "direct_reads.Body | None",
    ) -> None:  # fmt: skip
        if body is not None and self._tier is not None:
            self._tier.keep(object_id, seed, memoryview(body))
        self._reads.count(size_bytes, took_s)
        if segment and self._tier is not None:
            self._tier.note_read(segment, seed, size_bytes)
        else:
            self._count_get(inode, size_bytes, took_s, first_byte_s, is_checked=is_checked)
        if self._reads.watched is not None:
            access = Access(time() - ago_s, process, inode, 0, asked_bytes, "waited", took_s, 0)
            self._reads.watched.note(access)
        self._engine.note_read(inode, size_bytes, None if segment else took_s, process)

    def _tell_of_get_ahead(
        self, inode: int, size_bytes: int, is_here: bool, status: int, took_s: float, first_byte_s: float,
        is_checked: bool, seed: int, object_id: int, body: "direct_reads.Body | None",
    ) -> None:  # fmt: skip
        if body is not None and self._tier is not None:
            self._tier.keep(object_id, seed, memoryview(body))
        if is_here:
            self._count_get(inode, size_bytes, took_s, first_byte_s, is_checked=is_checked)
            self._engine.got_ahead()
            return
        self._engine.lost_ahead(inode)
        if status >= 0:
            self._client.count_in_vain(status, self._source[0], self._key(inode))

    def _tell_of_read_ahead(
        self, inode: int, offset: int, size_bytes: int, process: int, asked_bytes: int, ago_s: float, took_s: float,
        has_waited: bool, is_first: bool,
    ) -> None:  # fmt: skip
        self._reads.count(size_bytes, took_s)
        if self._reads.watched is not None:
            found = "ahead" if has_waited else "hit"
            self._reads.watched.note(Access(time() - ago_s, process, inode, offset, asked_bytes, found, took_s, 0))
        self._engine.note_read_ahead(inode, offset, size_bytes, process, has_waited=has_waited, is_first=is_first)

    def _count_get(self, inode: int, size_bytes: int, took_s: float, first_byte_s: float, *, is_checked: bool) -> None:
        key = self._key(inode) if _log.isEnabledFor(logging.DEBUG) else ""
        self._client.count_direct(size_bytes, took_s, first_byte_s, is_checked=is_checked, key=key)
        self._gets.note(took_s, size_bytes, inode, self._key)

    async def _look(self) -> None:
        while True:
            direct_reads.end_stalled()
            replies.refuse_killed()
            self._use_tier()
            self.tell()
            if error := direct_reads.refused():
                _log.warning(_FEW_THREADS, os.strerror(error))
            await trio.sleep(_LOOK_EVERY_S)

    async def _keep_armed(self) -> None:
        while True:
            await self.arm()  # may wait for the resolver
            await trio.sleep(_LOOK_EVERY_S)

    def _key(self, inode: int) -> str:
        try:
            return self._reads.table.key(inode)
        except FastfuseError:
            return ""  # a refresh has taken it away


def _suits_thread(ref: ObjectRef, start: int, end: int) -> bool:
    """Return whether threads GET such a range: a part, or all of a small object."""
    return end - start < ref.size_bytes or ref.size_bytes <= TASK_BYTES


def _patience_s(client: S3Client) -> float:
    return min(_PATIENCE_S, client.session.config.deadline_s / _PATIENCE_DIVISOR)


async def _addresses(client: S3Client, way: Direct) -> list[bytes]:
    """Return the addresses of a way as connect(2) takes them."""
    try:
        found = await client.addresses(way)
    except (OSError, UnicodeError, RuntimeError):  # the last: no room for the thread in which trio resolves a name
        return []
    return [_packed(family, *address) for family, *_, address in found]


def _packed(family: int, host: str, port: int, flow: int = 0, scope: int = 0) -> bytes:
    network_port, packed = port.to_bytes(2), socket.inet_pton(family, host.partition("%")[0])
    if family == socket.AF_INET:
        return _IPV4.pack(family, network_port, packed)
    return _IPV6.pack(family, network_port, flow, packed, scope)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
