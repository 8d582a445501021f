import gzip
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from fastfuse.errors import (
    BadReplyError,
)
from fastfuse.objects import ObjectRef
from fastfuse.store.base import ConnectionConfig, RangeReader
from fastfuse.store.boto import BotoPageSource, BotoRangeReader
from fastfuse.store.rust import RustRangeReader
from fastfuse.store.session import S3Session
from tests.servers import configure
from tests.store.canned import canned_server

PAGE = b'<?xml version="1.0"?>\n<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>'
ERROR = b'<?xml version="1.0"?>\n<Error><Code>SlowDown</Code><Message>m</Message></Error>'
GZIPPED = gzip.compress(b"compressed " * 100)
CLIENTS: dict[str, Callable[[S3Session], RangeReader]] = {
    "rust": lambda session: RustRangeReader(session, "bucket", trio.Semaphore(8)),
    "boto": lambda session: BotoRangeReader(session, "bucket"),
}


@pytest.fixture(params=list(CLIENTS))
def client(request: pytest.FixtureRequest) -> Callable[[S3Session], RangeReader]:
    return CLIENTS[request.param]


# --- what is sent


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
