"""Credentials that the service refuses from one moment to the next, while others are, or are not, there to be had."""

import json
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import cycle
from pathlib import Path

import pytest
import trio

from fastfuse.errors import AccessError, ObjectDeniedError
from fastfuse.objects import ObjectRef
from fastfuse.s3.base import ConnectionConfig
from fastfuse.s3.client import S3Client
from tests.s3.places import client_of
from tests.servers import configure

IN_FLIGHT = 30
REF = ObjectRef("bucket", "key", 1000, '"e"')
PAGE = b'<?xml version="1.0"?>\n<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>'
# A few attempts and what a program takes to start, on a busy machine, too.
SOON_S = 20.0

# Keys that expire do so an hour after each call, as many programs tell it.
_PROGRAM = """
import datetime, json
with open("{calls}", "a") as calls, open("{reply}") as reply:
    calls.write(".")
    found = json.load(reply)
if not {lasts}:
    now = datetime.datetime.now(datetime.UTC)
    found["Expiration"] = (now + datetime.timedelta(hours=1)).isoformat()
print(json.dumps(found))
"""


class Server(ThreadingHTTPServer):
    """Accepts one token only, or one access key. It refuses those that come first when all of them are there."""

    # The end of the server waits for its threads, and each ends when the client has closed its connection.
    daemon_threads = False
    request_queue_size = 2 * IN_FLIGHT

    def __init__(self, status: int, code: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.status = status
        self.code = code
        self.accepted = "first"
        # Those that signed with anything else.
        self.refused: list[str] = []
        self.all_are_here: threading.Barrier | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def do_GET(self) -> None:
        authorization = self.headers.get("authorization", "")
        key, token = authorization.partition("Credential=")[2].partition("/")[0], self.headers["x-amz-security-token"]
        if self.server.accepted not in (key, token):
            self.server.refused.append(token or key)
            if self.server.all_are_here is not None:
                self.server.all_are_here.wait(SOON_S)
            self._refuse()
        elif self.headers["range"]:
            self._reply(206, {"Content-Range": f"bytes 0-9/{REF.size_bytes}"}, b"0123456789")
        elif "list-type" in self.path:
            self._reply(200, {}, PAGE)
        else:
            headers = {"Content-Length": "1000", "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT"}
            self._reply(200, headers, b"")

    do_HEAD = do_GET

    def _refuse(self) -> None:
        if self.command == "HEAD":  # no document, and so no code
            self._reply(self.server.status, {"Transfer-Encoding": "chunked"}, b"")
        else:
            document = f"<?xml version='1.0'?><Error><Code>{self.server.code}</Code></Error>"
            self._reply(self.server.status, {}, document.encode())

    def _reply(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response(status)
        length = {} if "Transfer-Encoding" in headers else {"Content-Length": str(len(body))}
        for name, value in ({"ETag": REF.etag} | length | headers).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def serving(status: int, code: str) -> Iterator[Server]:
    with Server(status, code) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


class Offer:
    """Where a client finds credentials: a shared file, or a program that prints them."""

    def __init__(self, kind: str, config: Path) -> None:
        self._kind = kind
        self._directory = config.parent
        self.profile = "default" if kind == "file" else "process"
        # A byte for each call.
        self._calls = self._directory / "calls"
        configure(self._calls, "")
        if kind != "file":
            program = self._directory / "process.py"
            reply = self._directory / "reply"
            configure(program, _PROGRAM.format(calls=self._calls, reply=reply, lasts=kind == "lasting process"))
            configure(config, f"[profile process]\ncredential_process = {sys.executable} {program}\n")

    def put(self, name: str) -> None:
        if self._kind == "file":
            keys = f"aws_access_key_id = {name}\naws_secret_access_key = s\naws_session_token = {name}\n"
            configure(self._directory / "credentials", f"[default]\n{keys}")
            return
        reply = {"Version": 1, "AccessKeyId": name, "SecretAccessKey": "s", "SessionToken": name}
        configure(self._directory / "reply", json.dumps(reply))

    @property
    def call_count(self) -> int:
        return len(self._calls.read_bytes())


@pytest.fixture(params=["file", "lasting process", "expiring process"])
def offer(request: pytest.FixtureRequest, aws_environment: Path, monkeypatch: pytest.MonkeyPatch) -> Offer:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    return Offer(request.param, aws_environment)


def client_for(server: Server, offer: Offer) -> "aclosing[S3Client]":
    """Return a client that is closed before its server is, whatever the test finds."""
    return aclosing(client_of(ConnectionConfig(endpoint_url=server.url, region="us-east-1", profile=offer.profile)))


def requests_of(client: S3Client) -> dict[str, Callable[[], Awaitable[object]]]:
    return {
        "get": partial(client.get, REF, 0, 10),
        "head": partial(client.head, "bucket", "key"),
        "list": partial(client.list, "bucket", prefix=""),
    }


REFUSALS = [(400, "ExpiredToken"), (400, "InvalidToken"), (403, "InvalidAccessKeyId")]


@pytest.mark.parametrize(("status", "code"), REFUSALS)
async def test_credentials_that_are_revoked_are_replaced_by_those_on_offer_and_nothing_fails(
    offer: Offer, status: int, code: str
) -> None:
    offer.put("first")
    with serving(status, code) as server:
        async with client_for(server, offer) as client:
            for ask in requests_of(client).values():
                await ask()
            asked_before = offer.call_count
            server.accepted = "second"
            server.all_are_here = threading.Barrier(IN_FLIGHT)
            offer.put("second")
            async with trio.open_nursery() as nursery:
                for _, ask in zip(range(IN_FLIGHT), cycle(requests_of(client).values()), strict=False):
                    nursery.start_soon(ask)
            assert server.refused == ["first"] * IN_FLIGHT
            assert offer.call_count - asked_before <= 2
            for ask in requests_of(client).values():
                await ask()
            assert len(server.refused) == IN_FLIGHT


# Only a HEAD, which has no document, is refused by its status alone.
@pytest.mark.parametrize(
    ("verb", "status", "code"),
    [("get", *REFUSALS[0]), ("head", *REFUSALS[1]), ("head", *REFUSALS[2]), ("list", *REFUSALS[2])],
)
async def test_where_nothing_else_is_on_offer_the_refusal_is_told_soon(
    offer: Offer, verb: str, status: int, code: str
) -> None:
    offer.put("first")
    with serving(status, code) as server:
        async with client_for(server, offer) as client:
            await requests_of(client)[verb]()
            asked_before = offer.call_count
            server.accepted = "second"
            offer.put("first")
            with trio.fail_after(SOON_S), pytest.raises(ObjectDeniedError if verb == "get" else AccessError) as caught:
                await requests_of(client)[verb]()
            assert str(status) in str(caught.value)
            assert offer.call_count - asked_before <= 4
