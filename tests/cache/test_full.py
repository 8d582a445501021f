"""A full tier, whose thread is this test: what goes next is known without a look at every segment."""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from unittest.mock import Mock, patch

import pytest

from fastfuse.cache import writer
from fastfuse.cache.catalog import Index, Segment
from fastfuse.cache.directory import OpenCache, open_cache, prepare
from fastfuse.cache.segments import Segments
from fastfuse.metrics import Counters
from tests.cache.node import MIB, settings_of

SEGMENTS = 200


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[OpenCache]:
    """A tier full of segments, of which nobody has asked for the first ones for longest."""
    settings = settings_of(tmp_path, size_bytes=(SEGMENTS + 1) * MIB)
    prepare(settings, os.geteuid())
    with closing(sqlite3.connect(tmp_path / "index.db")) as connection, connection:
        connection.execute("UPDATE clock SET asked = ?", (1000 * MIB,))
        connection.executemany(
            f"INSERT INTO segments VALUES (?, {MIB}, {MIB}, 0, ?, ?, 0)",
            [(number, number * MIB, number * MIB) for number in range(1, SEGMENTS + 1)],
        )
    with closing(open_cache(settings, os.geteuid())) as cache:
        yield cache


@pytest.fixture
def full(cache: OpenCache) -> writer.Writer:
    with patch("threading.Thread"):
        return writer.Writer(
            cache, Segments(cache.directory_fd), Mock(), Counters(), queue_bytes=MIB, tell=lambda *_: None
        )


def test_pinned_and_hit_segments_stay_and_those_gone_are_passed_over(cache: OpenCache, full: writer.Writer) -> None:
    full._tick()
    full.hit(4, MIB)
    full._look_for_victim()
    other = Index(cache.reading, waits=True)
    other.pin([1])
    other.evict(2)
    other.commit([], {}, {3: MIB}, 0)
    assert full._evict()
    assert sorted(full._index.segments())[:4] == [1, 3, 4, 6]


def test_a_segment_that_is_pinned_as_it_is_to_go_stays(cache: OpenCache, full: writer.Writer) -> None:
    take, other = full._victims.take, Index(cache.reading, waits=True)

    def pinned() -> int:
        number = take()
        other.pin([number])
        return number

    with patch.object(full._victims, "take", pinned):
        assert not full._evict()
    assert len(other.segments()) == SEGMENTS


def test_a_segment_that_goes_as_it_is_to_be_filled_leaves_no_file(full: writer.Writer, tmp_path: Path) -> None:
    assert not full._take(Segment(SEGMENTS + 1, MIB, 0))
    assert [*tmp_path.glob("*.segment")] == []


def test_what_is_asked_for_before_the_first_commit_comes_back_as_soon_as_it_does(full: writer.Writer) -> None:
    full._begin()
    for _ in range(2):
        full.ask(1 << 48, MIB)
        full._tick()
    assert full.ask(1 << 48, MIB) == 4 * MIB  # the unit of the policy; the clock stands at 1,000 MiB


def test_a_hit_changes_no_dictionary_that_the_thread_has_taken(full: writer.Writer) -> None:
    fresh = dict[int, int]()

    class Hits(dict[int, int]):
        def get(self, segment: int, default: int = 0) -> int:  # type: ignore[override]
            found, full._hits = super().get(segment, default), fresh  # the thread comes
            return found

    full._hits = hits = Hits({1: MIB})
    full.hit(2, MIB)
    assert (hits, fresh) == ({1: MIB}, {2: MIB})


def test_a_list_of_victims_serves_until_time_goes_on(cache: OpenCache, full: writer.Writer) -> None:
    """Also once so much was asked for that a product of two numbers of bytes has more than 63 bits."""
    index = Index(cache.reading, waits=True)
    index.commit([], {}, dict.fromkeys(range(1, SEGMENTS + 1), 12345), 1 << 45)
    assert full._return_of_victim() is not None
    with patch.object(full._index, "victims", side_effect=AssertionError):
        assert full._return_of_victim() is not None


@pytest.mark.parametrize("change", ["UPDATE room SET bytes = 1", "DELETE FROM room"])
def test_segments_are_counted_again_when_a_tier_is_opened(change: str, cache: OpenCache, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "index.db")) as connection, connection:
        connection.execute(change)
    prepare(cache.settings, os.geteuid())
    index = Index(cache.writing)
    assert index.room_bytes() == SEGMENTS * MIB
    index.evict(1)
    assert index.add(MIB, SEGMENTS * MIB) is not None
    assert index.room_bytes() == SEGMENTS * MIB
