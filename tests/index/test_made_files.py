"""The reader of made files: their bytes come from the table, everything else from the reader below."""

from collections.abc import Callable

import pytest

from fastfuse.errors import ObjectChangedError
from fastfuse.index.inodes.builder import TableBuilder
from fastfuse.index.inodes.table import InodeTable
from fastfuse.index.made import MadeReader
from fastfuse.objects import ObjectRef
from tests.index.indexes import MD5
from tests.store import MemoryStore

FILES = [b"a", b"b/c", b"b/d"]


def table_of(made: dict[bytes, bytes], *, files: list[bytes] = FILES) -> InodeTable:
    builder = TableBuilder("bucket", "p/")
    keys = [b"p/" + name for name in files]
    builder.add(keys, [4] * len(keys), [10**18] * len(keys), [MD5] * len(keys), ["STANDARD"] * len(keys))
    for path, content in made.items():
        builder.add_made(path, content, 5)
    return builder.build()[0]


class Here:
    """A reader, and the table of the moment."""

    def __init__(self, made: dict[bytes, bytes]) -> None:
        self.table = table_of(made)
        self.reader = MadeReader(MemoryStore(), lambda: self.table)

    def inode(self, path: bytes) -> int:
        inode = self.table.find(path)
        assert inode is not None
        return inode

    def ref(self, path: bytes) -> ObjectRef:
        return self.table.ref(self.inode(path))


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
    ],
)
async def test_a_made_file_that_another_table_does_not_have_has_changed(
    path: bytes, new: Callable[[], InodeTable]
) -> None:
    here = Here({b"m": b"0123456789"})
    ref = here.ref(path)
    await here.reader.get(ref, 0, 1)
    here.table = new()
    with pytest.raises(ObjectChangedError, match="another file"):
        await here.reader.get(ref, 0, 1)
