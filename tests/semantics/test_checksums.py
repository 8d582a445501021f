"""Clause D1 through a network that changes bytes: the right ones or EIO."""

import errno
import random
from pathlib import Path

from bench.s3server import FaultRule, Flip, MemoryObjects
from tests.s3.test_integrity import told
from tests.semantics.places import Place, block_bytes, place

MIB = 1 << 20
BIG = block_bytes(1, 16 * MIB)
SMALL = {f"small/{number:03}": block_bytes(2 + number, 40_000) for number in range(60)}
# The kernel asks for each of them in pieces.
MIDDLE = {f"middle/{number}": block_bytes(62 + number, 3_000_000) for number in range(3)}


def checksummed(data: dict[str, bytes]) -> MemoryObjects:
    objects = MemoryObjects()
    for key, content in data.items():
        objects.put(key, content, checksums=told("crc64nvme", content))
    return objects


def flip_bits(here: Place, per_bytes: int) -> None:
    source = random.Random(1)

    def offsets(start: int, end: int) -> list[int]:
        return [start + int(source.expovariate(1 / per_bytes))]

    here.server.faults.add(FaultRule(action=Flip(offsets), operation="GetObject"))


def read(path: Path) -> bytes | None:
    """Return what a sequential reader gets, or None for EIO."""
    try:
        return path.read_bytes()
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return None


def test_small_files_through_a_bad_network_are_right_or_an_error() -> None:
    """D1"""
    with place(checksummed(SMALL)) as here:
        flip_bits(here, 20_000)
        found = {key: read(here.path / key) for key in SMALL}
        wrong = [key for key, data in found.items() if data not in (SMALL[key], None)]
        failed = [key for key, data in found.items() if data is None]
        assert not wrong
        assert 0 < len(failed) < len(SMALL)


def test_files_of_one_part_are_no_less_checked_after_a_read_that_failed() -> None:
    """D1"""
    with place(checksummed(MIDDLE)) as here:
        here.server.faults.add(FaultRule(action=Flip(lambda start, end: [start]), operation="GetObject"))
        assert [read(here.path / key) for _ in range(2) for key in MIDDLE] == [None] * 6


def test_a_large_file_with_wrong_bytes_is_not_read_to_its_end() -> None:
    """D1"""
    with place(checksummed({"bad": BIG, "good": BIG}), "--verify") as here:
        here.server.faults.add(FaultRule(action=Flip(lambda start, end: [9 * MIB]), operation="GetObject", key="bad"))
        assert read(here.path / "good") == BIG
        assert read(here.path / "bad") is None
        assert read(here.path / "bad") is None  # nor is it from the page cache
