"""A table that takes another one's place: what stays keeps its inode number, and nothing else does."""

from dataclasses import astuple, dataclass
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fastfuse.errors import StaleInodeError
from fastfuse.index.inodes.changes import Changes, take_over
from fastfuse.index.inodes.table import ROOT, Attributes, InodeTable
from fastfuse.index.inodes.tree import Refusals
from fastfuse.index.snapshot import Snapshot, open_snapshot
from tests.index import indexes
from tests.index.indexes import MD5, index_bytes, memory_file
from tests.tables import check_table, walk


@dataclass(frozen=True)
class Version:
    size_bytes: int = 1
    mtime_ns: int = 5
    etag: str = MD5
    storage_class: str = "STANDARD"


Objects = dict[str, Version]


def table_of(objects: Objects) -> InodeTable:
    return indexes.table_of({key: astuple(version) for key, version in objects.items()})


def versions_of(table: InodeTable, objects: Objects) -> dict[bytes, Version]:
    return {path: objects[path.decode()] for path, attributes in walk(table).items() if not attributes.is_directory}


_versions = st.builds(
    Version,
    size_bytes=st.integers(0, 2),
    mtime_ns=st.integers(1, 2),
    etag=st.sampled_from([MD5, MD5[:-1] + '-7"', MD5[:-1] + '-8"', "odd", "odder", ""]),
    storage_class=st.sampled_from(["STANDARD", "GLACIER"]),
)
_paths = st.lists(st.sampled_from("abc"), min_size=1, max_size=3).map("/".join)
_objects = st.dictionaries(_paths, _versions, max_size=10)


@given(st.lists(_objects, min_size=2, max_size=4))
@example([{"a/b": Version(), "c": Version()}] * 2)
@example([{"a": Version(etag="odd"), "b": Version(etag="od")}, {"a": Version(etag="odt"), "b": Version(etag="od")}])
def test_what_stays_keeps_its_number_and_no_number_is_used_twice(generations: list[Objects]) -> None:
    old = table_of(generations[0])
    used = {attributes.inode for attributes in walk(old).values()}
    for before, after in pairwise(generations):
        new, changes = take_over(old, table_of(after))
        check_table(new)
        were, are = walk(old), walk(new)
        old_versions, new_versions = versions_of(old, before), versions_of(new, after)
        stay = {path for path in old_versions if new_versions.get(path) == old_versions[path]}
        stay |= {path for path in were if path in are and were[path].is_directory and are[path].is_directory}
        for path, attributes in are.items():
            assert (attributes.inode == were[path].inode) if path in stay else (attributes.inode not in used)
            assert new.path(attributes.inode).removesuffix("/").encode() == path
            if path and not attributes.is_directory:
                assert new.ref(attributes.inode).key.encode() == path
                assert new.lookup(new.parent(attributes.inode), path.rpartition(b"/")[2]) == attributes.inode
        assert bool(changes) == (were != are)
        assert changes.added == len(new_versions.keys() - old_versions.keys())
        assert changes.removed == len(old_versions.keys() - new_versions.keys())
        assert changes.replaced == len((old_versions.keys() & new_versions.keys()) - stay)
        check_what_is_stale(changes, were, are, stay)
        used |= {attributes.inode for attributes in are.values()}
        old = new


def test_changes_are_found_among_many_directories() -> None:
    before = {f"{number:03}/a": Version() for number in range(600)}
    old = table_of(before)
    new, changes = take_over(old, table_of({**before, "000/a": Version(2), "300/b": Version(), "599/a": Version(3)}))
    stale = [(old.find(folder), name) for folder, name in ((b"000", b"a"), (b"300", b"b"), (b"599", b"a"))]
    assert sorted(changes.stale_names) == stale
    assert changes.stale_directories == [directory for directory, _ in stale]
    for path in (b"100", b"100/a", b"300", b"300/a", b"599"):
        assert new.find(path) == old.find(path)


def check_what_is_stale(
    changes: Changes, were: dict[bytes, Attributes], are: dict[bytes, Attributes], stay: set[bytes]
) -> None:
    """A name is stale where its directory stays and it does not."""
    expected = set()
    for path in (were.keys() | are.keys()) - stay:
        parent, _, name = path.rpartition(b"/")
        if parent in stay:
            expected.add((were[parent].inode, name))
    assert set(changes.stale_names) == expected
    assert len(changes.stale_names) == len(expected)
    stale = {path for path in stay if were[path].is_directory and were[path].mtime_ns != are[path].mtime_ns}
    stale_inodes = {were[path].inode for path in stale} | {directory for directory, _ in expected}
    assert sorted(changes.stale_directories) == sorted(stale_inodes)


@pytest.mark.parametrize("inode", [0, -1, 4, 1 << 63])
def test_a_number_that_is_not_in_the_table_is_stale(inode: int) -> None:
    old = table_of({"a": Version(), "b": Version()})
    new, _ = take_over(old, table_of({"a": Version(), "b": Version()}))
    for table in (old, new):
        assert inode not in table
        with pytest.raises(StaleInodeError):
            table.attributes(inode)


def names_from(table: InodeTable, start: int) -> list[bytes]:
    return [name for name, _ in table.children(ROOT, start)]


_names = st.dictionaries(st.sampled_from("abcdefghij"), st.integers(0, 2).map(Version), max_size=10)


@given(st.lists(_names, min_size=2, max_size=4), st.data())
def test_a_listing_goes_on_where_it_stopped_in_the_table_before(
    generations: list[Objects], data: st.DataObject
) -> None:
    """N6"""
    old = table_of(generations[0])
    for objects in generations[1:]:
        new, _ = take_over(old, table_of(objects))
        reached = data.draw(st.integers(1, max(1, len(list(old.children(ROOT))))))
        for name, attributes in list(old.children(ROOT))[:reached]:
            after = names_from(new, new.position_after(ROOT, attributes.inode))
            assert after == sorted(other for other in names_from(new, 0) if other > name)
        old = new


def test_a_child_of_another_directory_or_of_none_has_no_place_in_a_listing() -> None:
    objects = {f"{folder}/{name}": Version() for folder in "abc" for name in "xyz"}
    old = table_of({**objects, "e": Version()})
    new, _ = take_over(old, table_of({key: version for key, version in objects.items() if key != "c/y"}))
    places = {path.decode(): attributes.inode for path, attributes in walk(old).items()}
    for directory, child in (("a", places["c/y"]), ("c", places["a/x"]), ("a", ROOT), ("a", 1 << 50)):
        for table in (old, new):
            with pytest.raises(StaleInodeError):
                table.position_after(places[directory], child)
    assert new.position_after(places["c"], places["c/y"]) == 1
    assert new.position_after(ROOT, places["e"]) == 3


def test_a_place_in_a_listing_survives_the_snapshot() -> None:
    """N6: the table that a worker serves comes from a file."""
    old = table_of({name: Version() for name in "abcd"})
    new, _ = take_over(old, table_of({name: Version() for name in "acd"}))
    gone = old.lookup(ROOT, b"b")
    assert gone is not None
    saved = index_bytes(Snapshot(source="s3://bucket/", listed_at_ns=1, table=new, refusals=Refusals()))
    with memory_file(saved) as fd:
        table = open_snapshot(fd).table
    assert names_from(table, table.position_after(ROOT, gone)) == [b"c", b"d"]
