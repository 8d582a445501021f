"""Orders of epochs: files of the table, whose text is the documented permutation of all paths."""

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fastfuse.index.inodes.builder import TableBuilder
from fastfuse.index.inodes.changes import take_over
from fastfuse.index.inodes.order_text import OrderedPaths, OrderText
from fastfuse.index.inodes.orders import EPOCHS, order_name, with_orders
from fastfuse.index.inodes.table import ROOT, InodeTable
from fastfuse.index.sources.shuffle import shuffled

MD5 = '"' + "0123456789abcdef" * 2 + '"'

_names = st.sampled_from(
    [
        b"a",
        b"a!",
        b"a-c",
        b"b",
        "ü€".encode(),
        b"a\nb",
        b"back\r",
        b".a",
        b".fastfuse",
        b"order-3.txt",
        b"z" * 255,
    ]
)
_paths = st.lists(_names, min_size=1, max_size=4).map(b"/".join)


def table_of(
    paths: list[bytes], *, markers: list[bytes] | None = None, made: dict[bytes, bytes] | None = None, prefix: str = ""
) -> InodeTable:
    builder = TableBuilder("bucket", prefix)
    keys = sorted(prefix.encode() + path for path in {*paths, *(marker + b"/" for marker in markers or [])})
    sizes = [0 if key.endswith(b"/") else 7 for key in keys]
    builder.add(keys, sizes, [3 + len(key) for key in keys], [MD5] * len(keys), ["STANDARD"] * len(keys))
    for path, content in (made or {}).items():
        builder.add_made(path, content, 5)
    return builder.build()[0]


def walk(table: InodeTable) -> dict[bytes, tuple[bool, str]]:
    """Every path below the root: whether it is a directory, and what is behind it."""
    found: dict[bytes, tuple[bool, str]] = {}
    waiting = [(b"", ROOT)]
    while waiting:
        path, directory = waiting.pop()
        for _, name, (inode, is_directory, _, _) in table.children(directory):
            found[path + name] = (is_directory, "" if is_directory else repr(table.ref(inode)))
            if is_directory:
                waiting.append((path + name + b"/", inode))
    return found


def objects(table: InodeTable) -> list[bytes]:
    """The paths of all objects, in the order of their keys."""
    return sorted(path for path, (is_directory, ref) in walk(table).items() if not is_directory and "made-" not in ref)


def order(table: InodeTable, epoch: int) -> int:
    inode = table.find(b".fastfuse/" + order_name(epoch))
    assert inode is not None
    return inode


def text_of(table: InodeTable, epoch: int) -> OrderText:
    recipe = table.recipe(order(table, epoch))
    assert recipe is not None
    return OrderText(OrderedPaths(table), *recipe)


def is_ours(path: bytes) -> bool:
    return path == b".fastfuse" or path.startswith(b".fastfuse/")


@given(
    st.lists(_paths, unique=True, max_size=12),
    st.lists(_paths, max_size=3),
    st.dictionaries(_paths, st.binary(max_size=5), max_size=3),
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.data(),
)
@example(paths=[b".a", b"a/b", b"a!", b"a-c/d"], markers=[], made={}, seed=0, data=None)
@example(paths=[b".fastfuse/x", b".fastfuse/order-3.txt", b"a"], markers=[b".fastfuse/y"], made={}, seed=0, data=None)
@example(paths=[b".fastfuse"], markers=[], made={}, seed=0, data=None)
@example(paths=[], markers=[], made={}, seed=0, data=None)
def test_an_order_is_the_documented_permutation_of_all_objects(
    paths: list[bytes],
    markers: list[bytes],
    made: dict[bytes, bytes],
    seed: int,
    data: st.DataObject | None,
) -> None:
    before = table_of(paths, markers=markers, made=made, prefix="p/")
    table, left_out = with_orders(before, seed)
    table.check_invariants()
    found = walk(table)
    assert {path: what for path, what in found.items() if not is_ours(path)} == {
        path: what for path, what in walk(before).items() if not is_ours(path)
    }
    assert {path for path in found if is_ours(path)} == {
        b".fastfuse", *(b".fastfuse/order-%d.txt" % epoch for epoch in range(EPOCHS))
    }  # fmt: skip

    shown = [path for path in objects(before) if not is_ours(path)]
    lines = [path for path in shown if b"\n" not in path and b"\r" not in path]
    assert left_out == len(shown) - len(lines)
    for epoch in (0, 1, EPOCHS - 1):
        whole = b"".join(lines[at] + b"\n" for at in shuffled(len(lines), seed, epoch))
        text = text_of(table, epoch)
        assert text.size_bytes == table.attributes(order(table, epoch)).size_bytes == len(whole)
        assert text.read(0, len(whole)) == whole
        inodes = text.inodes().tolist()
        assert [table.key(inode).encode() for inode in inodes] == [b"p/" + line for line in whole.splitlines()]
        if data is not None:
            start = data.draw(st.integers(0, len(whole)))
            end = data.draw(st.integers(start, len(whole) + 3))
            assert text.read(start, end) == whole[start:end]


def test_every_piece_of_an_order_of_many_blocks_is_a_piece_of_the_whole() -> None:
    paths = sorted(b"%d/%d" % (number % 7, number) for number in range(40_000))
    table, _ = with_orders(table_of(paths), 3)
    text = text_of(table, 2)
    whole = b"".join(paths[at] + b"\n" for at in shuffled(len(paths), 3, 2))
    assert text.size_bytes == len(whole)
    for start in range(0, len(whole), 9973):
        assert text.read(start, start + 10_007) == whole[start : start + 10_007]
    assert text.read(0, len(whole)) == whole


@pytest.mark.parametrize("folder", [b"x" * 255 + b"/" + b"y" * 255 + b"/" + b"z" * 255 + b"/", b"a/" * 500])
def test_a_piece_of_an_order_takes_no_more_than_a_few_times_its_own_memory(folder: bytes) -> None:
    table = table_of([b"%s%06d%s" % (folder, number, b"n" * 200) for number in range(20_000)])
    order = OrderText(OrderedPaths(table), 7, 0)
    tracemalloc.start()
    try:
        assert len(order.read(0, 8 << 20)) == 8 << 20
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 100 << 20


def test_an_order_follows_that_of_the_source_and_names_twice_what_the_source_does() -> None:
    table = table_of([b"a", b"b", b"c"])
    rows = np.array([3, 1, 3], "uint32")  # c, a, c
    table = InodeTable(table.metadata, {**table.columns, "source_order": rows})
    ordered, left_out = with_orders(table, 5)
    ordered.check_invariants()
    assert left_out == 0
    lines = text_of(ordered, 0).read(0, 100).split()
    assert lines == [(b"c", b"a", b"c")[at] for at in shuffled(3, 5, 0)]


def test_an_order_changes_with_the_seed_the_epoch_and_the_names_and_with_nothing_else() -> None:
    def etag(paths: list[bytes], seed: int, epoch: int) -> str:
        table, _ = with_orders(table_of(paths), seed)
        return table.ref(order(table, epoch)).etag

    same = etag([b"a", b"b"], 1, 0)
    others = [etag([b"a", b"b"], 2, 0), etag([b"a", b"b"], 1, 1), etag([b"a", b"c"], 1, 0), etag([b"a", b"b/c"], 1, 0)]
    assert etag([b"a", b"b"], 1, 0) == same
    assert len({same, *others}) == 5


def test_a_refresh_without_changes_leaves_the_orders_their_numbers() -> None:
    (old, _), (new, _) = (with_orders(table_of([b"a/x", b"b"]), 1) for _ in range(2))
    table, changes = take_over(old, new)
    assert not changes
    assert order(table, 3) == order(old, 3)


def test_a_name_more_is_one_file_more_and_new_orders() -> None:
    old, _ = with_orders(table_of([b"a/x", b"b"]), 1)
    new, _ = with_orders(table_of([b"a/x", b"b", b"a/longer"], made={b"m": b""}), 1)
    table, changes = take_over(old, new)
    table.check_invariants()
    assert (changes.added, changes.removed, changes.replaced) == (2, 0, 0)
    assert order(table, 3) not in old
    inodes = text_of(table, 3).inodes().tolist()
    assert [table.key(inode).encode() for inode in inodes] == text_of(table, 3).read(0, 1000).split()
    assert table.find(b"b") in inodes


def test_orders_that_come_are_no_files_that_were_added() -> None:
    plain = table_of([b"a"])
    ordered, _ = with_orders(plain, 1)
    for old, new in ((plain, ordered), (ordered, plain)):
        _, changes = take_over(old, new)
        assert (changes.added, changes.removed, changes.replaced) == (0, 0, 0)
        assert changes.stale_names == [(ROOT, b".fastfuse")]


def test_a_table_that_has_orders_gets_those_of_the_other_seed_instead() -> None:
    table, _ = with_orders(table_of([b"a", b"b"]), 1)
    again, _ = with_orders(table, 2)
    again.check_invariants()
    assert again.recipe(order(again, 4)) == (2, 4)
    assert text_of(again, 0).size_bytes == 4


def test_only_an_order_has_a_recipe_and_its_bytes_are_not_in_the_table() -> None:
    table, _ = with_orders(table_of([b"a"], made={b"m": b"abc"}), 1)
    for path in (b"a", b"m", b".fastfuse"):
        inode = table.find(path)
        assert inode is not None
        assert table.recipe(inode) is None
    with pytest.raises(ValueError, match="no made file"):
        table.made(order(table, 0))
    assert table.is_made(order(table, 0))


def test_a_directory_inside_itself_is_an_error_and_no_loop() -> None:
    """As a damaged snapshot may have it."""
    table, _ = with_orders(table_of([b"a/b/c", b"d"]), 1)
    parents = table.columns["parents"].copy()
    row = table.row(table.find(b"a/b") or 0)
    parents[row] = row
    broken = OrderedPaths(InodeTable(replace(table.metadata), {**table.columns, "parents": parents}))
    with pytest.raises(ValueError, match="comes after it"):
        broken.lines(np.arange(len(broken.rows), dtype="uint32"))
