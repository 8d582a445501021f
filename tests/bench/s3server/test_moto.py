"""The same script against the loopback server and against moto: what a client can observe must be equal.

Left out, because moto is not like S3 there: StartAfter is not repeated on later pages, MaxKeys above 1000 is echoed,
a suffix of an empty object is 200, an unquoted ETag in If-Match does not match, and a bad token is a 500.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from botocore.exceptions import ClientError

from bench.s3server import LoopbackServer, MemoryObjects
from tests.bench.s3server.clients import error_of
from tests.servers import S3Server

_OBJECTS = {
    "a": b"file beside a folder",
    "a/": b"",
    "a/b": b"0123456789",
    "a/c/d": b"deep",
    "a//b": b"empty segment",
    "b c+d%20": b"space, plus, percent",
    "b&<>\"'": b"markup",
    "empty": b"",
    "é/😀": b"emoji",
    "zz": b"last",
}


@pytest.fixture(scope="module")
def clients(moto_server: S3Server) -> Iterator[tuple[Any, Any]]:
    theirs = moto_server.client
    theirs.create_bucket(Bucket="data")
    for key, data in _OBJECTS.items():
        theirs.put_object(Bucket="data", Key=key, Body=data)
    with LoopbackServer({"data": MemoryObjects(_OBJECTS)}) as server:
        yield S3Server(server.endpoint_url).client, theirs


def _observe(clients: tuple[Any, Any], action: Callable[[Any], Any]) -> list[Any]:
    observed = []
    for client in clients:
        try:
            observed.append(action(client))
        except ClientError as error:
            observed.append(error_of(error))
    return observed


def _get(client: Any, key: str, **arguments: Any) -> tuple[Any, ...]:  # noqa: ANN401
    reply = client.get_object(Bucket="data", Key=key, **arguments)
    with reply["Body"] as body:
        data = body.read()
    status = reply["ResponseMetadata"]["HTTPStatusCode"]
    return status, data, reply["ETag"], reply["ContentLength"], reply.get("ContentRange"), reply["ContentType"]


@pytest.mark.parametrize("key", [*_OBJECTS, "missing"])
def test_a_whole_object_is_answered_as_by_moto(clients: tuple[Any, Any], key: str) -> None:
    ours, theirs = _observe(clients, lambda client: _get(client, key))
    assert ours == theirs


@pytest.mark.parametrize(
    ("key", "wanted"),
    [
        ("a/b", "bytes=0-0"),
        ("a/b", "bytes=2-5"),
        ("a/b", "bytes=5-"),
        ("a/b", "bytes=-3"),
        ("a/b", "bytes=-50"),
        ("a/b", "bytes=9-200"),
        ("a/b", "bytes=10-"),
        ("a/b", "bytes=50-60"),
        ("empty", "bytes=0-0"),
        ("empty", "bytes=0-"),
    ],
)
def test_a_range_is_answered_as_by_moto(clients: tuple[Any, Any], key: str, wanted: str) -> None:
    ours, theirs = _observe(clients, lambda client: _get(client, key, Range=wanted))
    assert ours == theirs


@pytest.mark.parametrize("if_match", ['"wrong"', '"781e5e245d69b566979b86e28d23f2c7"'])
@pytest.mark.parametrize("operation", ["get_object", "head_object"])
def test_if_match_is_answered_as_by_moto(clients: tuple[Any, Any], operation: str, if_match: str) -> None:
    def observe(client: Any) -> Any:  # noqa: ANN401
        reply = getattr(client, operation)(Bucket="data", Key="a/b", IfMatch=if_match)
        if "Body" in reply:
            reply["Body"].close()
        return reply["ResponseMetadata"]["HTTPStatusCode"]

    ours, theirs = _observe(clients, observe)
    assert ours == theirs


@pytest.mark.parametrize(
    "action",
    [
        lambda client: client.head_bucket(Bucket="data")["ResponseMetadata"]["HTTPStatusCode"],
        lambda client: client.head_bucket(Bucket="none"),
        lambda client: client.get_bucket_location(Bucket="data")["LocationConstraint"],
        lambda client: client.get_bucket_location(Bucket="none"),
        lambda client: client.list_objects_v2(Bucket="none"),
        lambda client: client.get_object(Bucket="none", Key="a"),
        lambda client: client.head_object(Bucket="data", Key="a/b")["ContentLength"],
        lambda client: client.head_object(Bucket="data", Key="missing"),
    ],
)
def test_a_call_succeeds_or_fails_as_with_moto(clients: tuple[Any, Any], action: Callable[[Any], Any]) -> None:
    ours, theirs = _observe(clients, action)
    assert ours == theirs
