"""Credentials that the service refuses from one moment to the next, while others are, or are not, there to be had."""

import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from datetime import timedelta
from functools import partial
from itertools import cycle
from pathlib import Path

import pytest
import trio

from fastfuse.errors import AccessError, ObjectDeniedError
from fastfuse.objects import ObjectRef
from fastfuse.s3.base import ConnectionConfig
from fastfuse.s3.client import S3Client
from tests.s3.canned import Target, canned_server
from tests.s3.places import LISTING, client_of, listed
from tests.s3.test_credentials import process_reply, write_process_profile
from tests.servers import configure

IN_FLIGHT = 30
REF = ObjectRef("bucket", "key", 1000, '"e"')
# A few attempts and what a program takes to start, on a busy machine, too.
SOON_S = 20.0


class Service:
    """Accepts one access key only. It refuses those that come first when all of them are there."""

    def __init__(self, status: int, code: str) -> None:
        self.status = status
        self.document = f"<?xml version='1.0'?><Error><Code>{code}</Code></Error>".encode()
        self.accepted = "first"
        # Those that signed with anything else.
        self.refused: list[str] = []
        self.all_are_here: threading.Barrier | None = None

    def reply(self, target: Target) -> tuple[int, dict[str, str], bytes]:
        key = target.headers.get("authorization", "").partition("Credential=")[2].partition("/")[0]
        if key != self.accepted:
            self.refused.append(key)
            if self.all_are_here is not None:
                self.all_are_here.wait(SOON_S)
            if target.method == "HEAD":  # no document, and so no code
                return self.status, {"Transfer-Encoding": "chunked"}, b""
            return self.status, {}, self.document
        if "range" in target.headers:
            return 206, {"ETag": REF.etag, "Content-Range": f"bytes 0-9/{REF.size_bytes}"}, b"0123456789"
        if "list-type" in target:
            return 200, {}, LISTING
        return 200, {"ETag": REF.etag, "Content-Length": "1000", "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT"}, b""


class Offer:
    """Where a client finds credentials: a shared file, or a program that prints them."""

    def __init__(self, kind: str, config: Path) -> None:
        self._lasts = kind == "lasting process"
        self._credentials, self._reply = config.with_name("credentials"), config.with_name("reply")
        # A byte for each call.
        self._calls = config.with_name("calls")
        configure(self._calls, "")
        self.profile = "default" if kind == "file" else "process"
        if kind != "file":
            write_process_profile(config, self._reply, calls=self._calls)

    def put(self, name: str) -> None:
        keys = f"[default]\naws_access_key_id = {name}\naws_secret_access_key = s\naws_session_token = {name}\n"
        configure(self._credentials, keys)
        reply = json.loads(process_reply(name, timedelta(hours=1)))
        if self._lasts:
            del reply["Expiration"]
        configure(self._reply, json.dumps(reply))

    @property
    def call_count(self) -> int:
        return len(self._calls.read_bytes())


@pytest.fixture
def offer(request: pytest.FixtureRequest, aws_environment: Path, monkeypatch: pytest.MonkeyPatch) -> Offer:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    return Offer(request.param, aws_environment)


@asynccontextmanager
async def client_for(service: Service, offer: Offer) -> AsyncIterator[S3Client]:
    """Open a client of the service, which is closed before its server is, whatever the test finds."""
    with canned_server(service.reply) as server:
        config = ConnectionConfig(endpoint_url=server.url, region="us-east-1", profile=offer.profile)
        async with aclosing(client_of(config)) as client:
            yield client


def requests_of(client: S3Client) -> dict[str, Callable[[], Awaitable[object]]]:
    return {
        "get": partial(client.get, REF, 0, 10),
        "head": partial(client.head, "bucket", "key"),
        "list": partial(listed, client),
    }


REFUSALS = [(400, "ExpiredToken"), (400, "InvalidToken"), (403, "InvalidAccessKeyId")]
PROGRAMS = ("lasting process", "expiring process")


# Where credentials come from, and how they are refused, have nothing to do with each other.
@pytest.mark.parametrize(
    ("offer", "status", "code"),
    [*(("file", *refusal) for refusal in REFUSALS), *((program, *REFUSALS[0]) for program in PROGRAMS)],
    indirect=["offer"],
)
async def test_revoked_credentials_are_replaced_by_those_on_offer(offer: Offer, status: int, code: str) -> None:
    offer.put("first")
    service = Service(status, code)
    async with client_for(service, offer) as client:
        for ask in requests_of(client).values():
            await ask()
        asked_before = offer.call_count
        service.accepted = "second"
        service.all_are_here = threading.Barrier(IN_FLIGHT)
        offer.put("second")
        async with trio.open_nursery() as nursery:
            for _, ask in zip(range(IN_FLIGHT), cycle(requests_of(client).values()), strict=False):
                nursery.start_soon(ask)
        assert service.refused == ["first"] * IN_FLIGHT
        assert offer.call_count - asked_before <= 2
        for ask in requests_of(client).values():
            await ask()
        assert len(service.refused) == IN_FLIGHT


# Only a HEAD, which has no document, is refused by its status alone.
@pytest.mark.parametrize(
    ("offer", "verb", "status", "code"),
    [
        ("file", "get", *REFUSALS[0]),
        *((offer, "head", *REFUSALS[1]) for offer in ("file", *PROGRAMS)),
        ("file", "head", *REFUSALS[2]),
        ("file", "list", *REFUSALS[2]),
    ],
    indirect=["offer"],
)
async def test_without_another_offer_the_refusal_is_told_soon(offer: Offer, verb: str, status: int, code: str) -> None:
    offer.put("first")
    service = Service(status, code)
    async with client_for(service, offer) as client:
        await requests_of(client)[verb]()
        asked_before = offer.call_count
        service.accepted = "second"
        offer.put("first")
        with trio.fail_after(SOON_S), pytest.raises(ObjectDeniedError if verb == "get" else AccessError) as caught:
            await requests_of(client)[verb]()
        assert str(status) in str(caught.value)
        assert offer.call_count - asked_before <= 4
