"""S3's semantics, without sockets; what moto does alike is in `test_moto`."""

import re
from contextlib import closing

import pytest

from bench.s3server.buckets import FileSpan, MemoryObjects
from bench.s3server.faults import Action, WrongLength, WrongRange
from bench.s3server.server_config import ServerConfig
from bench.s3server.service import Service
from bench.s3server.wire import Reply, Request

_DATA = b"0123456789"
_SIGNED = "AWS4-HMAC-SHA256 Credential=AKID/20240101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"


def _service(config: ServerConfig | None = None) -> Service:
    objects = MemoryObjects({"a/b": _DATA, "a//b": b"slashes", "/lead": b"lead", "a/../b": b"dots", "%2F +": b"odd"})
    objects.put(b"\xff\x00\n", b"bytes")
    buckets = {"data": objects, "my": MemoryObjects(), "my.data": MemoryObjects({"k": b"dotted"})}
    return Service(buckets, config or ServerConfig())


def _answer(
    target: str,
    *actions: Action,
    config: ServerConfig | None = None,
    method: str = "GET",
    host: str = "127.0.0.1:80",
    **headers: str,
) -> Reply:
    service = _service(config)
    path, _, query = target.partition("?")
    parameters = dict(part.partition("=")[::2] for part in query.split("&") if part)
    request = Request(
        method,
        path.encode(),
        {name: value.encode() for name, value in parameters.items()},
        {"host": host, **{name.replace("_", "-"): value for name, value in headers.items()}},
        True,
    )
    return service.answer(service.understand(request), actions)


def _body(reply: Reply) -> bytes:
    with closing(reply.content.spans(reply.start, reply.start + reply.body_bytes)) as spans:
        return b"".join(span for span in spans if not isinstance(span, FileSpan))


def _error(reply: Reply) -> tuple[int, str]:
    found = re.search(rb"<Code>(\w+)</Code><Message>[^<]+</Message>", _body(reply))
    assert found is not None
    return reply.status, found[1].decode()


_PATH_STYLE = "127.0.0.1:80"


@pytest.mark.parametrize(
    ("host", "path", "data"),
    [
        (_PATH_STYLE, "/data/a/b", _DATA),
        (_PATH_STYLE, "/data/a//b", b"slashes"),
        (_PATH_STYLE, "/data//lead", b"lead"),
        (_PATH_STYLE, "/data/a/../b", b"dots"),
        (_PATH_STYLE, "/data/%252F%20+", b"odd"),
        (_PATH_STYLE, "/data/%FF%00%0A", b"bytes"),
        ("data.localhost:9000", "/a/b", _DATA),
        ("data.s3.eu-west-1.amazonaws.com", "/a//b", b"slashes"),
        ("data.localhost", "//lead", b"lead"),
        ("my.data.s3.example", "/k", b"dotted"),
        ("localhost:9000", "/data/a/b", _DATA),
        ("[::1]:9000", "/data/a/b", _DATA),
    ],
)
def test_a_bucket_is_in_the_host_or_the_path_and_a_key_is_a_path_byte_for_byte(
    host: str, path: str, data: bytes
) -> None:
    assert _body(_answer(path, host=host)) == data


def test_a_bucket_in_the_host_that_does_not_exist_is_named_in_the_error() -> None:
    reply = _answer("/key", host="none.localhost:80")
    assert _error(reply) == (404, "NoSuchBucket")
    assert b"<BucketName>none</BucketName>" in _body(reply)


def test_a_bucket_tells_its_region() -> None:
    config = ServerConfig(regions={"data": "eu-west-1"})
    assert b">eu-west-1</LocationConstraint>" in _body(_answer("/data?location", config=config))
    assert b"></LocationConstraint>" in _body(_answer("/my.data?location", config=config))
    assert _answer("/data", method="HEAD", config=config).headers["x-amz-bucket-region"] == "eu-west-1"


def test_a_server_for_one_key_refuses_all_others() -> None:
    config = ServerConfig(access_key_id="AKID")
    assert _answer("/data/a/b", config=config, authorization=_SIGNED).status == 200
    other = _SIGNED.replace("AKID", "OTHER")
    assert _error(_answer("/data/a/b", config=config, authorization=other)) == (403, "InvalidAccessKeyId")
    assert _answer("/data/a/b", authorization=other).status == 200


def test_a_lie_about_a_range_or_a_length_changes_the_header_and_not_the_bytes() -> None:
    honest = _answer("/data/a/b", range="bytes=1-2")
    total = len(_DATA)
    assert honest.headers["Content-Range"] == f"bytes 1-2/{total}"
    reply = _answer("/data/a/b", WrongRange(1), WrongLength(5), range="bytes=1-2")
    assert reply.headers["Content-Range"] == f"bytes 2-3/{total}"
    assert (reply.extra_length_bytes, _body(reply), reply.body_bytes) == (5, _body(honest), 2)
