"""Reads made files, whose bytes the inode table carries, and leaves objects to another reader."""

from collections.abc import Callable

import trio

from fastfuse.errors import ObjectChangedError
from fastfuse.index.inodes.table import InodeTable
from fastfuse.objects import Buffer, ObjectRef
from fastfuse.s3.base import RangeReader
from fastfuse.s3.checks import check_range_arguments


class MadeReader:
    """A `RangeReader` of the objects of `reader` and of a table's made files, whose refs have an empty bucket."""

    def __init__(self, reader: RangeReader, table: Callable[[], InodeTable]) -> None:
        """Read objects from `reader`, and made files from the current table, which `table` returns."""
        self._reader = reader
        self._table = table

    async def get(self, ref: ObjectRef, start: int, end: int) -> Buffer:
        """Read a range as `RangeReader.get` does; raise `ObjectChangedError` also for a made file that changed."""
        if ref.bucket:
            return await self._reader.get(ref, start, end)
        check_range_arguments(ref, start, end)
        await trio.lowlevel.checkpoint()
        table = self._table()
        inode = table.find(ref.key.encode())
        if inode is None or not table.is_made(inode) or table.ref(inode) != ref:
            raise ObjectChangedError(f"{ref.key!r} is another file since the listing was refreshed")
        return bytes(table.made(inode)[start:end])

    async def aclose(self) -> None:
        await self._reader.aclose()
