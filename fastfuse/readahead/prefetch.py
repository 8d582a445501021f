"""Fetches files before they are opened: carries out what `announced`, `listed` and `shuffled` decide, in this order.

What is fetched is *expected*: the pool keeps it, within bounds of its own, until the file is opened or the order says
that it will not be. Expected files give way to everything that somebody waits for; those that are only guessed
(`shuffled`, and all of the table before a refresh) give way to those of the orders too, which adopt them otherwise.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import trio

from fastfuse.errors import FastfuseError, UnavailableError
from fastfuse.objects import ARCHIVE_STORAGE_CLASSES, ObjectRef
from fastfuse.readahead.announced import AnnouncedOrder
from fastfuse.readahead.delivered import Delivered
from fastfuse.readahead.fetches import Fetches
from fastfuse.readahead.listed import ListingOrder
from fastfuse.readahead.parts import Part
from fastfuse.readahead.pool import PartPool
from fastfuse.readahead.readahead_config import ReadaheadConfig
from fastfuse.readahead.shuffled import ShuffledEpoch
from fastfuse.readahead.statistics import ReadCounts
from fastfuse.s3.base import RangeReader

__all__ = ["Listing", "Order", "Prefetcher"]

# An order that nobody follows may hold a sixteenth of the memory: 64 MiB by default.
_UNPROVEN_DIVISOR = 16

# The root and its subdirectories come before the first file.
_MAX_LEADING_ROWS = 1024

# One open leaves room for one file, and a task that has fetched one takes the next: a new task for each was 3 % of the
# CPU time of a small file. So new ones begin when there is room for one more to each so many that run.
_TASKS_PER_OPEN = 8

# What a table may raise where it does not know an inode, or is damaged: no reason to fail who opens another file.
_NO_FILE = (FastfuseError, LookupError, ValueError)


class Listing(Protocol):
    """What is known of all files: the inode table. It never changes; a refresh brings another."""

    def __len__(self) -> int:
        """How many rows there are."""
        ...

    def row(self, inode: int) -> int:
        """The place of a file in the order of the listing. Raises where there is no such inode."""
        ...

    def file_at(self, row: int) -> tuple[int, int] | None:
        """``(inode, size in bytes)``, or None if the row is a directory."""
        ...

    def ref(self, inode: int) -> ObjectRef:
        """The object behind a file. Raises where there is none."""
        ...


class Order:
    """An order of files that somebody announces; see `announced`."""

    def __init__(self, prefetcher: "Prefetcher", decisions: AnnouncedOrder) -> None:
        self.decisions = decisions
        self._prefetcher = prefetcher
        # Set when there is room again for who waits to announce more.
        self._room: trio.Event | None = None

    @property
    def is_spent(self) -> bool:
        """Whether everything that was announced is fetched or passed over."""
        return self.decisions.is_spent

    async def announce(self, inodes: Sequence[int]) -> None:
        """Take files that will be opened, in this order and after those announced before.

        A checkpoint; waits while enough is announced. Inodes that are no files any more are skipped when it is their
        turn. If cancelled, nothing of `inodes` was taken.
        """
        await trio.lowlevel.checkpoint()
        while self.decisions.is_full:
            if self._room is None:
                self._room = trio.Event()
            await self._room.wait()
        self.decisions.announce(inodes)
        self._prefetcher.enlist(self)

    def withdraw(self) -> None:
        """Forget what was announced and not opened. Idempotent; another `announce` begins afresh."""
        self._prefetcher.dismiss(self)

    def wake(self) -> None:
        """Let those go on who wait to announce more, if there is room."""
        if self._room is not None and not self.decisions.is_full:
            self._room.set()
            self._room = None


class Prefetcher:
    """All orders of one engine, and the GETs that they cause. Nothing here waits but the fetches."""

    def __init__(
        self,
        listing: Callable[[], Listing],
        delivered: Delivered,
        pool: PartPool,
        reader: RangeReader,
        config: ReadaheadConfig,
        fetches: Fetches,
        counts: ReadCounts,
    ) -> None:
        """`listing` gives the table of the moment."""
        self._listing = listing
        self._delivered = delivered
        self._pool = pool
        self._reader = reader
        self._config = config
        self._fetches = fetches
        self._counts = counts
        # Announced orders, in their turn.
        self._orders: deque[Order] = deque()
        # Tasks that fetch, and opens for which neither they nor new ones have fetched anything.
        self._tasks = self._opens_unheeded = 0
        self._table: Listing | None = None
        self._listed = ListingOrder(0)
        self._shuffled = self._new_epoch(0)

    def new_order(self) -> Order:
        """The place for an order; it costs nothing before something is announced."""
        return Order(self, AnnouncedOrder(self._config.memory_limit_bytes // _UNPROVEN_DIVISOR))

    def enlist(self, order: Order) -> None:
        """Something was announced."""
        if order not in self._orders:
            self._orders.append(order)
        self._pump()

    def dismiss(self, order: Order) -> None:
        """It was withdrawn."""
        self._drop(order.decisions.withdraw())
        if order in self._orders:
            self._orders.remove(order)
        order.wake()

    def opened(self, inode: int, *, is_found: bool, is_missed: bool) -> None:
        """A file was opened, and so are those soon that come after it in some order.

        `is_found`: it was a guess. `is_missed`: a small one, of which nothing was here nor, most likely, in the page
        cache.
        """
        for order in self._orders:
            self._drop(order.decisions.opened(inode))
        try:
            row = self._current_table().row(inode)
        except _NO_FILE:
            pass  # a refresh has taken it out of the table
        else:
            self._drop_rows(self._listed.opened(row))
            if self._shuffled.opened(row, is_found=is_found, is_missed=is_missed):
                self._pool.drop_guesses()
        self._opens_unheeded += 1
        if self._opens_unheeded * _TASKS_PER_OPEN > self._tasks:
            self._pump()

    def followers(self, inode: int) -> Iterator[tuple[int, ObjectRef]]:
        """The large files that are likely to be opened when `inode` is at its end, one after the other."""
        try:
            return self._large_files(self._listed.followers(self._current_table().row(inode)))
        except _NO_FILE:
            return iter(())

    def leaders(self) -> Iterator[tuple[int, ObjectRef]]:
        """The large files that the listing begins with."""
        table = self._current_table()
        return self._large_files(range(self._first_file_row(table), len(table)))

    def _large_files(self, rows: Sequence[int]) -> Iterator[tuple[int, ObjectRef]]:
        """Those that `rows` begin with and that the page cache has not, most likely."""
        for row in rows:
            file = self._file_at(row)
            if file is None or file[1] <= self._config.part_size_bytes or self._delivered.has(file[0]):
                return
            ref = self._ref(file[0])
            if ref is None:
                return
            yield file[0], ref

    def _current_table(self) -> Listing:
        table = self._listing()
        if table is not self._table:
            # Rows mean something else now; what was fetched by the old ones is found if it is opened.
            self._table = table
            self._listed = ListingOrder(len(table), self._first_file_row(table))
            self._shuffled = self._new_epoch(len(table))
            self._pool.demote_expected()
            for order in self._orders:
                for inode in order.decisions.ahead:
                    self._pool.adopt(inode)
        return table

    def _first_file_row(self, table: Listing) -> int:
        rows = range(min(len(table), _MAX_LEADING_ROWS))
        return next((row for row in rows if self._file_at(row) is not None), 0)

    def _new_epoch(self, row_count: int) -> ShuffledEpoch:
        return ShuffledEpoch(row_count if self._config.expects_every_file else 0, self._pool.max_expected_parts)

    def _pump(self) -> None:
        """Start all fetches that are wanted and allowed."""
        self._opens_unheeded = 0
        while (part := self._next_part()) is not None:
            self._tasks += 1
            self._fetches.start(self._fetch, part)
        for order in self._orders:
            order.wake()

    def _next_part(self) -> Part | None:
        """The next part to fetch now; its memory is reserved."""
        self._current_table()  # or an order of the old table's rows would be carried out with the new one
        if not self._pool.may_expect:
            return None
        for _ in range(len(self._orders)):
            order = self._orders[0]
            file = self._next_announced(order.decisions)
            if file is not None:
                part = self._expected_part(*file)
                if part is not None:
                    order.decisions.taken(part.size_bytes)
                    order.wake()
                    self._orders.rotate(-1)
                return part
            self._orders.rotate(-1)
        return self._listed_part() or self._shuffled_part()

    def _next_announced(self, order: AnnouncedOrder) -> tuple[int, ObjectRef] | None:
        while (inode := order.next()) is not None:
            adopted_bytes = self._adopt(inode)
            if adopted_bytes:
                order.taken(adopted_bytes)
                continue
            if not self._pool.holds(inode) and not self._delivered.has(inode):
                ref = self._ref(inode)
                if ref is not None:
                    return inode, ref
            order.skipped()
        return None

    def _adopt(self, inode: int) -> int:
        """What an order comes to is no guess any more, and was a good one: its bytes, 0 if it was none."""
        adopted_bytes = self._pool.adopt(inode)
        if adopted_bytes:
            self._shuffled.adopted()
        return adopted_bytes

    def _listed_part(self) -> Part | None:
        order = self._listed
        while (row := order.next()) is not None:
            file = self._file_at(row)
            if file is not None and not self._adopt(file[0]) and self._is_worth_it(*file):
                inode, size_bytes = file
                if not self._has_room(size_bytes):
                    return None
                ref = self._ref(inode)
                if ref is not None:
                    part = self._expected_part(inode, ref)
                    if part is not None:
                        order.commanded()
                    return part
            order.commanded()
        return None

    def _shuffled_part(self) -> Part | None:
        """Such a file takes what room there is, and of nobody's; an order that is announced has all of it."""
        epoch = self._shuffled
        if not all(order.is_spent for order in self._orders):
            return None
        while (row := epoch.next()) is not None:
            file = self._file_at(row)
            if file is not None and self._is_worth_it(*file):
                inode, size_bytes = file
                if not self._pool.has_room_for_expected(size_bytes, is_guess=True):
                    return None
                ref = self._ref(inode)
                if ref is not None:
                    part = self._try_expect(inode, ref, is_guess=True)
                    if part is not None:
                        epoch.taken()
                    return part
            epoch.passed_over()
        return None

    def _is_worth_it(self, inode: int, size_bytes: int) -> bool:
        """Whether a file is fetched that was not announced; nobody knows how large ones will be read."""
        return (
            0 < size_bytes <= self._config.part_size_bytes
            and not self._pool.holds(inode)
            and not self._delivered.has(inode)
        )

    def _ref(self, inode: int) -> ObjectRef | None:
        """The object behind a file, None where there is nothing to fetch: made files are here already."""
        try:
            ref = self._current_table().ref(inode)
        except _NO_FILE:
            return None
        is_fetched = ref.size_bytes and ref.bucket and ref.storage_class not in ARCHIVE_STORAGE_CLASSES
        return ref if is_fetched else None

    def _file_at(self, row: int) -> tuple[int, int] | None:
        try:
            return self._current_table().file_at(row)
        except _NO_FILE:
            return None

    def _expected_part(self, inode: int, ref: ObjectRef) -> Part | None:
        """For an order: it may be at the expense of another one. None where there is no room."""
        is_room = self._has_room(min(ref.size_bytes, self._config.part_size_bytes))
        return self._try_expect(inode, ref, is_guess=False) if is_room else None

    def _try_expect(self, inode: int, ref: ObjectRef, *, is_guess: bool) -> Part | None:
        """All of a small file, the first part of a large one."""
        end = min(ref.size_bytes, self._config.part_size_bytes)
        part = self._pool.try_expect(inode, ref, end, is_guess=is_guess)
        if part is not None:
            self._counts.prefetched_parts += 1
        return part

    def _has_room(self, size_bytes: int) -> bool:
        """Whether expected files may take so much memory, if need be that of orders which nobody seems to follow."""
        while not self._pool.has_room_for_expected(size_bytes):
            rows = self._listed.give_way()
            inodes = () if rows else next(filter(None, (order.decisions.give_way() for order in self._orders)), ())
            if not rows and not inodes:
                return False
            self._drop_rows(rows)
            self._drop(inodes)
        return True

    def _drop(self, inodes: Sequence[int]) -> None:
        for inode in inodes:
            self._pool.drop_expected(inode)

    def _drop_rows(self, rows: Sequence[int]) -> None:
        for row in rows:
            file = self._file_at(row)
            if file is not None:
                self._pool.drop_expected(file[0])

    async def _fetch(self, part: Part) -> None:
        """Fetch `part`, and then what else is wanted and would have to wait for this. Raises only `Cancelled`."""
        try:
            await self._fetch_one(part)
            while (following := self._next_part()) is not None:
                self._opens_unheeded = max(0, self._opens_unheeded - 1)
                await self._fetch_one(following)
        finally:
            self._tasks -= 1

    async def _fetch_one(self, part: Part) -> None:
        try:
            data = await self._reader.get(part.file.ref, part.start, part.end)
        except trio.Cancelled:
            self._pool.fail(part, UnavailableError("the read was given up because the mount is closing"))
            raise
        except Exception as error:  # noqa: BLE001 - whatever goes wrong in a store ends this fetch, not the mount
            self._counts.failed_parts += 1
            self._pool.fail(part, error)
        else:
            self._pool.land(part, data)
