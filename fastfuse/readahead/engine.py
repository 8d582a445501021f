"""The seam between the FUSE layer and the read engine: reads of inodes, and inodes that the kernel has forgotten.

The kernel opens nothing (`filesystem.serving.operations`), so a file is *begun* by its first read, and a stream of its
readers lasts until one of them has come to its end, the kernel forgets the inode, or many others were read since.
"""

from collections.abc import Callable
from itertools import islice
from math import inf

import trio

from fastfuse.objects import Buffer, ObjectRef
from fastfuse.readahead.fetches import Fetches
from fastfuse.readahead.limits import ReadaheadConfig
from fastfuse.readahead.own_pace import OwnPace
from fastfuse.readahead.page_cache import Delivered
from fastfuse.readahead.pool import PartPool
from fastfuse.readahead.prefetch import Listing, Prefetcher
from fastfuse.readahead.ranges import known_part_end
from fastfuse.readahead.shelves import Threads
from fastfuse.readahead.stream import Stream
from fastfuse.s3.base import RangeReader

# Files that are read ahead for each reader before they are begun.
_MAX_FOLLOWERS = 4
# Files begun that were not foreseen before such a file is released; half as many where several readers want the memory.
_PATIENCE_FILES = 16
# The part of the memory of expected files that small ones may keep of which only a part was read.
_BEGUN_SMALL_DIVISOR = 4
# Streams of files that nobody has read to the end. One takes 4 kB, and an idle one holds no memory that others want.
_MAX_STREAMS = 4096


class ReadEngine:
    """Reads listed objects by inode, ahead of the readers, within one limit of memory.

    All state is made on the first read of a file and may be lost at any time without harm. Fetches run as tasks
    in `nursery`, which must outlive every `read`. Its cancellation ends them and fails the reads that wait for them.
    """

    def __init__(
        self, reader: RangeReader, config: ReadaheadConfig, nursery: trio.Nursery, listing: Callable[[], Listing]
    ) -> None:
        """Begin without streams; `listing` returns the table of the moment."""
        self._reader = reader
        self._config = config
        self.pool = PartPool(config)
        # `DirectFiles` sets `begin` and `take`.
        self._delivered = Delivered()
        self.fetches = Fetches(reader, self.pool, self._delivered, nursery, config)
        self.counts = self.fetches.counts
        # Least recently read first.
        self._streams: dict[int, Stream] = {}
        # Large files that readers are about to begin, oldest first, and the unforeseen ones begun before each.
        self._followers: dict[int, int] = {}
        self._unforeseen_files = 0
        self._own_pace = OwnPace()
        self._prefetcher = Prefetcher(listing, self._delivered, self.pool, config, self.fetches, self._own_pace)
        self.new_order = self._prefetcher.new_order

    def fetch_small_by(self, threads: Threads) -> None:
        """Leave small files to `threads`, before any is read: what they fetch ahead is kept in memory of the engine."""
        expected = self.pool.expected
        expected.small_files.threads = threads
        threads.bound_begun(expected.max_bytes // _BEGUN_SMALL_DIVISOR)

    def at_hand(self, inode: int, ref: ObjectRef, offset: int, size_bytes: int) -> Buffer | None:
        """Return what `read` would where one part that is here has all of it, and at the end; None otherwise."""
        end = min(offset + size_bytes, ref.size_bytes)
        if offset >= end:
            return b""
        stream = self._stream_of(inode, ref)
        if stream is None:
            return None if offset or end != ref.size_bytes else self._take_expected(inode, ref)
        if not stream.was_read:
            return None  # it begins
        self._streams[inode] = self._streams.pop(inode)  # as the one read last
        data = stream.at_hand(offset, end)
        if data is not None and stream.is_done:
            self.release(inode)
        return data

    async def read(self, inode: int, ref: ObjectRef, offset: int, size_bytes: int, ends_s: float = inf) -> Buffer:
        """Return ``min(size_bytes, ref.size_bytes - offset)`` bytes of the listed version of `ref`; none at its end.

        Where one part has them all, the result is a slice of it, which keeps its memory alive: write it out and drop
        it at once. A checkpoint only where it has to wait; the loop that takes requests from the kernel is another.

        Raise the `ReadError` of a fetch that this read needs; a failed readahead fails no read. A read that began
        in a process that died has until `ends_s`. After an error or a cancellation the next read starts clean.
        """
        end = min(offset + size_bytes, ref.size_bytes)
        if offset >= end:
            return b""
        stream, is_small = self._stream_of(inode, ref), ref.size_bytes <= self._config.part_size_bytes
        if stream is None:
            is_whole = not offset and end == ref.size_bytes
            is_found, is_missed = self.pool.is_guess(inode), is_small and self.pool.file(inode) is None
            is_new = ends_s == inf
            if is_new and is_whole and is_missed and self.pool.try_reserve(end):
                return await self._read_whole(inode, ref)
            whole = self._take_expected(inode, ref) if is_whole else None
            if whole is not None:
                return whole
            is_cached = self._delivered.has(inode)
            stream = self._open(inode, ref, is_cached=is_cached)
            if is_new and is_small and not is_whole and not is_cached:
                stream.fetch_whole()
            self._begin(inode, offset, is_found=is_found, is_missed=is_missed)
        else:
            self._streams[inode] = self._streams.pop(inode)  # as the one read last
            if not stream.was_read:
                self._begin(inode, offset)
            elif is_small and inode in self._delivered.failed:
                stream.fetch_whole()  # the checksum of the object says nothing of a piece
        data = await stream.read(offset, end, ends_s)
        if stream.is_done and self._streams.get(inode) is stream:
            self.release(inode)
        return data

    def put_off(self, inode: int, offset: int, size_bytes: int) -> bool:
        """Return whether to refuse a request, so that the kernel asks for less: see `Window.put_off`."""
        stream = self._streams.get(inode)
        if stream is None or self.find(inode, stream.file.ref, offset, size_bytes) != "waited":
            return False
        return stream.window.put_off(offset, offset + size_bytes)

    def note_read(self, inode: int, size_bytes: int, get_s: float | None, reader_id: int) -> None:
        """Note that a small file was read whole by somebody else, and start what comes after it.

        It took one GET of `get_s`, or None at all; `reader_id` is as in `began`.
        """
        if get_s is not None:
            self._own_pace.waited(get_s)
        self._own_pace.begun(reader_id, trio.current_time(), is_kept=get_s is None)
        counts = self.counts
        counts.waits += 1
        counts.demanded_parts += 1
        counts.waited_bytes += size_bytes
        self._begin(inode, 0, is_missed=True)

    def note_read_ahead(
        self, inode: int, offset: int, size_bytes: int, reader_id: int, *, has_waited: bool, is_first: bool
    ) -> None:
        """Note a read of one of the `SmallFiles`, and start what comes after its first; `reader_id` is as in `began`.

        `has_waited`: for a GET that was under way.
        """
        counts = self.counts
        if has_waited:
            counts.waits += 1
            counts.waited_bytes += size_bytes
        else:
            counts.hits += 1
        if is_first:
            self._own_pace.begun(reader_id, trio.current_time())
            self._begin(inode, offset)

    def got_ahead(self) -> None:
        """Note that one of the `SmallFiles` was fetched: it may be read before a thread comes to it."""
        self.counts.prefetched_parts += 1

    def lost_ahead(self, inode: int) -> None:
        """Note that one of the `SmallFiles` could not be fetched: its reader will."""
        self.pool.expected.small_files.adopt(inode)
        self._delivered.fail(inode)

    def began(self, reader_id: int) -> None:
        """Note that the thread or process with the number `reader_id` reads the beginning of a file."""
        self._own_pace.begun(reader_id, trio.current_time())

    def find(self, inode: int, ref: ObjectRef, offset: int, size_bytes: int) -> str:
        """Return how a read would find its bytes, and change nothing.

        ``hit``: all are here. ``ahead``: the GETs of those that are missing were started before. ``waited``: the read
        has to start one.
        """
        found, end = "hit", min(offset + size_bytes, ref.size_bytes)
        file = self.pool.file(inode)
        while offset < end:
            part = file.at(offset) if file is not None and file.ref == ref else None
            if part is None:
                return "waited"
            if part.data is None:
                found = "ahead"
            offset = part.end
        return found

    def pattern(self, inode: int) -> tuple[str, int]:
        """Return how a file is read, and how many bytes may be ahead of its reader; a file read at once is "whole"."""
        stream = self._streams.get(inode)
        return ("whole", 0) if stream is None else stream.window.pattern

    def fetch(self, inode: int, ref: ObjectRef, start: int, end: int) -> bool:
        """Start the fetch of ``[start, end)``, which is certain to be read, as one part.

        Never wait and never fail; return False if there is no room or no connection for it now.
        """
        return self._open(inode, ref).fetch(start, end)

    def release(self, inode: int) -> None:
        """Stop reading `inode` ahead: its parts are kept only while nobody else wants the memory."""
        self._followers.pop(inode, None)
        stream = self._streams.pop(inode, None)
        if stream is not None:
            stream.close()

    def forget(self, inode: int) -> None:
        """Keep nothing of `inode`: no process has it open, and the page cache has nothing of it."""
        self.release(inode)
        self._delivered.discard(inode)
        self.pool.forget(inode)

    def refreshed(self) -> None:
        """Keep nothing of files that the table of the moment does not have."""
        table = self._prefetcher.current_table()
        for inode in {*self._streams, *self.pool.inodes()}:
            if inode not in table:
                self.release(inode)
                self.pool.drop_expected(inode)
                self.pool.forget(inode)

    @property
    def streams(self) -> int:
        """The number of files that are read."""
        return len(self._streams)

    def memory(self) -> dict[str, int]:
        """Return how many bytes each use of the memory has: they add up to what the target limits."""
        pool = self.pool
        foreseen_bytes = pool.held_bytes - pool.spent_bytes + pool.expected.small_files.held()[1]
        return {"in flight": pool.reserved_bytes, "unread": foreseen_bytes, "read": pool.spent_bytes}

    def _take_expected(self, inode: int, ref: ObjectRef) -> Buffer | None:
        """Return all of a small file that was fetched because somebody announced it, or it was foreseen."""
        is_found = self.pool.is_guess(inode)
        whole = self.pool.take_expected(inode, ref)
        if whole is not None:
            self.counts.hits += 1
            self._begin(inode, 0, is_found=is_found)
        return whole

    async def _read_whole(self, inode: int, ref: ObjectRef) -> Buffer:
        """Read a small file, whose memory is reserved, in the task of its reader: nothing else needs to know of it."""
        counts = self.counts
        counts.waits += 1
        counts.demanded_parts += 1
        fetched_bytes, began_s = 0, trio.current_time()
        try:
            self._begin(inode, 0, is_missed=True)
            data = await self._reader.get(ref, 0, ref.size_bytes)
            fetched_bytes = len(data)
            counts.waited_bytes += fetched_bytes
            self._own_pace.waited(trio.current_time() - began_s)
            return data
        except Exception as error:
            self.fetches.failed(inode, error)
            raise
        finally:
            self.pool.release(ref.size_bytes, fetched_bytes)

    def _begin(self, inode: int, offset: int, *, is_found: bool = False, is_missed: bool = False) -> None:
        """Note the first read of a file, and start what comes after it in some order."""
        if self._followers.pop(inode, None) is None:
            self._unforeseen_files += 1
            self._release_old_followers()
        is_missed &= inode not in self._delivered.failed  # of what cannot be read the kernel asks for a page again
        if self._delivered.begin(inode) and not offset:
            self._delivered.missed()
        self._prefetcher.begun(inode, is_found=is_found, is_missed=is_missed)

    def _stream_of(self, inode: int, ref: ObjectRef) -> Stream | None:
        """Return the stream of this version of the file, and end that of any other."""
        stream = self._streams.get(inode)
        if stream is None or stream.file.ref == ref:
            return stream
        self.release(inode)
        return None

    def _open(self, inode: int, ref: ObjectRef, *, is_cached: bool = False) -> Stream:
        stream = self._stream_of(inode, ref)
        if stream is None:
            file = self.pool.open(inode, ref)
            stream = self._streams[inode] = Stream(
                file, self.pool, self._config, self.fetches, self._read_on, is_cached
            )
            if len(self._streams) > _MAX_STREAMS:
                self.release(next(iter(self._streams)))
        return stream

    def _read_on(self, inode: int, size_bytes: int, bytes_to_end: int) -> None:
        """Read ahead `size_bytes` of the files that follow on `inode`, whose reader is `bytes_to_end` from its end.

        Otherwise a reader waits for the first bytes of every shard, and for a window that grows again.
        """
        for following, ref in islice(self._prefetcher.followers(inode), _MAX_FOLLOWERS):
            if size_bytes <= 0 or (following in self._streams and following not in self._followers):
                break
            stream = self._open(following, ref)  # first: it forgets a follower of another version
            self._followers.setdefault(following, self._unforeseen_files)
            if not self._fetch_first(stream, size_bytes, bytes_to_end):
                break
            size_bytes -= ref.size_bytes
            bytes_to_end += ref.size_bytes

    def _fetch_first(self, stream: Stream, size_bytes: int, before_bytes: int) -> bool:
        start, file = 0, stream.file
        while start < min(size_bytes, file.ref.size_bytes):
            part = file.at(start)
            end = known_part_end(start, file.ref.size_bytes, self._config.part_size_bytes, before_bytes)
            if part is None and not stream.fetch(start, end):
                return False
            start = end if part is None else part.end
        return True

    def _release_old_followers(self) -> None:
        followers = self._followers
        while followers:
            inode, since = next(iter(followers.items()))
            patience = _PATIENCE_FILES if len(followers) <= _MAX_FOLLOWERS else _PATIENCE_FILES // 2
            if self._unforeseen_files - since < patience:
                return
            self.release(inode)
