"""GETs without the interpreter: each is right, or left to the client, whatever a server sends."""

import shutil
import socket
import struct
import subprocess
from base64 import b64encode
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest
import trio

from fastfuse.s3.checksums import digest_of
from fastfuse.s3.credentials import Credentials
from fastfuse.s3.endpoints import Endpoint
from fastfuse.s3.routes import Route
from fastfuse.s3.signing import Signer
from tests.s3 import hostile, hostile_rows
from tests.s3.hostile import (
    BUCKET,
    DATA,
    REF,
    Hostile,
    Peer,
    Reply,
    Request,
    create_certificates,
    good,
    good_reply,
    serving,
)
from tests.s3.hostile_rows import ROWS, Ending, Row

# The silence that ends a GET, and how long a part may take: a busy machine may take longer for what is right.
_SHORT_MS, _LONG_MS = (150, 3600), (60_000, 180_000)
_CREDENTIALS = Credentials(access_key="AKIATESTTESTTESTTEST", secret_key="secret" * 6, token="token/+=")


def whole_reply(request: Request) -> Reply:
    reply = good_reply(request)
    return reply.with_status("200 OK").without("Content-Range") if request.verb == "get" else reply


@pytest.fixture(autouse=True)
def _replies_are_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (hostile, hostile_rows):
        monkeypatch.setattr(module, "good_reply", whole_reply)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("gcc") is None:
        pytest.skip("no compiler")
    path = tmp_path_factory.mktemp("program") / "direct-get"
    source = Path(__file__).with_name("direct_get.c")
    sanitizers = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    command = ["gcc", "-O1", "-g", "-Wall", "-Werror", *sanitizers, "-o", str(path), str(source), "-lssl", "-lcrypto"]
    subprocess.run(command, check=True)
    return path


def route_to(port: int, scheme: str) -> Route:
    endpoint = Endpoint(
        scheme=scheme, host="127.0.0.1", port=port, host_header=f"127.0.0.1:{port}", base_path=f"/{BUCKET}",
        region="us-east-1", signing_name="s3", proxy=None,
    )  # fmt: skip
    signer = Signer(endpoint, {"x-amz-checksum-mode": "ENABLED"})
    head = f" HTTP/1.1\r\nhost: {endpoint.host_header}\r\n"
    return Route(bucket="bucket", endpoint=endpoint, origin="", head=head, objects=signer, lists=signer, idle=[])


class Getter:
    def __init__(self, process: trio.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._stdin, self._stdout = process.stdin, process.stdout
        self._rest = b""
        # What came last was acknowledged at once.
        self.is_prompt = False

    async def tell(self, *texts: bytes) -> None:
        for text in texts:
            await self._stdin.send_all(struct.pack("=I", len(text)) + text)

    async def get(
        self, path: str = REF.key, span: tuple[int, int] | None = None, *, limits_ms: tuple[int, int] = _LONG_MS
    ) -> tuple[bool, bool, bytes]:
        """Return whether it went right, whether there was a checksum, and what came: of all, or of a part."""
        await self.tell(path.encode(), REF.etag.encode())
        start, end = span or (0, 0)
        await self._stdin.send_all(struct.pack("=5I", len(DATA), start, end - start, *limits_ms))
        is_right, is_checked, is_prompt = await self._receive(3)
        self.is_prompt = is_prompt != 0
        size_bytes = end - start or len(DATA)
        return bool(is_right), bool(is_checked), await self._receive(size_bytes) if is_right else b""

    async def _receive(self, size_bytes: int) -> bytes:
        while len(self._rest) < size_bytes:
            received = await self._stdout.receive_some()
            assert received, "the program has ended: see its report"
            self._rest += received
        taken, self._rest = self._rest[:size_bytes], self._rest[size_bytes:]
        return taken


@asynccontextmanager
async def getting(
    program: Path,
    hostile: Hostile,
    credentials: Credentials | None = _CREDENTIALS,
    *,
    other_ports: str = "",
) -> AsyncIterator[Getter]:
    certificates = hostile.certificates
    more = [] if certificates is None else [str(certificates.authority)]
    command = [str(program), f"{other_ports}{hostile.port}", *more]
    async with trio.open_nursery() as nursery:
        run = partial(trio.run_process, command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, check=False)
        process = await nursery.start(run)
        getter = Getter(process)
        route = route_to(hostile.port, "http" if certificates is None else "https")
        await getter.tell(*route.texts(credentials, ""))
        yield getter
        nursery.cancel_scope.cancel()


def is_asked(row: Row, transport: str, span: tuple[int, int] | None) -> bool:
    """Return whether the row is for a GET to a server that is trusted, and for one without Range if it is whole."""
    is_of_range = "Content-Range" in row.name or "range" in row.name.lower()
    return transport in row.transports and bool(row.get) and row.context == "good" and not (is_of_range and not span)


@pytest.mark.parametrize("span", [None, (1000, 290_000)], ids=["whole", "part"])
@pytest.mark.parametrize("transport", ["plain", "tls"])
async def test_what_a_hostile_server_sends_is_right_or_left_to_the_client(
    program: Path, transport: str, span: tuple[int, int] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if span:
        monkeypatch.undo()  # as the service answers a GET with Range
    data = DATA[slice(*span)] if span else DATA
    certificates = create_certificates(tmp_path) if transport == "tls" else None
    # The scripts are mostly the same bytes within TLS.
    rows = [row for row in ROWS if is_asked(row, transport, span)]
    rows = [row for row in rows if transport == "plain" or row.name.startswith("TLS")]
    taken = set()
    async with serving(certificates) as server, getting(program, server) as getter:
        wrong = []
        for row in rows:
            server.misbehave(row.answer, accept=row.accept, context=row.context)
            is_right, _, got = await getter.get(span=span, limits_ms=_SHORT_MS)
            if is_right:
                if Ending.RIGHT not in row.get or got != data:
                    wrong.append(row.name)
                taken.add(row.name)
            server.misbehave(good if span else _whole, accept=None, context="good")
            assert await getter.get(span=span) == (True, False, data), row.name
            server.hang_up()
    assert wrong == []
    assert taken


@pytest.mark.parametrize("transport", ["plain", "tls"])
@pytest.mark.parametrize("first_bytes", [1, 4000, 250_000])
async def test_a_part_comes_whole_however_it_is_cut_up(
    program: Path, first_bytes: int, transport: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    certificates = create_certificates(tmp_path) if transport == "tls" else None

    async def answer(peer: Peer, request: Request) -> None:
        reply = good_reply(request).encode()
        await peer.send(reply[:first_bytes])
        await peer.send(reply[first_bytes:])

    spans = [(0, 299_999), (1, 300_000), (7, 8), (100, 262_244), (100, 262_245)]
    # Around what a thread waits for at once, and twice as much.
    spans += [(0, (times << 16) + more) for times in (1, 2, 3, 4) for more in (-1, 0, 1, 5000)]
    async with serving(certificates) as server, getting(program, server) as getter:
        server.misbehave(answer, accept=None, context="good")
        for span in spans:
            assert await getter.get(span=span) == (True, False, DATA[slice(*span)]), span
            # A server that uses Nagle's algorithm sends what follows the head only then.
            assert getter.is_prompt or span[1] - span[0] < 4096, span
        assert server.hostile_replies == len(server.peers) + len(spans) - 1  # over one connection


async def test_a_steady_part_may_take_longer_than_a_drip(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()

    async def answer(peer: Peer, request: Request) -> None:
        reply = good_reply(request).encode()
        await peer.send(reply[:200_000])
        # A drip is ended after a third of the limit. What has come is counted after one silence; two end any GET.
        await trio.sleep(5.0)
        await peer.send(reply[200_000:])

    async with serving() as server, getting(program, server) as getter:
        server.misbehave(answer, accept=None, context="good")
        assert await getter.get(span=(0, 300_000), limits_ms=(4500, 12_000)) == (True, False, DATA)


@pytest.mark.parametrize(("listens", "found"), [(False, [True, True]), (True, [False, True])], ids=["dead", "silent"])
async def test_an_address_that_does_not_answer_is_followed_by_the_next(
    program: Path, listens: bool, found: list[bool]
) -> None:
    async with serving() as server:
        with socket.socket() as other:
            other.bind(("127.0.0.1", 0))
            if listens:
                other.listen()
            others = f"{other.getsockname()[1]},"
            async with getting(program, server, other_ports=others) as getter:
                server.misbehave(_whole, accept=None, context="good")
                for is_right in found:
                    limits_ms = _LONG_MS if is_right else _SHORT_MS
                    assert (await getter.get(limits_ms=limits_ms))[0] == is_right


async def _whole(peer: Peer, request: Request) -> None:
    await peer.send(whole_reply(request).encode())


def answering(change: Callable[[Reply], Reply]) -> Callable[[Peer, Request], object]:
    async def answer(peer: Peer, request: Request) -> None:
        await peer.send(change(whole_reply(request)).encode())

    return answer


@pytest.mark.parametrize("algorithm", ["crc64nvme", "crc32c", "crc32", "sha1", "sha256"])
async def test_bytes_are_compared_with_the_checksum_of_the_service(program: Path, algorithm: str) -> None:
    header = f"x-amz-checksum-{algorithm}"
    right = b64encode(digest_of(algorithm, DATA)).decode()
    wrong = b64encode(digest_of(algorithm, DATA[:-1] + b"!")).decode()
    async with serving() as server, getting(program, server) as getter:
        for change, expected in (
            (lambda reply: reply.with_header(header, right), (True, True, DATA)),
            (lambda reply: reply.with_header(header, wrong), (False, True, b"")),
            (lambda reply: reply.with_header(header, right[:-2]), (False, True, b"")),
            (lambda reply: reply.with_header(header, f"{right}-3"), (True, False, DATA)),
            (
                lambda reply: reply.with_header(header, wrong).also(b"x-amz-checksum-type: COMPOSITE"),
                (True, False, DATA),
            ),
            (lambda reply: reply.with_header(header, right).also(f"{header}: {right}".encode()), (False, False, b"")),
        ):
            server.misbehave(answering(change), accept=None, context="good")  # type: ignore[arg-type]
            assert await getter.get() == expected


@pytest.mark.parametrize("credentials", [_CREDENTIALS, None])
async def test_a_request_is_the_one_that_the_client_sends(program: Path, credentials: Credentials | None) -> None:
    seen: list[Request] = []

    async def note(peer: Peer, request: Request) -> None:
        seen.append(request)
        await _whole(peer, request)

    async with serving() as server, getting(program, server, credentials) as getter:
        server.misbehave(note, accept=None, context="good")
        for path in ("key", "a%20b/%C3%A4", "x" * 3000):
            assert (await getter.get(path))[0]
        assert server.hostile_replies == len(server.peers) + 2  # over one connection
        await getter.get("key", (5, 17))
    assert seen.pop().headers["range"] == "bytes=5-16"
    for request, path in zip(seen, ("key", "a%20b/%C3%A4", "x" * 3000), strict=True):
        assert (request.method, request.target) == ("GET", f"/{BUCKET}/{path}")
        assert request.headers["if-match"] == REF.etag
        assert "range" not in request.headers
        assert request.headers["x-amz-checksum-mode"] == "ENABLED"
        assert request.headers.get("authorization") == signature_of(request, credentials)


def signature_of(request: Request, credentials: Credentials | None) -> str | None:
    """Return how the client signs the same request at the same second."""
    if credentials is None:
        return None
    at = datetime.strptime(request.headers["x-amz-date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    port = int(request.headers["host"].partition(":")[2])
    lines = route_to(port, "http").objects.lines(request.target, credentials, at.timestamp())
    return lines.partition("authorization: ")[2].rstrip()
