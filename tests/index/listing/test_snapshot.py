"""Snapshots: what was saved is what is mapped, and a damaged file is refused or harmless."""

import contextlib
import json
import os
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfuse.errors import ConfigurationError, StaleInodeError
from fastfuse.index import snapshot as snapshots
from fastfuse.index.inodes.changes import take_over
from fastfuse.index.inodes.columns import COLUMN_TYPES
from fastfuse.index.inodes.table import ROOT, InodeTable
from fastfuse.index.inodes.tree import Reason, Refusals
from fastfuse.index.snapshot import Snapshot, open_snapshot, save_snapshot, verify_snapshot
from tests.index import indexes
from tests.index.indexes import MD5, Row, index_bytes, memory_file
from tests.tables import check_table, files_of

_HEAD_BYTES = 24

_segments = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="/\0"), min_size=1, max_size=5)
_objects = st.dictionaries(
    st.lists(_segments, min_size=1, max_size=4).map("/".join),
    st.tuples(
        st.integers(0, (1 << 40)),
        st.integers(-(1 << 60), 1 << 60),
        st.sampled_from([MD5, MD5[:-1] + '-7"', "odd", ""]) | _segments.map('"x{}"'.format),
        st.sampled_from(["STANDARD", "GLACIER"]),
    ),
    max_size=12,
)


def saved(table: InodeTable) -> bytes:
    return index_bytes(Snapshot(source="s3://bucket/prefix/", listed_at_ns=17, table=table, refusals=refusals()))


def table_of(objects: dict[str, Row], made: Mapping[bytes, bytes] = MappingProxyType({})) -> InodeTable:
    return indexes.table_of(objects, prefix="prefix/", made=made)


def refusals() -> Refusals:
    refused = Refusals()
    refused.add(b"a//\xff\n", Reason.EMPTY_SEGMENT)
    refused.add("ü/..".encode(), Reason.DOT_SEGMENT)
    return refused


def opened(data: bytes) -> InodeTable:
    return read(data, open_snapshot).table


def read(data: bytes, how: Callable[[int], Snapshot]) -> Snapshot:
    with memory_file(data) as fd:
        return how(fd)


def sound() -> bytes:
    """Rows: the root, a, b, z, b/c, b/d, b/d/e, b/d/f."""
    keys = ["a", "b/c", "b/d/e", "b/d/f", "z"]
    return saved(
        table_of({key: (7, 10**18, etag, "STANDARD") for key, etag in zip(keys, [MD5] * 4 + ["odd"], strict=True)})
    )


@pytest.fixture(scope="module")
def snapshot() -> bytes:
    return sound()


@given(_objects, st.dictionaries(st.sampled_from([b"m", b"a/m", b"n/o", b"z"]), st.binary(max_size=100)))
def test_what_was_saved_is_what_is_mapped(objects: dict[str, Row], made: dict[bytes, bytes]) -> None:
    table = table_of(objects, made)
    again = read(saved(table), verify_snapshot).table
    check_table(again)
    assert again.metadata == table.metadata
    for name in COLUMN_TYPES:
        assert np.array_equal(again.columns[name], table.columns[name])
    for path, inode in files_of(again).items():
        if again.is_made(inode):
            assert bytes(again.made(inode)) == made[path.encode()]
        else:
            assert again.ref(inode).etag == objects[path][2]


@given(_objects, _objects)
def test_inode_numbers_are_saved_with_a_table_that_has_its_own(before: dict[str, Row], after: dict[str, Row]) -> None:
    table, _ = take_over(table_of(before), table_of(after))
    again = opened(saved(table))
    check_table(again)
    assert [again.inode(row) for row in range(len(again))] == [table.inode(row) for row in range(len(table))]


def test_what_was_listed_and_when_and_what_was_refused_and_the_view_is_saved_too(snapshot: bytes) -> None:
    again = read(snapshot, verify_snapshot)
    assert (again.source, again.listed_at_ns) == ("s3://bucket/prefix/", 17)
    assert again.refusals == refusals()
    part = index_bytes(replace(again, view="part 1/2 by count"))
    assert read(part, verify_snapshot).view == "part 1/2 by count"


def ordered_table(order: list[int]) -> InodeTable:
    rows = {"one/a": (7, 3, MD5, "STANDARD"), "two/b": (8, 4, MD5, "STANDARD")}
    return indexes.table_of(rows, bucket="", order=order)


@pytest.mark.parametrize("order", [[], [1, 0], [1, 1, 0, 1]])
def test_the_order_of_the_source_and_its_buckets_are_saved(order: list[int]) -> None:
    again = read(saved(ordered_table(order)), verify_snapshot).table
    check_table(again)
    rows = again.source_order()
    assert rows is not None
    assert [again.ref(again.inode(row)).bucket for row in rows.tolist()] == [("one", "two")[at] for at in order]


def test_a_header_has_no_etags() -> None:
    """Every worker reads it in its loop."""
    header = header_of(saved(table_of({f"{number:03}": (1, 1, f"odd-{number}", "STANDARD") for number in range(500)})))
    assert len(json.dumps(header)) < 2000


def test_an_index_that_nobody_could_read_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "_MOST_BYTES", 1000)
    with memory_file() as fd:
        with pytest.raises(ConfigurationError, match=r"the index has .* of any index") as refused:
            save_snapshot(Snapshot(source="s3://b/", listed_at_ns=1, table=table_of({}), refusals=refusals()), fd)
        assert refused.value.hint == "mount narrower prefixes"
        assert os.fstat(fd).st_size == 0


@given(st.data())
def test_verifying_finds_any_byte_that_changed(snapshot: bytes, data: st.DataObject) -> None:
    damaged = bytearray(snapshot)
    at = data.draw(st.integers(0, len(damaged) - 1))
    damaged[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(ConfigurationError, match=r"damaged|not a fastfuse index|has format \d+"):
        read(bytes(damaged), verify_snapshot)


def test_more_bytes_than_an_int64_holds_are_saved_too() -> None:
    """As a service may claim."""
    table = table_of(dict.fromkeys("ab", ((1 << 63) - 1, 0, MD5, "STANDARD")))
    assert opened(saved(table)).metadata == table.metadata
    assert table.metadata.total_bytes == (1 << 64) - 2


def test_columns_are_aligned_mapped_and_not_to_be_written(snapshot: bytes) -> None:
    for column in opened(snapshot).columns.values():
        assert column.ctypes.data % 64 == 0
        assert not column.flags.writeable
        assert not column.flags.owndata


def test_a_file_that_is_cut_or_longer_or_something_else_is_refused(snapshot: bytes) -> None:
    for data in (snapshot + b"\0", b"PK\3\4" + bytes(100), snapshot.replace(b': "bucket"', b': "bucjet"')):
        with pytest.raises(ConfigurationError, match=r"not a fastfuse index|damaged"):
            opened(data)
    for size in range(len(snapshot)):
        with pytest.raises(ConfigurationError, match=r"cut short|not a fastfuse index|damaged"):
            opened(snapshot[:size])


def header_of(data: bytes) -> dict[str, Any]:
    (size,) = struct.unpack_from("<I", data, 12)
    header: dict[str, Any] = json.loads(data[_HEAD_BYTES : _HEAD_BYTES + size].rstrip(b"\0"))
    return header


def with_header(data: bytes, header: object) -> bytes:
    """The same columns under another header, whose sum is right."""
    return with_header_text(data, json.dumps(header).encode())


def with_header_text(data: bytes, text: bytes, *, misaligned_bytes: int = 0) -> bytes:
    (size,) = struct.unpack_from("<I", data, 12)
    text += bytes(-(_HEAD_BYTES + len(text)) % 64 + misaligned_bytes)
    sum_of_columns = data[20:_HEAD_BYTES]
    sizes = struct.pack("<II", len(text), zlib.crc32(text))
    return data[:12] + sizes + sum_of_columns + text + data[_HEAD_BYTES + size :]


def with_item(data: bytes, column: str, item_format: str, offset: int, *items: int) -> bytes:
    """The same index with other bytes at `offset` of a column, whose sum is right."""
    begin = _HEAD_BYTES + struct.unpack_from("<I", data, 12)[0]
    changed = bytearray(data)
    struct.pack_into(item_format, changed, begin + header_of(data)["columns"][column]["offset"] + offset, *items)
    struct.pack_into("<I", changed, 20, zlib.crc32(changed[begin:]))
    return bytes(changed)


@pytest.mark.parametrize("version", [0, 2, 4])
def test_a_format_of_no_kind_that_is_read_is_refused_by_its_number(snapshot: bytes, version: int) -> None:
    with pytest.raises(ConfigurationError, match=f"has format {version}, this fastfuse reads 3"):
        opened(snapshot[:8] + version.to_bytes(4, "little") + snapshot[12:])


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
        _change("columns.sizes.count", 1 << 70), _change("columns.sizes.offset", 1 << 70),
        _change("columns.sizes.offset", -64), _change("columns.sizes.offset", 1 << 40),
        _change("columns.sizes.offset", "0"), _change("columns.sizes.offset", 4), _change("metadata.bucket", "\ud800"),
        _change("columns.kinds.count", 0), _change("columns.names.count", 1), _change("columns.parents.type", "uint64"),
        _change("columns", []), _change("columns", {}), _change("metadata", {}), _change("metadata.extra", 1),
        _change("metadata.storage_classes", None), _change("refusals.counts", {"odd": 1}),
        _change("metadata.storage_classes", "STANDARD"),
        _change("metadata.bucket", None), _change("metadata.key_prefix", "prefix"), _change("metadata.key_prefix", 1),
        _change("metadata.file_count", "x"), _change("metadata.file_count", True),
        _change("metadata.total_bytes", 1 << 95), _change("metadata.total_bytes", -1),
        _change("metadata.directory_count", 1.5),
        _change("metadata.next_inode", 1 << 63), _change("source", None),
        _change("refusals.counts", {Reason.NUL: float("inf")}), _change("refusals.counts", {Reason.NUL: -1}),
        _change("refusals.examples", 1), _change("refusals.examples", [[1, Reason.NUL]]), _change("columns_bytes", 0),
        _change("listed_at_ns", "x"), _change("listed_at_ns", float("inf")), _change("listed_at_ns", 10**30),
        _change("listed_at_ns", -1),
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


@pytest.mark.parametrize("text", [b"[" * 200_000, b"[]", b"1", b'{"columns_bytes": ' + b"9" * 5000 + b"}", b"\xff"])
def test_a_header_that_is_none_is_refused(snapshot: bytes, text: bytes) -> None:
    with pytest.raises(ConfigurationError, match="damaged"):
        opened(with_header_text(snapshot, text))


def made_file() -> bytes:
    """Rows: the root, a, m, a/x."""
    return saved(table_of({"a/x": (7, 3, MD5, "STANDARD")}, {b"m": b"abc"}))


def long_names() -> bytes:
    return saved(table_of(dict.fromkeys(("aa", "b" * 250, "c" * 10), (1, 1, MD5, "STANDARD"))))


@pytest.mark.parametrize(
    ("make", "column", "item_format", "offset", "items"),
    [
        (sound, "etags", "<QQ", 16 * 5, (2, 2)), (sound, "etags", "<QQ", 16 * 5, (5, 1)),
        (sound, "etags", "<QQ", 16 * 2, (0, 2)), (sound, "etags", "<QQ", 16 * 5, (6, 3)),
        (sound, "etags", "<QQ", 16 * 5, (6, 1 << 63)), (sound, "etags", "<QQ", 16 * 5, (6, 1)),
        (sound, "etags", "<QQ", 0, (2, 3)), (sound, "kinds", "B", 0, (1,)), (sound, "kinds", "B", 4, (0,)),
        (sound, "storage_classes", "B", 1, (1,)),
        *((sound, "names", "B", 2, (byte,)) for byte in (*b"/.\0", 0x80, 0xff)),
        (sound, "names", "BB", 0, (0xc3, 0xa4)), (sound, "name_ends", "<Q", 0, (1,)),
        *((sound, "name_ends", "<Q", 8 * 2, (end,)) for end in (0, 1, 3, 1 << 63)),
        # A directory inside itself would be walked for ever.
        (sound, "parents", "<I", 4 * 4, (3,)), (sound, "parents", "<I", 0, (1,)), (sound, "sizes", "<q", 8, (-1,)),
        # An ETag that lies outside of its column.
        *((sound, "etags", "<QQ", 16 * 3, place) for place in ((4, 0), (0, 4), (1, 3), (0, 1 << 63), (1 << 63, 1))),
        *((sound, "etags", "<QQ", 16 * 3, place) for place in ((1, (1 << 64) - 1), ((1 << 64) - 1, 2))),
        (long_names, "name_ends", "<Q", 8 * 2, (2 + 256,)),  # too many bytes in a name
        (long_names, "names", "BB", 0, b".."),
        *((made_file, "kinds", "B", 2, (kind,)) for kind in (5, 255)),  # of no kind
        # A made file that lies outside of its bytes.
        *((made_file, "etags", "<Q", 16 * 2, (start,)) for start in (1, 4, 1 << 63, (1 << 64) - 1)),
        *((made_file, "sizes", "<q", 8 * 2, (size,)) for size in (4, -1, (1 << 63) - 1)),
        (lambda: saved(table_of({})), "kinds", "B", 0, (1,)),  # a root that is a file
        *((lambda: saved(ordered_table([0])), "source_order", "<I", 0, (row,)) for row in (0, 1, 5, (1 << 32) - 1)),
    ],
)  # fmt: skip
def test_an_index_whose_sums_are_right_and_whose_rows_are_not_is_refused(
    make: Callable[[], bytes], column: str, item_format: str, offset: int, items: Sequence[int]
) -> None:
    data = make()
    before = struct.unpack_from(item_format, opened(data).columns[column].tobytes(), offset)
    read(with_item(data, column, item_format, offset, *before), verify_snapshot)
    damaged = with_item(data, column, item_format, offset, *items)
    with pytest.raises(ConfigurationError, match="damaged"):
        read(damaged, verify_snapshot)
    if make is made_file and column != "kinds":
        with pytest.raises(ValueError, match="not all there"):
            opened(damaged).made(3)


def test_a_name_may_have_255_bytes() -> None:
    assert len(read(with_item(long_names(), "name_ends", "<Q", 8 * 2, 2 + 255), verify_snapshot).table) == 4


def test_objects_without_a_bucket_and_the_inode_numbers_of_a_mount_are_refused(snapshot: bytes) -> None:
    table, header = opened(snapshot), header_of(snapshot)
    changed = [header | {"metadata": header["metadata"] | change} for change in ({"bucket": ""}, {"next_inode": 2})]
    for damaged in (saved(take_over(table, table)[0]), *(with_header(snapshot, one) for one in changed)):
        with pytest.raises(ConfigurationError, match="damaged"):
            read(damaged, verify_snapshot)


def test_a_header_after_which_no_column_is_aligned_is_refused(snapshot: bytes) -> None:
    text = json.dumps(header_of(snapshot)).encode()
    with pytest.raises(ConfigurationError, match="damaged"):
        opened(with_header_text(snapshot, text, misaligned_bytes=8))


def test_an_index_whose_numbers_of_children_come_out_right_only_as_64_bits_is_refused(snapshot: bytes) -> None:
    many = (1 << 63) + 2
    damaged = with_item(snapshot, "etags", "<QQ", 16 * 2, 4, many)
    damaged = with_item(damaged, "etags", "<QQ", 16 * 5, 4 + many, many)
    with pytest.raises(ConfigurationError, match="damaged"):
        read(damaged, verify_snapshot)


def test_an_index_with_a_directory_that_lies_in_itself_below_no_other_is_refused() -> None:
    """File mode, which walks up from every row, would walk for ever."""
    damaged = saved(table_of({"a/x": (7, 3, MD5, "STANDARD")}))
    for column, *items in (("etags", 0, 1, 0), ("etags", 16, 1, 2), ("parents", 4, 1)):
        damaged = with_item(damaged, column, "<QQ" if column == "etags" else "<I", *items)
    assert opened(damaged).columns["parents"].tolist() == [0, 1, 1]
    with pytest.raises(ConfigurationError, match="damaged"):
        read(damaged, verify_snapshot)


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
            table.made,
            table.key,
            table.attributes,
            lambda n: table.lookup(n, b"e"),
            lambda n: [*table.children(n)],
        ):
            with contextlib.suppress(ValueError, IndexError, StaleInodeError):  # what the mount answers with EIO
                use(inode)


def test_a_directory_that_is_its_own_ancestor_is_an_error_and_no_loop(snapshot: bytes) -> None:
    table = opened(with_item(snapshot, "parents", "<I", 4 * 2, 5))  # b lies in b/d
    with pytest.raises(ValueError, match="comes after it"):
        table.key(table.inode(5))
