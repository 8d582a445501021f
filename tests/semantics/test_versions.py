"""Clauses D1, D2 and D4: the bytes of the listed version, or an error."""

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bench.s3server import FaultRule, MemoryObjects, Replace, Truncate
from tests.semantics.places import Place, block_bytes, direct_read, gets, place

MIB = 1 << 20


def etag_of(here: Place, key: str) -> str:
    stored = here.objects.view().lookup(key.encode())
    assert stored is not None
    return stored.etag


@pytest.fixture(scope="module")
def here() -> Iterator[Place]:
    objects = MemoryObjects({"small": block_bytes(1, 10_001), "big": block_bytes(1, 20 * MIB), "folder/empty": b""})
    objects.put("multipart", block_bytes(2, 100), etag='"0123456789abcdef0123456789abcdef-7"')
    objects.put("odd", block_bytes(3, 100), etag='"not an MD5"')
    objects.put("con\ntrol", block_bytes(4, 100))
    with place(objects) as place_:
        yield place_


def test_every_get_carries_the_listed_etag_and_empty_files_take_none(here: Place) -> None:
    """D1, D2, D4"""
    rule = here.server.faults.add(FaultRule(action=Truncate(100_000), operation="GetObject", key="big", times=2))
    for path in here.path.rglob("*"):
        if path.is_file():
            assert len(path.read_bytes()) == path.stat().st_size
    # Its first replies ended early: it is completed and never padded.
    assert (here.path / "big").read_bytes() == block_bytes(1, 20 * MIB)
    assert here.server.faults.hits(rule) == 2
    assert direct_read(here.path / "folder" / "empty", 4096) == b""
    records = gets(here)
    assert {record.key for record in records} == {"small", "big", "multipart", "odd", "con\ntrol"}
    assert sum(record.key == "big" for record in records) > 2
    assert all(record.if_match == etag_of(here, record.key) for record in records)
    assert all(record.range is not None for record in records if record.key == "big")


def test_reads_end_where_the_file_ends(here: Place) -> None:
    """D1"""
    data = block_bytes(1, 10_001)
    with (here.path / "small").open("rb", buffering=0) as file:
        assert os.pread(file.fileno(), 100, 9_990) == data[9_990:]
        assert os.pread(file.fileno(), 100, 10_001) == b""
        assert os.pread(file.fileno(), 100, 1 << 50) == b""
        assert direct_read(here.path / "small", 8192, 8192) == data[8192:]


CHANGES: dict[str, Callable[[MemoryObjects, str], object]] = {
    "replaced": lambda objects, key: objects.put(key, block_bytes(9, 100_000)),
    "replaced by a shorter one": lambda objects, key: objects.put(key, b"short"),
    "replaced by an empty one": lambda objects, key: objects.put(key, b""),
    "deleted": lambda objects, key: objects.delete(key),
}


def test_an_object_that_changed_since_the_listing_is_stale() -> None:
    """D2, D1"""
    # A name for each of the two clients.
    names = [f"{prefix}{change}" for prefix in ("plain ", "con\ntrol ") for change in CHANGES]
    with place({**{name: block_bytes(1, 100_000) for name in names}, "kept": b"kept"}) as here:
        for name in names:
            CHANGES[name.partition(" ")[2]](here.objects, name)
            for read in (Path.read_bytes, lambda path: direct_read(path, 4096, 8192)):
                with pytest.raises(OSError, match="Stale") as caught:
                    read(here.path / name)
                assert caught.value.errno == errno.ESTALE
            assert os.stat(here.path / name).st_size == 100_000
        assert (here.path / "kept").read_bytes() == b"kept"
        assert "'plain replaced' was replaced or deleted since it was listed" in here.mount.log


@pytest.mark.parametrize("direct", [False, True], ids=["through the page cache", "direct"])
def test_an_object_replaced_in_the_middle_of_a_read_gives_old_bytes_and_then_an_error(*, direct: bool) -> None:
    """D1, D2"""
    old, new = block_bytes(1, 24 * MIB), block_bytes(2, 24 * MIB)
    with place({"file": old}, "--part-size", "1MiB") as here:
        here.server.faults.add(FaultRule(action=Replace(new), operation="GetObject", skip=6))
        seen, number = read_until_error(here.path / "file", direct=direct)
        assert number == errno.ESTALE
        assert 0 < len(seen) < len(old)
        assert seen == old[: len(seen)]


def read_until_error(path: Path, *, direct: bool) -> tuple[bytes, int]:
    seen, chunk_bytes = b"", 256 * 1024
    descriptor = os.open(path, os.O_RDONLY)
    try:
        while True:
            try:
                chunk = direct_read(path, chunk_bytes, len(seen)) if direct else os.read(descriptor, chunk_bytes)
            except OSError as error:
                return seen, error.errno or 0
            if not chunk:
                return seen, 0
            seen += chunk
    finally:
        os.close(descriptor)
