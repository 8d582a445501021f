import asyncio
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import obstore
import pytest
import trio
import trio.testing
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
from fastfuse.store.asyncio_calls import call
from fastfuse.store.base import ConnectionConfig
from fastfuse.store.boto import BotoRangeReader
from fastfuse.store.credentials import Credentials, CredentialSource
from fastfuse.store.router import RoutingReader
from fastfuse.store.rust import RustRangeReader, _translated, can_name
from fastfuse.store.rust_client import no_panic
from fastfuse.store.session import S3Session
from fastfuse.testing import (
    ACCESS_DENIED,
    SLOW_DOWN,
    Delay,
    FaultRule,
    LoopbackServer,
    MemoryObjects,
    Pace,
    ServerConfig,
)
from tests.servers import create_chain
from tests.store.places import rust_reader
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
            reader = rust_reader(config)
            return bytes(await reader.get_range(ObjectRef("bucket", key, size, ""), 0, size))

        assert trio.run(read) == key.encode() + b"."
        assert [request.key for request in server.requests] == [key]


@pytest.mark.parametrize("key", [key for key in ODD_KEYS if not can_name(key)])
async def test_a_key_that_it_cannot_name_is_refused_before_any_request(key: str) -> None:
    with LoopbackServer({"bucket": MemoryObjects({key: b"data"})}) as server:
        reader = rust_reader(ConnectionConfig(endpoint_url=server.endpoint_url))
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
    assert S3Session(ConnectionConfig(profile="own")).special_endpoint(bucket) == reason


async def test_the_environment_does_not_lead_obstore_to_another_server(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "true")
    monkeypatch.setenv("AWS_REGION", "mars-east-1")
    with LoopbackServer({"bucket": MemoryObjects({"key": b"data"})}) as server:
        config = ConnectionConfig(endpoint_url=server.endpoint_url, region="us-east-1")
        reader = rust_reader(config)
        assert await reader.get_range(ObjectRef("bucket", "key", 4, ""), 0, 4) == b"data"


async def test_an_unsigned_read_needs_no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with LoopbackServer({"bucket": MemoryObjects({"key": b"data"})}) as server:
        config = ConnectionConfig(endpoint_url=server.endpoint_url, region="us-east-1", sign_request=False)
        reader = rust_reader(config)
        assert await reader.get_range(ObjectRef("bucket", "key", 4, ""), 0, 4) == b"data"


async def test_a_closed_reader_starts_no_read() -> None:
    reader = rust_reader(replace(ConnectionConfig(), region="us-east-1"))
    await reader.aclose()
    with pytest.raises(RuntimeError, match="closed"):
        await reader.get_range(ObjectRef("bucket", "key", 4, ""), 0, 4)


def test_importing_the_reader_starts_no_thread() -> None:
    """obstore may not be used before a fork; this is run in a process of its own."""
    program = (
        "import os; os.environ['OPENBLAS_NUM_THREADS'] = '1'; "  # numpy's own threads are not what this is about
        "import fastfuse.store.router; print(len(os.listdir('/proc/self/task')))"
    )
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


# Each looks like something that obstore says, as it is or quoted in a URL.
DECEIVING_KEYS = (
    "CONTENT_RANGE.bin", "CONTENT_RANGE é", "a/MissingContentLength", "InvalidCertificate(x)",
    "Requested 1..2, got 3", "status code: 403", "<Code>ExpiredToken</Code>", '<Code>ExpiredToken</Code>"',
    "redirect without LOCATION", "non-partial response",
)  # fmt: skip


@pytest.mark.parametrize("key", DECEIVING_KEYS)
async def test_a_key_that_looks_like_an_error_is_told_from_one(key: str) -> None:
    """Above all it does not send every other object of the bucket to the slow client."""
    with LoopbackServer({"bucket": MemoryObjects({key: b"data"})}) as server:
        config = ConnectionConfig(endpoint_url=server.endpoint_url, region="us-east-1", deadline_s=0.5)
        reader = rust_reader(config)
        ref = ObjectRef("bucket", key, 4, "")
        assert await reader.get_range(ref, 0, 4) == b"data"
        missing = replace(ref, key=f"{key} is not there")
        with pytest.raises(ObjectChangedError, match="404"):
            await reader.get_range(missing, 0, 4)
        for action, error, message in (
            (ACCESS_DENIED, ObjectDeniedError, "denies access .*403 AccessDenied"),
            (SLOW_DOWN, UnavailableError, "503 SlowDown"),
        ):
            rule = server.faults.add(FaultRule(action=action))
            with pytest.raises(ReadError, match=message) as caught:
                await reader.get_range(ref, 0, 4)
            assert type(caught.value) is error
            server.faults.remove(rule)
    with pytest.raises(UnavailableError, match="connection failed"):  # there is no server any more
        await reader.get_range(ref, 0, 4)


@pytest.mark.parametrize("key", DECEIVING_KEYS)
def test_a_refusal_without_a_document_has_no_code_from_its_key(key: str) -> None:
    quoted = key.replace('"', '\\"')
    text = f'Object at location {key} not found: {SERVER_SAID}404 Not Found: \n\nDebug source:\npath: "{quoted}"'
    translated = _translated(FileNotFoundError(text), ObjectRef("bucket", key, 1, ""))
    assert type(translated) is ObjectChangedError
    assert "(404)" in str(translated)


def test_a_short_key_takes_nothing_out_of_what_obstore_says() -> None:
    error = GenericError(f"{SERVER_SAID}503 Slow Down: <Error><Code>SlowDown</Code>")
    for key in ("o", "e", "Code", "status code"):
        assert "503 SlowDown" in str(_translated(error, ObjectRef("bucket", key, 1, "")))


async def test_a_panic_of_obstore_sends_the_object_to_the_other_client(capfd: pytest.CaptureFixture[str]) -> None:
    """The kernel would repeat a read that ended the worker. A token that no header can carry makes a panic."""

    async def resolve() -> Credentials:
        await trio.lowlevel.checkpoint()
        return Credentials(access_key="AKIA", secret_key="secret", token="a token with a\nnew line")

    with LoopbackServer({"bucket": MemoryObjects({"key": b"data"})}) as server:
        session = S3Session(ConnectionConfig(endpoint_url=server.endpoint_url, region="us-east-1"))
        fast = RustRangeReader(session, "bucket", trio.Semaphore(8))
        general = BotoRangeReader(S3Session(session.config), "bucket")
        session.credentials = CredentialSource(resolve)
        ref = ObjectRef("bucket", "key", 4, "")
        with pytest.raises(StoreUnsuitableError, match="panicked") as caught:
            await fast.get_range(ref, 0, 4)
        assert not caught.value.whole_server
        assert "panicked" in capfd.readouterr().err  # it was a real one
        routed = RoutingReader(fast=lambda _: fast, general=lambda _: general)
        assert await routed.get_range(ref, 0, 4) == b"data"
        await routed.aclose()


async def test_cancelling_a_read_ends_its_request(monkeypatch: pytest.MonkeyPatch) -> None:
    is_body_awaited = trio.Event()

    async def call_and_tell(function: Callable[..., Awaitable[object]], *args: object, **kwargs: object) -> object:
        if function is not obstore.get_async:
            is_body_awaited.set()
        return await call(function, *args, **kwargs)

    monkeypatch.setattr("fastfuse.store.rust.call", call_and_tell)
    data, slow = bytes(32 << 20), ServerConfig(pace=Pace(rate_bytes_per_s=1e6))
    with LoopbackServer({"bucket": MemoryObjects({"key": data})}, slow) as server:
        reader = rust_reader(ConnectionConfig(endpoint_url=server.endpoint_url, region="r"))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(reader.get_range, ObjectRef("bucket", "key", len(data), ""), 0, len(data))
            await is_body_awaited.wait()
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        await trio.to_thread.run_sync(server.wait_until, lambda now: now.open_connections == 0)
        await reader.aclose()


async def test_no_more_are_under_way_at_once_than_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    under_way = most = 0

    async def fetch(*_: object) -> bytes:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await trio.testing.wait_all_tasks_blocked()
        under_way -= 1
        return b"data"

    monkeypatch.setattr("fastfuse.store.rust._fetch", fetch)
    with LoopbackServer({"bucket": MemoryObjects({"key": b"data"})}) as server:
        session = S3Session(ConnectionConfig(endpoint_url=server.endpoint_url, region="us-east-1"))
        slots = trio.Semaphore(8)
        reader = RustRangeReader(session, "bucket", slots, most_at_once=3)
        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(reader.get_range, ObjectRef("bucket", "key", 4, ""), 0, 4)
        assert (most, slots.value) == (3, 8)
        await reader.aclose()


async def test_an_obstore_that_wants_more_of_a_loop_is_not_read_with(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("obstore.get_async", lambda *_, **__: asyncio.get_running_loop().create_task(None))  # type: ignore[arg-type]
    with LoopbackServer({"bucket": MemoryObjects({"key": b"data"})}) as server:
        session = S3Session(ConnectionConfig(endpoint_url=server.endpoint_url, region="r"))
        reader = RustRangeReader(session, "bucket", trio.Semaphore(8))
        with pytest.raises(StoreUnsuitableError, match="needs a loop of asyncio") as caught:
            await reader.get_range(ObjectRef("bucket", "key", 4, ""), 0, 4)
        assert caught.value.whole_server
        await reader.aclose()


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit, ValueError])
def test_what_is_no_panic_passes(kind: type[BaseException]) -> None:
    with pytest.raises(kind), no_panic(whole_server=False):
        raise kind


# Far beyond what these tests set as limits, and below what obstore would take by itself (20 s).
PATIENCE_S = 10.0


async def test_a_tls_server_that_never_answers_holds_nobody_up_for_longer_than_a_connection_may_take(
    tmp_path: Path,
) -> None:
    authority, issued = create_chain(tmp_path)
    rule = FaultRule(action=Delay(3600), operation="HeadObject")
    with LoopbackServer({"bucket": MemoryObjects({"key": b"data"})}, ServerConfig(tls=issued), [rule]) as server:
        config = ConnectionConfig(
            endpoint_url=server.endpoint_url, region="us-east-1", ca_bundle=str(authority), connect_timeout_s=0.3
        )
        reader = rust_reader(config)
        with trio.fail_after(PATIENCE_S):
            assert await reader.get_range(ObjectRef("bucket", "key", 4, ""), 0, 4) == b"data"


async def test_opening_the_client_can_be_given_up_at_any_time(tmp_path: Path) -> None:
    authority, _ = create_chain(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as listener:  # connections wait in its queue for ever
        config = ConnectionConfig(
            endpoint_url=f"https://127.0.0.1:{listener.getsockname()[1]}", region="us-east-1",
            ca_bundle=str(authority), connect_timeout_s=3.0,
        )  # fmt: skip
        reader = rust_reader(config)
        with trio.move_on_after(0.1) as given_up:
            await reader.prepare()
        assert given_up.cancelled_caught
