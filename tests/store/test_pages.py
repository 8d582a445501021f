"""Both that list a bucket: with a signed GET, and with botocore's client."""

from collections.abc import Awaitable
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import pytest

from fastfuse.errors import (
    AccessError,
    ConfigurationError,
    FastfuseError,
    ServiceError,
    SourceError,
    ThrottledError,
)
from fastfuse.store.base import ConnectionConfig, PageSource
from fastfuse.store.boto import BotoPageSource
from fastfuse.store.pages import SignedPageSource, open_pages
from fastfuse.store.session import S3Session
from fastfuse.testing import (
    ACCESS_DENIED,
    EXPIRED_TOKEN,
    INTERNAL_ERROR,
    SLOW_DOWN,
    Answer,
    FaultRule,
    LoopbackServer,
    MemoryObjects,
    Reset,
    ServerConfig,
    Truncate,
)
from tests.servers import configure, create_chain
from tests.store.canned import canned_server

PAGE = b'<?xml version="1.0"?>\n<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>'
ERROR = b'<?xml version="1.0"?>\n<Error><Code>SlowDown</Code><Message>m</Message></Error>'
SOURCES: dict[str, type[SignedPageSource] | type[BotoPageSource]] = {
    "signed": SignedPageSource,
    "boto": BotoPageSource,
}


class ListPage(Protocol):
    """The first page of a bucket."""

    def __call__(self, config: ConnectionConfig, *, bucket: str = "bucket", prefix: str = "") -> Awaitable[bytes]: ...


@pytest.fixture(params=list(SOURCES))
def list_page(request: pytest.FixtureRequest) -> ListPage:
    async def ask(config: ConnectionConfig, *, bucket: str = "bucket", prefix: str = "") -> bytes:
        pages: PageSource = SOURCES[request.param](S3Session(config), bucket)
        try:
            return await pages.list_page(prefix=prefix)
        finally:
            await pages.aclose()

    return ask


def config_of(server: LoopbackServer) -> ConnectionConfig:
    return ConnectionConfig(endpoint_url=server.endpoint_url, region="us-east-1")


# --- what the user is told when a listing cannot begin


@pytest.mark.parametrize(
    ("answer", "error", "message", "hint"),
    [
        (ACCESS_DENIED, AccessError, r"denies listing the bucket 'bucket' \(403 AccessDenied\)", "--no-sign-request"),
        (EXPIRED_TOKEN, AccessError, "credentials have expired", "--profile"),
        (Answer(403, "InvalidAccessKeyId", "m"), AccessError, "does not accept the AWS credentials", "--profile"),
        (Answer(403, "SignatureDoesNotMatch", "m"), AccessError, "does not accept the AWS credentials", "clock"),
        (Answer(404, "NoSuchBucket", "m"), SourceError, "no bucket 'bucket' at http://127", "--endpoint-url"),
        (Answer(501, "NotImplemented", "m"), ServiceError, "failed to list .*501 NotImplemented", ""),
    ],
    ids=lambda value: value.code if isinstance(value, Answer) else "",
)
async def test_a_refused_listing_is_one_sentence_and_one_request(
    list_page: ListPage, answer: Answer, error: type[FastfuseError], message: str, hint: str
) -> None:
    with LoopbackServer({"bucket": MemoryObjects({})}) as server:
        server.faults.add(FaultRule(action=answer))
        with pytest.raises(error, match=message) as caught:
            await list_page(config_of(server))
        assert hint in caught.value.hint
        assert len(server.requests) == 1


async def test_a_bucket_that_does_not_exist_is_named(list_page: ListPage) -> None:
    with LoopbackServer({}) as server, pytest.raises(SourceError, match="'absent'"):
        await list_page(config_of(server), bucket="absent")


@pytest.mark.parametrize("style", ["redirect", "malformed"])
async def test_a_wrong_region_names_the_right_one(list_page: ListPage, style: str) -> None:
    settings = ServerConfig(regions={"bucket": "eu-west-1"}, wrong_region=style)  # type: ignore[arg-type]
    with LoopbackServer({"bucket": MemoryObjects({})}, settings) as server:
        with pytest.raises(ConfigurationError, match="in the region eu-west-1, not in us-east-1") as caught:
            await list_page(config_of(server))
        assert caught.value.hint == "Use --region eu-west-1."


async def test_without_a_region_the_buckets_own_is_used(list_page: ListPage) -> None:
    settings = ServerConfig(regions={"bucket": "eu-west-1"})
    with LoopbackServer({"bucket": MemoryObjects({"key": b""})}, settings) as server:
        assert b"<Key>key</Key>" in await list_page(replace(config_of(server), region=None))


async def test_a_refused_connection_is_told_with_its_reason(list_page: ListPage) -> None:
    with pytest.raises(ServiceError, match="cannot be reached: Connection refused") as caught:
        await list_page(ConnectionConfig(endpoint_url="http://127.0.0.1:1", region="us-east-1"))
    assert "--endpoint-url" in caught.value.hint


async def test_an_unknown_certificate_names_the_option_for_it(list_page: ListPage, tmp_path: Path) -> None:
    settings = ServerConfig(tls=create_chain(tmp_path)[1])
    with LoopbackServer({"bucket": MemoryObjects({})}, settings) as server:
        with pytest.raises(ServiceError, match="certificate verification failed") as caught:
            await list_page(config_of(server))
        assert "--ca-bundle" in caught.value.hint


async def test_a_passing_fault_does_not_end_a_listing(list_page: ListPage) -> None:
    with LoopbackServer({"bucket": MemoryObjects({"key": b""})}) as server:
        for action in (INTERNAL_ERROR, Reset(None), Truncate(20)):
            server.faults.add(FaultRule(action=action, times=1))
        assert b"<Key>key</Key>" in await list_page(config_of(server))


@pytest.mark.parametrize("action", [SLOW_DOWN, Answer(429, "TooManyRequests", "m")], ids=["503", "429"])
async def test_a_throttled_page_is_told_at_once(list_page: ListPage, action: Answer) -> None:
    with LoopbackServer({"bucket": MemoryObjects({"key": b""})}) as server:
        server.faults.add(FaultRule(action=action, times=1))
        with pytest.raises(ThrottledError, match=str(action.status)):
            await list_page(config_of(server))
        assert len(server.requests) == 1


async def test_an_error_under_status_200_is_tried_again(list_page: ListPage) -> None:
    replies = iter([ERROR, b"", PAGE[:-10], PAGE])
    with canned_server(lambda target: (200, {}, next(replies))) as server:
        config = ConnectionConfig(endpoint_url=server.url, region="us-east-1")
        assert await list_page(config) == PAGE
        assert len(server.seen) == 4


async def test_a_page_is_asked_for_in_path_style_with_encoded_names(list_page: ListPage) -> None:
    with canned_server(lambda target: (200, {}, PAGE)) as server:
        await list_page(
            ConnectionConfig(endpoint_url=server.url, region="us-east-1", request_payer=True), prefix="a +/"
        )
        [(target, headers)] = server.seen
    path, _, query = target.partition("?")
    assert path == "/bucket"
    assert {"list-type=2", "prefix=a%20%2B%2F", "encoding-type=url", "max-keys=1000"} <= set(query.split("&"))
    assert headers["x-amz-request-payer"] == "requester"


async def test_a_bucket_in_the_host_name_is_listed_at_its_own_host(
    list_page: ListPage, aws_environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hosts do not exist: a proxy sees where a request was meant to go."""
    configure(aws_environment, "[profile own]\ns3 =\n  addressing_style = virtual\n")
    monkeypatch.setenv("AWS_PROFILE", "own")
    with canned_server(lambda target: (200, {}, PAGE)) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url)
        await list_page(ConnectionConfig(endpoint_url="http://s3.test:81", region="us-east-1"))
        [(target, headers)] = proxy.seen
    assert target.startswith("http://bucket.s3.test:81/?")
    assert headers["host"] == "bucket.s3.test:81"


async def test_a_default_port_is_not_in_the_host_that_is_signed(
    list_page: ListPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    with canned_server(lambda target: (200, {}, PAGE)) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url)
        await list_page(ConnectionConfig(endpoint_url="http://s3.test:80", region="us-east-1", force_path_style=True))
        [(_, headers)] = proxy.seen
    assert headers["host"] == "s3.test"


@pytest.mark.parametrize("pays", [False, True])
async def test_an_unsigned_listing_has_no_authorization(list_page: ListPage, pays: bool) -> None:
    with canned_server(lambda target: (200, {}, PAGE)) as server:
        config = ConnectionConfig(endpoint_url=server.url, region="us-east-1", sign_request=False, request_payer=pays)
        await list_page(config)
        [(_, headers)] = server.seen
    assert "authorization" not in headers
    assert headers.get("x-amz-request-payer") == ("requester" if pays else None)


async def test_a_session_token_is_sent_along(list_page: ListPage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", "a+token/=")
    with canned_server(lambda target: (200, {}, PAGE)) as server:
        await list_page(ConnectionConfig(endpoint_url=server.url, region="us-east-1"))
        [(_, headers)] = server.seen
    assert headers["x-amz-security-token"] == "a+token/="
    assert "x-amz-security-token" in headers["authorization"]


# --- which of them


@pytest.mark.parametrize(
    ("bucket", "profile", "kind"),
    [
        ("bucket", "", SignedPageSource),
        ("no bucket", "", BotoPageSource),
        ("bucket--use1-az4--x-s3", "", BotoPageSource),
        ("arn:aws:s3:eu-west-1:123456789012:accesspoint/a", "", BotoPageSource),
        ("bucket", "use_fips_endpoint = true", BotoPageSource),
        ("bucket", "use_dualstack_endpoint = true", BotoPageSource),
        ("bucket", "s3 =\n  use_accelerate_endpoint = true", BotoPageSource),
    ],
)
def test_what_has_an_endpoint_of_its_own_or_can_have_none_is_botocores(
    bucket: str, profile: str, kind: type[PageSource], aws_environment: Path
) -> None:
    aws_environment.write_text(f"[profile own]\n{profile}\n")
    assert isinstance(open_pages(S3Session(ConnectionConfig(profile="own")), bucket), kind)


async def test_closed_it_starts_no_request() -> None:
    pages = SignedPageSource(S3Session(ConnectionConfig(endpoint_url="http://127.0.0.1:1", region="us-east-1")), "b")
    await pages.aclose()
    with pytest.raises(RuntimeError, match="closed"):
        await pages.list_page(prefix="")
