"""The pool's books, checked from outside: every number that it keeps against the parts that it counts."""

from itertools import pairwise

from fastfuse.readahead import ReadEngine
from fastfuse.readahead.parts import FileParts, Part
from fastfuse.readahead.pool import PartPool


def expected_bytes(of: ReadEngine | PartPool) -> int:
    """Return what is held, or on its way, of files that are not begun."""
    expected = _pool(of).expected
    return expected.size_bytes + expected.in_flight_bytes


def parts_waiting(of: ReadEngine | PartPool) -> int:
    return sum(len(file.waiting) for file in _pool(of)._queue)


def _pool(of: ReadEngine | PartPool) -> PartPool:
    return of.pool if isinstance(of, ReadEngine) else of


def check_books(of: ReadEngine | PartPool) -> None:
    pool = _pool(of)
    shelved = _check_shelves(pool)
    assert pool.reserved_bytes + sum(part.size_bytes for part in shelved) <= pool._limit_bytes
    assert set(shelved) <= {part for file in pool._files.values() for part in file}
    for file in pool._files.values():
        _check_file(file)
    assert pool.parts_in_flight <= pool._connections
    assert all(file.waiting for file in pool._queue)
    assert len({*pool._queue}) == len(pool._queue)
    may = [file.waiting[0] for file in pool._queue if pool._may_start(file.demanded_in_flight)]
    assert pool._lacks_memory == bool(may)
    assert not may or pool.reserved_bytes + may[0].size_bytes > pool._limit_bytes


def _check_shelves(pool: PartPool) -> list[Part]:
    expected, spent, left = pool.expected, pool._spent, pool._left
    shelves = (pool._fresh, expected.known, expected.guessed, spent, left)
    for shelf in shelves:
        assert shelf.size_bytes == sum(part.size_bytes for part in shelf)
        assert all(part.shelf is shelf for part in shelf)
    for file in {part.file for part in left}:
        assert file.left_bytes == sum(part.size_bytes for part in left if part.file is file)
    assert all(part.is_left for part in left)
    assert expected.size_bytes + expected.in_flight_bytes <= expected.max_bytes
    assert len(expected) + expected.in_flight <= expected.max_parts
    for shelf, is_guess in ((expected.known, False), (expected.guessed, True)):
        assert all(part.file.is_expected and not part.file.is_open for part in shelf)
        assert all(part.file.is_guess == is_guess for part in shelf)
    assert len(spent) <= expected.max_parts
    parts = [part for shelf in shelves for part in shelf]
    assert all(part.data is not None and not part.readers and part.size_bytes == len(part.data) for part in parts)
    return parts


def _check_file(file: FileParts) -> None:
    assert file.is_open or file.reads or len(file)
    assert file.is_expected or not file.is_guess
    assert all(before.end <= after.start for before, after in pairwise(file))
    assert 0 <= file.demanded_in_flight <= file.in_flight
    assert file.size_bytes == sum(part.size_bytes for part in file)
