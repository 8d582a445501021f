"""The order of keys and parts of a table, against lists of keys."""

from collections.abc import Sequence

from hypothesis import example, given
from hypothesis import strategies as st

from fastfuse.index.inodes.builder import TableBuilder
from fastfuse.index.inodes.selection import key_order, take_part
from fastfuse.index.inodes.table import ROOT, InodeTable
from fastfuse.objects import ObjectRef
from tests.index.indexes import MD5
from tests.tables import check_table, files_of

SEGMENTS = st.text(alphabet="ab!-/0é", min_size=1, max_size=5)
KEYS = st.lists(st.lists(SEGMENTS, min_size=1, max_size=3).map("/".join), max_size=25)


def table_of(keys: list[str], made: Sequence[str] = (), order: Sequence[int] | None = None) -> InodeTable:
    builder = TableBuilder("bucket", "")
    encoded = [key.encode() for key in keys]
    sizes = [3 * at + 1 for at in range(len(keys))]
    etags = [MD5 if at % 2 else f'"{at}"' for at in range(len(keys))]
    builder.add(encoded, sizes, [10**18 + at for at in range(len(keys))], etags, ["STANDARD"] * len(keys))
    for path in made:
        builder.add_made(path.encode(), path.encode() * 3, 17)
    if order is not None:
        builder.set_source_order(order)
    table, _ = builder.build()
    check_table(table)
    return table


def files(table: InodeTable) -> dict[str, tuple[ObjectRef, bytes]]:
    """Everything that is said of each file, by its path."""
    found = files_of(table).items()
    return {
        path: (table.ref(inode), bytes(table.made(inode)) if table.is_made(inode) else b"") for path, inode in found
    }


def keys_of(table: InodeTable, rows: Sequence[int]) -> list[str]:
    return [table.key(table.inode(row)) for row in rows]


@given(KEYS)
@example(["a/b", "a!", "a-/x", "a/a", "a0"])
@example(["a/b/c", "a/b-/c", "a/b-", "ab/c"])
@example([])
def test_the_order_of_keys_is_that_of_their_bytes(keys: list[str]) -> None:
    table = table_of(keys)
    shown = list(files(table))
    assert keys_of(table, key_order(table).tolist()) == sorted(shown, key=str.encode)


@given(KEYS, st.integers(0, 3), st.integers(1, 4), st.lists(st.integers(0, 24), max_size=10))
@example(["a/b", "c/d/e", "c/f"], 1, 2, [0, 1])
def test_a_part_has_the_chosen_objects_as_they_were_and_only_their_directories(
    keys: list[str], first: int, step: int, order: list[int]
) -> None:
    source_order = [at for at in order if at < len(keys)]
    whole = table_of(keys, made=[".x/made", "made.txt"], order=source_order)
    before = files(whole)
    objects = sorted((path for path, (ref, _) in before.items() if ref.bucket), key=str.encode)
    sizes_seen: list[int] = []

    def choose(sizes: Sequence[int]) -> Sequence[int]:
        sizes_seen.extend(sizes)
        return range(first, len(sizes), step)

    part = take_part(whole, choose)
    check_table(part)
    chosen = {*objects[first::step], ".x/made", "made.txt"}
    assert sizes_seen == [before[path][0].size_bytes for path in objects]
    assert files(part) == {path: told for path, told in before.items() if path in chosen}
    directories = {path[: at + 1] for path in chosen for at, letter in enumerate(path) if letter == "/"}
    inodes = map(part.inode, range(len(part)))
    assert {part.path(inode) for inode in inodes if part.is_directory(inode)} == directories | {""}
    rows, part_rows = whole.source_order(), part.source_order()
    assert rows is not None
    assert part_rows is not None
    assert keys_of(part, part_rows.tolist()) == [key for key in keys_of(whole, rows.tolist()) if key in chosen]


def test_a_directory_is_as_new_as_the_newest_file_of_the_part() -> None:
    whole = table_of(["a/0", "a/1", "a/2"])
    for chosen in range(3):
        part = take_part(whole, lambda sizes, chosen=chosen: [chosen])  # type: ignore[misc]
        assert part.attributes(ROOT).mtime_ns == 10**18 + chosen
