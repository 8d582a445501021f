"""The naive model that the window is tested against: everything fetched arrives at once and stays for ever."""

from fastfuse.readahead import ReadaheadConfig
from fastfuse.readahead.cursor import Cursor
from fastfuse.readahead.limits import KERNEL_REQUEST_BYTES, PAGE_BYTES
from fastfuse.readahead.pace import ServicePace
from fastfuse.readahead.window import Window
from tests.readahead.readers import KIB

CONFIG = ReadaheadConfig()


class EndlessPool:
    """Carries out the window's commands as a stream does, and checks each one."""

    def __init__(
        self, size_bytes: int, config: ReadaheadConfig = CONFIG, *, service: ServicePace | None = None
    ) -> None:
        self.window = Window(size_bytes, config, service or ServicePace())
        self.size_bytes = size_bytes
        self.config = config
        self.fetched: list[tuple[int, int]] = []
        self.demanded: list[tuple[int, int]] = []
        self.ahead: list[tuple[int, int]] = []
        self.bytes_ahead = 0

    def gap(self, offset: int) -> tuple[int, int] | None:
        if any(start <= offset < end for start, end in self.fetched):
            return None
        before = [end for _, end in self.fetched if end <= offset]
        after = [start for start, _ in self.fetched if start > offset]
        return max(before, default=0), min(after, default=self.size_bytes)

    def fetch(self, start: int, end: int) -> None:
        assert 0 <= start < end <= self.size_bytes
        assert not start % PAGE_BYTES
        assert not end % PAGE_BYTES or end == self.size_bytes or self.gap(end) is None
        assert all(end <= other_start or other_end <= start for other_start, other_end in self.fetched)
        assert end - start <= self.config.part_size_bytes * 3 // 2
        self.fetched.append((start, end))

    def read(self, offset: int, end: int) -> Cursor:
        cursor = self.window.read(offset, end)
        assert cursor.begin < cursor.position
        assert len(self.window.cursors) <= 40
        position, is_page = offset, end - offset <= PAGE_BYTES
        while position < end:
            gap = self.gap(position)
            if gap is None:
                position = next(e for s, e in self.fetched if s <= position < e)
                continue
            for start, part_end in self.window.demand(cursor, position, end, gap, is_page=is_page):
                if not any(c.sequential and c.position <= end for c in (cursor, *self.window.cursors)):
                    self._check_random(cursor, start, part_end, (offset, end))
                self.fetch(start, part_end)
                self.demanded.append((start, part_end))
                position = part_end
        self._read_ahead(cursor)
        return cursor

    def _check_random(self, cursor: Cursor, start: int, part_end: int, asked: tuple[int, int]) -> None:
        """A part for a read of no sequential reader: its pages, the tail, or a run as long as others were."""
        offset, end = asked
        if cursor.is_tail:
            offset, end = min(offset, max(0, self.size_bytes - 128 * KIB)), self.size_bytes
        run_bytes = max(other.run_bytes for other in (cursor, *self.window.cursors))
        if end - offset <= PAGE_BYTES:
            run_bytes = max(run_bytes, KERNEL_REQUEST_BYTES)
        offset, end = (end - run_bytes, end) if start < offset - PAGE_BYTES else (offset, max(end, offset + run_bytes))
        assert start >= offset - offset % PAGE_BYTES
        assert part_end <= end + -end % PAGE_BYTES

    def _read_ahead(self, cursor: Cursor) -> None:
        looks = 0
        while (wanted := self.window.next_ahead(cursor)) is not None:
            start, end = wanted
            looks += 1
            assert looks < 10_000  # or a stream would look for ever
            assert cursor.is_foreseen
            if cursor.descending:
                assert cursor.begin - self.config.max_window_bytes <= start < end <= cursor.begin
            else:
                # Pieces begin with a page, which the reader may have read in part.
                first = cursor.position - cursor.position % PAGE_BYTES if cursor.is_strided else cursor.position
                assert first <= start < end <= cursor.position + self.config.max_window_bytes
            gap = self.gap(start)
            if gap is None:
                self.window.commanded(cursor, next(e for s, e in self.fetched if s <= start < e))
                continue
            end = min(end, gap[1])
            self.fetch(start, end)
            self.ahead.append((start, end))
            self.window.commanded(cursor, end)
        self.bytes_ahead = max(0, cursor.ahead_until - cursor.position)

    def read_through(self, offset: int, end: int, request_bytes: int) -> None:
        for start in range(offset, end, request_bytes):
            self.read(start, min(start + request_bytes, end))
