"""Listing with many requests at once: the same table as serially, or an error, whatever the service does."""

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import trio
import trio.testing

from fastfuse.errors import AccessError, FastfuseError, ServiceError
from fastfuse.index.inodes.builder import TableBuilder
from fastfuse.index.inodes.table import InodeTable
from fastfuse.index.listing.acceptance import Listing, ListingProgress, ProgressCallback
from fastfuse.index.listing.lister import list_source
from fastfuse.index.listing.page import parse_page
from fastfuse.index.sources.uri import S3Uri
from fastfuse.s3.aws import S3Session
from fastfuse.s3.base import ConnectionConfig
from fastfuse.s3.client import S3Client
from fastfuse.testing import (
    ACCESS_DENIED,
    INTERNAL_ERROR,
    SLOW_DOWN,
    FaultRule,
    LoopbackServer,
    Reset,
    ServerConfig,
    ShortPage,
    SyntheticObjects,
    Truncate,
)
from fastfuse.testing.faults import Action
from fastfuse.testing.synthetic import Layout
from tests.index.listing.test_lister import KEYS, PagedStore, paths

COUNT = 6000
LAYOUTS: Mapping[str, Layout] = {"flat": "flat", "folders": "dirs", "hex": "hex"}


@pytest.fixture(params=LAYOUTS)
def server(request: pytest.FixtureRequest, aws_environment: object) -> Iterator[LoopbackServer]:
    objects = SyntheticObjects(count=COUNT, size_bytes=1, layout=LAYOUTS[request.param], directories=50)
    with LoopbackServer({"bucket": objects}, ServerConfig(page_keys_max=100)) as server:
        yield server


@asynccontextmanager
async def source(server: LoopbackServer) -> AsyncIterator[S3Client]:
    config = ConnectionConfig(endpoint_url=server.endpoint_url, region="us-east-1", force_path_style=True)
    pages = S3Client(S3Session(config))
    try:
        yield pages
    finally:
        await pages.aclose()


async def listed(server: LoopbackServer, progress: ProgressCallback = lambda _: None) -> Listing:
    async with source(server) as pages:
        return await list_source(pages, S3Uri("bucket", ""), progress=progress)


async def listed_serially(server: LoopbackServer) -> InodeTable:
    """The model: one page after the other, by token."""
    server.faults.clear()
    builder, token = TableBuilder("bucket", ""), ""
    async with source(server) as pages:
        while True:
            page = parse_page(await pages.list("bucket", prefix="", continuation_token=token))
            builder.add(page.keys, page.sizes, page.mtimes_ns, page.etags, page.storage_classes)
            if not page.is_truncated:
                return builder.build()[0]
            token = page.next_token


def columns(table: InodeTable) -> dict[str, bytes]:
    table.check_invariants()
    return {name: column.tobytes() for name, column in table.columns.items()}


async def test_the_table_is_that_of_a_serial_listing_and_takes_few_more_requests(server: LoopbackServer) -> None:
    seen: list[ListingProgress] = []
    listing = await listed(server, seen.append)
    assert columns(listing.table) == columns(await listed_serially(server))
    assert listing.request_count <= 1.6 * COUNT / 100
    assert seen[-1].objects == COUNT
    assert max(progress.in_flight for progress in seen) > 4
    assert all(0 <= (progress.share or 0) <= 1 for progress in seen)
    assert seen[-1].share == 1


@pytest.mark.parametrize(
    "action", [SLOW_DOWN, INTERNAL_ERROR, Reset(None), Truncate(500)], ids=["503", "500", "reset", "cut page"]
)
async def test_pages_that_fail_are_asked_for_again(
    server: LoopbackServer, action: Action, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fastfuse.s3.retries.FIRST_PAUSE_S", 0.001)
    server.faults.add(FaultRule(action=action, operation="ListObjectsV2", bucket="bucket", probability=0.3, seed=3))
    assert columns((await listed(server)).table) == columns(await listed_serially(server))


@pytest.mark.parametrize("skip", [0, 1, 2, 5, 20, 40])
async def test_a_listing_that_cannot_be_completed_fails_with_one_error(server: LoopbackServer, skip: int) -> None:
    server.faults.add(FaultRule(action=ACCESS_DENIED, operation="ListObjectsV2", skip=skip))
    with pytest.raises(AccessError, match="denies listing"):
        await listed(server)


@dataclass
class WithoutFolders(PagedStore):
    """A service of which the folders cannot be had."""

    is_silent: bool = False

    async def list(self, bucket: str, *, delimiter: str = "", **arguments: Any) -> bytes:  # noqa: ANN401 - as the caller gives
        if delimiter and self.is_silent:
            await trio.sleep_forever()
        if delimiter:
            raise AccessError("no delimiter here")
        return await super().list(bucket, **arguments)


@pytest.mark.parametrize("is_silent", [False, True], ids=["refused", "never answered"])
async def test_a_listing_can_do_without_folder_names(is_silent: bool, autojump_clock: trio.testing.MockClock) -> None:
    with trio.fail_after(1):
        listing = await list_source(WithoutFolders(KEYS, 3, is_silent=is_silent), S3Uri("b", "data/"))
    assert paths(listing.table) == [key.decode().removeprefix("data/") for key in KEYS]


async def test_empty_pages_in_between_lead_to_the_same_table(server: LoopbackServer) -> None:
    rule = FaultRule(action=ShortPage(0), operation="ListObjectsV2", bucket="bucket", skip=10, times=2)
    server.faults.add(rule)
    assert columns((await listed(server)).table) == columns(await listed_serially(server))


@dataclass
class WithoutStartAfter(PagedStore):
    """A service that continues by tokens only."""

    async def list(self, bucket: str, *, start_after: str = "", **arguments: Any) -> bytes:  # noqa: ANN401 - as the caller gives
        return await super().list(bucket, **arguments)


@dataclass
class Unordered(PagedStore):
    """Pages in an order of the service's own."""

    def _names(self, prefix: bytes, delimiter: bytes) -> Sequence[bytes]:
        return super()._names(prefix, delimiter)[::-1]


@pytest.mark.parametrize("kind", [WithoutStartAfter, Unordered])
@pytest.mark.parametrize("page_keys", [1, 7, 39])
async def test_a_service_that_cannot_be_listed_by_ranges_is_listed_by_tokens(
    kind: type[PagedStore], page_keys: int
) -> None:
    listing = await list_source(kind(KEYS, page_keys), S3Uri("b", "data/"))
    assert paths(listing.table) == [key.decode().removeprefix("data/") for key in KEYS]
    listing.table.check_invariants()


async def test_keys_that_are_not_utf8_are_listed_by_tokens() -> None:
    keys = [b"data/%d/\xff%d" % (number % 3, number) for number in range(30)] + KEYS
    listing = await list_source(PagedStore(keys, 4), S3Uri("b", "data/"))
    assert listing.refusals.total == 30
    assert listing.table.metadata.file_count == len(KEYS)


async def test_a_key_that_was_not_asked_for_ends_a_parallel_listing() -> None:
    class Lying(PagedStore):
        def _names(self, prefix: bytes, delimiter: bytes) -> Sequence[bytes]:
            names = super()._names(prefix, delimiter)
            return [*names, b"elsewhere"] if len(self.requests) > 5 and not delimiter else names

    with pytest.raises(FastfuseError, match="does not begin with it") as caught:
        await list_source(Lying(KEYS, 3), S3Uri("b", "data/"))
    assert isinstance(caught.value, ServiceError)
