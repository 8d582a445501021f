"""Fetches files before they are begun: carries out what `orders` decides, announced orders first.

The pool keeps what is fetched as *expected*, within bounds of its own, until the file is begun or its order drops it.
Expected files give way to everything that a reader waits for. Guesses (`ShuffledEpoch`, and everything that was
expected before a refresh) also give way to files of the other orders, which adopt them otherwise.

Small files are left to threads, which fetch them and answer their reads without the interpreter (`SmallFiles`), where
that can be.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, Protocol, TypeVar

import trio

from fastfuse.errors import FastfuseError
from fastfuse.objects import ObjectRef
from fastfuse.readahead.fetches import Fetches
from fastfuse.readahead.limits import ReadaheadConfig
from fastfuse.readahead.orders import AnnouncedOrder, ListingOrder
from fastfuse.readahead.own_pace import OwnPace
from fastfuse.readahead.page_cache import Delivered
from fastfuse.readahead.parts import Part
from fastfuse.readahead.pool import PartPool
from fastfuse.readahead.shuffled import ShuffledEpoch

# The part of the memory that an order may hold before readers have shown that they follow it.
_UNPROVEN_DIVISOR = 16
# The root and its subdirectories come before the first file.
_MAX_LEADING_ROWS = 1024
# One file begun leaves room for one file, and a task that has fetched one fetches the next. New ones begin when there
# is room for one more to each so many that run, or for so many: together they take a millisecond.
_FETCHES_PER_FILE = 8
_MOST_UNHEEDED = 16

# One order in which files come. An announced one has their inodes, the others the rows of the table.
_Order = AnnouncedOrder | ListingOrder | ShuffledEpoch
_Answer = TypeVar("_Answer")


class Listing(Protocol):
    """The inode table: what is known of all files. What is listed never changes; a refresh brings another."""

    # Those whose objects are left to their readers.
    unread_classes: frozenset[str]

    def __len__(self) -> int:
        """Return the number of rows."""

    def row(self, inode: int) -> int:
        """Return the place of a file in the order of the listing. Raise if there is no such inode."""

    def file_at(self, row: int) -> tuple[int, int] | None:
        """Return ``(inode, size in bytes)``, or None if the row is a directory."""

    def name_at(self, row: int) -> bytes:
        """Return the last segment of the path of a row."""

    def ref(self, inode: int) -> ObjectRef:
        """Return the object behind a file. Raise if there is none."""

    def __contains__(self, inode: int) -> bool:
        """Return whether there is such an inode."""


def _known(ask: Callable[[int], _Answer], place: int) -> _Answer | None:
    """Return what the table says, or None if it raises for an unknown inode or a damaged row."""
    try:
        return ask(place)
    except (FastfuseError, LookupError, ValueError):
        return None  # no reason to fail the read of another file


class Announcer:
    """The place where somebody announces one order of files; see `AnnouncedOrder`."""

    def __init__(self, prefetcher: "Prefetcher", decisions: AnnouncedOrder) -> None:
        self.decisions = decisions
        self._prefetcher = prefetcher
        # Whoever has more to announce waits there.
        self._room = trio.lowlevel.ParkingLot()

    async def announce(self, inodes: Sequence[int]) -> None:
        """Take files that will be begun, in this order and after those announced before.

        A checkpoint; waits while enough is announced. Inodes that are no longer files are skipped when it is their
        turn. If cancelled, nothing of `inodes` was taken.
        """
        await trio.lowlevel.checkpoint()
        while self.decisions.is_full:
            await self._room.park()
        self.decisions.announce(inodes)
        self._prefetcher.enlist(self)

    def withdraw(self) -> None:
        """Forget what was announced and not begun. Idempotent; another `announce` begins afresh."""
        self._prefetcher.dismiss(self)

    def wake(self) -> None:
        """Let `announce` go on if there is room."""
        if self._room and not self.decisions.is_full:
            self._room.unpark_all()


@dataclass(eq=False)
class Prefetcher:
    """All orders of one engine, and the GETs that they cause. Nothing here waits but the fetches."""

    # Returns the table of the moment.
    _listing: Callable[[], Listing]
    _delivered: Delivered
    _pool: PartPool
    _config: ReadaheadConfig
    _fetches: Fetches
    _own_pace: OwnPace

    def __post_init__(self) -> None:
        # Announced orders, in their turn.
        self._announcers: deque[Announcer] = deque()
        # Tasks that fetch, and files begun for which neither these nor new ones have fetched anything.
        self._tasks = self._unheeded = 0
        self._small_files = self._pool.expected.small_files
        self._table: Listing | None = None
        self._listed = ListingOrder(0)
        self._shuffled = self._new_epoch(0)

    def new_order(self) -> Announcer:
        """Return the place for an order; it costs nothing before something is announced."""
        return Announcer(self, AnnouncedOrder(self._config.memory_limit_bytes // _UNPROVEN_DIVISOR))

    def enlist(self, announcer: Announcer) -> None:
        """Fetch what `announcer` has announced."""
        if announcer not in self._announcers:
            self._announcers.append(announcer)
        self._pump()

    def dismiss(self, announcer: Announcer) -> None:
        """Drop what `announcer` has announced."""
        self._drop(announcer.decisions.withdraw())
        if announcer in self._announcers:
            self._announcers.remove(announcer)
        announcer.wake()

    def begun(self, inode: int, *, is_found: bool, is_missed: bool) -> None:
        """Note the first read of a file, and fetch what comes after it in some order.

        `is_found`: it was a guess of the pool; guesses of threads are known here, those still queued included.
        `is_missed`: it is small, and nothing of it was here.
        """
        is_found |= self._small_files.adopt(inode) > 0
        for announcer in self._announcers:
            self._drop(announcer.decisions.begun(inode))
        row = _known(self.current_table().row, inode)
        if row is not None:  # else a refresh has taken it out of the table
            self._drop_rows(self._listed.begun(row))
            file = self._file_at(row) if self._guesses and (is_found or is_missed) else None
            named = None if file is None else (self.current_table().name_at(row), file[1])
            if self._shuffled.begun(row, named, is_found=is_found, is_missed=is_missed):
                self._drop(self._pool.guesses())
        self._unheeded += 1
        under_way = self._tasks + self._small_files.held()[0]
        if self._unheeded >= _MOST_UNHEEDED or self._unheeded * _FETCHES_PER_FILE > under_way:
            self._pump()

    def followers(self, inode: int) -> Iterator[tuple[int, ObjectRef]]:
        """Yield the large files that are likely to be begun when `inode` is at its end, one after the other.

        The first that the page cache most likely has is the end of them.
        """
        begun_row = _known(self.current_table().row, inode)
        for row in () if begun_row is None else self._listed.followers(begun_row):
            file = self._file_at(row)
            if file is None or file[1] <= self._config.part_size_bytes or self._delivered.has(file[0]):
                return
            ref = self._ref(file[0])
            if ref is None:
                return
            yield file[0], ref

    def current_table(self) -> Listing:
        """Return the table of the moment, and keep no other: it would stay in memory until the next file is begun."""
        table = self._listing()
        if table is not self._table:
            # Rows mean something else now. What was fetched by the old ones is found if it is begun.
            self._table = table
            leading = range(min(len(table), _MAX_LEADING_ROWS))
            first_file_row = next((row for row in leading if self._file_at(row) is not None), 0)
            self._listed = ListingOrder(len(table), first_file_row)
            self._shuffled = self._new_epoch(len(table))
            self._pool.demote_expected()
            for announcer in self._announcers:
                for inode in announcer.decisions.ahead:
                    self._pool.adopt(inode)
        return table

    def _new_epoch(self, row_count: int) -> ShuffledEpoch:
        max_held_files, is_expected = self._pool.expected.max_parts, self._config.expects_every_file
        return ShuffledEpoch(row_count, max_held_files, is_expected=is_expected)

    @property
    def _guesses(self) -> bool:
        """True if files are fetched that are merely likely to be read."""
        return not self._shuffled.is_over and (self._config.expects_every_file or self._own_pace.is_far)

    def _pump(self) -> None:
        """Start all fetches that are wanted and allowed."""
        self._unheeded = 0
        while (part := self._next_part()) is not None:
            if part is not True:
                self._tasks += 1
                self._fetches.start(partial(self._fetch, part))
        for announcer in self._announcers:
            announcer.wake()

    def _next_part(self) -> Part | Literal[True] | None:
        """Return the next part to fetch now, as `_part_of` does; None if nothing is wanted or allowed."""
        self.current_table()  # or an order of the old table's rows would be carried out with the new one
        if self._own_pace.is_faster:
            return None
        for _ in range(len(self._announcers)):
            announcer = self._announcers[0]
            part = self._part_of(announcer.decisions)
            if part is None and announcer.decisions.next() is not None:
                return None  # its file does not fit, and nobody takes its turn
            self._announcers.rotate(-1)
            if part is not None:
                announcer.wake()
                return part
        part = self._part_of(self._listed)
        # A guess takes what room there is, and of nobody's; an order that is announced has all of it.
        if part is None and self._guesses and all(announcer.decisions.is_spent for announcer in self._announcers):
            part = self._part_of(self._shuffled)
        return part

    def _part_of(self, order: _Order) -> Part | Literal[True] | None:
        """Return the next part of `order`, with its memory reserved; None if there is none, or no room for it.

        True: it is a small file, which threads have begun to fetch.
        """
        is_guess = order is self._shuffled
        while (inode := self._next_file(order)) is not None:
            small_bytes = self._small_files.threads.size_of(inode)
            if small_bytes and _known(self._small_files.threads.is_near, inode):
                order.advance(0 if is_guess else small_bytes)
                continue
            if small_bytes:
                has_room = self._has_room(small_bytes, is_guess=is_guess)
                if not has_room or not self._pool.admit(small_bytes, is_guess=is_guess):
                    return None
                if self._small_files.fetch(inode, small_bytes, is_guess=is_guess):
                    order.advance(small_bytes)
                    return True
            ref = self._ref(inode)
            if ref is None:
                order.advance(0)
                continue
            # All of a small file, or the first part of a large one.
            end = min(ref.size_bytes, self._config.part_size_bytes)
            if self._fetches.service.is_full(self._pool.parts_in_flight, end):
                return None  # readers would wait for these GETs on a slow link
            if not self._pool.may_expect or not self._has_room(end, is_guess=is_guess):
                return None
            part = self._pool.try_expect(inode, ref, end, is_guess=is_guess)
            if part is not None:
                self._fetches.counts.prefetched_parts += 1
                order.advance(part.size_bytes)
            return part
        return None

    def _next_file(self, order: _Order) -> int | None:
        """Pass over what is not worth a fetch, and return the next file of `order`, if it has one."""
        while (place := order.next()) is not None:
            if isinstance(order, AnnouncedOrder):
                inode, size_bytes = place, None
                is_cached = inode in self._delivered and order.trusts_page_cache
            else:
                inode, size_bytes = self._file_at(place) or (0, 0)
                is_cached = self._delivered.has(inode)
            adopted_bytes = self._pool.adopt(inode) if order is not self._shuffled else 0
            if adopted_bytes:
                self._shuffled.adopted(adopted_bytes)
            elif is_cached and isinstance(order, AnnouncedOrder):
                order.pass_over()
                continue
            elif (
                not is_cached
                and self._is_worth_it(inode, size_bytes)
                and (order is not self._shuffled or self._shuffled.expects(self.current_table().name_at(place)))
                and not self._own_pace.take_sample()
            ):
                return inode
            order.advance(adopted_bytes)
        return None

    def _is_worth_it(self, inode: int, size_bytes: int | None) -> bool:
        """Return whether to fetch a file; without a `size_bytes` it was announced, and may be large."""
        if size_bytes is not None and not 0 < size_bytes <= self._config.part_size_bytes:
            return False
        is_read = self._small_files.threads.is_read(inode)  # and left to them
        return not (is_read or inode in self._delivered.failed or self._pool.file(inode) is not None)

    def _ref(self, inode: int) -> ObjectRef | None:
        """Return the object behind a file; None if there is nothing to fetch, as for synthetic files."""
        table = self.current_table()
        ref = _known(table.ref, inode)
        is_fetched = ref and ref.size_bytes and ref.bucket and ref.storage_class not in table.unread_classes
        return ref if is_fetched else None

    def _file_at(self, row: int) -> tuple[int, int] | None:
        return _known(self.current_table().file_at, row)

    def _has_room(self, size_bytes: int, *, is_guess: bool) -> bool:
        """Return whether `size_bytes` fit; a known file may take the place of orders that nobody seems to follow."""
        while not self._pool.expected.has_room(size_bytes, is_guess=is_guess):
            if is_guess:
                return False
            rows = self._listed.give_way()
            orders = (announcer.decisions for announcer in self._announcers)
            inodes = () if rows else next(filter(None, (order.give_way() for order in orders)), ())
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
                self._drop((file[0],))

    async def _fetch(self, part: Part) -> None:
        """Fetch `part`, and then what else is wanted and would have to wait for it. Raise only `Cancelled`."""
        try:
            await self._fetches.run(part)
            while (following := self._next_part()) is not None:
                self._unheeded = max(0, self._unheeded - 1)
                if following is not True:
                    await self._fetches.run(following)
        finally:
            self._tasks -= 1
