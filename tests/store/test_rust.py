import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from obstore.exceptions import GenericError, PermissionDeniedError

from fastfuse.errors import (
    BadReplyError,
    ObjectChangedError,
    ObjectDeniedError,
    ReadError,
    StoreUnsuitableError,
    UnavailableError,
)
from fastfuse.objects import ObjectRef
from fastfuse.store.base import ConnectionConfig
from fastfuse.store.rust import RustRangeReader, _translated, can_name, unsuitable_reason
from fastfuse.store.session import S3Session
from fastfuse.testing import LoopbackServer, MemoryObjects
from tests.store.test_contract import ODD_KEYS, ORDINARY_KEYS

SERVER_SAID = "Server returned non-2xx status code: "
# What a key may hold, with the characters that an HTTP client may treat in its own way made likely.
PIECES = st.one_of(
    st.sampled_from(
        ["/", ".", "..", "%", "%2F", "%2e", "+", " ", "?", "#", "~", "*", "\\", "{", "|", "^", "`", "\x7f"]
    ),
    st.text(st.characters(codec="utf-8"), min_size=1, max_size=3),
)
KEYS = st.lists(PIECES, min_size=1, max_size=8).map("".join)


def test_what_obstore_cannot_name_is_known() -> None:
    assert [key for key in ORDINARY_KEYS if not can_name(key)] == []
    assert {key for key in ODD_KEYS if can_name(key)} == {'a"b', "a\\b", "x" * 1000}


@given(KEYS)
@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_key_that_passes_the_predicate_arrives_as_it_is(key: str) -> None:
    """One at a time against a real server: a rewritten key would be another object's."""
    if not can_name(key):
        return
    with LoopbackServer({"bucket": MemoryObjects({key: key.encode() + b"."})}) as server:
        config = ConnectionConfig(endpoint_url=server.endpoint_url, region="us-east-1", sign_request=False)

        async def read() -> bytes:
            size = len(key.encode()) + 1
            reader = RustRangeReader(S3Session(config), "bucket")
            return bytes(await reader.get_range(ObjectRef("bucket", key, size, ""), 0, size))

        assert trio.run(read) == key.encode() + b"."
        assert [request.key for request in server.requests] == [key]


@pytest.mark.parametrize("key", [key for key in ODD_KEYS if not can_name(key)])
async def test_a_key_that_it_cannot_name_is_refused_before_any_request(key: str) -> None:
    with LoopbackServer({"bucket": MemoryObjects({key: b"data"})}) as server:
        reader = RustRangeReader(S3Session(ConnectionConfig(endpoint_url=server.endpoint_url)), "bucket")
        with pytest.raises(StoreUnsuitableError, match="cannot name") as caught:
            await reader.get_range(ObjectRef("bucket", key, 4, ""), 0, 4)
        assert not caught.value.whole_server
        assert server.requests == ()


@pytest.mark.parametrize(
    ("bucket", "profile", "reason"),
    [
        ("bucket", "", ""),
        ("bucket--use1-az4--x-s3", "", "a directory bucket"),
        ("arn:aws:s3:eu-west-1:123456789012:accesspoint/a", "", "an access point ARN"),
        ("bucket", "use_fips_endpoint = true", "use_fips_endpoint"),
        ("bucket", "use_dualstack_endpoint = true", "use_dualstack_endpoint"),
        ("bucket", "s3 =\n  use_accelerate_endpoint = true", "use_accelerate_endpoint"),
    ],
)
def test_addresses_that_obstore_does_not_know_are_left_to_botocore(
    bucket: str, profile: str, reason: str, aws_environment: Path
) -> None:
    aws_environment.write_text(f"[profile own]\n{profile}\n")
    assert unsuitable_reason(S3Session(ConnectionConfig(profile="own")), bucket) == reason


async def test_the_environment_does_not_lead_obstore_to_another_server(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "true")
    monkeypatch.setenv("AWS_REGION", "mars-east-1")
    with LoopbackServer({"bucket": MemoryObjects({"key": b"data"})}) as server:
        config = ConnectionConfig(endpoint_url=server.endpoint_url, region="us-east-1")
        reader = RustRangeReader(S3Session(config), "bucket")
        assert await reader.get_range(ObjectRef("bucket", "key", 4, ""), 0, 4) == b"data"


async def test_an_unsigned_read_needs_no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with LoopbackServer({"bucket": MemoryObjects({"key": b"data"})}) as server:
        config = ConnectionConfig(endpoint_url=server.endpoint_url, region="us-east-1", sign_request=False)
        reader = RustRangeReader(S3Session(config), "bucket")
        assert await reader.get_range(ObjectRef("bucket", "key", 4, ""), 0, 4) == b"data"


async def test_a_closed_reader_starts_no_read() -> None:
    reader = RustRangeReader(S3Session(replace(ConnectionConfig(), region="us-east-1")), "bucket")
    await reader.aclose()
    with pytest.raises(RuntimeError, match="closed"):
        await reader.get_range(ObjectRef("bucket", "key", 4, ""), 0, 4)


def test_importing_the_reader_starts_no_thread() -> None:
    """obstore may not be used before a fork; this is run in a process of its own."""
    program = "import os, fastfuse.store.router; print(len(os.listdir('/proc/self/task')))"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "1\n"


@pytest.mark.parametrize(
    ("error", "expected", "message"),
    [
        (GenericError(f"{SERVER_SAID}503 Slow Down: <Error><Code>SlowDown</Code>"), UnavailableError, "503 SlowDown"),
        (GenericError(f"{SERVER_SAID}400 Bad Request: <Code>ExpiredToken</Code>"), ObjectDeniedError, "ExpiredToken"),
        (GenericError("Received redirect without LOCATION, this normally"), UnavailableError, "301"),
        (GenericError("HTTP error: error sending request"), UnavailableError, "connection failed"),
        (GenericError("Requested 2..5, got 0..3"), BadReplyError, "another range"),
        (GenericError("Received non-partial response when range requested"), StoreUnsuitableError, "replies"),
        (PermissionDeniedError(f"{SERVER_SAID}403 Forbidden"), ObjectDeniedError, "403"),
        (FileNotFoundError(f"Object at {SERVER_SAID}500 x not found: {SERVER_SAID}404"), ObjectChangedError, "404"),
        (ValueError("Could not parse path"), StoreUnsuitableError, "refuses the key"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_obstore_says_is_understood(error: Exception, expected: type[ReadError], message: str) -> None:
    translated = _translated(error, ObjectRef("bucket", "key", 1, ""))
    assert type(translated) is expected
    assert message in str(translated)
