"""What a command is told where something else than S3 answers, and that a service in trouble is waited for."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfuse.errors import FastfuseError, ServiceError
from fastfuse.index.listing.page import Page, Pager, parse_page
from fastfuse.s3 import retry_policy
from fastfuse.s3.base import ConnectionConfig
from fastfuse.s3.bodies import failure_of_refusal
from fastfuse.s3.client import S3Client
from fastfuse.s3.failures import Kind
from fastfuse.s3.http1 import ReplyHead, first_words
from tests.s3.hostile import Act, Answer, Certificates, Hostile, Peer, Request, create_certificates, serving
from tests.s3.places import LISTING, client_of

PAGE = b"<!DOCTYPE html><html><head><title>Welcome to nginx!</title></head><body>It works.</body></html>"


@asynccontextmanager
async def stranger(
    answer: Answer, *, accept: Act | None = None, scheme: str = "http", certificates: Certificates | None = None
) -> AsyncIterator[tuple[ConnectionConfig, Hostile]]:
    async with serving(certificates) as server:
        server.misbehave(answer, accept=accept, context="good")
        yield ConnectionConfig(endpoint_url=f"{scheme}://127.0.0.1:{server.port}", region="us-east-1"), server


async def close(peer: Peer, _: Request) -> None:
    await peer.end()


async def reset(peer: Peer, _: Request) -> None:
    peer.reset()


def reply(data: bytes) -> Answer:
    async def answer(peer: Peer, _: Request) -> None:
        await peer.send(data)
        await peer.end()

    return answer


def http(status: str, body: bytes = b"", media_type: str = "text/html; charset=utf-8", more: str = "") -> Answer:
    head = f"HTTP/1.1 {status}\r\nContent-Type: {media_type}\r\nContent-Length: {len(body)}\r\n{more}"
    return reply(f"{head}Connection: close\r\n\r\n".encode() + body)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry_policy, "FIRST_PAUSE_S", 0.001)


async def use(config: ConnectionConfig, ask: Callable[[S3Client], Awaitable[object]]) -> FastfuseError:
    async with aclosing(client_of(config)) as client:
        with pytest.raises(FastfuseError) as caught:
            await ask(client)
    return caught.value


async def listed(client: S3Client) -> Page:
    return await Pager(client, "bucket", client._retries).page("")


STRANGERS = [
    ("a page", http("200 OK", PAGE), "200, text/html: 'Welcome to nginx! It works.'"),
    ("a page that is not found", http("404 Not Found", PAGE), "404, text/html: 'Welcome to nginx!"),
    ("a page that is forbidden", http("403 Forbidden", PAGE), "403, text/html: 'Welcome to nginx!"),
    (
        "a sign-in",
        http("302 Found", PAGE, more="Location: https://a.test/?x=1\r\n"),
        "302, a redirect to 'https://a.test', ",
    ),
    ("an API", http("200 OK", b'{"version": 1}', "application/json"), "200, application/json: '{\"version\": 1}'"),
    ("an empty page", http("200 OK"), "200, an empty body"),
    ("no content", reply(b"HTTP/1.1 204 No Content\r\n\r\n"), "204, an empty body"),
    ("plain text", http("200 OK", b"hello\x1b[2J there", ""), "200, text: 'hello [2J there'"),
    ("a mail server", reply(b"220 mail.test ESMTP\r\n"), "not HTTP/1.1: it begins with '220 mail.test ESMTP'"),
    ("an SSH server", reply(b"SSH-2.0-OpenSSH_9.6\r\n"), "'SSH-2.0-OpenSSH_9.6'"),
    ("a TLS port", reply(b"\x15\x03\x01\x00\x02\x02\x46"), "not HTTP/1.1: it begins with a TLS alert"),
    (
        "a TLS port of nginx",
        http("400 Bad Request", b"<title>HTTP to HTTPS port</title>"),
        "400, text/html: 'HTTP to HT",
    ),
    ("a server that closes", close, "the connection was closed without an answer"),
    ("a server that resets", reset, "the connection was closed without an answer"),
]

OF_STRANGERS = pytest.mark.parametrize(
    ("serve", "shown"), [row[1:] for row in STRANGERS], ids=[row[0] for row in STRANGERS]
)


@OF_STRANGERS
async def test_a_listing_of_what_is_not_s3_ends_soon_and_says_what_answers(serve: Answer, shown: str) -> None:
    async with stranger(serve) as (config, server):
        error = await use(config, listed)
    assert isinstance(error, ServiceError)
    assert f"What answers at {config.endpoint_url} is not an S3 service: " in str(error)
    assert shown in str(error)
    assert "--endpoint-url" in error.hint
    # Four attempts have three pauses, of 1.4 s at most.
    assert server.hostile_replies in (1, 4)


@OF_STRANGERS
async def test_so_does_the_question_for_an_object(serve: Answer, shown: str) -> None:
    """What speaks HTTP is not told from S3: a page has no words in reply to a HEAD, and moto sends pages, too."""
    async with stranger(serve) as (config, server):
        error = await use(config, lambda client: client.head("bucket", "key"))
    assert server.hostile_replies in (1, 4)
    if shown.startswith("200"):
        assert "has no length or no time that makes sense" in str(error)
        assert "--endpoint-url" in error.hint
    elif not shown[0].isdigit():
        assert f"What answers at {config.endpoint_url} is not an S3 service: " in str(error)
        assert shown in str(error)
        assert "--endpoint-url" in error.hint


async def test_so_does_the_question_for_a_region() -> None:
    async with stranger(close) as (config, server), aclosing(client_of(replace(config, region=None))) as client:
        with pytest.raises(ServiceError, match="is not an S3 service: the connection was closed"):
            await listed(client)
    assert server.hostile_replies == 4


async def speak_plainly(peer: Peer) -> None:
    await peer.transport.receive_some(1)
    await peer.transport.send_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    await peer.leave()


async def hang_up(peer: Peer) -> None:
    await peer.transport.aclose()


@pytest.mark.parametrize(
    ("accept", "message"),
    [
        (speak_plainly, "does not speak TLS: wrong version number"),
        (hang_up, "is not an S3 service: Connection reset by peer"),
    ],
)
async def test_https_to_a_port_without_tls_says_so(accept: Act, message: str) -> None:
    async with stranger(close, accept=accept, scheme="https") as (config, _):
        error = await use(config, listed)
    assert message in str(error)
    assert "http://" in error.hint
    assert "--ca-bundle" not in error.hint


async def test_http_to_a_port_with_tls_says_that_the_scheme_may_be_wrong(tmp_path: Path) -> None:
    async with stranger(close, certificates=create_certificates(tmp_path)) as (config, _):
        error = await use(config, listed)
    assert "is not an S3 service" in str(error)
    assert "https://" in error.hint


@pytest.mark.parametrize("is_signed", [True, False])
async def test_the_native_api_of_swift_says_that_unsigned_requests_may_be_why(is_signed: bool) -> None:
    """Swift answers a request that is not signed by its own API, in which the path of a bucket means nothing."""
    async with stranger(http("412 Precondition Failed", b"Bad URL")) as (config, _):
        error = await use(replace(config, sign_request=is_signed), listed)
    assert "is not an S3 service: 412, text/html: 'Bad URL'" in str(error)
    assert ("--no-sign-request" in error.hint) is not is_signed


# --- a service in trouble


# Every one but the throttled ones, which `Pager` tries again.
TROUBLES = {
    "an error of S3": http("500 Internal Server Error", b"<Error><Code>InternalError</Code></Error>"),
    "the page of a gateway": http("502 Bad Gateway", b"<h1>502 Bad Gateway</h1>"),
    "an error under 200": http("200 OK", b"<Error><Code>InternalError</Code></Error>"),
    "a page that is cut off": http("200 OK", LISTING[:-10]),
    "a reply that breaks off": reply(b"HTTP/1.1 200 OK\r\nContent-Le"),
}


def in_turn(*answers: Answer) -> Answer:
    following = iter(answers)
    return lambda peer, request: next(following)(peer, request)


@pytest.mark.parametrize("trouble", TROUBLES)
async def test_a_service_in_trouble_is_waited_for(trouble: str, caplog: pytest.LogCaptureFixture) -> None:
    serve = in_turn(*[TROUBLES[trouble]] * 6, http("200 OK", LISTING))
    async with stranger(serve) as (config, server), aclosing(client_of(config)) as client:
        assert await listed(client) == parse_page(LISTING)
    assert server.hostile_replies == 7
    if trouble == "the page of a gateway":
        assert "502, text/html: '502 Bad Gateway'; trying again" in caplog.text


@pytest.mark.parametrize("serve", [close, http("200 OK", PAGE)], ids=["closes", "a page"])
async def test_once_s3_has_answered_it_is_waited_for_whatever_comes(serve: Answer) -> None:
    answer = http("200 OK", LISTING)
    serve = in_turn(answer, *[serve] * 6, answer)
    async with stranger(serve) as (config, server), aclosing(client_of(config)) as client:
        for _ in range(2):
            assert await listed(client) == parse_page(LISTING)
    assert server.hostile_replies == 8


# --- what is shown of hostile bytes


@given(data=st.binary(max_size=400) | st.text(max_size=200).map(str.encode))
def test_what_is_shown_is_short_and_plain(data: bytes) -> None:
    shown = first_words(data)
    assert shown.isascii()
    assert shown.isprintable()
    assert len(shown) < 140


def test_long_words_are_not_shown_for_they_may_be_keys() -> None:
    assert (
        first_words(b"Signature=AKIAIOSFODNN7EXAMPLE token AKIAIOSFODNN7EXAMPLE is here") == "'... token ... is here'"
    )


@pytest.mark.parametrize(
    ("status", "headers", "document", "kind", "is_foreign"),
    [
        (404, {}, PAGE, Kind.CHANGED, True),
        (404, {"x-amz-request-id": "A1"}, PAGE, Kind.CHANGED, False),
        (404, {}, b"", Kind.CHANGED, False),
        (403, {}, b"<Error><Code>AccessDenied</Code></Error>", Kind.DENIED, False),
        (204, {}, b"", Kind.OTHER, True),
        (502, {}, PAGE, Kind.BUSY, False),
        (503, {}, PAGE, Kind.THROTTLED, False),
    ],
)
def test_a_refusal_has_a_kind_and_is_of_s3_or_foreign(
    status: int, headers: dict[str, str], document: bytes, kind: Kind, is_foreign: bool
) -> None:
    failure = failure_of_refusal(ReplyHead(status, headers, True, None), document)
    assert (failure.kind, failure.is_foreign) == (kind, is_foreign)
