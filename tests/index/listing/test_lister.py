"""The lister over pages of a test, our server and others: the table of a serial listing or an error."""

import gc
import hashlib
import re
import weakref
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import pytest
import trio
import trio.testing
from hypothesis import example, given
from hypothesis import strategies as st

from bench.s3server import (
    ACCESS_DENIED,
    INTERNAL_ERROR,
    SLOW_DOWN,
    FaultRule,
    LoopbackServer,
    Reset,
    ServerConfig,
    SyntheticObjects,
    Truncate,
)
from bench.s3server.faults import Action
from bench.s3server.synthetic import Layout
from fastfuse.errors import AccessError, EmptySourceError, FastfuseError, ServiceError, SourceError
from fastfuse.index.inodes.builder import TableBuilder
from fastfuse.index.inodes.table import InodeTable
from fastfuse.index.listing.acceptance import Listing, ListingProgress, ProgressCallback
from fastfuse.index.listing.lister import list_source
from fastfuse.index.listing.page import parse_page
from fastfuse.index.sources.uri import S3Uri
from fastfuse.s3.aws import S3Session
from fastfuse.s3.base import ConnectionConfig, PageSource
from fastfuse.s3.client import S3Client
from tests.index.indexes import columns
from tests.servers import S3Server
from tests.store import MemoryStore
from tests.tables import check_table, files_of


@dataclass
class PagedStore:
    """Pages of any length over a set of keys; `by_token` says how they are continued."""

    keys: list[bytes]
    page_keys: int = 1000
    by_token: bool = True
    # Lengths of the first pages, before `page_keys` applies.
    first_pages: list[int] = field(default_factory=list)
    requests: list[dict[str, str]] = field(default_factory=list)

    async def list(
        self,
        bucket: str,
        *,
        prefix: str,
        start_after: str = "",
        continuation_token: str = "",
        delimiter: str = "",
        max_keys: int = 1000,
    ) -> bytes:
        self.requests.append({"prefix": prefix, "start_after": start_after, "token": continuation_token})
        first = 0
        if continuation_token:
            first = int(continuation_token.partition(":")[0])
        names = self._names(prefix.encode(), delimiter.encode())
        if start_after:
            first = sum(name <= start_after.encode() for name in names)
        count = self.first_pages.pop(0) if self.first_pages else self.page_keys
        end = min(first + count, len(names))
        token = f"{end}:{len(self.requests)}" if self.by_token and end < len(names) else ""
        return page_body(names[first:end], truncated=end < len(names), token=token)

    def _names(self, prefix: bytes, delimiter: bytes) -> Sequence[bytes]:
        names = set()
        for key in self.keys:
            if key.startswith(prefix):
                cut = key.find(delimiter, len(prefix)) if delimiter else -1
                names.add(key if cut < 0 else key[: cut + 1] + b"\0")  # marks a common prefix for `page_body`
        return sorted(names)

    async def aclose(self) -> None:
        raise AssertionError("the lister does not own the source")


def page_body(names: Sequence[bytes], *, truncated: bool = False, token: str = "", size: int = 1) -> bytes:
    rows = [
        f"<CommonPrefixes><Prefix>{quote(name[:-1])}</Prefix></CommonPrefixes>"
        if name.endswith(b"\0")
        else f"<Contents><Key>{quote(name)}</Key><LastModified>2024-01-01T00:00:00.000Z</LastModified>"
        f"<ETag>&quot;e&quot;</ETag><Size>{0 if name.endswith(b'/') else size}</Size>"
        "<StorageClass>STANDARD</StorageClass></Contents>"
        for name in names
    ]
    next_token = f"<NextContinuationToken>{token}</NextContinuationToken>" if token else ""
    return (
        f"<ListBucketResult><EncodingType>url</EncodingType><IsTruncated>{str(truncated).lower()}</IsTruncated>"
        f"{next_token}{''.join(rows)}</ListBucketResult>"
    ).encode()


@dataclass
class ScriptedSource:
    """Answers with the given pages, one after the other, the last one for ever."""

    pages: list[bytes]
    queries: list[dict[str, object]] = field(default_factory=list)

    async def list(self, bucket: str, **query: object) -> bytes:
        self.queries.append(query)
        assert len(self.queries) < 100, "the lister goes round in circles"
        return self.pages[min(len(self.queries), len(self.pages)) - 1]

    async def aclose(self) -> None:
        raise AssertionError("the lister does not own the source")


KEYS = [f"data/{number // 7}/{number:03}" for number in range(40)]


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


@dataclass
class ByPaths(PagedStore):
    """A service that compares paths name by name, and begins a page by the same rule, as SeaweedFS does."""

    async def list(self, bucket: str, *, prefix: str, start_after: str = "", delimiter: str = "", **rest: Any) -> bytes:  # noqa: ANN401 - as the caller gives
        if start_after:
            names = self._names(prefix.encode(), delimiter.encode())
            last = start_after.encode().split(b"/")
            rest["continuation_token"] = f"{sum(name.split(b'/') <= last for name in names)}:"
        return await super().list(bucket, prefix=prefix, delimiter=delimiter, **rest)

    def _names(self, prefix: bytes, delimiter: bytes) -> Sequence[bytes]:
        return sorted(super()._names(prefix, delimiter), key=lambda name: name.split(b"/"))


@dataclass
class AfterKeysOnly(PagedStore):
    """A service that finds nothing behind a key that is not there, as a walk of a file system may."""

    async def list(self, bucket: str, *, start_after: str = "", **rest: Any) -> bytes:  # noqa: ANN401 - as the caller gives
        if start_after and start_after.encode() not in self.keys:
            return page_body([])
        return await super().list(bucket, start_after=start_after, **rest)


_PATHS = ["", "a", "a/", "a-", "a/b", "a/b/", "b", "c//d", "data", "ü 日+%"]
_NAMES = ["a", "a/b", "a/b/c", "a/b-", "a/é", "a-", "a-/x", "a0", "b", "b/", "b/a", "c/a/b", "c//d", "ü 日+%/x"]


def named_by(keys: Sequence[str], path: str, *, as_key_names: bool) -> tuple[str, set[str]]:
    """N1 once more, plainly: the key prefix and the keys, none if the path names nothing."""
    folder = path if not path or path.endswith("/") else f"{path}/"
    parent = path[: path.rfind("/") + 1]
    below = {key for key in keys if key.startswith(folder)}
    begun = {key for key in keys if key.startswith(path)}
    if as_key_names and begun:
        return (folder if begun == below else parent), begun
    if below:
        return folder, below
    return parent, {path} & {*keys}


@given(
    st.sets(st.sampled_from(_NAMES)),
    st.booleans(),
    st.sampled_from(_PATHS),
    st.lists(st.integers(0, 3), max_size=6),
    st.integers(1, 5) | st.sampled_from([39, 1000]),
    st.sampled_from(["tokens", "last keys", "tokens only", "by paths", "no order"]),
    st.booleans(),
)
@example({"a-/x", "a/b"}, False, "a", [], 1, "last keys", False).via("a page of one common prefix, without a token")
@example({"a/b", "a/b-"}, False, "a/b", [], 1, "no order", False).via("an object behind a longer name")
async def test_pages_of_any_length_show_what_the_uri_names_n1(
    names: set[str], has_many: bool, path: str, first_pages: list[int], page_keys: int, service: str, as_key_names: bool
) -> None:
    keys = sorted([*names, *(KEYS if has_many else [])])
    kind = {"tokens only": WithoutStartAfter, "by paths": ByPaths, "no order": Unordered}.get(service, PagedStore)
    by_token = service != "last keys"
    # Without a token, an empty page does not say how to go on.
    lengths = [length for length in first_pages if length or by_token]
    store = kind([key.encode() for key in keys], page_keys, by_token, lengths)
    seen: list[int] = []
    prefix, named = named_by(keys, path, as_key_names=as_key_names)
    good = {key for key in named if key == prefix or "" not in key.removeprefix(prefix).removesuffix("/").split("/")}
    markers = {key for key in good if key.endswith("/")}
    shown = {key for key in good - markers if not any(other.startswith(f"{key}/") for other in good)}
    with nullcontext() if shown else pytest.raises(SourceError):
        listing = await list_source(
            *(store, S3Uri("b", path)),
            is_key_name_prefix=as_key_names,
            progress=lambda listed: seen.append(listed.objects),
        )
        check_table(listing.table)
        assert (listing.table.metadata.bucket, listing.table.metadata.key_prefix) == ("b", prefix)
        assert sorted(files_of(listing.table)) == sorted(key.removeprefix(prefix) for key in shown)
        assert listing.refusals.total == len(named - shown - markers)
        assert listing.request_count == len(store.requests)
        assert seen[-1] == len(named)


@pytest.mark.parametrize("kind", [ByPaths, AfterKeysOnly])
@given(st.random_module())
async def test_nothing_is_lost_where_no_page_begins_at_a_cut(kind: type[PagedStore], order_of_tasks: object) -> None:
    """`ByPaths` lists ``5/`` before ``5-x/``, and nothing of ``5/`` behind ``5-x/``."""
    keys = [f"{name}/{number:02}" for name in (*range(6), "5-x") for number in range(20)]
    listing = await list_source(kind([key.encode() for key in keys], 10), S3Uri("b", ""))
    assert sorted(files_of(listing.table)) == sorted(keys)


async def test_a_folder_without_objects_behind_an_empty_page_is_not_taken_for_one() -> None:
    class Source(PagedStore):
        async def list(self, bucket: str, *, prefix: str, **arguments: str | int) -> bytes:
            if prefix == "a.bin/":
                is_first = not arguments.get("continuation_token")
                return page_body([], truncated=is_first, token="t" if is_first else "")
            return page_body([b"a.bin"])

    assert [*files_of((await list_source(Source([]), S3Uri("b", "a.bin"))).table)] == ["a.bin"]


@pytest.mark.parametrize("store", [PagedStore, WithoutStartAfter, Unordered])
async def test_a_key_that_s3_never_has_is_left_out_wherever_it_stands_in_a_page(store: type[PagedStore]) -> None:
    """N2"""
    long = [name * 5 for name in (b"aa/" * 70, b"ab/" * 80, b"b/" * 110, b"bb" * 2000)]
    listing = await list_source(store([*long, b"a", b"b/c"], page_keys=1), S3Uri("b", ""))
    assert [*files_of(listing.table)] == ["a", "b/c"]
    assert listing.refusals.total == 4


@pytest.mark.parametrize(
    "pages",
    [
        [page_body([b"p/a"], truncated=True, token="t")],
        [page_body([], truncated=True, token="t")],
        [page_body([b"p/a"], truncated=True)],
        [page_body([b"p/a", b"p/b"], truncated=True), page_body([b"p/b"], truncated=True)],
        [page_body([b"p/a"], truncated=True, token="1"), page_body([b"p/b"], truncated=True, token="2")] * 3,
    ],
    ids=["same page", "same empty page", "same page without token", "last key again", "cycle of tokens"],
)
async def test_a_listing_that_does_not_advance_is_refused(pages: list[bytes]) -> None:
    with pytest.raises(ServiceError, match="does not advance"):
        await list_source(ScriptedSource(pages), S3Uri("b", "p/"))


async def test_a_listing_that_has_no_token_after_a_key_that_is_not_utf8_is_refused() -> None:
    with pytest.raises(ServiceError, match="cannot go on after b'p/\\\\xff'"):
        await list_source(ScriptedSource([page_body([b"p/\xff"], truncated=True)]), S3Uri("b", "p/"))


async def test_a_partial_name_is_refused_with_its_candidates_n1() -> None:
    store = MemoryStore(dict.fromkeys(["train-01/a", "train-02/b", "train.txt", "other"], b"x"))
    with pytest.raises(SourceError) as caught:
        await list_source(store, S3Uri("bucket", "train"), allow_empty=True)
    assert str(caught.value) == (
        "s3://bucket/train is only the beginning of a name; there is "
        "s3://bucket/train-01/, s3://bucket/train-02/, s3://bucket/train.txt"
    )
    assert not isinstance(caught.value, EmptySourceError)
    many = MemoryStore(dict.fromkeys([f"train-{number}" for number in range(8)], b"x"))
    with pytest.raises(SourceError, match=r"s3://bucket/train-4 and 3 more$"):
        await list_source(many, S3Uri("bucket", "train"))


@pytest.mark.parametrize(
    ("path", "keys", "taken_as"),
    [
        ("train", ["train/a", "train-01/b"], "the folder train/"),
        ("train", ["train", "train-01/b"], "the object train"),
        ("train/", ["train/a", "train-01/b"], ""),
        ("train", ["train/a"], ""),
        ("train", ["train"], ""),
    ],
)
async def test_what_begins_with_the_name_of_the_mounted_folder_or_object_is_told(
    path: str, keys: list[str], taken_as: str, caplog: pytest.LogCaptureFixture
) -> None:
    await list_source(MemoryStore(dict.fromkeys(keys, b"x")), S3Uri("bucket", path))
    told = (
        f"s3://bucket/train is taken as {taken_as}, as in FastFile mode; "
        "File and Pipe mode take every key that begins with it, also s3://bucket/train-01/"
    )
    assert caplog.messages == ([told] if taken_as else [])


class Ungrouped(PagedStore):
    """Groups below a folder only, as nanio does, and a token says only how many names came before."""

    async def list(self, bucket: str, **arguments: Any) -> bytes:  # noqa: ANN401 - as the caller gives
        return re.sub(rb":\d+<", b"<", await super().list(bucket, **arguments))

    def _names(self, prefix: bytes, delimiter: bytes) -> Sequence[bytes]:
        return super()._names(prefix, delimiter if prefix.endswith(b"/") else b"")


async def test_a_token_that_another_listing_had_is_followed() -> None:
    listing = await list_source(Ungrouped([b"train/a", b"train/b", b"train/\xff"], page_keys=1), S3Uri("b", "train"))
    assert sorted(files_of(listing.table)) == ["a", "b"]


@pytest.mark.parametrize("others", [[], ["train0"]])
async def test_a_service_that_does_not_group_keys_gives_no_wrong_neighbours(
    others: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    keys = ["train/a", "train/b", "train/c", *others]
    pages = Ungrouped([key.encode() for key in keys], page_keys=1)
    listing = await list_source(pages, S3Uri("bucket", "train"), is_key_name_prefix=True)
    assert sorted(files_of(listing.table)) == (keys if others else ["a", "b", "c"])
    await list_source(pages, S3Uri("bucket", "train"))
    assert ["also s3://bucket/train0" in message for message in caplog.messages] == [True] * len(others)


@pytest.mark.parametrize("path", ["", "nothing", "nothing/", "no/thing"])
async def test_where_there_is_nothing_the_mount_is_refused_unless_empty_is_allowed(path: str) -> None:
    store = MemoryStore({} if not path else {"other": b"x"})
    with pytest.raises(EmptySourceError, match="no") as caught:
        await list_source(store, S3Uri("bucket", path))
    assert "--allow-empty" in caught.value.hint
    listing = await list_source(store, S3Uri("bucket", path), allow_empty=True)
    check_table(listing.table)
    assert len(listing.table) == 1


async def test_a_source_of_which_nothing_can_be_shown_is_empty() -> None:
    store = MemoryStore({"p/a//b": b"x"})
    with pytest.raises(EmptySourceError, match="no object that can be shown"):
        await list_source(store, S3Uri("bucket", "p/"))


@asynccontextmanager
async def source(server: LoopbackServer) -> AsyncIterator[S3Client]:
    config = ConnectionConfig(endpoint_url=server.endpoint_url, region="us-east-1", force_path_style=True)
    async with aclosing(S3Client(S3Session(config))) as pages:
        yield pages


async def listed(server: LoopbackServer, path: str = "", progress: ProgressCallback = lambda _: None) -> Listing:
    async with source(server) as pages:
        return await list_source(pages, S3Uri("bucket", path), progress=progress)


async def listed_serially(pages: PageSource, bucket: str) -> InodeTable:
    """The model: one page after the other, by token."""
    builder, token = TableBuilder(bucket, ""), ""
    while True:
        page = parse_page(await pages.list(bucket, prefix="", continuation_token=token))
        builder.add(*page.columns)
        if not page.is_truncated:
            return builder.build()[0]
        token = page.next_token


async def serial_table(server: LoopbackServer) -> InodeTable:
    server.faults.clear()
    async with source(server) as pages:
        return await listed_serially(pages, "bucket")


COUNT = 6000
LAYOUTS: Mapping[str, Layout] = {"flat": "flat", "folders": "dirs", "hex": "hex"}


@pytest.fixture(params=LAYOUTS)
def large_server(request: pytest.FixtureRequest, aws_environment: object) -> Iterator[LoopbackServer]:
    objects = SyntheticObjects(count=COUNT, size_bytes=1, layout=LAYOUTS[request.param], directories=50)
    with LoopbackServer({"bucket": objects}, ServerConfig(page_keys_max=100)) as large_server:
        yield large_server


async def test_the_table_is_that_of_a_serial_listing_and_takes_few_more_requests(large_server: LoopbackServer) -> None:
    seen: list[ListingProgress] = []
    listing = await listed(large_server, progress=seen.append)
    assert columns(listing.table) == columns(await serial_table(large_server))
    assert listing.request_count <= 1.6 * COUNT / 100
    assert seen[-1].objects == COUNT
    assert max(progress.in_flight for progress in seen) > 4
    assert all(0 <= (progress.share or 0) <= 1 for progress in seen)
    assert seen[-1].share == 1


@pytest.mark.parametrize("large_server", ["folders"], indirect=True)
@pytest.mark.parametrize(
    "action", [SLOW_DOWN, INTERNAL_ERROR, Reset(None), Truncate(500)], ids=["503", "500", "reset", "cut page"]
)
async def test_pages_that_fail_are_asked_for_again(
    large_server: LoopbackServer, action: Action, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fastfuse.s3.retry_policy.FIRST_PAUSE_S", 0.001)
    rule = large_server.faults.add(
        FaultRule(action=action, operation="ListObjectsV2", bucket="bucket", probability=0.3, seed=3)
    )
    table = (await listed(large_server)).table
    assert large_server.faults.hits(rule) > 5
    assert columns(table) == columns(await serial_table(large_server))


@pytest.mark.parametrize("large_server", ["flat"], indirect=True)
@pytest.mark.parametrize("skip", [1, 40])
async def test_a_listing_that_cannot_be_completed_fails_with_one_error(large_server: LoopbackServer, skip: int) -> None:
    large_server.faults.add(FaultRule(action=ACCESS_DENIED, operation="ListObjectsV2", skip=skip))
    with pytest.raises(AccessError, match="denies listing"):
        await listed(large_server)


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


@pytest.mark.parametrize(
    ("path", "is_silent"),
    [("data/", False), ("data/", True), ("data", False)],
    ids=["refused", "never answered", "refused, and so are neighbours"],
)
async def test_a_listing_can_do_without_folder_names(
    path: str, is_silent: bool, autojump_clock: trio.testing.MockClock
) -> None:
    with trio.fail_after(1):
        listing = await list_source(
            WithoutFolders([key.encode() for key in KEYS], 3, is_silent=is_silent), S3Uri("b", path)
        )
    assert sorted(files_of(listing.table)) == [key.removeprefix("data/") for key in KEYS]


async def test_keys_that_are_not_utf8_are_listed_by_tokens() -> None:
    keys = [b"data/%d/\xff%d" % (number % 3, number) for number in range(30)] + [key.encode() for key in KEYS]
    listing = await list_source(PagedStore(keys, 4), S3Uri("b", "data/"))
    assert listing.refusals.total == 30
    assert listing.table.metadata.file_count == len(KEYS)


async def test_what_was_listed_in_vain_is_freed_before_the_next_listing_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[weakref.ref[TableBuilder]] = []

    class Builder(TableBuilder):
        def __init__(self, bucket: str, key_prefix: str) -> None:
            assert [builder() for builder in begun] in ([], [None])
            super().__init__(bucket, key_prefix)
            begun.append(weakref.ref(self))

    monkeypatch.setattr("fastfuse.index.listing.lister.TableBuilder", Builder)
    gc.disable()  # as in the process that lists
    try:
        await list_source(PagedStore([*(key.encode() for key in KEYS), b"data/\xff"], 4), S3Uri("b", "data/"))
    finally:
        gc.enable()
    assert len(begun) == 2


async def test_a_key_that_was_not_asked_for_ends_a_parallel_listing() -> None:
    class Lying(PagedStore):
        def _names(self, prefix: bytes, delimiter: bytes) -> Sequence[bytes]:
            names = super()._names(prefix, delimiter)
            return [*names, b"elsewhere"] if len(self.requests) > 5 and not delimiter else names

    with pytest.raises(FastfuseError, match="does not begin with it") as caught:
        await list_source(Lying([key.encode() for key in KEYS], 3), S3Uri("b", "data/"))
    assert isinstance(caught.value, ServiceError)


FEW = 120
SHAPES = {
    "dirs": [f"class-{number // 20:04}/{number:06}.jpg" for number in range(FEW)],
    "flat": [f"shard-{number:06}.tfrecord" for number in range(FEW)],
    "hexa": [hashlib.md5(str(number).encode(), usedforsecurity=False).hexdigest() for number in range(FEW)],
}


@dataclass
class SmallPages:
    """Asks for pages of few keys, and counts those that begin at a key: only a parallel listing has them."""

    client: S3Client
    parallel: int = 0

    async def list(self, bucket: str, **query: Any) -> bytes:  # noqa: ANN401 - as the caller gives
        self.parallel += bool(query.get("start_after"))
        return await self.client.list(bucket, **query | {"max_keys": min(10, query.get("max_keys", 10))})

    async def aclose(self) -> None:
        raise AssertionError("the lister does not own the source")


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("server", ["moto_server", "rclone_server"])
async def test_the_parallel_listing_of_a_server_that_is_not_ours_is_the_serial_one(
    request: pytest.FixtureRequest, aws_environment: object, server: str, shape: str
) -> None:
    service: S3Server = request.getfixturevalue(server)
    service.client.create_bucket(Bucket=shape)
    for key in SHAPES[shape]:
        service.client.put_object(Bucket=shape, Key=key, Body=b"x")
    async with aclosing(S3Client(S3Session(service.config))) as client:
        pages = SmallPages(client)
        table = await listed_serially(pages, shape)
        assert table.metadata.file_count == FEW
        found = (await list_source(pages, S3Uri(shape, ""))).table
        check_table(found)
        assert [*found.refs()] == [*table.refs()]
        assert pages.parallel
