"""Lists a source into an inode table, with many requests at once.

A source is listed by one of two rules. As a folder (clause N1), the URI names the keys below it or exactly one object.
As a key name prefix, it names every key that begins with it, as SageMaker's File and Pipe mode take ``S3Prefix``.

A sweep requests every page with ``start-after``, so each request can be repeated and a range can be cut at any key;
`frontier` decides where. A listing is complete or it fails. Servers without ``start-after`` or with an order of their
own are recognised by their pages. The sweep's result is then discarded, and the source is listed serially, by
continuation tokens.
"""

import logging
import operator
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice
from typing import Final

import trio

from fastfuse.errors import AccessError, EmptySourceError, FastfuseError, ServiceError, first_of, raise_alone
from fastfuse.index.inodes.builder import TableBuilder
from fastfuse.index.listing.acceptance import (
    ALLOW_EMPTY_HINT,
    Listing,
    ListingProgress,
    ProgressCallback,
    accept,
    check_readable,
    partial_name,
    samples,
    shown_names,
)
from fastfuse.index.listing.frontier import LAST_CHARACTER, Frontier, Span
from fastfuse.index.listing.page import Page, Pager
from fastfuse.index.sources.uri import S3Uri
from fastfuse.objects import ObjectRef
from fastfuse.s3.base import PageSource, RangeReader
from fastfuse.s3.retries import Retries

_log = logging.getLogger(__name__)

# The sweep requests folder names this deep, while there is only one folder: train/, train/images/, ...
_MAX_FOLDER_PROBES: Final = 4
_STUCK = "the listing does not advance"


async def list_source(
    pages: PageSource,
    source: S3Uri,
    *,
    retries: Retries | None = None,
    is_key_name_prefix: bool = False,
    strict: bool = False,
    allow_empty: bool = False,
    progress: ProgressCallback = lambda _: None,
    reader: RangeReader | None = None,
) -> Listing:
    """List all objects of `source`, with the more requests at once the larger it is. Call `progress` for each page.

    Pages that the service throttles are tried again by `retries`, which may be those of the client behind `pages`.
    A `reader` reads a byte of one of the first page's objects before the next page is requested.

    With `is_key_name_prefix`, these are all keys that begin with the path of `source`. The paths in the table are
    relative to the folder ``path/`` if every key lies in it, and otherwise to the last ``/`` of `path`.

    Raises:
        SourceError: `source` is a partial folder name, unless `is_key_name_prefix`; or, with `strict`, a key cannot be
            shown.
        EmptySourceError: `source` has no objects, unless `allow_empty`.
        AccessError: the objects may not be read by `reader`; or as `PageSource.list`.
        ConfigurationError, ServiceError: as `PageSource.list`.
    """
    pager = Pager(pages, source.bucket, retries or Retries())
    lister = _Lister(pager, source, progress, reader, allow_empty=allow_empty)
    builder = await (lister.list_key_names() if is_key_name_prefix else lister.list_folder_or_object())
    table, refusals = builder.build()
    accept(source, table, refusals, strict=strict, allow_empty=allow_empty)
    return Listing(table, refusals, pager.request_count)


class _Lister:
    def __init__(
        self, pager: Pager, source: S3Uri, progress: ProgressCallback, reader: RangeReader | None, *, allow_empty: bool
    ) -> None:
        self._pager = pager
        self._reader = reader
        self._source = source
        self._progress = progress
        self._allow_empty = allow_empty
        # Every continuation token that was followed: a token that comes back would make the listing endless.
        # Another listing may have the same, where a token is the last key.
        self._tokens: set[tuple[str, str, str]] = set()

    async def list_folder_or_object(self) -> TableBuilder:
        """Take the source by clause N1."""
        path, folder = self._source.path, self._source.folder
        page = await self._first_page(folder)
        if folder != path and not page.keys:
            return await self._one_object(path)
        if folder != path:
            # The right to list may end at the folder, and the mount needs no more.
            with suppress(FastfuseError):
                self._warn_of_neighbours(f"the folder {folder}", await self._neighbours())
        return await self._all_pages(folder, page, folder)

    async def list_key_names(self) -> TableBuilder:
        """Take the source as a key name prefix.

        Where a folder has the name of the prefix and nothing else begins with it, the paths are relative to that
        folder, as in FastFile mode: AWS's examples name folders without the final ``/`` and find ``train.csv`` in the
        channel, not ``train/train.csv``. Elsewhere SageMaker names files "using their full basename":
        https://github.com/aws/sagemaker-python-sdk/issues/3612
        """
        path, folder = self._source.path, self._source.folder
        is_folder = folder == path or not await self._neighbours()
        prefix, key_prefix = (folder, folder) if is_folder else (path, self._source.parent)
        return await self._all_pages(prefix, await self._first_page(prefix), key_prefix)

    async def _all_pages(self, prefix: str, first: Page, key_prefix: str) -> TableBuilder:
        """List every key that begins with `prefix`; the paths are relative to `key_prefix`."""
        if not first.keys and not self._allow_empty:
            raise EmptySourceError(f"{self._source} holds no objects", hint=ALLOW_EMPTY_HINT)
        await self._check_readable(prefix, first.columns.refs(self._source.bucket))
        builder = TableBuilder(self._source.bucket, key_prefix)
        try:
            await _Sweep(self._pager, prefix, builder, self._progress).run(first)
        except _UnorderedListingError:
            _log.info("the service does not list in key order: listing %s one page at a time", self._source)
        else:
            return builder
        del builder  # and the error, with its frames: their listing and the next one may not fit into memory together
        return await self._all_pages_serially(prefix, first, key_prefix)

    async def _all_pages_serially(self, prefix: str, page: Page, key_prefix: str) -> TableBuilder:
        builder = TableBuilder(self._source.bucket, key_prefix)
        while True:
            builder.add(*page.columns)
            _report(self._progress, self._pager, builder)
            if not page.is_truncated:
                return builder
            page = await self._page(prefix, after=page)

    async def _one_object(self, path: str) -> TableBuilder:
        """List the one object `path`, below which nothing lies; raise if there is no object of this name."""
        page = await self._page_of_object(path)
        if path.encode() in page.keys:
            row = page.keys.index(path.encode())
            found = page.columns.rows(slice(row, row + 1))
            others = [name for name in page.names if name != path.encode()]
            self._warn_of_neighbours(f"the object {path}", others)
            await self._check_readable(path, found.refs(self._source.bucket))
            builder = TableBuilder(self._source.bucket, self._source.parent)
            builder.add(*found)
            _report(self._progress, self._pager, builder)
            return builder
        candidates = sorted(page.names)
        if candidates:
            raise partial_name(self._source, candidates)
        if not self._allow_empty:
            raise EmptySourceError(f"{self._source} names no folder and no object", hint=ALLOW_EMPTY_HINT)
        return TableBuilder(self._source.bucket, self._source.folder)

    async def _page_of_object(self, path: str) -> Page:
        """Return the page with the object `path`, else the first with an entry. In key order it would be on that."""
        first = page = await self._first_page(path, delimiter="/")
        while path.encode() not in page.keys:
            if not page.is_truncated:
                return first
            last = max(page.names, default=b"")
            page = await self._page(path, delimiter="/", after=page)
            if last < min(page.names, default=b""):
                return first
        return page

    async def _neighbours(self) -> list[bytes]:
        """Return names that begin with the source's path and do not lie in its folder, if there are any."""
        folder = self._source.folder.encode()
        page = await self._first_page(self._source.path, delimiter="/", but=folder)
        return [name for name in page.names if not name.startswith(folder)]

    def _warn_of_neighbours(self, taken_as: str, neighbours: list[bytes]) -> None:
        """Warn that File and Pipe mode take more keys for the same name (N1)."""
        if neighbours:
            _log.warning(
                "%s is taken as %s, as in FastFile mode; "
                "File and Pipe mode take every key that begins with it, also %s",
                *(self._source, taken_as, shown_names(self._source.bucket, sorted(neighbours))),
            )

    async def _first_page(self, prefix: str, *, delimiter: str = "", but: bytes = b"") -> Page:
        """Return the first page with an entry, or else the last page: others may be empty.

        What begins with `but` does not count: some services (nanio) do not group what lies behind the delimiter.
        """
        page = await self._page(prefix, delimiter=delimiter)
        while page.is_truncated and all(but and name.startswith(but) for name in page.names):
            page = await self._page(prefix, delimiter=delimiter, after=page)
        return page

    async def _check_readable(self, prefix: str, refs: Sequence[ObjectRef]) -> None:
        """Read a byte of one of `refs`, which begin with `prefix`, if the listing was given a reader."""
        if self._reader is None:
            return
        try:
            await check_readable(self._reader, samples(refs))
        except AccessError:
            # Rights often go by folders, so what lies behind the first one is asked, too.
            folder, slash, _ = refs[0].key.removeprefix(prefix).partition("/")
            if not slash:
                raise
            behind = await self._pager.page(prefix, start_after=prefix + folder + slash + LAST_CHARACTER)
            if not behind.keys:
                raise
            await check_readable(self._reader, samples(behind.columns.refs(self._source.bucket)))

    async def _page(self, prefix: str, *, delimiter: str = "", after: Page | None = None) -> Page:
        """Return the page `after` another, by its continuation token or else by its last name."""
        token = after.next_token if after else ""
        last_name = _last_name(after) if after and not token else b""
        followed = (prefix, delimiter, token)
        if followed in self._tokens:
            raise ServiceError(f"{_STUCK}: the service sends the same continuation token again")
        if token:
            self._tokens.add(followed)
        try:
            start_after = last_name.decode()
        except UnicodeDecodeError as error:
            raise ServiceError(f"the listing cannot go on after {last_name!r}, which is not UTF-8") from error
        page = await self._pager.page(prefix, delimiter=delimiter, continuation_token=token, start_after=start_after)
        if last_name and min(page.names, default=b"\xff") <= last_name:
            raise ServiceError(
                f"{_STUCK}: the service sends {last_name!r} again, although the request was for the keys after it"
            )
        return page


def _last_name(page: Page) -> bytes:
    """Return the last key of `page`, or the end of its last common prefix if no key lies behind it."""
    ends = [prefix + LAST_CHARACTER.encode() for prefix in page.common_prefixes[-1:]]
    return max(page.keys[-1:] + ends)


class _UnorderedListingError(Exception):
    """The server's pages are not in key order, or do not honour ``start-after``."""


class _Sweep:
    """One listing of a prefix with many requests at once."""

    def __init__(self, pager: Pager, prefix: str, builder: TableBuilder, progress: ProgressCallback) -> None:
        self._pager = pager
        self._prefix = prefix
        self._builder = builder
        self._progress = progress
        self._frontier = Frontier(prefix)
        # The first key behind each cut, as the span that begins there found it; empty if there is none.
        self._first_keys: dict[str, str] = {}
        # The same, as the span that ends there found it, and the cursor behind which it did.
        self._keys_behind: dict[str, tuple[str, str]] = {}

    async def run(self, first: Page) -> None:
        """List the prefix, of which `first` is the first page, into the builder.

        Raises:
            _UnorderedListingError: list serially instead, from the beginning and into a new builder.
            AccessError, ServiceError: as `Pager.page`; the builder is incomplete.
        """
        try:
            await self._run(first)
        except ExceptionGroup as group:
            # Spans fail side by side; the first failure ended the others.
            raise_alone(first_of(group))

    async def _run(self, first: Page) -> None:
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
            probing.cancel_scope.cancel()  # folder names are of no use any more
        for cut, (key, cursor) in self._keys_behind.items():
            if key != self._first_keys[cut]:
                await self._check_cut(cut, cursor)

    async def _check_cut(self, cut: str, cursor: str) -> None:
        """Look again at a cut whose two spans saw another key behind it: a change may be why, or the service's order.

        A service that compares paths name by name (SeaweedFS) lists ``a/1`` before ``a-b/1``, and takes ``a/1`` for
        listed if it is asked for what comes after ``a-b``.
        """
        end = await self._pager.page(self._prefix, start_after=cursor)
        begin = await self._pager.page(self._prefix, start_after=cut)
        behind = [key for key in end.keys if key > cut.encode()]
        if behind[:1] != begin.keys[:1] and (behind or not end.is_truncated):
            raise _UnorderedListingError

    async def _take_second(self, span: Span, first: Page) -> None:
        """Request the second page by the first one's last key and by its token: they agree only in key order."""
        followed: list[Page] = []

        async def follow() -> None:
            followed.append(await self._pager.page(self._prefix, continuation_token=first.next_token))

        async with trio.open_nursery() as nursery:
            if first.next_token:
                nursery.start_soon(follow)
            second = await self._pager.page(self._prefix, start_after=span.cursor)
        for page in followed:
            if any(map(operator.ne, page.keys, second.keys)) or bool(page.keys) != bool(second.keys):
                raise _UnorderedListingError
        self._take(span, second)

    async def _list_span(self, span: Span, nursery: trio.Nursery) -> None:
        while not span.is_done:
            self._take(span, await self._pager.page(self._prefix, start_after=span.cursor))
            for begun in self._frontier.cut(self._pager.capacity - len(self._frontier.active)):
                nursery.start_soon(self._list_span, begun, nursery)

    def _take(self, span: Span, page: Page) -> None:
        try:
            keys = [key.decode() for key in page.keys]
        except UnicodeDecodeError as error:  # start-after cannot express such a key
            raise _UnorderedListingError from error
        is_ordered = all(map(operator.lt, page.keys, islice(page.keys, 1, None)))
        # An empty page that is not the last continues by its token only. An empty last page contradicts the page
        # before it, which promised more.
        is_odd = not keys and (page.is_truncated or (span.pages > 0 and span.range.until is None))
        if not is_ordered or is_odd or (keys and keys[0] <= span.cursor):
            raise _UnorderedListingError
        cursor, until = span.cursor, span.range.until
        if cursor == span.range.after:
            self._first_keys[cursor] = keys[0] if keys else ""
        mine = self._frontier.advance(span, keys, is_truncated=page.is_truncated)
        if until is not None and (mine < len(keys) or not page.is_truncated):
            self._keys_behind[until] = (keys[mine] if mine < len(keys) else "", cursor)
        self._builder.add(*page.columns.rows(slice(mine)))
        _report(self._progress, self._pager, self._builder, share=self._frontier.share_done())

    async def _probe_folders(self) -> None:
        """Learn folders to cut between. The listing does not depend on them, so an error ends only the probe."""
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


def _report(progress: ProgressCallback, pager: Pager, builder: TableBuilder, *, share: float | None = None) -> None:
    """Call `progress` with the state of `builder` and `pager`."""
    progress(ListingProgress(len(builder), pager.in_flight, pager.throttled_count, share))
