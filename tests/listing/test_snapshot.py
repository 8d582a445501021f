"""Snapshots: what was saved is what is mapped, and a damaged file is refused or harmless."""

import contextlib
import io
import json
import os
import struct
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfuse.errors import ConfigurationError, StaleInodeError
from fastfuse.inodes.builder import TableBuilder
from fastfuse.inodes.changes import take_over
from fastfuse.inodes.names import Reason, Refusals
from fastfuse.inodes.table import COLUMN_TYPES, ROOT, InodeTable
from fastfuse.listing.snapshot import Snapshot, open_snapshot, save_snapshot, verify_snapshot

_HEAD_BYTES = 24
_MD5 = '"0123456789abcdef0123456789abcdef"'

_segments = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="/\0"), min_size=1, max_size=5)
_objects = st.dictionaries(
    st.lists(_segments, min_size=1, max_size=4).map("/".join),
    st.tuples(
        st.integers(0, (1 << 40)),
        st.integers(-(1 << 60), 1 << 60),
        st.sampled_from([_MD5, _MD5[:-1] + '-7"', "odd", ""]),
        st.sampled_from(["STANDARD", "GLACIER"]),
    ),
    max_size=12,
)


def table_of(objects: dict[str, tuple[int, int, str, str]]) -> InodeTable:
    builder = TableBuilder("bucket", "prefix/")
    columns = list(zip(*objects.values(), strict=True)) or [(), (), (), ()]
    builder.add([f"prefix/{key}".encode() for key in objects], *columns)
    return builder.build()[0]


def memfd(data: bytes = b"") -> int:
    fd = os.memfd_create("test")
    os.write(fd, data)
    return fd


def refusals() -> Refusals:
    refused = Refusals()
    refused.add(b"a//\xff\n", Reason.EMPTY_SEGMENT)
    refused.add("ü/..".encode(), Reason.DOT_SEGMENT)
    return refused


def saved(table: InodeTable) -> bytes:
    fd = memfd()
    try:
        save_snapshot(Snapshot(source="s3://bucket/prefix/", listed_at_ns=17, table=table, refusals=refusals()), fd)
        return os.pread(fd, 1 << 24, 0)
    finally:
        os.close(fd)


def opened(data: bytes) -> InodeTable:
    return read(data, open_snapshot).table


def read(data: bytes, how: Callable[[int], Snapshot]) -> Snapshot:
    fd = memfd(data)
    try:
        return how(fd)
    finally:
        os.close(fd)


@pytest.fixture(scope="module")
def snapshot() -> bytes:
    keys = ["a", "b/c", "b/d/e", "b/d/f", "z"]
    return saved(
        table_of({key: (7, 10**18, etag, "STANDARD") for key, etag in zip(keys, [_MD5] * 4 + ["odd"], strict=True)})
    )


@given(_objects)
def test_what_was_saved_is_what_is_mapped(objects: dict[str, tuple[int, int, str, str]]) -> None:
    table = table_of(objects)
    again = opened(saved(table))
    again.check_invariants()
    assert again.metadata == table.metadata
    for name in COLUMN_TYPES:
        assert np.array_equal(again.columns[name], table.columns[name])


@given(_objects, _objects)
def test_inode_numbers_are_saved_with_a_table_that_has_its_own(
    before: dict[str, tuple[int, int, str, str]], after: dict[str, tuple[int, int, str, str]]
) -> None:
    table, _ = take_over(table_of(before), table_of(after))
    again = opened(saved(table))
    again.check_invariants()
    assert [again.inode(row) for row in range(len(again))] == [table.inode(row) for row in range(len(table))]


def test_what_was_listed_and_when_and_what_was_refused_is_saved_too(snapshot: bytes) -> None:
    again = read(snapshot, verify_snapshot)
    assert (again.source, again.listed_at_ns) == ("s3://bucket/prefix/", 17)
    assert again.refusals == refusals()


@given(st.data())
def test_verifying_finds_any_byte_that_changed(snapshot: bytes, data: st.DataObject) -> None:
    damaged = bytearray(snapshot)
    at = data.draw(st.integers(0, len(damaged) - 1))
    damaged[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(ConfigurationError, match=r"damaged|not a fastfuse index|has format \d+"):
        read(bytes(damaged), verify_snapshot)


def test_a_longer_file_is_refused(snapshot: bytes) -> None:
    with pytest.raises(ConfigurationError, match="damaged"):
        opened(snapshot + b"\0")


def test_columns_are_aligned_mapped_and_not_to_be_written(snapshot: bytes) -> None:
    for column in opened(snapshot).columns.values():
        assert column.ctypes.data % 64 == 0
        assert not column.flags.writeable
        assert not column.flags.owndata


def test_the_mapping_outlives_the_descriptor(snapshot: bytes) -> None:
    assert opened(snapshot).lookup(ROOT, b"a") is not None


def test_a_file_cut_anywhere_is_refused(snapshot: bytes) -> None:
    for size in range(len(snapshot)):
        with pytest.raises(ConfigurationError, match=r"cut short|not a fastfuse index|damaged"):
            opened(snapshot[:size])


def header_of(data: bytes) -> dict[str, Any]:
    (size,) = struct.unpack_from("<I", data, 12)
    header: dict[str, Any] = json.loads(data[_HEAD_BYTES : _HEAD_BYTES + size].rstrip(b"\0"))
    return header


def with_header(data: bytes, header: object) -> bytes:
    """The same columns under another header, whose sum is right; padded to the old length."""
    (size,) = struct.unpack_from("<I", data, 12)
    text = json.dumps(header).encode().ljust(size, b"\0")
    file = io.BytesIO(data)
    file.seek(12)
    file.write(struct.pack("<II", len(text), zlib.crc32(text)))
    file.seek(_HEAD_BYTES)
    file.write(text)
    return file.getvalue()


def test_a_foreign_file_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="not a fastfuse index"):
        opened(b"PK\3\4" + bytes(100))


def test_a_header_with_another_byte_is_refused_although_it_is_still_json(snapshot: bytes) -> None:
    with pytest.raises(ConfigurationError, match="damaged"):
        opened(snapshot.replace(b'"bucket": "bucket"', b'"bucket": "bucjet"'))


def test_an_empty_file_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="cut short"):
        opened(b"")


def test_a_newer_format_is_refused_by_its_number(snapshot: bytes) -> None:
    with pytest.raises(ConfigurationError, match="format 2, this fastfuse reads 1"):
        opened(snapshot[:8] + struct.pack("<I", 2) + snapshot[12:])


def _change(path: str, value: object) -> Callable[[dict[str, Any]], None]:
    def change(header: dict[str, Any]) -> None:
        *parents, last = path.split(".")
        place = header
        for name in parents:
            place = place[name]
        place[last] = value

    return change


@pytest.mark.parametrize(
    "change",
    [
        _change("columns.sizes.count", 1), _change("columns.sizes.count", 1 << 40), _change("columns.sizes.count", -1),
        _change("columns.sizes.offset", -64), _change("columns.sizes.offset", 1 << 40),
        _change("columns.sizes.offset", "0"),
        _change("columns.kinds.count", 0), _change("columns.names.count", 1), _change("columns.parents.type", "uint64"),
        _change("columns", []), _change("columns", {}), _change("metadata", {}), _change("metadata.extra", 1),
        _change("metadata.storage_classes", None), _change("refusals.counts", {"odd": 1}),
        _change("refusals.examples", 1), _change("listed_at_ns", "x"), _change("columns_bytes", 0),
    ],
)  # fmt: skip
def test_a_header_that_contradicts_the_file_is_refused(
    snapshot: bytes, change: Callable[[dict[str, Any]], None]
) -> None:
    header = header_of(snapshot)
    assert len(opened(with_header(snapshot, header))) > 1
    change(header)
    with pytest.raises(ConfigurationError, match="damaged"):
        opened(with_header(snapshot, header))


@given(st.data())
def test_any_damaged_byte_is_refused_or_makes_errors_of_single_files(snapshot: bytes, data: st.DataObject) -> None:
    damaged = bytearray(snapshot)
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    try:
        table = opened(bytes(damaged))
    except ConfigurationError:
        return
    for inode in range(ROOT, len(table) + 1):
        for use in (
            table.ref,
            table.key,
            table.attributes,
            lambda n: table.lookup(n, b"e"),
            lambda n: [*table.children(n)],
        ):
            with contextlib.suppress(ValueError, IndexError, StaleInodeError):  # what the mount answers with EIO
                use(inode)


def test_a_directory_that_is_its_own_ancestor_is_an_error_and_no_loop(snapshot: bytes) -> None:
    table = opened(snapshot)
    directory = table.lookup(ROOT, b"b")
    assert directory is not None
    inner = table.lookup(directory, b"d")
    assert inner is not None
    header = header_of(snapshot)
    base = _HEAD_BYTES + struct.unpack_from("<I", snapshot, 12)[0]
    damaged = bytearray(snapshot)
    struct.pack_into("<I", damaged, base + header["columns"]["parents"]["offset"] + 4 * (directory - 1), inner - 1)
    with pytest.raises(ValueError, match="comes after it"):
        opened(bytes(damaged)).key(inner)
