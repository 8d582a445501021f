"""Announces the order of an epoch to the read engine when somebody opens the file that holds it.

Who opens ``.fastfuse/order-<epoch>.txt`` is about to open the files that it names, in that order: as good as a hint
(`mount.hint_taker`), without a word of the script. An order that nobody follows costs what a wrong hint costs
(`readahead.announced`).
"""

import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import trio

from fastfuse.errors import FastfuseError
from fastfuse.metrics import Counters

__all__ = ["Announcements", "OrderFollower"]

_log = logging.getLogger(__name__)

# Those who are at the end of one epoch beside those who begin the next.
_MAX_STANDING = 2
_BATCH_FILES = 64


class Announcements(Protocol):
    """One announced order, as the engine sees it."""

    @property
    def is_spent(self) -> bool:
        """Whether everything that was announced is fetched or passed over."""
        ...

    async def announce(self, inodes: Sequence[int]) -> None:
        """Take files that will be opened, in this order; waits while enough are announced."""
        ...

    def withdraw(self) -> None:
        """The order has ended: forget what was announced and not opened."""
        ...


@dataclass(slots=True)
class _Standing:
    order: Announcements
    # Of the task that announces it; None when all is announced.
    scope: trio.CancelScope | None = None


class OrderFollower:
    """The orders whose files were opened last."""

    def __init__(
        self,
        files_of: Callable[[int], Awaitable[npt.NDArray[np.uint64]]],
        new_order: Callable[[], Announcements],
        counters: Counters,
        nursery: trio.Nursery,
    ) -> None:
        """`files_of` gives the inodes in the order that a file holds, or fails where it holds none."""
        self._files_of = files_of
        self._new_order = new_order
        self._counters = counters
        self._nursery = nursery
        # By the inode of the file.
        self._standing: OrderedDict[int, _Standing] = OrderedDict()
        self._taken_slot = counters.slot("fastfuse_hints", "taken")

    def opened(self, inode: int) -> None:
        """The file of an order was opened; never waits and never fails.

        It is announced once for all who open it, and again to who opens it after everybody has gone through it.
        """
        standing = self._standing.get(inode)
        if standing is None:
            standing = self._standing[inode] = _Standing(self._new_order())
        elif standing.scope is not None or not standing.order.is_spent:
            return
        self._standing.move_to_end(inode)
        if len(self._standing) > _MAX_STANDING:
            _, last = self._standing.popitem(last=False)
            if last.scope is not None:
                last.scope.cancel()
            last.order.withdraw()
        standing.scope = trio.CancelScope()
        self._nursery.start_soon(self._announce, inode, standing, standing.scope)

    async def _announce(self, inode: int, standing: _Standing, scope: trio.CancelScope) -> None:
        try:
            with scope:
                inodes = await self._files_of(inode)
                for at in range(0, len(inodes), _BATCH_FILES):
                    batch = inodes[at : at + _BATCH_FILES].tolist()
                    await standing.order.announce(batch)
                    self._counters.add(self._taken_slot, len(batch))
        except FastfuseError as error:
            _log.debug("an order was not announced: %s", error)
        except Exception:  # noqa: BLE001 - what is read ahead must not end the worker
            _log.exception("an order was not announced for an unforeseen reason; the mount goes on")
        finally:
            standing.scope = None
