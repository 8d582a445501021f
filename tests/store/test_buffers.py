"""Buffers that are used again: nobody's bytes change under him, and memory stays within its limit."""

import ctypes
import mmap
import os
import subprocess
import sys
import threading
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfuse.store.buffers import PartBuffers

SLOT = 1 << 20


def resident_bytes_of(buffer: memoryview) -> int:
    """Of the mapping that holds `buffer`, as the kernel counts."""
    import numpy as np

    address = np.frombuffer(buffer, np.uint8).ctypes.data
    with open("/proc/self/smaps") as lines:
        is_it = False
        for line in lines:
            head = line.split()[0]
            if "-" in head and not head.endswith(":"):
                begin, end = (int(word, 16) for word in head.split("-"))
                is_it = begin <= address < end
            elif is_it and head == "Rss:":
                return int(line.split()[1]) << 10
    raise AssertionError("no such mapping")


@given(st.lists(st.one_of(st.integers(1, 3 * SLOT // 2), st.none()), max_size=40), st.integers(0, 2**32))
def test_no_two_buffers_in_use_share_a_byte_and_what_is_kept_is_within_the_limit(
    steps: list[int | None], seed: int
) -> None:
    random = Random(seed)
    buffers = PartBuffers(slot_bytes=SLOT, limit_bytes=4 * SLOT)
    held: list[tuple[memoryview, int]] = []
    for number, size_bytes in enumerate(steps):
        if size_bytes is None:
            if held:
                del held[random.randrange(len(held))]
            continue
        buffer = buffers.take(size_bytes)
        assert len(buffer) == size_bytes
        buffer[0] = buffer[-1] = number
        held.append((buffer, number))
        del buffer  # or the next step has it beside those that are held
        assert all(other[0] == other[-1] == mark for other, mark in held)
        used_bytes = sum(len(other) for other, _ in held)
        assert used_bytes <= buffers.resident_bytes <= max(4 * SLOT, used_bytes) + 4 * SLOT // 16


def resident_bytes_after(steps: str) -> int:
    """Of a new process that has taken `steps` from `buffers` of 64 MiB, beyond what it had before."""
    script = f"""
from pathlib import Path
from fastfuse.malloc import tune_malloc
from fastfuse.store.buffers import PartBuffers

def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

def filled(size_bytes):
    held = [buffers.take(size_bytes) for _ in range((64 << 20) // size_bytes)]
    for buffer in held:
        buffer[:] = bytes(size_bytes)
    return held

tune_malloc()
buffers = PartBuffers(slot_bytes=8 << 20, limit_bytes=64 << 20)
before_bytes = resident_bytes()
{steps}
print(resident_bytes() - before_bytes)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.parametrize("size_bytes", [300_000, 4 << 20, (8 << 20) // 2 + 4096, (8 << 20) - 4096])
def test_memory_stays_within_the_limit_whatever_sizes_follow_each_other(size_bytes: int) -> None:
    # Of those that go one stays, as it happens: the C library does not get at what lies below it by itself.
    steps = f"held = filled({size_bytes}); kept = held[-1]; held = None; held = filled(8 << 20)"
    assert resident_bytes_after(steps) < 85 << 20
    steps = f"held = filled(8 << 20); held = None; held = filled({size_bytes})"
    assert resident_bytes_after(steps) < 77 << 20


def test_a_slice_alone_keeps_its_bytes() -> None:
    buffers = PartBuffers(slot_bytes=SLOT, limit_bytes=SLOT)
    buffer = buffers.take(SLOT)
    buffer[:] = b"a" * SLOT
    piece = buffer[10:20].toreadonly()
    del buffer
    buffers.take(SLOT)[:] = b"b" * SLOT
    assert bytes(piece) == b"a" * 10


def test_a_slot_is_used_again_with_its_pages_when_a_thread_lets_it_go() -> None:
    buffers = PartBuffers(slot_bytes=SLOT, limit_bytes=2 * SLOT)
    held = [buffers.take(SLOT)]
    held[0][:5] = b"first"
    thread = threading.Thread(target=held.clear)
    thread.start()
    thread.join()
    assert bytes(buffers.take(SLOT)[:5]) == b"first"


def test_a_buffer_larger_than_a_slot_is_none_of_them() -> None:
    buffers = PartBuffers(slot_bytes=SLOT, limit_bytes=2 * SLOT)
    held = buffers.take(2 * SLOT)
    assert len(held) == 2 * SLOT
    assert buffers.resident_bytes == 2 * SLOT


def test_free_slots_give_their_pages_back_to_the_system_where_others_need_the_room() -> None:
    buffers = PartBuffers(slot_bytes=SLOT, limit_bytes=4 * SLOT)
    held = [buffers.take(SLOT) for _ in range(4)]
    for buffer in held:
        buffer[:] = b"x" * SLOT
    kept = held.pop()
    before_bytes = resident_bytes_of(kept)
    del held, buffer
    assert buffers.resident_bytes == 4 * SLOT
    small = [buffers.take(SLOT // 2) for _ in range(4)]
    assert buffers.resident_bytes == 4 * SLOT
    assert resident_bytes_of(kept) <= before_bytes - 2 * SLOT
    assert len(small) == 4


def test_without_room_for_a_mapping_there_are_buffers_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(*_: object) -> None:
        raise OSError

    monkeypatch.setattr(mmap, "mmap", no_room)
    buffers = PartBuffers(slot_bytes=SLOT, limit_bytes=4 * SLOT)
    assert len(buffers.take(SLOT)) == SLOT


def test_pages_that_are_written_once_stay_in_a_pipe_as_they_were_when_their_buffer_is_used_again() -> None:
    """As a reader that splices them on holds them for as long as it likes."""
    buffers = PartBuffers(slot_bytes=SLOT, limit_bytes=SLOT, is_written_once=True)
    reading_fd, writing_fd = os.pipe()
    taken = set()
    for mark in (b"a", b"b", b"c"):
        buffer = buffers.take(SLOT - 5)
        buffer[:] = mark * len(buffer)
        address = buffers.lent_from(buffer[100:200].toreadonly())
        taken.add(address)
        lend(writing_fd, address, 100)
        del buffer
    assert len(taken) == 1  # the same slot each time
    assert os.read(reading_fd, 1000) == b"a" * 100 + b"b" * 100 + b"c" * 100
    os.close(reading_fd)
    os.close(writing_fd)


def test_what_may_be_written_again_is_not_to_be_lent() -> None:
    again = PartBuffers(slot_bytes=SLOT, limit_bytes=4 * SLOT)
    assert again.lent_from(again.take(SLOT)) == 0
    once = PartBuffers(slot_bytes=SLOT, limit_bytes=4 * SLOT, is_written_once=True)
    assert once.lent_from(once.take(SLOT)) != 0
    assert once.lent_from(once.take(SLOT // 2)) == 0
    assert once.lent_from(memoryview(bytes(SLOT))) == 0


def test_a_slot_that_is_written_once_keeps_no_page_when_it_is_given_back() -> None:
    buffers = PartBuffers(slot_bytes=SLOT, limit_bytes=2 * SLOT, is_written_once=True)
    held = buffers.take(SLOT)
    held[:] = b"x" * SLOT
    assert buffers.resident_bytes == SLOT
    del held
    assert buffers.resident_bytes == 0


def lend(fd: int, address: int, size_bytes: int) -> None:
    pages = (ctypes.c_size_t * 2)(address, size_bytes)  # struct iovec
    assert ctypes.CDLL(None).vmsplice(fd, pages, 1, 0) == size_bytes
