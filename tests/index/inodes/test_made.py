"""Made files: in the table beside the objects, and read from it (clauses N2-N4 hold for their names)."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fastfuse.errors import ObjectChangedError
from fastfuse.index.inodes.builder import TableBuilder
from fastfuse.index.inodes.changes import take_over
from fastfuse.index.inodes.table import ROOT, InodeTable
from fastfuse.index.inodes.tree import Reason, Refusals
from fastfuse.index.made import MadeReader
from tests.index.indexes import MD5
from tests.store import MemoryStore
from tests.tables import check_table, walk

_names = st.sampled_from([b"a", b"a!", b"a-c", b"b", b"c", b".fastfuse"])
_paths = st.lists(_names, min_size=1, max_size=3).map(b"/".join)


def build(
    listed: list[list[bytes]], made: dict[bytes, bytes], *, prefix: str = "", mtime_ns: int = 5
) -> tuple[InodeTable, Refusals]:
    builder = TableBuilder("bucket", prefix)
    for page in listed:
        keys = [prefix.encode() + path for path in page]
        builder.add(keys, [7] * len(keys), [3] * len(keys), [MD5] * len(keys), ["STANDARD"] * len(keys))
    for path, content in made.items():
        builder.add_made(path, content, mtime_ns)
    table, refusals = builder.build()
    check_table(table)
    return table, refusals


def find(table: InodeTable, path: bytes) -> int:
    inode = table.find(path)
    assert inode is not None
    return inode


def files(table: InodeTable) -> dict[bytes, bytes | None]:
    """The path of every file; what it holds if it is made."""
    found: dict[bytes, bytes | None] = {}
    for path, attributes in walk(table).items():
        if not attributes.is_directory:
            content = bytes(table.made(attributes.inode)) if table.is_made(attributes.inode) else None
            assert attributes.size_bytes == (7 if content is None else len(content))
            found[path] = content
    return found


@given(
    st.lists(st.lists(_paths, unique=True, min_size=1), max_size=4),
    st.dictionaries(_paths, st.binary(max_size=9)),
    st.booleans(),
)
@example(listed=[[b"a", b"c"]], made={b"b": b"between"}, is_sorted=True)
@example(listed=[[b"a", b"c"]], made={b"c": b"listed"}, is_sorted=True)
@example(listed=[], made={b"a/b": b"", b"a": b"x"}, is_sorted=True)
def test_made_files_lie_among_those_that_are_listed_wherever_these_leave_their_name(
    listed: list[list[bytes]], made: dict[bytes, bytes], is_sorted: bool
) -> None:
    if is_sorted:
        every = sorted({path for page in listed for path in page})
        listed = [every[start : start + 3] for start in range(0, len(every), 3)]
    table, refusals = build(listed, made, prefix="p/")
    objects = {path for page in listed for path in page}
    expected: dict[bytes, bytes | None] = {**made, **dict.fromkeys(objects)}
    directories = {path[:at] for path in expected for at in range(len(path)) if path[at : at + 1] == b"/"}
    assert files(table) == {path: content for path, content in expected.items() if path not in directories}
    assert refusals.counts[Reason.MADE_SHADOWED] == len(made.keys() & objects)
    assert table.metadata.file_count == len(objects - directories)
    assert table.metadata.total_bytes == 7 * table.metadata.file_count


def test_a_made_file_is_of_no_bucket_and_its_key_is_its_path() -> None:
    builder = TableBuilder("bucket", "p/q/")
    builder.add([b"p/q/x"], [1], [3], [MD5], ["GLACIER"])
    builder.add_made(b"d/m", b"abc", 17)
    table, _ = builder.build()
    ref = table.ref(find(table, b"d/m"))
    assert (ref.bucket, ref.key, ref.size_bytes, ref.modified_ns) == ("", "d/m", 3, 17)
    # The first storage class of the listing is none of its business.
    assert ref.storage_class == "STANDARD"
    assert table.ref(find(table, b"x")).bucket == "bucket"
    assert table.attributes(find(table, b"d")).mtime_ns == 17


@pytest.mark.parametrize(
    ("listed", "made"),
    [([], {b"m": b"9876543210"}), ([], {}), ([], {b"m/x": b"0123456789"}), ([[b"m"]], {})],
)
async def test_a_made_file_that_another_table_does_not_have_has_changed(
    listed: list[list[bytes]], made: dict[bytes, bytes]
) -> None:
    table, _ = build([], {b"m": b"0123456789"})
    reader = MadeReader(MemoryStore(), lambda: table)
    ref = table.ref(find(table, b"m"))
    assert await reader.get(ref, 2, 5) == b"234"
    for start, end in [(0, 0), (-1, 2), (3, 2), (0, 11)]:
        with pytest.raises(ValueError, match="not inside the 10 bytes"):
            await reader.get(ref, start, end)
    table, _ = build(listed, made)
    with pytest.raises(ObjectChangedError, match="another file"):
        await reader.get(ref, 0, 1)


def test_only_made_files_have_bytes_in_the_table() -> None:
    table, _ = build([[b"a/x"]], {b"m": b"abc"})
    for path in (b"a", b"a/x"):
        assert not table.is_made(find(table, path))
        with pytest.raises(ValueError, match="no made file"):
            table.made(find(table, path))
    with pytest.raises(ValueError, match="directory"):
        table.ref(find(table, b"a"))


@pytest.mark.parametrize(
    ("path", "reason"), [(b"a//b", Reason.EMPTY_SEGMENT), (b"..", Reason.DOT_SEGMENT), (b"\xff", Reason.NOT_UTF8)]
)
def test_a_made_file_whose_name_is_none_is_left_out_like_a_listed_one(path: bytes, reason: Reason) -> None:
    table, refusals = build([], {path: b"abc"})
    assert files(table) == {}
    assert refusals.counts == {reason: 1}


def test_an_object_that_takes_the_place_of_a_made_file_is_another_one() -> None:
    before, _ = build([[b"x"]], {b"m": b"1234567"}, mtime_ns=3)
    after, _ = build([[b"m", b"x"]], {})
    table, changes = take_over(before, after)
    assert table.lookup(ROOT, b"m") != before.lookup(ROOT, b"m")
    assert changes.replaced == 1
