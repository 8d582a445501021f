"""Listing a bucket: what is asked for, what is taken for a page, and what the user is told where there is none."""

import errno
import gzip
import zlib
from collections.abc import Callable
from contextlib import aclosing, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from bench.s3server import SLOW_DOWN, Answer, FaultRule, LoopbackServer, MemoryObjects, ServerConfig
from fastfuse.errors import ConfigurationError, ServiceError
from fastfuse.objects import ObjectRef
from fastfuse.s3.bodies import MAX_PAGE_BYTES
from fastfuse.s3.connection import Connection
from fastfuse.s3.failures import Kind
from fastfuse.s3.retries import RetryableError
from fastfuse.s3.retry_policy import attempts
from fastfuse.s3.routes import Route, Routes
from tests.s3.canned import canned_server, chunks
from tests.s3.places import IN_A_REGION, LISTING, canned_client, client_of, loopback_client
from tests.s3.places import listed as listed_by
from tests.servers import configure

REF = ObjectRef("bucket", "key", 100, "")
ERROR = b'<?xml version="1.0"?>\n<Error><Code>InternalError</Code><Message>m</Message></Error>'


# --- what the user is told when a listing cannot begin


@pytest.mark.parametrize("style", ["redirect", "malformed"])
async def test_a_region_told_is_used(style: Literal["redirect", "malformed"], caplog: pytest.LogCaptureFixture) -> None:
    settings = ServerConfig(regions={"bucket": "eu-west-1"}, wrong_region=style)
    async with loopback_client({"key": b""}, settings) as (server, client):
        for _ in range(2):
            assert b"<Key>key</Key>" in await listed_by(client)
        assert await client.region("bucket") == "eu-west-1"
        assert len(server.requests) == 3
    [record] = caplog.records
    assert record.getMessage() == "The bucket 'bucket' is in the region eu-west-1, not in us-east-1: using it there."


async def test_a_region_that_is_not_told_has_to_be_named() -> None:
    reply: tuple[int, dict[str, str], bytes] = 301, {}, b"<Error><Code>PermanentRedirect</Code></Error>"
    async with canned_client(lambda _: reply) as (client, server):
        with pytest.raises(ConfigurationError, match="does not tell in which it is") as caught:
            await listed_by(client)
        assert "--region" in caught.value.hint
        assert len(server.seen) == 1


@pytest.mark.parametrize("action", [SLOW_DOWN, Answer(429, "TooManyRequests", "m")], ids=["503", "429"])
async def test_a_throttled_page_is_left_to_who_asks_for_pages(action: Answer) -> None:
    async with loopback_client({"key": b""}) as (server, client):
        server.faults.add(FaultRule(action=action, times=1))
        with pytest.raises(RetryableError, match=str(action.status)) as caught:
            await client.list("bucket", prefix="")
        assert caught.value.failure.kind is Kind.THROTTLED
        assert len(server.requests) == 1


@pytest.mark.parametrize("has_begun", [False, True])
async def test_a_listing_that_has_begun_outlives_an_outage(monkeypatch: pytest.MonkeyPatch, *, has_begun: bool) -> None:
    monkeypatch.setattr("fastfuse.s3.retry_policy.FIRST_PAUSE_S", 0.0)
    # More than a command has attempts.
    refusals, connect = iter(range(3 * attempts(Kind.UNREACHABLE, is_read=False))), Routes.connect

    async def connect_later(routes: Routes, route: Route) -> Connection:
        if next(refusals, None) is not None:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "refused")
        return await connect(routes, route)

    async with canned_client(lambda _: (200, {"connection": "close"}, LISTING), IN_A_REGION) as (client, _):
        if has_begun:
            await listed_by(client)
        monkeypatch.setattr(Routes, "connect", connect_later)
        with nullcontext() if has_begun else pytest.raises(ServiceError, match="cannot be reached"):
            assert await listed_by(client) == LISTING


@pytest.mark.parametrize("signs", [False, True])
@pytest.mark.parametrize("pays", [False, True])
async def test_a_page_is_asked_for_in_path_style_with_encoded_names(signs: bool, pays: bool) -> None:
    config = replace(IN_A_REGION, sign_request=signs, request_payer=pays)
    async with canned_client(lambda _: (200, {}, LISTING), config) as (client, server):
        await listed_by(client, prefix="a +/")
        [(target, headers)] = server.seen
    path, _, query = target.partition("?")
    assert path == "/bucket"
    assert {"list-type=2", "prefix=a%20%2B%2F", "encoding-type=url", "max-keys=1000"} <= set(query.split("&"))
    assert ("authorization" in headers) == signs
    assert headers.get("x-amz-request-payer") == ("requester" if pays else None)


async def test_closed_it_starts_no_request() -> None:
    client = client_of(replace(IN_A_REGION, endpoint_url="http://127.0.0.1:1"))
    await client.aclose()
    for request in (client.list("bucket", prefix=""), client.head("bucket", "key"), client.get(REF, 0, 10)):
        with pytest.raises(RuntimeError, match="closed"):
            await request


# --- what is taken for a page

CHUNKED, ZIPPED = {"Transfer-Encoding": "chunked"}, {"Content-Encoding": "gzip"}


def page_of(size_bytes: int) -> bytes:
    begin, end = b'<?xml version="1.0"?><ListBucketResult>', b"</ListBucketResult>"
    return begin + b" " * (size_bytes - len(begin) - len(end)) + end


WAYS: dict[str, Callable[[bytes], tuple[dict[str, str], bytes]]] = {
    "with its length": lambda page: ({}, page),
    "in chunks": lambda page: (CHUNKED, chunks(page, 50_000)),
    "zipped": lambda page: (ZIPPED, gzip.compress(page)),
    "zipped in chunks": lambda page: (ZIPPED | CHUNKED, chunks(gzip.compress(page), 1000)),
    "deflated": lambda page: ({"Content-Encoding": "deflate"}, zlib.compress(page)),
}


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("size_bytes", [100, MAX_PAGE_BYTES, MAX_PAGE_BYTES + 1])
async def test_a_page_is_taken_however_it_is_sent_unless_it_is_too_long(how: str, size_bytes: int) -> None:
    page, is_too_long = page_of(size_bytes), size_bytes > MAX_PAGE_BYTES
    refusal = pytest.raises(ServiceError, match="a page of the bucket 'bucket' of more than 8 MiB")
    async with canned_client(lambda _: (200, *WAYS[how](page))) as (client, server):
        with refusal if is_too_long else nullcontext():
            assert await listed_by(client) == page
        assert len(server.seen) == 1


# --- connections


async def test_buckets_in_the_paths_of_one_endpoint_share_its_connections() -> None:
    objects = MemoryObjects({"key": b"0123456789"})
    with LoopbackServer({"one": objects, "two": objects}) as server:
        async with aclosing(client_of(replace(IN_A_REGION, endpoint_url=server.endpoint_url))) as client:
            for bucket in ("one", "two", "one"):
                ref = await client.head(bucket, "key")
                assert await client.get(ref, 0, 10) == b"0123456789"
                await client.list(bucket, prefix="")
            assert server.statistics().connections == 1


async def test_hosts_of_buckets_share_no_connection(aws_environment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configure(aws_environment, "[default]\ns3 =\n  addressing_style = virtual\n")
    with canned_server(lambda target: (200, {}, LISTING)) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url)
        async with aclosing(client_of(replace(IN_A_REGION, endpoint_url="http://s3.test:81"))) as client:
            for bucket in ("one", "two", "one"):
                await client.list(bucket, prefix="")
        assert [headers["host"] for _, headers in proxy.seen] == ["one.s3.test:81", "two.s3.test:81", "one.s3.test:81"]
        assert all(target.startswith(f"http://{headers['host']}/?") for target, headers in proxy.seen)
        assert len({id(route.idle) for route in client._routes._routes.values()}) == 2
