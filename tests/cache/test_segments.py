"""Bytes go into a segment and come out of it in any cut, aligned or not."""

import errno
import os
import tempfile
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastfuse.cache.catalog import BLOCK_BYTES, Extent
from fastfuse.cache.segments import DamagedError, Segments, digests_of, place_of, segment_bytes
from tests.cache.node import KIB, MIB, content

DATA = content("segment", 2 * MIB)
SIZES = st.sampled_from([1, 39_000, 64 * KIB - 1, 64 * KIB, 100_001, BLOCK_BYTES, BLOCK_BYTES + 4096, 700_001])


def aligned_memory(size_bytes: int) -> memoryview:
    memory = np.empty(size_bytes + 4096, np.uint8)
    lead = -memory.ctypes.data % 4096
    return memory[lead : lead + size_bytes].data


@settings(max_examples=40)
@given(
    st.lists(st.tuples(SIZES, st.booleans(), st.booleans()), min_size=1, max_size=8),
    st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=8, max_size=8),
)
def test_every_cut_of_a_put_comes_back(puts: list[tuple[int, bool, bool]], cuts: list[tuple[float, float]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        directory_fd = os.open(directory, os.O_RDONLY)
        segments = Segments(directory_fd)
        filling = segments.fill(1)
        assert filling is not None
        assert segments.fill(1) is None  # it is locked
        filled, extents = 0, []
        for number, (size_bytes, is_aligned, is_flushed) in enumerate(puts):
            data = aligned_memory(size_bytes) if is_aligned else memoryview(bytearray(size_bytes + 1))[1:]
            data[:] = DATA[number : number + size_bytes]
            place = place_of(filled, size_bytes)
            filling.put(place, data)
            extents.append(Extent(number, number + size_bytes, 1, place, digests_of(data, number)))
            filled = place + size_bytes
            if is_flushed:
                filling.flush()
                filled = -(-filled // 4096) * 4096
        filling.flush()
        filling.close()
        for extent, (first, second) in zip(extents, cuts, strict=False):
            size_bytes = extent.end - extent.start
            start = extent.start + int(first * (size_bytes - 1))
            end = start + 1 + int(second * (extent.end - start - 1))
            into = aligned_memory(end - start)
            segments.read(extent, extent.start, start, end, into)
            assert into == DATA[start:end]
            with pytest.raises(DamagedError):
                segments.read(extent, extent.start + 1, start, end, into)  # of another place
        segments.remove(1)
        with pytest.raises(FileNotFoundError):
            segments.read(extents[0], 0, extents[0].start, extents[0].end, aligned_memory(extents[0].end))
        os.close(directory_fd)


def test_a_tier_has_at_least_so_many_segments_that_one_is_less_than_a_percent() -> None:
    assert segment_bytes(64 * MIB) == MIB
    assert segment_bytes(1 << 30) == 8 * MIB
    assert segment_bytes(1 << 40) == 64 * MIB


def test_nobody_begins_to_fill_a_segment_that_is_about_to_be_removed(tmp_path: Path) -> None:
    directory_fd = os.open(tmp_path, os.O_RDONLY)
    ours, theirs = Segments(directory_fd), Segments(directory_fd)
    with ours.locked(1) as is_ours:  # it is known, and has no file yet
        assert is_ours
        assert theirs.fill(1) is None
        ours.remove(1)
    filling = theirs.fill(1)
    assert filling is not None
    with ours.locked(1) as is_ours:
        assert not is_ours
    filling.close()
    os.close(directory_fd)


def test_a_segment_without_a_file_is_forgotten_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory_fd = os.open(tmp_path, os.O_RDONLY)
    segments = Segments(directory_fd)
    monkeypatch.setattr(os, "open", Mock(side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))))
    with segments.locked(1) as is_ours:
        assert is_ours
    monkeypatch.undo()
    os.close(directory_fd)
