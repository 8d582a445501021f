"""Lists one prefix with many requests at once.

Every page is asked for with ``start-after``, so each can be asked for again and ranges can be cut at any key; what is
cut where is `frontier`'s business.

A listing is complete or it fails. Servers that have no ``start-after`` or an order of their own are recognised by their
pages; then everything that was listed is thrown away, and only a serial listing by continuation tokens is safe.
"""

import operator
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Final

import trio

from fastfuse.errors import FastfuseError, first_of
from fastfuse.index.inodes.builder import TableBuilder
from fastfuse.index.listing.frontier import Frontier, Span
from fastfuse.index.listing.page import Page
from fastfuse.index.listing.pager import Pager

__all__ = ["ListingProgress", "ProgressCallback", "UnorderedListingError", "report", "sweep"]

# Folder names are asked for this deep, while there is only one folder: train/, train/images/, ...
_MAX_FOLDER_PROBES: Final = 4


class UnorderedListingError(Exception):
    """The server's pages are not in key order, or do not honour ``start-after``."""


@dataclass(frozen=True, slots=True)
class ListingProgress:
    """How far a listing is; `share` of the key space, from 0 to 1, is an estimate, and None where there is none."""

    objects: int
    requests: int
    in_flight: int
    throttled: int
    share: float | None


ProgressCallback = Callable[[ListingProgress], None]


class _Sweep:
    def __init__(self, pager: Pager, prefix: str, builder: TableBuilder, progress: ProgressCallback) -> None:
        self._pager = pager
        self._prefix = prefix
        self._builder = builder
        self._progress = progress
        self._frontier = Frontier(prefix)

    async def run(self, first: Page) -> None:
        (span,) = self._frontier.active
        self._take(span, first)
        if span.is_done:
            return
        await self._take_second(span, first)
        start = len(self._prefix.encode())
        async with trio.open_nursery() as probing:
            if any(b"/" in key[start:] for key in first.keys):
                probing.start_soon(self._probe_folders)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._list_span, span, nursery)
            probing.cancel_scope.cancel()  # too late to be of use

    async def _take_second(self, span: Span, first: Page) -> None:
        """The page after the first, by its last key and by its token: only in key order are they the same."""
        followed: list[Page] = []

        async def follow() -> None:
            followed.append(await self._pager.page(self._prefix, continuation_token=first.next_token))

        async with trio.open_nursery() as nursery:
            if first.next_token:
                nursery.start_soon(follow)
            second = await self._pager.page(self._prefix, start_after=span.cursor)
        for page in followed:
            if any(map(operator.ne, page.keys, second.keys)) or bool(page.keys) != bool(second.keys):
                raise UnorderedListingError
        self._take(span, second)

    async def _list_span(self, span: Span, nursery: trio.Nursery) -> None:
        while not span.is_done:
            self._take(span, await self._pager.page(self._prefix, start_after=span.cursor))
            for begun in self._frontier.cut(self._pager.capacity - len(self._frontier.active)):
                nursery.start_soon(self._list_span, begun, nursery)

    def _take(self, span: Span, page: Page) -> None:
        try:
            keys = [key.decode() for key in page.keys]
        except UnicodeDecodeError as error:  # nothing that start-after could say
            raise UnorderedListingError from error
        is_ordered = all(map(operator.lt, page.keys, islice(page.keys, 1, None)))
        # An empty page that is not the last goes on by its token only, and an empty last page after one that had more
        # to follow contradicts it.
        is_odd = not keys and (page.is_truncated or (span.pages > 0 and span.range.until is None))
        if not is_ordered or is_odd or (keys and keys[0] <= span.cursor):
            raise UnorderedListingError
        mine = slice(self._frontier.advance(span, keys, is_truncated=page.is_truncated))
        self._builder.add(
            page.keys[mine], page.sizes[mine], page.mtimes_ns[mine], page.etags[mine], page.storage_classes[mine]
        )
        report(self._progress, self._pager, self._builder, share=self._frontier.share_done())

    async def _probe_folders(self) -> None:
        """Learn folders to cut between; the listing can do without, so whatever goes wrong here ends only this."""
        prefix = self._prefix
        for _ in range(_MAX_FOLDER_PROBES):
            try:
                page = await self._pager.page(prefix, delimiter="/")
                folders = [folder.decode() for folder in page.common_prefixes]
            except (FastfuseError, UnicodeDecodeError):
                return
            if len(folders) != 1 or page.keys or page.is_truncated:
                self._frontier.mark(folders)
                return
            (prefix,) = folders


def report(progress: ProgressCallback, pager: Pager, builder: TableBuilder, *, share: float | None = None) -> None:
    """Tell `progress` what has been listed into `builder` through `pager`."""
    progress(
        ListingProgress(
            objects=len(builder),
            requests=pager.request_count,
            in_flight=pager.in_flight,
            throttled=pager.throttled_count,
            share=share,
        )
    )


async def sweep(pager: Pager, prefix: str, first: Page, builder: TableBuilder, progress: ProgressCallback) -> None:
    """List `prefix`, of which `first` is the first page, into `builder`.

    Raises:
        UnorderedListingError: list serially instead, from the beginning and into a new builder.
        AccessError, ServiceError: as `Pager.page`; the builder is to be thrown away.
    """
    try:
        await _Sweep(pager, prefix, builder, progress).run(first)
    except ExceptionGroup as group:
        # Spans fail side by side; the first failure ended the others.
        raise first_of(group) from group
