import gzip
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from fastfuse.errors import (
    AccessError,
    BadReplyError,
    ConfigurationError,
    FastfuseError,
    ServiceError,
    SourceError,
    ThrottledError,
)
from fastfuse.objects import ObjectRef
from fastfuse.store.base import ConnectionConfig, RangeReader
from fastfuse.store.boto import BotoPageSource, BotoRangeReader
from fastfuse.store.rust import RustRangeReader
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
GZIPPED = gzip.compress(b"compressed " * 100)
CLIENTS: dict[str, Callable[[S3Session], RangeReader]] = {
    "rust": lambda session: RustRangeReader(session, "bucket"),
    "boto": lambda session: BotoRangeReader(session, "bucket"),
}


@pytest.fixture(params=list(CLIENTS))
def client(request: pytest.FixtureRequest) -> Callable[[S3Session], RangeReader]:
    return CLIENTS[request.param]


async def list_page(config: ConnectionConfig, *, bucket: str = "bucket", prefix: str = "") -> bytes:
    pages = BotoPageSource(S3Session(config), bucket)
    try:
        return await pages.list_page(prefix=prefix)
    finally:
        await pages.aclose()


def config_of(server: LoopbackServer) -> ConnectionConfig:
    return ConnectionConfig(endpoint_url=server.endpoint_url, region="us-east-1")


# --- listing: what the user is told when it cannot begin


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
    answer: Answer, error: type[FastfuseError], message: str, hint: str
) -> None:
    with LoopbackServer({"bucket": MemoryObjects({})}) as server:
        server.faults.add(FaultRule(action=answer))
        with pytest.raises(error, match=message) as caught:
            await list_page(config_of(server))
        assert hint in caught.value.hint
        assert len(server.requests) == 1


async def test_a_bucket_that_does_not_exist_is_named() -> None:
    with LoopbackServer({}) as server, pytest.raises(SourceError, match="'absent'"):
        await list_page(config_of(server), bucket="absent")


@pytest.mark.parametrize("style", ["redirect", "malformed"])
async def test_a_wrong_region_names_the_right_one(style: str) -> None:
    settings = ServerConfig(regions={"bucket": "eu-west-1"}, wrong_region=style)  # type: ignore[arg-type]
    with LoopbackServer({"bucket": MemoryObjects({})}, settings) as server:
        with pytest.raises(ConfigurationError, match="in the region eu-west-1, not in us-east-1") as caught:
            await list_page(config_of(server))
        assert caught.value.hint == "Use --region eu-west-1."


async def test_without_a_region_the_buckets_own_is_used() -> None:
    settings = ServerConfig(regions={"bucket": "eu-west-1"})
    with LoopbackServer({"bucket": MemoryObjects({"key": b""})}, settings) as server:
        assert b"<Key>key</Key>" in await list_page(replace(config_of(server), region=None))


async def test_a_refused_connection_is_told_with_its_reason() -> None:
    with pytest.raises(ServiceError, match="cannot be reached: Connection refused") as caught:
        await list_page(ConnectionConfig(endpoint_url="http://127.0.0.1:1", region="us-east-1"))
    assert "--endpoint-url" in caught.value.hint


async def test_an_unknown_certificate_names_the_option_for_it(tmp_path: Path) -> None:
    settings = ServerConfig(tls=create_chain(tmp_path)[1])
    with LoopbackServer({"bucket": MemoryObjects({})}, settings) as server:
        with pytest.raises(ServiceError, match="certificate verification failed") as caught:
            await list_page(config_of(server))
        assert "--ca-bundle" in caught.value.hint


async def test_a_passing_fault_does_not_end_a_listing() -> None:
    with LoopbackServer({"bucket": MemoryObjects({"key": b""})}) as server:
        for action in (INTERNAL_ERROR, Reset(None), Truncate(20)):
            server.faults.add(FaultRule(action=action, times=1))
        assert b"<Key>key</Key>" in await list_page(config_of(server))


@pytest.mark.parametrize("action", [SLOW_DOWN, Answer(429, "TooManyRequests", "m")], ids=["503", "429"])
async def test_a_throttled_page_is_told_at_once(action: Answer) -> None:
    with LoopbackServer({"bucket": MemoryObjects({"key": b""})}) as server:
        server.faults.add(FaultRule(action=action, times=1))
        with pytest.raises(ThrottledError, match=str(action.status)):
            await list_page(config_of(server))
        assert len(server.requests) == 1


async def test_an_error_under_status_200_is_tried_again() -> None:
    replies = iter([ERROR, b"", PAGE[:-10], PAGE])
    with canned_server(lambda target: (200, {}, next(replies))) as server:
        config = ConnectionConfig(endpoint_url=server.url, region="us-east-1")
        assert await list_page(config) == PAGE
        assert len(server.seen) == 4


# --- what is sent


async def test_a_page_is_asked_for_in_path_style_with_encoded_names() -> None:
    with canned_server(lambda target: (200, {}, PAGE)) as server:
        await list_page(
            ConnectionConfig(endpoint_url=server.url, region="us-east-1", request_payer=True), prefix="a +/"
        )
        [(target, headers)] = server.seen
    path, _, query = target.partition("?")
    assert path == "/bucket"
    assert {"list-type=2", "prefix=a%20%2B%2F", "encoding-type=url", "max-keys=1000"} <= set(query.split("&"))
    assert headers["x-amz-request-payer"] == "requester"


def _range_reply(target: str) -> tuple[int, dict[str, str], bytes]:
    headers = {"ETag": '"e"', "Content-Range": f"bytes 10-19/{len(GZIPPED)}", "Content-Encoding": "gzip"}
    return 206, headers, GZIPPED[10:20]


REF = ObjectRef("bucket", "a/key", len(GZIPPED), '"e"')


async def test_an_object_with_a_content_encoding_is_not_decoded(client: Callable[[S3Session], RangeReader]) -> None:
    with canned_server(_range_reply) as server:
        reader = client(S3Session(ConnectionConfig(endpoint_url=server.url, region="us-east-1")))
        assert await reader.get_range(REF, 10, 20) == GZIPPED[10:20]
        await reader.aclose()


async def test_a_ranged_get_carries_range_version_and_payer(client: Callable[[S3Session], RangeReader]) -> None:
    with canned_server(_range_reply) as server:
        config = ConnectionConfig(endpoint_url=server.url, region="us-east-1", request_payer=True)
        reader = client(S3Session(config))
        await reader.get_range(REF, 10, 20)
        await reader.aclose()
        [(target, headers)] = server.seen
    assert target == "/bucket/a/key"
    assert headers["range"] == "bytes=10-19"
    assert headers["if-match"] == '"e"'
    assert headers["x-amz-request-payer"] == "requester"
    assert headers["authorization"].startswith("AWS4-HMAC-SHA256")


async def test_without_a_listed_etag_the_get_carries_the_listed_time(
    client: Callable[[S3Session], RangeReader],
) -> None:
    ref = replace(REF, etag="", modified_ns=1_704_067_199_500 * 10**6)
    with canned_server(_range_reply) as server:
        reader = client(S3Session(ConnectionConfig(endpoint_url=server.url, region="us-east-1")))
        with pytest.raises(BadReplyError, match="no Last-Modified"):
            await reader.get_range(ref, 10, 20)
        await reader.aclose()
        [(_, headers)] = server.seen
    assert headers["if-unmodified-since"] == "Mon, 01 Jan 2024 00:00:00 GMT"
    assert "if-match" not in headers


async def test_an_unsigned_get_has_no_authorization(client: Callable[[S3Session], RangeReader]) -> None:
    with canned_server(_range_reply) as server:
        reader = client(S3Session(ConnectionConfig(endpoint_url=server.url, region="us-east-1", sign_request=False)))
        await reader.get_range(REF, 10, 20)
        await reader.aclose()
        assert "authorization" not in server.seen[0][1]


async def test_a_bucket_in_the_host_name_reaches_its_own_host(
    client: Callable[[S3Session], RangeReader], aws_environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hosts do not exist: a proxy sees where a request was meant to go."""
    configure(aws_environment, "[profile own]\ns3 =\n  addressing_style = virtual\n")
    monkeypatch.setenv("AWS_PROFILE", "own")
    with canned_server(_range_reply) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url)
        reader = client(S3Session(ConnectionConfig(endpoint_url="http://s3.test:81", region="us-east-1")))
        await reader.get_range(REF, 10, 20)
        await reader.aclose()
        assert proxy.seen[0][0] == "http://bucket.s3.test:81/a/key"


@pytest.mark.parametrize(
    ("status", "headers", "body"),
    [
        (206, {"ETag": '"e"'}, GZIPPED[10:20]),
        (206, {"ETag": '"e"', "Content-Range": f"bytes 9-18/{len(GZIPPED)}"}, GZIPPED[9:19]),
        (206, {"ETag": '"e"', "Content-Range": f"bytes 10-19/{len(GZIPPED)}"}, GZIPPED[10:19]),
        (206, {"ETag": '"e"', "Content-Range": f"bytes 10-19/{len(GZIPPED)}"}, GZIPPED[10:21]),
        (206, {"Content-Range": f"bytes 10-19/{len(GZIPPED)}"}, GZIPPED[10:20]),
        (206, {"ETag": '"e"', "Content-Range": "nonsense"}, GZIPPED[10:20]),
    ],
    ids=["no range", "another range", "too few bytes", "too many bytes", "no version", "nonsense"],
)
async def test_a_reply_that_is_not_what_was_asked_for_is_refused(
    status: int, headers: dict[str, str], body: bytes
) -> None:
    with canned_server(lambda target: (status, headers, body)) as server:
        reader = BotoRangeReader(S3Session(ConnectionConfig(endpoint_url=server.url, region="us-east-1")), "bucket")
        with pytest.raises(BadReplyError, match=re.escape("'a/key'")):
            await reader.get_range(REF, 10, 20)
        await reader.aclose()


@pytest.mark.parametrize("name", ["page source", "reader"])
async def test_a_closed_client_starts_no_request(name: str) -> None:
    session = S3Session(ConnectionConfig(endpoint_url="http://127.0.0.1:1", region="us-east-1"))
    pages, reader = BotoPageSource(session, "bucket"), BotoRangeReader(session, "bucket")
    await pages.aclose()
    await reader.aclose()
    with pytest.raises(RuntimeError, match="closed"):
        await (pages.list_page(prefix="") if name == "page source" else reader.get_range(REF, 0, 1))
