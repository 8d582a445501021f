"""The inode table against a naive model: clauses N1-N6 on hostile key sets."""

import tracemalloc
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fastfuse.errors import ServiceError
from fastfuse.index.inodes.builder import TableBuilder
from fastfuse.index.inodes.table import ROOT, InodeTable
from fastfuse.index.inodes.tree import Reason, Refusals
from tests.index.indexes import MD5
from tests.tables import check_table, walk

Objects = dict[bytes, int]


def pages_of(objects: Objects) -> list[list[bytes]]:
    keys = list(objects)
    return [keys[start : start + 7] for start in range(0, len(keys), 7)]


def build(
    objects: Objects,
    *,
    prefix: str = "",
    etag: Callable[[bytes], str] = lambda _: MD5,
    pages: list[list[bytes]] | None = None,
) -> tuple[InodeTable, Refusals]:
    builder = TableBuilder("bucket", prefix)
    for page in pages or pages_of(objects):
        sizes, mtimes_ns = [objects[k] for k in page], [1000 + len(k) for k in page]
        builder.add(page, sizes, mtimes_ns, [etag(k) for k in page], ["STANDARD"] * len(page))
    table, refusals = builder.build()
    check_table(table)
    return table, refusals


def paths(table: InodeTable) -> dict[bytes, int | None]:
    """Every path below the root: size of files, None for directories."""
    found = walk(table).items()
    return {path: None if one.is_directory else one.size_bytes for path, one in found if path}


def files(table: InodeTable) -> list[int]:
    return [inode for inode in range(ROOT, len(table) + 1) if not table.is_directory(inode)]


def naive(objects: Objects) -> tuple[dict[bytes, int | None], set[bytes]]:
    """The clauses once more, as slowly and plainly as possible."""
    tree: dict[bytes, int | None] = {}
    refused: set[bytes] = set()
    for path, size in objects.items():
        segments = path.split(b"/")
        is_marker = segments[-1] == b""
        if path == b"" and size == 0:
            continue
        body = segments[:-1] if is_marker else segments
        try:
            path.decode()
        except UnicodeDecodeError:
            refused.add(path)
            continue
        if not body or any(s in {b"", b".", b".."} or b"\0" in s or len(s) > 255 for s in body) or (is_marker and size):
            refused.add(path)
            continue
        for depth in range(1, len(segments)):
            tree[b"/".join(segments[:depth])] = None
    for path, size in objects.items():
        if path and path not in refused and not path.endswith(b"/"):
            if path in tree:
                refused.add(path)
            else:
                tree[path] = size
    return tree, refused


_ODD_SEGMENTS = [*b"a b a! a- a0 . .. ... %2F \0 \xff".split(), b"", b" ", b"\n", b"x" * 255, b"y" * 256]
segment = st.one_of(
    st.sampled_from(_ODD_SEGMENTS),
    st.text(max_size=3).map(lambda text: text.encode("utf-8", "surrogatepass").replace(b"/", b"")),
)
key_sets = st.dictionaries(
    st.lists(segment, min_size=1, max_size=4).map(b"/".join), st.integers(0, 3) | st.just(1 << 40), max_size=30
)


@given(key_sets, st.booleans())
@example({b"a": 1, b"a/b": 2, b"a!b": 3, b"a0": 4, b"a/": 0}, True)
@example({b"": 1}, True)
@example({b"a/b/c/d/e": 1, b"a!": 2, b"a/b!/x": 3, b"a/b/": 0}, False)
def test_table_equals_the_naive_tree_whatever_the_keys_and_their_order(objects: Objects, in_key_order: bool) -> None:
    """N1-N6"""
    if in_key_order:
        objects = dict(sorted(objects.items()))
    table, refusals = build(objects)
    tree, refused = naive(objects)
    assert paths(table) == tree
    assert refusals.total == len(refused)
    assert {key for key, _ in refusals.examples} <= refused
    assert table.metadata.file_count == sum(size is not None for size in tree.values())


@given(key_sets, st.data())
def test_pages_in_key_order_may_come_in_any_order(objects: Objects, data: st.DataObject) -> None:
    """As a listing with many requests at once brings them."""
    ordered = dict(sorted(objects.items()))
    table, refusals = build(ordered, pages=data.draw(st.permutations(pages_of(ordered))))
    expected, refused = build(ordered)
    assert paths(table) == paths(expected)
    assert [table.ref(inode) for inode in files(table)] == [expected.ref(inode) for inode in files(expected)]
    assert refusals == refused


@given(key_sets)
def test_lookup_finds_what_children_lists_and_nothing_else(objects: Objects) -> None:
    """N6"""
    table, _ = build(objects)
    for inode in range(ROOT, len(table) + 1):
        if not table.is_directory(inode):
            with pytest.raises(ValueError, match="not a directory"):
                table.lookup(inode, b"a")
            continue
        children = list(table.children(inode))
        assert [name for name, _ in children] == sorted(name for name, _ in children)
        for position, (name, attributes) in enumerate(children):
            assert table.lookup(inode, name) == attributes.inode
            assert table.parent(attributes.inode) == inode
            assert table.position_after(inode, attributes.inode) == position + 1
            assert list(table.children(inode, position + 1)) == children[position + 1 :]
        names = {name for name, _ in children}
        assert all(table.lookup(inode, absent) is None for absent in {b"", b"zz", b"a!!", b"\xff\xff"} - names)


@given(key_sets)
def test_every_file_gives_back_its_key_and_listing_values(objects: Objects) -> None:
    objects = {b"some/prefix/" + key: size for key, size in objects.items()}
    table, _ = build(objects, prefix="some/prefix/")
    for inode in range(ROOT, len(table) + 1):
        if not table.is_directory(inode):
            ref = table.ref(inode)
            key = ref.key.encode()
            assert table.file_at(table.row(inode)) == (inode, ref.size_bytes)
            assert objects[key] == ref.size_bytes
            expected = ("bucket", MD5, 1000 + len(key), "STANDARD")
            assert (ref.bucket, ref.etag, ref.modified_ns, ref.storage_class) == expected
        elif inode != ROOT:
            assert table.key(inode).endswith("/")
            assert table.file_at(table.row(inode)) is None


@pytest.mark.parametrize(
    "etag",
    [MD5, MD5[:-1] + '-12"', MD5[:-1] + '-65535"', MD5[:-1] + '-65536"', MD5[:-1] + '-012"', MD5.upper(), "", '"W/"',
     MD5[:-1] + '-' + '9' * 5000 + '"', MD5[:-1] + '-١"', MD5[1:-1], '"é"', "'" + MD5[1:-1] + "'", '"xyz"',
     MD5[:-1] + '-"', '"0123456789abcdef 123456789abcdef"'],
)  # fmt: skip
def test_an_etag_comes_back_to_the_letter(etag: str) -> None:
    """D2 stands on it: If-Match must carry what the service listed."""
    table, _ = build({b"a": 1, b"b": 1}, etag=lambda key: etag if key == b"b" else MD5)
    inode = table.lookup(ROOT, b"b")
    assert inode is not None
    assert table.ref(inode).etag == etag


@pytest.mark.parametrize("etag", ['""', 'W/""', '"', ' "" '])
def test_an_etag_whose_quotes_are_empty_is_none(etag: str) -> None:
    """D2: the time tells versions apart then, and no tier keeps them."""
    table, _ = build({b"a": 1}, etag=lambda _: etag)
    inode = table.lookup(ROOT, b"a")
    assert inode is not None
    assert table.ref(inode).etag == ""


def test_each_refusal_has_its_reason_and_the_first_ten_are_kept() -> None:
    """N2, N3, N4"""
    _, refusals = build(
        {b"a//b": 1, b"a/./b": 1, b"../b": 1, b"n\0": 1, b"l" * 256: 1, b"\xc3": 1, b"m/": 1, b"f": 1, b"f/g": 1}
    )
    assert dict(refusals.examples) == {
        b"a//b": Reason.EMPTY_SEGMENT,
        b"a/./b": Reason.DOT_SEGMENT,
        b"../b": Reason.DOT_SEGMENT,
        b"n\0": Reason.NUL,
        b"l" * 256: Reason.TOO_LONG,
        b"\xc3": Reason.NOT_UTF8,
        b"m/": Reason.MARKER_WITH_DATA,
        b"f": Reason.SHADOWED,
    }
    longest = b"/".join([b"d" * 203] * 5) + b"/" + b"f" * 4
    too_long = [longest + b"f", longest[:-4] + b"a" * 5, longest + b"/" + b"y" * 9]
    table, long = build(dict.fromkeys([longest, *too_long, b"x"], 1))
    assert len(longest) == 1024
    assert [paths(table)[key] for key in (longest, b"x")] == [1, 1]
    assert long.counts == {Reason.KEY_TOO_LONG: 3}
    assert {len(key) for key, _ in long.examples} == {1024}
    _, many = build({b"//%d" % n: 1 for n in range(25)})
    assert len(many.examples) == 10
    assert many.counts == {Reason.EMPTY_SEGMENT: 25}


def test_256_storage_classes_are_told_apart_and_a_service_with_more_is_refused() -> None:
    """One column of bytes holds them; it takes a hostile service to have more than a dozen."""
    names = [f"CLASS-{number}" for number in range(257)]
    keys = [b"%04d" % number for number in range(257)]
    builder = TableBuilder("bucket", "")
    builder.add(keys[:256], [1] * 256, [0] * 256, [MD5] * 256, names[:256])
    table, _ = builder.build()
    assert [table.ref(inode).storage_class for inode in files(table)] == names[:256]
    for split in (0, 200):
        builder = TableBuilder("bucket", "")
        builder.add(keys[:split], [1] * split, [0] * split, [MD5] * split, names[:split])
        rest = 257 - split
        with pytest.raises(ServiceError, match="more than 256 storage classes"):
            builder.add(keys[split:], [1] * rest, [0] * rest, [MD5] * rest, names[split:])


@pytest.mark.parametrize(("etag", "overlap"), [(MD5, 0), ('"%x-%x"', 0), (MD5, 1)])
def test_building_keeps_no_object_per_key(etag: str, overlap: int) -> None:
    """At its peak it takes less than three times the finished table, which is 100 bytes and the name for a file."""
    count, page_keys = 50_000, 1000
    sample = b"train/class-0000/img-00000000.jpg"
    tracemalloc.start()
    try:
        builder = TableBuilder("bucket", "train/")
        for start in (*range(page_keys, count, 2 * page_keys), *range(0, count, 2 * page_keys)):
            numbers = [start + place * (10 + overlap) // 10 for place in range(page_keys)]
            keys = [b"train/class-%04d/img-%08d-%d.jpg" % (n // 1300, n, start) for n in numbers]
            etags = [etag % (n, n) if "%" in etag else etag for n in range(start, start + page_keys)]
            builder.add(keys, [1] * page_keys, [0] * page_keys, etags, ["STANDARD"] * page_keys)
        del numbers, keys, etags
        tracemalloc.reset_peak()
        table, _ = builder.build()
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert table.metadata.file_count == count
    assert peak_bytes / count < 200 < 3 * (100 + len(sample.rpartition(b"/")[2]))


def test_a_key_listed_twice_is_one_file() -> None:
    builder = TableBuilder("bucket", "")
    for keys, sizes in (([b"a", b"d/b"], [1, 2]), ([b"d/b", b"a", b"a"], [3, 4, 5])):
        builder.add(keys, sizes, [0] * len(keys), [MD5] * len(keys), ["STANDARD"] * len(keys))
    table, refusals = builder.build()
    check_table(table)
    assert paths(table) == {b"a": 1, b"d": None, b"d/b": 2}
    assert refusals.total == 0
