"""The reader of made files: their bytes come from the table, everything else from the reader below."""

import gc
import weakref
from collections.abc import Callable
from dataclasses import replace

import pytest
import trio

from fastfuse.errors import BadReplyError, ObjectChangedError, StaleInodeError
from fastfuse.index.inodes.builder import TableBuilder
from fastfuse.index.inodes.orders import with_orders
from fastfuse.index.inodes.table import InodeTable
from fastfuse.index.made import MadeReader
from fastfuse.index.sources.shuffle import shuffled
from fastfuse.objects import ObjectRef
from fastfuse.s3.memory import MemoryStore
from tests.fakes import CountingReader

MD5 = '"' + "0123456789abcdef" * 2 + '"'
FILES = [b"a", b"b/c", b"b/d"]


def table_of(made: dict[bytes, bytes], *, files: list[bytes] = FILES, seed: int = 7) -> InodeTable:
    builder = TableBuilder("bucket", "p/")
    keys = [b"p/" + name for name in files]
    builder.add(keys, [4] * len(keys), [10**18] * len(keys), [MD5] * len(keys), ["STANDARD"] * len(keys))
    for path, content in made.items():
        builder.add_made(path, content, 5)
    return with_orders(builder.build()[0], seed)[0]


class Here:
    """A reader over a store, and the table of the moment."""

    def __init__(self, made: dict[bytes, bytes]) -> None:
        self.table = table_of(made)
        self.store = MemoryStore()
        self.below = CountingReader(self.store)
        self.reader = MadeReader(self.below, lambda: self.table)

    def inode(self, path: bytes) -> int:
        inode = self.table.find(path)
        assert inode is not None
        return inode

    def ref(self, path: bytes) -> ObjectRef:
        return self.table.ref(self.inode(path))

    async def read(self, path: bytes) -> bytes:
        ref = self.ref(path)
        return bytes(await self.reader.get(ref, 0, ref.size_bytes))


def text(epoch: int, files: list[bytes] = FILES) -> bytes:
    return b"".join(files[at] + b"\n" for at in shuffled(len(files), 7, epoch))


async def test_a_made_file_is_read_from_the_table_and_an_object_from_the_reader_below() -> None:
    here = Here({b"m": b"0123456789", b"b/n": b"abc"})
    assert await here.read(b"m") == b"0123456789"
    assert await here.read(b"b/n") == b"abc"
    assert await here.reader.get(here.ref(b"m"), 2, 5) == b"234"
    assert here.below.calls == []
    ref = here.store.put("a", b"object")
    assert await here.reader.get(ref, 1, 4) == b"bje"
    assert here.below.calls == [("a", 1, 4)]


async def test_an_order_is_made_when_it_is_read_in_any_pieces() -> None:
    here = Here({})
    for epoch in (0, 5, 99, 0):
        whole = text(epoch)
        ref = here.ref(b".fastfuse/order-%d.txt" % epoch)
        assert await here.read(ref.key.encode()) == whole
        for start in range(len(whole)):
            assert await here.reader.get(ref, start, len(whole)) == whole[start:]


async def test_many_who_read_an_order_at_once_read_the_same() -> None:
    here = Here({})
    found: list[bytes] = []

    async def read(epoch: int) -> None:
        found.append(await here.read(b".fastfuse/order-%d.txt" % epoch))

    async with trio.open_nursery() as nursery:
        for number in range(20):
            nursery.start_soon(read, number % 4)
    assert sorted(found) == sorted(text(number % 4) for number in range(20))


@pytest.mark.parametrize("bounds", [(0, 0), (-1, 2), (3, 2), (0, 11)])
async def test_bytes_that_are_none_of_the_file_are_a_mistake(bounds: tuple[int, int]) -> None:
    here = Here({b"m": b"0123456789"})
    with pytest.raises(ValueError, match="of 10"):
        await here.reader.get(here.ref(b"m"), *bounds)


@pytest.mark.parametrize(
    ("path", "new"),
    [
        (b"m", lambda: table_of({b"m": b"9876543210"})),
        (b"m", lambda: table_of({})),
        (b"m", lambda: table_of({b"m/x": b"0123456789"})),
        (b"m", lambda: table_of({}, files=[*FILES, b"m"])),
        (b".fastfuse/order-0.txt", lambda: table_of({}, files=[b"a", b"b/c", b"b/e"])),
        (b".fastfuse/order-0.txt", lambda: table_of({}, seed=8)),
    ],
)
async def test_a_made_file_that_another_table_does_not_have_has_changed(
    path: bytes, new: Callable[[], InodeTable]
) -> None:
    here = Here({b"m": b"0123456789"})
    ref = here.ref(path)
    await here.reader.get(ref, 0, 1)
    here.table = new()
    here.reader.forget()
    with pytest.raises(ObjectChangedError, match="another file"):
        await here.reader.get(ref, 0, 1)


async def test_an_order_of_the_next_table_is_made_of_that_table() -> None:
    here = Here({})
    await here.read(b".fastfuse/order-0.txt")
    files = [b"a", b"b/c", b"b/d", b"e"]
    here.table = table_of({}, files=files)
    assert await here.read(b".fastfuse/order-0.txt") == text(0, files)


async def test_a_table_that_was_replaced_is_not_held() -> None:
    here = Here({})
    await here.read(b".fastfuse/order-0.txt")
    old = weakref.ref(here.table)
    here.table = table_of({})
    assert old() is not None
    here.reader.forget()
    gc.collect()
    assert old() is None


async def test_a_size_that_is_wrong_in_the_index_is_an_error_and_no_short_read() -> None:
    here = Here({})
    columns = {**here.table.columns, "sizes": here.table.columns["sizes"].copy()}
    inode = here.inode(b".fastfuse/order-0.txt")
    columns["sizes"][here.table.row(inode)] += 1
    here.table = InodeTable(replace(here.table.metadata), columns)
    with pytest.raises(BadReplyError, match=r"has 10 bytes, and the index says 11"):
        await here.read(b".fastfuse/order-0.txt")


async def test_the_files_of_an_order_are_those_that_its_lines_name() -> None:
    here = Here({b"m": b"0123456789"})
    inodes = await here.reader.order_of(here.inode(b".fastfuse/order-2.txt"))
    assert [here.table.key(inode).encode()[2:] for inode in inodes.tolist()] == text(2).split()
    assert len(await here.reader.order_of(here.inode(b"m"))) == 0
    with pytest.raises(StaleInodeError):
        await here.reader.order_of(10**6)


async def test_closing_closes_the_reader_below() -> None:
    here = Here({})
    closed: list[bool] = []

    async def aclose() -> None:
        closed.append(True)

    here.below.aclose = aclose  # type: ignore[method-assign]
    await here.reader.aclose()
    assert closed == [True]
