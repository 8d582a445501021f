"""Lists a source into an inode table.

A source is listed by one of two rules. As a folder (clause N1), the URI names the keys below it or exactly one object.
As a key name prefix, it names every key that begins with it, as SageMaker's File and Pipe mode take ``S3Prefix``.
"""

import logging

from fastfuse.errors import EmptySourceError, ServiceError
from fastfuse.index.inodes.builder import TableBuilder
from fastfuse.index.listing.acceptance import ALLOW_EMPTY_HINT, Listing, accept, partial_name, shown_names
from fastfuse.index.listing.page import Page
from fastfuse.index.listing.pager import Pager
from fastfuse.index.listing.sweep import ListingProgress, ProgressCallback, UnorderedListingError, report, sweep
from fastfuse.index.sources.uri import S3Uri
from fastfuse.s3.base import PageSource

__all__ = ["Listing", "ListingProgress", "ProgressCallback", "list_source"]

_log = logging.getLogger(__name__)


async def list_source(
    pages: PageSource,
    source: S3Uri,
    *,
    is_key_name_prefix: bool = False,
    strict: bool = False,
    allow_empty: bool = False,
    progress: ProgressCallback = lambda _: None,
) -> Listing:
    """List all objects of `source`, with as many requests at once as it is large; `progress` is called for each page.

    With `is_key_name_prefix`, these are all keys that begin with the path of `source`. The paths in the table are
    relative to the folder ``path/`` if every key lies in it, and otherwise to the last ``/`` of `path`.

    Raises:
        SourceError: a partial folder name, unless `is_key_name_prefix`; with `strict`, keys that cannot be shown.
        EmptySourceError: nothing there, unless `allow_empty`.
        AccessError, ConfigurationError, ServiceError: as `PageSource.list`.
    """
    lister = _Lister(pages, source, progress)
    if is_key_name_prefix:
        builder = await lister.list_key_names(allow_empty=allow_empty)
    else:
        builder = await lister.list_folder_or_object(allow_empty=allow_empty)
    table, refusals = builder.build()
    accept(source, table, refusals, strict=strict, allow_empty=allow_empty)
    return Listing(table, refusals, lister.request_count)


_STUCK = "the listing does not advance"


class _Lister:
    def __init__(self, pages: PageSource, source: S3Uri, progress: ProgressCallback) -> None:
        self._pager = Pager(pages, source.bucket)
        self._source = source
        self._progress = progress
        # Every continuation token that was followed: one that comes back would lead round in circles for ever.
        self._tokens: set[str] = set()

    @property
    def request_count(self) -> int:
        return self._pager.request_count

    async def list_folder_or_object(self, *, allow_empty: bool) -> TableBuilder:
        """Take the source by clause N1."""
        path, folder = self._source.path, _folder(self._source.path)
        page = await self._first_page(folder)
        if folder != path and not page.keys:
            return await self._one_object(path, folder, allow_empty=allow_empty)
        if folder != path:
            self._warn_of_neighbours(f"the folder {folder}", await self._neighbours())
        return await self._all_pages(folder, page, folder, allow_empty=allow_empty)

    async def list_key_names(self, *, allow_empty: bool) -> TableBuilder:
        """Take the source as a key name prefix.

        Where a folder has the name of the prefix and nothing else begins with it, the paths are relative to that
        folder, as in FastFile mode: AWS's examples name folders without the final ``/`` and find ``train.csv`` in the
        channel, not ``train/train.csv``. Elsewhere SageMaker names files "using their full basename":
        https://github.com/aws/sagemaker-python-sdk/issues/3612
        """
        path, folder = self._source.path, _folder(self._source.path)
        is_folder = folder == path or not await self._neighbours()
        prefix, key_prefix = (folder, folder) if is_folder else (path, _parent(path))
        return await self._all_pages(prefix, await self._first_page(prefix), key_prefix, allow_empty=allow_empty)

    async def _all_pages(self, prefix: str, first: Page, key_prefix: str, *, allow_empty: bool) -> TableBuilder:
        """List every key that begins with `prefix`; the paths are relative to `key_prefix`."""
        if not first.keys and not allow_empty:
            raise EmptySourceError(f"{self._source} holds no objects", hint=ALLOW_EMPTY_HINT)
        builder = TableBuilder(self._source.bucket, key_prefix)
        try:
            await sweep(self._pager, prefix, first, builder, self._progress)
        except UnorderedListingError:
            _log.info("the service does not list in key order: listing %s one page at a time", self._source)
            return await self._all_pages_serially(prefix, first, key_prefix)
        return builder

    async def _all_pages_serially(self, prefix: str, page: Page, key_prefix: str) -> TableBuilder:
        builder = TableBuilder(self._source.bucket, key_prefix)
        while True:
            builder.add(page.keys, page.sizes, page.mtimes_ns, page.etags, page.storage_classes)
            report(self._progress, self._pager, builder)
            if not page.is_truncated:
                return builder
            page = await self._page(prefix, after=page)

    async def _one_object(self, path: str, folder: str, *, allow_empty: bool) -> TableBuilder:
        """Nothing lies below `path` as a folder: it is one object, a partial name, or nothing at all."""
        page = await self._first_page(path, delimiter="/")
        if path.encode() in page.keys:
            row = page.keys.index(path.encode())
            others = [name for name in page.common_prefixes + page.keys if name != path.encode()]
            self._warn_of_neighbours(f"the object {path}", others)
            builder = TableBuilder(self._source.bucket, _parent(path))
            one = slice(row, row + 1)
            builder.add(
                page.keys[one], page.sizes[one], page.mtimes_ns[one], page.etags[one], page.storage_classes[one]
            )
            report(self._progress, self._pager, builder)
            return builder
        candidates = sorted(page.common_prefixes + page.keys)
        if candidates:
            raise partial_name(self._source, candidates)
        if not allow_empty:
            raise EmptySourceError(f"{self._source} names no folder and no object", hint=ALLOW_EMPTY_HINT)
        return TableBuilder(self._source.bucket, folder)

    async def _neighbours(self) -> list[bytes]:
        """Return names that begin with the source's path and do not lie in its folder, if there are any."""
        path = self._source.path
        page = await self._first_page(path, delimiter="/")
        while True:
            found = [name for name in page.common_prefixes + page.keys if name != _folder(path).encode()]
            if found or not page.is_truncated:
                return found
            page = await self._page(path, delimiter="/", after=page)

    def _warn_of_neighbours(self, taken_as: str, neighbours: list[bytes]) -> None:
        """Say that File and Pipe mode take more for the same name (N1)."""
        if neighbours:
            _log.warning(
                "%s is taken as %s, as in FastFile mode; "
                "File and Pipe mode take every key that begins with it, also %s",
                *(self._source, taken_as, shown_names(self._source.bucket, sorted(neighbours))),
            )

    async def _first_page(self, prefix: str, *, delimiter: str = "") -> Page:
        """The first page that holds anything: one without entries says nothing while more are to come."""
        page = await self._page(prefix, delimiter=delimiter)
        while page.is_truncated and not page.keys and not page.common_prefixes:
            page = await self._page(prefix, delimiter=delimiter, after=page)
        return page

    async def _page(self, prefix: str, *, delimiter: str = "", after: Page | None = None) -> Page:
        """The page `after` another, by its continuation token, or else after its last key."""
        token = after.next_token if after else ""
        last_key = after.keys[-1] if after and not token else b""
        if token in self._tokens:
            raise ServiceError(f"{_STUCK}: the service gives the same continuation token again")
        if token:
            self._tokens.add(token)
        try:
            start_after = last_key.decode()
        except UnicodeDecodeError as error:
            raise ServiceError(f"the listing cannot go on after {last_key!r}, which is not UTF-8") from error
        page = await self._pager.page(prefix, delimiter=delimiter, continuation_token=token, start_after=start_after)
        if last_key and page.keys and min(page.keys) <= last_key:
            raise ServiceError(f"{_STUCK}: the service was asked for the keys after {last_key!r} and sends it again")
        return page


def _folder(path: str) -> str:
    return path if not path or path.endswith("/") else path + "/"


def _parent(path: str) -> str:
    return path[: path.rfind("/") + 1]
