"""Reads files that are no objects from the table that carries them, and leaves the rest to another reader.

What a mount holds of orders: those of the last two epochs, each 4 bytes a file, and 8 bytes a file of all together.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import trio
from cachetools import LRUCache

from fastfuse.errors import BadReplyError, ObjectChangedError
from fastfuse.index.inodes.order_text import OrderedPaths, OrderText
from fastfuse.index.inodes.table import InodeTable
from fastfuse.objects import Buffer, ObjectRef
from fastfuse.s3.base import RangeReader

__all__ = ["MadeReader"]

# Of one epoch while the next one begins.
_MAX_ORDERS = 2


class MadeReader:
    """A `RangeReader` of the objects of `reader` and of the made files of a table, which have refs of no bucket."""

    def __init__(self, reader: RangeReader, table: Callable[[], InodeTable]) -> None:
        """`table` gives the table of the moment."""
        self._reader = reader
        self._table = table
        # One order is made at a time, in a thread: the loop answers other readers meanwhile.
        self._making = trio.Lock()
        self._limiter = trio.CapacityLimiter(1)
        self._paths: tuple[InodeTable, OrderedPaths] | None = None
        self._orders: LRUCache[tuple[int, int], OrderText] = LRUCache(_MAX_ORDERS)

    async def get(self, ref: ObjectRef, start: int, end: int) -> Buffer:
        """See `RangeReader.get`; a made file that changed since is an `ObjectChangedError`, too."""
        if ref.bucket:
            return await self._reader.get(ref, start, end)
        if not 0 <= start < end <= ref.size_bytes:
            raise ValueError(f"bytes {start} to {end} of {ref.size_bytes}")
        await trio.lowlevel.checkpoint()
        table = self._table()
        inode = table.find(ref.key.encode())
        if inode is None or not table.is_made(inode) or table.ref(inode) != ref:
            raise ObjectChangedError(f"{ref.key!r} is another file since the listing was refreshed")
        recipe = table.recipe(inode)
        if recipe is None:
            data = bytes(table.made(inode)[start:end])
        else:
            text = await self._order(table, *recipe)
            data = await trio.to_thread.run_sync(text.read, start, end, limiter=self._limiter)
        if len(data) != end - start:
            raise BadReplyError(f"{ref.key!r} has {start + len(data)} bytes, and the index says {ref.size_bytes}")
        return data

    async def order_of(self, inode: int) -> npt.NDArray[np.uint64]:
        """The inodes of the files that an order names; none if `inode` is no order.

        Raises:
            StaleInodeError: it is not in the table of the moment.
        """
        table = self._table()
        recipe = table.recipe(inode)
        if recipe is None:
            return np.zeros(0, "uint64")
        text = await self._order(table, *recipe)
        return await trio.to_thread.run_sync(text.inodes, limiter=self._limiter)

    async def _order(self, table: InodeTable, seed: int, epoch: int) -> OrderText:
        """The order of an epoch, made unless it is one of the last."""
        async with self._making:
            if self._paths is None or self._paths[0] is not table:
                self.forget()
                self._paths = (table, await trio.to_thread.run_sync(OrderedPaths, table, limiter=self._limiter))
            paths = self._paths[1]
            text = self._orders.get((seed, epoch))
            if text is None:
                text = await trio.to_thread.run_sync(OrderText, paths, seed, epoch, limiter=self._limiter)
                self._orders[seed, epoch] = text
            if self._table() is not table:
                self.forget()  # or it would keep the table that has been replaced meanwhile
            return text

    def forget(self) -> None:
        """Drop what was made of a table that another one has replaced; it is made again if somebody wants it."""
        self._paths = None
        self._orders.clear()

    async def aclose(self) -> None:
        await self._reader.aclose()
