"""The table of what a hostile server does, and of what each verb of the client promises in return.

A row is a script for `hostile.Hostile`, one promise for GET, HEAD and LIST each, and how long the client may take.
Promises are sets of endings: mostly of one, of two where either is right, and of none where the verb knows no such
reply. A row that is "once" bad is good afterwards, so the client has to come to the right bytes by itself.
"""

import errno
import gzip
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache

import trio

from tests.s3.canned import chunks
from tests.s3.hostile import DATA, PAGE, Act, Answer, Peer, Reply, Request, good, good_reply

# The deadline of requests that end by it alone. A third of it is how long a connection may stall.
_SHORT_S = 1.0
# How long a connection may stall in requests that stall once and then succeed, on a busy machine, too.
_STALL_S = 2.0
# The deadline of requests to a server that floods them. They have to end by what they count, not by this.
_FLOOD_S = 10.0
# The deadline of requests that must end without it.
LONG_S = 30.0
_KIB, _MIB = 1 << 10, 1 << 20
_BLOCK = b"x" * (64 * _KIB)


class Ending(Enum):
    """How a request ends; in brackets the errors of HEAD and LIST that correspond to the errno of a GET."""

    RIGHT = "the right bytes"
    EIO = "EIO (ServiceError)"
    ESTALE = "ESTALE (SourceError)"
    EACCES = "EACCES (AccessError)"
    WRONG_PLACE = "(ConfigurationError)"


ERRNOS = {Ending.RIGHT: 0, Ending.EIO: errno.EIO, Ending.ESTALE: errno.ESTALE, Ending.EACCES: errno.EACCES}

Promise = frozenset[Ending]
RIGHT = frozenset({Ending.RIGHT})
EIO = frozenset({Ending.EIO})
ESTALE = frozenset({Ending.ESTALE})
EACCES = frozenset({Ending.EACCES})
WRONG_PLACE = frozenset({Ending.WRONG_PLACE})
# The verb is not asked.
NOT_ASKED: Promise = frozenset()

Change = Callable[[Reply], Reply | bytes]


@dataclass(frozen=True)
class Row:
    """One behaviour of a server. HEAD and LIST end as GET does unless `head` and `list` say otherwise."""

    name: str
    answer: Answer
    get: Promise
    head: Promise | None = None
    list: Promise | None = None
    # Where 0, the promise tells: a request that may end by its deadline has a short one.
    deadline_s: float = 0.0
    # What the server does with a new connection before TLS.
    accept: Act | None = None
    # What the server does with its idle connections once it has answered.
    when_idle: Act | None = None
    # The certificate, by its name in `hostile.Certificates`.
    context: str = "good"
    transports: Sequence[str] = ("plain", "tls")
    # Whether the server sends without an end: the client's memory is looked at.
    is_flood: bool = False
    # Whether the error names the host that the server points to.
    names_other: bool = False
    # Whether the client keeps what the server names: the bucket's region, for which it signs from then on.
    names_region: bool = False
    # How long a connection may stall. Where 0, a third of the deadline, as for users.
    stall_s: float = 0.0

    def promise(self, verb: str) -> Promise:
        own = {"head": self.head, "list": self.list}.get(verb)
        return self.get if own is None else own

    def deadline_for(self, verb: str) -> float:
        if self.deadline_s:
            return self.deadline_s
        if Ending.EIO not in self.promise(verb):
            return LONG_S
        return _FLOOD_S if self.is_flood else _SHORT_S


# --- scripts


def _reply(change: Change) -> Answer:
    """Send a good reply as `change` makes it, and wait for another request."""

    async def answer(peer: Peer, request: Request) -> None:
        changed = change(good_reply(request))
        await peer.send(changed if isinstance(changed, bytes) else changed.encode())

    return answer


def _then(answer: Answer, act: Act) -> Answer:
    async def both(peer: Peer, request: Request) -> None:
        await answer(peer, request)
        await act(peer)

    return both


def _ended(change: Change) -> Answer:
    return _then(_reply(change), Peer.end)


def _only(verb: str, answer: Answer) -> Answer:

    async def only(peer: Peer, request: Request) -> None:
        await (answer if request.verb == verb else good)(peer, request)

    return only


def _once(answer: Answer) -> Answer:

    async def once(peer: Peer, request: Request) -> None:
        await (answer if peer.hostile.hostile_replies == 1 else good)(peer, request)

    return once


def _flood(begin: Change, data: bytes) -> Answer:
    """Send what `begin` makes of a good reply, and then `data` without an end."""
    return _then(_reply(begin), lambda peer: peer.flood(data))


def _drip(begin: Change, data: bytes) -> Answer:
    return _then(_reply(begin), lambda peer: peer.drip(data))


async def _reset(peer: Peer) -> None:
    peer.reset()


async def _silence(peer: Peer) -> None:
    await trio.sleep_forever()


# --- rows


def _says(name: str, data: bytes) -> Row:
    return Row(name, _reply(lambda reply: data), EIO)


def _of_get(name: str, answer: Answer, promise: Promise) -> Row:
    return Row(name, _only("get", answer), promise, NOT_ASKED, NOT_ASKED)


def _line(name: str, line: bytes, promise: Promise = EIO) -> Row:
    return Row(name, _reply(lambda reply: reply.also(line)), promise)


def _header(
    name: str, header: str, value: str, get: Promise, head: Promise | None = None, list: Promise | None = None
) -> Row:
    return Row(name, _reply(lambda reply: reply.with_header(header, value)), get, head, list)


def _range(name: str, value: str, promise: Promise) -> Row:
    """Return a row with another Content-Range, which means nothing to HEAD and LIST."""
    change = _reply(lambda reply: reply.with_header("Content-Range", value))
    return Row(f"Content-Range {name}", change, promise, head=RIGHT, list=RIGHT)


def _chunked(
    name: str, body: Callable[[bytes], bytes], promise: Promise = EIO, *, make: Callable[[Change], Answer] = _reply
) -> Row:
    """Return a row whose bodies come in chunks, as `body` makes them. A HEAD learns no length so."""
    return Row(f"chunks: {name}", make(lambda reply: reply.in_chunks(body(reply.body))), promise, head=EIO)


def _document(code: str, more: str = "") -> bytes:
    return (
        f'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{code}</Code><Message>No.</Message>{more}'
        "<RequestId>1</RequestId></Error>"
    ).encode()


def _refusal(status: str, document: bytes = b"", *lines: bytes) -> Change:
    return lambda reply: Reply(f"HTTP/1.1 {status}".encode(), lines, b"", reply.has_body).with_body(document)


def _refuse(status: str, document: bytes = b"", *lines: bytes) -> Answer:
    return _reply(_refusal(status, document, *lines))


def _code(status: str, code: str, get: Promise, head: Promise | None = None, list: Promise | None = None) -> Row:
    return Row(f"refusal {status} {code}".strip(), _refuse(status, _document(code) if code else b""), get, head, list)


def _error(name: str, document: bytes, get: Promise = EACCES, *, answer: Answer | None = None) -> Row:
    """Return a row with a strange error document under status 403."""
    return Row(f"error document: {name}", answer or _refuse("403 Forbidden", document), get, EACCES)


def _redirect(name: str, status: str, *lines: bytes, names_other: bool = False, names_region: bool = False) -> Row:
    """Return a row that points to another host."""

    async def answer(peer: Peer, request: Request) -> None:
        other = peer.hostile.other.authority.encode()
        document = _document("PermanentRedirect", f"<Endpoint>{other.decode()}</Endpoint>")
        filled = [line.replace(b"OTHER", other).replace(b"SELF", peer.hostile.url.encode()) for line in lines]
        await _refuse(status, document, *filled)(peer, request)

    end = EIO | WRONG_PLACE
    name = f"redirect {name}"
    return Row(name, answer, EIO, end, end, LONG_S, names_other=names_other, names_region=names_region)


def _of_list(name: str, answer: Answer, promise: Promise = EIO, *, is_flood: bool = False) -> Row:
    return Row(f"page: {name}", _only("list", answer), NOT_ASKED, NOT_ASKED, promise, is_flood=is_flood)


def _page(name: str, page: bytes, *lines: bytes, promise: Promise = EIO) -> Row:

    def change(reply: Reply) -> Reply:
        changed = reply.with_body(page)
        for line in lines:
            changed = changed.also(line)
        return changed

    return _of_list(name, _reply(change), promise)


# --- status line; `test_http1` has more lines that are refused

_HTTP2 = bytes.fromhex("000012040000000000000300000064000400100000000600004000")
_INTERIM = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </>\r\n\r\n"

_STATUS_LINES = [
    Row("HTTP/0.9", _ended(lambda reply: b"<html>hello</html>"), EIO),
    _says("the settings of HTTP/2", _HTTP2),
    Row("status line without an end", _flood(lambda reply: b"HTTP/1.1 200 ", _BLOCK), EIO, is_flood=True),
    Row("HTTP/1.0", _ended(lambda reply: reply.encode().replace(b"HTTP/1.1", b"HTTP/1.0", 1)), RIGHT),
    Row("status 206 for everything", _reply(lambda reply: reply.with_status("206 OK")), RIGHT, EIO, EIO),
    Row("status 200 for a range", _reply(lambda reply: reply.with_status("200 OK")), RIGHT),
    Row("interim replies", _reply(lambda reply: _INTERIM + reply.encode()), RIGHT),
    _says("another protocol is switched to", b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\n\r\n" + _HTTP2),
    Row("interim replies for ever", _flood(lambda reply: b"", _INTERIM * 100), EIO, is_flood=True),
    Row("interim replies that drip", _drip(lambda reply: b"", b"HTTP/1.1 100 Continue\r\n\r\n"), EIO),
]

# --- header section; `test_http1` has more headers that are refused

_HEADERS = [
    Row(
        "headers for ever", _flood(lambda reply: reply.status_line + b"\r\n", b"A: b\r\n" * 10_000), EIO, is_flood=True
    ),
    _line("a header of 1 MiB", b"X: " + _BLOCK * 16),
    _line("LF alone in a header", b"X-Amz-Meta: a\nContent-Length: 1"),
    _line("bytes beyond ASCII in a header", b"X-Amz-Meta: \xff\xfe\x80", RIGHT),
    _line("200 headers", b"\r\n".join(b"X-%d: y" % at for at in range(200)), RIGHT),
    _line("header of 16 KiB", b"X: " + _BLOCK[: 16 * _KIB], RIGHT),
    Row("LF ends all lines", _reply(lambda reply: reply.head.replace(b"\r\n", b"\n") + reply.body), EIO),
    _line("two lengths", b"Content-Length: 1"),
    _header("length of 64 bits and more", "Content-Length", "9999999999999999999", EIO),
    Row("no Content-Length", _ended(lambda reply: reply.without("Content-Length")), RIGHT, head=EIO),
    Row("no Last-Modified", _reply(lambda reply: reply.without("Last-Modified")), RIGHT, EIO, RIGHT),
    _header("Last-Modified in no time", "Last-Modified", "now", RIGHT, EIO, RIGHT),
    _header("Last-Modified in the year 9999", "Last-Modified", "Fri, 31 Dec 9999 23:59:59 GMT", RIGHT, EIO, RIGHT),
]

# --- which bytes of which version

_VERSIONS = [
    Row("Content-Range is missing", _reply(lambda reply: reply.without("Content-Range")), EIO, RIGHT, RIGHT),
    _range("of another start", f"bytes 0-3999/{len(DATA)}", EIO),
    _range("of another end", f"bytes 1000-4998/{len(DATA)}", EIO),
    _of_get("Content-Range with another total", _reply(lambda reply: _with_total(reply, str(len(DATA) + 1))), EIO),
    _of_get("Content-Range without a total", _reply(lambda reply: _with_total(reply, "*")), RIGHT),
    _header("another ETag", "ETag", '"another"', ESTALE, NOT_ASKED, RIGHT),
    Row("no ETag", _reply(lambda reply: reply.without("ETag")), EIO, NOT_ASKED, RIGHT),
    _header("empty ETag", "ETag", "", EIO, NOT_ASKED, RIGHT),
    Row("weak ETag", _reply(lambda reply: _with_weak_etag(reply)), RIGHT, NOT_ASKED, RIGHT),
    _of_get("the whole object for a range", _reply(lambda reply: _whole(reply)), RIGHT | EIO),
    _of_get("the object for a range from 0", _reply(lambda reply: reply if _span(reply)[0] else _whole(reply)), RIGHT),
    _of_get("the whole object of unknown length", _ended(lambda reply: _whole(reply).without("Content-Length")), EIO),
    Row("a sign-in page", _refuse("200 OK", b"<html>Sign in</html>", b"Content-Type: text/html"), EIO),
    Row("status 202 in place of 206", _reply(lambda reply: reply.with_status("202 Accepted")), EIO),
    Row("status 204 with a body", _reply(lambda reply: reply.with_status("204 No Content")), EIO),
    Row("status 304 with a body", _reply(lambda reply: reply.with_status("304 Not Modified")), EIO),
    Row("once no HTTP", _once(_reply(lambda reply: b"\x00\x01garbage\r\n\r\n")), RIGHT),
    _of_get("once another total in Content-Range", _once(_reply(lambda reply: _with_total(reply, "7"))), RIGHT),
]


def _with_total(reply: Reply, total: str) -> Reply:
    start, end = _span(reply)
    return reply.with_header("Content-Range", f"bytes {start}-{end - 1}/{total}")


def _span(reply: Reply) -> tuple[int, int]:
    """Return the first byte of a good reply to a GET, and the one behind the last."""
    line = next(line for line in reply.headers if line.startswith(b"Content-Range"))
    first, _, last = line.partition(b" bytes ")[2].partition(b"/")[0].partition(b"-")
    return int(first), int(last) + 1


def _whole(reply: Reply) -> Reply:
    return reply.with_status("200 OK").without("Content-Range").with_body(DATA)


def _with_weak_etag(reply: Reply) -> Reply:
    etag = next((line.partition(b": ")[2] for line in reply.headers if line.startswith(b"ETag")), b'"a"')
    return reply.with_header("ETag", b"W/" + etag)


# --- bodies of a known length, and connections

# What a client would take for its reply if it asked for more over a connection on which this was left.
_STALE = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nstale"


async def _say_stale(peer: Peer) -> None:
    await peer.send(_STALE)


async def _say_stale_if_asked(peer: Peer) -> None:
    """Take another request over the same connection, and answer it with what nobody asked for."""
    await peer.request()
    await _say_stale(peer)


async def _give_up(peer: Peer) -> None:
    await peer.send(b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
    await peer.end()


def _below(data: bytes) -> Act:
    """Send what is no record of TLS, or none that anybody can read."""
    return lambda peer: peer.transport.send_all(data)


def _cut(at: Callable[[Reply], int]) -> Change:
    return lambda reply: reply.encode()[: at(reply)]


def _after_head(reply: Reply) -> int:
    return len(reply.head)


def _middle(reply: Reply) -> int:
    return len(reply.head) + len(reply.body) // 2


def _in_head(reply: Reply) -> int:
    return len(reply.head) // 2


def _before_last(reply: Reply) -> int:
    return len(reply.encode()) - 1


_BODIES = [
    Row("ended before the reply", _ended(lambda reply: b""), EIO),
    Row("ended after the head", _ended(_cut(_after_head)), EIO, head=RIGHT),
    Row("ended in the body", _ended(_cut(_middle)), EIO, head=RIGHT),
    Row("ended before the last byte", _ended(_cut(_before_last)), EIO),
    Row("reset before the reply", _then(_reply(lambda reply: b""), _reset), EIO),
    Row("reset in the head", _then(_reply(_cut(_in_head)), _reset), EIO),
    Row("reset in the body", _then(_reply(_cut(_middle)), _reset), EIO, head=EIO | RIGHT),
    Row("silent before the reply", _reply(lambda reply: b""), EIO),
    Row("silent in the head", _reply(_cut(_in_head)), EIO),
    Row("silent after the head", _reply(_cut(_after_head)), EIO, head=RIGHT),
    Row("silent in the body", _reply(_cut(_middle)), EIO, head=RIGHT),
    Row("dripping head", _drip(lambda reply: reply.status_line + b"\r\n", b"X-Amz-Meta: a\r\n"), EIO),
    Row("dripping body", _drip(lambda reply: reply.head, b"abc"), EIO, head=NOT_ASKED),
    Row("once ended before the reply", _once(_ended(lambda reply: b"")), RIGHT),
    Row("once ended in the body", _once(_ended(_cut(_middle))), RIGHT),
    Row("once reset before the reply", _once(_then(_reply(lambda reply: b""), _reset)), RIGHT),
    Row("once reset in the body", _once(_then(_reply(_cut(_middle)), _reset)), RIGHT),
    Row("once silent before the reply", _once(_reply(lambda reply: b"")), RIGHT, stall_s=_STALL_S),
    Row("once silent in the body", _once(_reply(_cut(_middle))), RIGHT, stall_s=_STALL_S),
    Row("body shorter by one", _reply(lambda reply: reply.with_body(reply.body[:-1])), EIO, head=NOT_ASKED),
    Row("body longer by one", _reply(lambda reply: reply.with_body(reply.body + b"x")), EIO, head=NOT_ASKED),
    Row("no body", _reply(lambda reply: reply.with_body(b"")), EIO, head=NOT_ASKED),
    # Either is right: what follows a reply may come with it, or later.
    Row("a byte behind the body", _reply(lambda reply: reply.encode() + b"x"), RIGHT | EIO),
    Row("another reply behind the body", _reply(lambda reply: reply.encode() + _STALE), RIGHT | EIO),
    Row("a flood behind the body", _flood(lambda reply: reply, _BLOCK), RIGHT | EIO, is_flood=True),
    Row("a body in reply to a HEAD", _reply(lambda reply: reply.head + (reply.body or DATA)), RIGHT),
    Row("connection: close", _ended(lambda reply: reply.with_header("Connection", "close")), RIGHT),
    _header("connection: close, and left open", "Connection", "close", RIGHT),
    Row("keep-alive, and closed", _ended(lambda reply: reply.with_header("Connection", "keep-alive")), RIGHT),
    Row("keep-alive, and reset", _then(good, lambda peer: _reset(peer)), RIGHT | EIO),
    Row("a reply on an idle connection", good, RIGHT, when_idle=_say_stale),
    Row("408 on an idle connection", good, RIGHT, when_idle=_give_up),
    Row("end of an idle connection", good, RIGHT, when_idle=Peer.end),
    Row("reset of an idle connection", good, RIGHT, when_idle=_reset),
    Row("garbage on an idle connection", good, RIGHT, when_idle=_below(bytes(range(256)))),
    Row("reset on being opened", good, EIO, accept=_reset),
    Row("ended on being opened", good, EIO, accept=Peer.end),
    Row("never answers", good, EIO, accept=_silence),
    Row("speaks first", good, EIO, accept=_below(b"220 mail.example.com ESMTP\r\n")),
    Row("garbage for ever", good, EIO, None, None, _SHORT_S, lambda peer: _flood_below(peer, _BLOCK), is_flood=True),
    Row("drips garbage", good, EIO, accept=lambda peer: _drip_below(peer, b"x")),
]


async def _flood_below(peer: Peer, data: bytes) -> None:
    while True:
        await peer.transport.send_all(data)


async def _drip_below(peer: Peer, data: bytes) -> None:
    while True:
        await peer.transport.send_all(data)
        await trio.sleep(0.2)


# --- bodies in chunks; `test_http1` has more sizes that are refused


def _chunk_flood(name: str, begin: Change, data: bytes) -> Row:
    return Row(f"chunks: {name} for ever", _flood(begin, data), EIO, is_flood=True)


_CHUNKS = [
    _chunked("one", chunks, RIGHT),
    _chunked("of 1,000 bytes", lambda body: chunks(body, 1000), RIGHT),
    _chunked("with another reply behind", lambda body: chunks(body) + _STALE, RIGHT),
    _chunked("then closed", chunks, RIGHT, make=_ended),
    Row(
        "chunks: encoding in capitals",
        _reply(lambda reply: reply.in_chunks(chunks(reply.body)).with_header("Transfer-Encoding", "CHUNKED")),
        RIGHT,
        head=EIO,
    ),
    _chunked("sum is short", lambda body: chunks(body[:-1])),
    _chunked("sum is long", lambda body: chunks(body + b"x")),
    _chunked("none", lambda body: b"0\r\n\r\n"),
    _chunked("ended before the last", lambda body: chunks(body, end=b""), make=_ended),
    _chunked("silent before the last", lambda body: chunks(body, end=b"")),
    _chunked("ended in one", lambda body: chunks(body)[: len(body) // 2], make=_ended),
    _chunked("silent in one", lambda body: chunks(body)[: len(body) // 2]),
    _chunked("ended in the trailers", lambda body: chunks(body, end=b"0\r\nA: b\r\n"), make=_ended),
    Row("chunks: dripping", _drip(lambda reply: reply.in_chunks(b""), b"1\r\nx\r\n"), EIO),
    _chunk_flood("of one byte", lambda reply: reply.in_chunks(b""), b"1\r\nx\r\n" * 10_000),
    _chunk_flood("of 64 KiB", lambda reply: reply.in_chunks(b""), chunks(_BLOCK, end=b"")),
    _chunk_flood("trailers", lambda reply: reply.in_chunks(chunks(reply.body, end=b"0\r\n")), b"A: b\r\n" * 10_000),
    _chunk_flood("extension", lambda reply: reply.in_chunks(b"5;"), _BLOCK),
    _chunk_flood("size", lambda reply: reply.in_chunks(b""), b"0" * 10_000),
]

# --- what is encoded

_IN_GZIP = b"Content-Encoding: gzip"


@cache
def _bomb(head: bytes = b"", tail: bytes = b"") -> bytes:
    """Return 128 MiB of spaces in gzip, made in little memory and when they are sent: other modules import this one."""
    # As much as is read of an error document, 64 KiB, stands for 64 MiB then.
    packer = zlib.compressobj(9, wbits=31)
    return b"".join(map(packer.compress, (head, *[b" " * _MIB] * 128, tail))) + packer.flush()


def _bombed(reply: Reply) -> Reply:
    return reply.with_header("Content-Encoding", "gzip").with_body(_bomb(PAGE[:-19], PAGE[-19:]))


async def _refuse_with_bomb(peer: Peer, request: Request) -> None:
    await _refuse("403 Forbidden", _bomb(), _IN_GZIP)(peer, request)


def _is_encoded(body: bytes, encoding: bytes = b"gzip") -> tuple[bytes, bytes]:
    return body, b"Content-Encoding: " + encoding


_ENCODINGS = [
    _of_get("an object in gzip", _reply(lambda reply: reply.with_header("Content-Encoding", "gzip")), RIGHT),
    _page("in gzip", *_is_encoded(gzip.compress(PAGE)), promise=RIGHT),
    _page("in gzip, cut off", *_is_encoded(gzip.compress(PAGE)[:-30])),
    _page("in gzip that is none", *_is_encoded(b"x" * 1000)),
    _page("in gzip twice", *_is_encoded(gzip.compress(gzip.compress(PAGE)), b"gzip, gzip")),
    _page("in br", *_is_encoded(b"x" * 1000, b"br")),
    _error("in gzip", b"", answer=_refuse("400 Bad", gzip.compress(_document("AccessDenied")), _IN_GZIP)),
    _of_list("a bomb of gzip", _reply(_bombed), is_flood=True),
    Row("error document: a bomb of gzip", _refuse_with_bomb, EACCES, is_flood=True),
]


# --- redirects

_TO_OTHER = b"Location: http://OTHER/bucket/key"
_ANOTHER_REGION = b"x-amz-bucket-region: eu-west-1"
_307 = "307 Temporary Redirect"


def _unless_signed_for_another_region(refuse: Answer) -> Answer:
    async def answer(peer: Peer, request: Request) -> None:
        await (good if "/eu-west-1/s3/" in request.headers["authorization"] else refuse)(peer, request)

    return answer


_wants_another_region = _unless_signed_for_another_region(
    _refuse("301 Moved Permanently", _document("PermanentRedirect"), _ANOTHER_REGION)
)
_names_region_in_document = _unless_signed_for_another_region(
    _refuse("400 Bad Request", _document("AuthorizationHeaderMalformed", "<Region>eu-west-1</Region>"))
)


async def _wants_always_another_region(peer: Peer, request: Request) -> None:
    line = b"x-amz-bucket-region: eu-west-%d" % (peer.hostile.hostile_replies + 1)
    await _refuse("301 Moved Permanently", _document("PermanentRedirect"), line)(peer, request)


_REDIRECTS = [
    _redirect("301", "301 Moved Permanently", _TO_OTHER, names_other=True),
    _redirect("307", _307, _TO_OTHER, names_other=True),
    _redirect("that names another region, too", _307, _TO_OTHER, _ANOTHER_REGION, names_region=True),
    _redirect("to itself", _307, b"Location: SELF/bucket/key"),
    _redirect("to nowhere", "301 Moved Permanently"),
    _redirect("to a region that is a host", "301 Moved Permanently", b"x-amz-bucket-region: OTHER"),
    _redirect("of 64 KiB", "302 Found", b"Location: http://OTHER/" + _BLOCK),
    Row("the right region is named", _wants_another_region, RIGHT, names_region=True),
    Row("the right region is named in a document", _names_region_in_document, RIGHT, NOT_ASKED, names_region=True),
    Row("always another region", _wants_always_another_region, EIO, WRONG_PLACE, WRONG_PLACE, names_region=True),
]

# --- refusals; `tests/test_fault_matrix.py` has each kind


def _cut_refusal(reply: Reply) -> Reply | bytes:
    """Cut off what tells that the request may be made again, which the status does not."""
    document = _document("RequestTimeout")
    refusal = Reply(b"HTTP/1.1 400 Bad Request", (), b"", reply.has_body).with_body(document)
    return _cut(_after_head)(refusal)


_REFUSALS = [
    _code("400 Bad Request", "", EIO, EACCES, EIO),
    _code("403 Forbidden", "NeverHeardOf", EACCES),
    _code("404 Not Found", "NoSuchKey", ESTALE),
    _code("404 Not Found", "", ESTALE),
    _code("429 Too Many Requests", "", EIO),
    Row("once 500", _once(_refuse("500 Internal Server Error", _document("InternalError"))), RIGHT),
    Row("once a refusal cut off", _once(_ended(_cut_refusal)), RIGHT, NOT_ASKED),
    Row("once a refusal reset", _once(_then(_reply(_cut_refusal), _reset)), RIGHT, NOT_ASKED),
    Row("once an expired token", _once(_refuse("400 Bad Request", _document("ExpiredToken"))), RIGHT),
    Row("once an expired signature", _once(_refuse("403 No", _document("RequestTimeTooSkewed"))), RIGHT, NOT_ASKED),
]


# --- what refusals come with

_LAUGHS = (
    b'<?xml version="1.0"?><!DOCTYPE l [<!ENTITY a "ha">'
    + b"".join(b'<!ENTITY %c "%b">' % (98 + at, b"&%c;" % (97 + at) * 10) for at in range(12))
    + b"]>"
)


_IN_CHUNKS = b"HTTP/1.1 403 Forbidden\r\nTransfer-Encoding: chunked\r\n\r\n"


def _unending(reply: Reply) -> bytes:
    return b"HTTP/1.1 403 Forbidden\r\nContent-Length: 1000000000000\r\n\r\n"


def _begun(reply: Reply) -> bytes:
    """Begin a document with as much as is read of one."""
    return b"HTTP/1.1 404 Not Found\r\nContent-Length: 1000000\r\n\r\n" + b"<Error>".ljust(64 * _KIB)


async def _quotes_everything(peer: Peer, request: Request) -> None:
    """Quote the request, credentials included, wherever an error has room for it."""
    quoted = "".join(f"<{name}>{value}</{name}>" for name, value in sorted(request.headers.items()))
    token, signed = request.headers["x-amz-security-token"], request.headers["authorization"]
    document = f"<Error><Code>{token}</Code><Region>{signed}</Region><Message>{quoted}</Message></Error>".encode()
    lines = [f"{name}: {token}".encode() for name in ("Location", "x-amz-bucket-region", "x-amz-request-id")]
    await _refuse(f"403 {token}", document, *lines)(peer, request)


_ERRORS = [
    Row("error document: for ever", _flood(_unending, _BLOCK), EACCES, is_flood=True),
    *(
        Row(f"error document: {name} for ever", _flood(lambda reply: _IN_CHUNKS, data), EACCES, is_flood=True)
        for name, data in (("chunks", chunks(_BLOCK, end=b"")), ("of one byte chunks", b"1\r\nx\r\n" * 10_000))
    ),
    _error("of a huge length, then silence", b"", EACCES | EIO, answer=_reply(_unending)),
    _error("of a huge length, then the end", b"", answer=_ended(_unending)),
    Row("error document: its rest is like a reply", _then(_reply(_begun), _say_stale_if_asked), ESTALE, NOT_ASKED),
    _error("bad chunks", b"", EACCES | EIO, answer=_reply(lambda reply: _IN_CHUNKS + b"xyz\r\n")),
    _error("nothing", b""),
    _error("random bytes", bytes((at * at * 7919 >> 3) & 255 for at in range(50_000))),
    _error("not UTF-8", b"<Error><Code>Acc\xe9s\xff</Code></Error>"),
    _error("UTF-16", "<Error><Code>NoSuchKey</Code></Error>".encode("utf-16")),
    _error("JSON", b'{"error": {"code": "AccessDenied"}}'),
    _error("NUL", bytes(60_000)),
    _error("a million laughs", _LAUGHS + b"<Error><Code>&m;</Code></Error>"),
    _error("code of 60 KiB", b"<Error><Code>" + _BLOCK[: 60 * _KIB] + b"</Code></Error>"),
    _error("code with an escape sequence", b"<Error><Code>\x1b[2JAccessDenied</Code></Error>"),
    _error("deep", b"<Error>" * 8000),
    Row("error document: quotes the credentials", _quotes_everything, EACCES),
]

# --- pages

_ENTRY = PAGE[PAGE.index(b"<Contents>") : PAGE.index(b"</Contents>") + len(b"</Contents>")]
_LIST_HEAD = PAGE[: PAGE.index(b"<Contents>")]

_PAGES = [
    _page("an error", _document("InternalError")),
    _page("an error that denies", _document("AccessDenied"), promise=EACCES),
    _page("an error that slows down", _document("SlowDown")),
    _page("cut off", PAGE[:-30]),
    _page("JSON", b'{"keys": []}'),
    _page("truncated without a token", _LIST_HEAD.replace(b">false<", b">true<") + b"</ListBucketResult>"),
    _page("deep", PAGE[:-19] + b"<!-- -->" + b"<a>" * 100_000 + b"</a>" * 100_000 + PAGE[-19:], promise=RIGHT | EIO),
    _of_list(
        "another behind it",
        _reply(lambda reply: reply.encode() + _ENTRY.replace(b"key", b"kex") + b"</ListBucketResult>"),
        RIGHT | EIO,
    ),
    _of_list(
        "of 100 MB",
        _flood(lambda reply: reply.with_header("Content-Length", "100000000").encode()[: -len(PAGE)], _ENTRY * 100),
        is_flood=True,
    ),
    _of_list(
        "of no length for ever",
        _flood(lambda reply: reply.without("Content-Length").encode(), _ENTRY * 100),
        is_flood=True,
    ),
    _of_list(
        "in chunks for ever",
        _flood(lambda reply: reply.in_chunks(chunks(PAGE[:-19], end=b"")), chunks(_ENTRY * 100, end=b"")),
        is_flood=True,
    ),
]

# --- TLS


def _in_its_place(data: bytes) -> Act:

    async def answer(peer: Peer) -> None:
        await peer.transport.receive_some(1)
        await peer.transport.send_all(data)
        await peer.leave()

    return answer


_PLAINLY = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
_ALERT, _BAD_RECORD = bytes.fromhex("15030300020228"), _below(b"\x17\x03\x03\x00\x20" + bytes(32))


async def _send_one_alert(peer: Peer) -> None:
    """Answer the first connection only with an alert, as a terminator of TLS does that restarts."""
    peer.hostile.hostile_replies += 1
    if peer.hostile.hostile_replies == 1:
        await _in_its_place(_ALERT)(peer)


async def _half_a_handshake(peer: Peer) -> None:
    """Send the beginning of a handshake message of 16 KB, and nothing more."""
    await peer.transport.send_all(bytes.fromhex("160303400002003ffc0303") + bytes(100))
    await trio.sleep_forever()


async def _handshake_for_ever(peer: Peer) -> None:
    """Send records of a handshake message of 16 MB, of which each is well formed."""
    await peer.transport.send_all(bytes.fromhex("16030340000bffffff") + bytes(0x4000 - 4))
    await _flood_below(peer, bytes.fromhex("1603034000") + bytes(0x4000))


def _tls(name: str, answer: Answer, get: Promise, head: Promise | None = None, *, context: str = "good") -> Row:
    return Row(f"TLS: {name}", answer, get, head, context=context, transports=("tls",))


def _opening(name: str, accept: Act, promise: Promise) -> Row:
    """Return a row for a server that does not shake hands."""
    return Row(f"TLS: {name}", good, promise, accept=accept, transports=("tls",))


_TLS = [
    _tls("certificate for another name", good, EIO, context="another name"),
    _tls("certificate that has expired", good, EIO, context="expired"),
    _tls("certificate of nobody's", good, EIO, context="self-signed"),
    _tls("wants the client's certificate", good, RIGHT, context="wants a certificate"),
    _tls("needs the client's certificate", good, EIO, context="needs a certificate"),
    _tls("version 1.2", good, RIGHT, context="tls 1.2"),
    _tls("offers HTTP/2", good, RIGHT, context="http/2"),
    _tls("fifty session tickets", good, RIGHT, context="many tickets"),
    _opening("plain HTTP in place of a handshake", _in_its_place(_PLAINLY), EIO),
    _opening("an alert in place of a handshake", _in_its_place(_ALERT), EIO),
    _opening("once an alert", _send_one_alert, RIGHT),
    _opening("half a handshake", _half_a_handshake, EIO),
    replace(_opening("a handshake for ever", _handshake_for_ever, EIO), deadline_s=_SHORT_S, is_flood=True),
    _tls("a bad record before the reply", _then(_reply(lambda reply: b""), _BAD_RECORD), EIO),
    _tls("a bad record in the body", _then(_reply(_cut(_middle)), _BAD_RECORD), EIO, RIGHT | EIO),
    _tls("close_notify before the reply", _then(_reply(lambda reply: b""), Peer.notify_end), EIO),
    _tls("close_notify in the head", _then(_reply(_cut(_in_head)), Peer.notify_end), EIO),
    _tls("close_notify in the body", _then(_reply(_cut(_middle)), Peer.notify_end), EIO, RIGHT),
    _tls("close_notify behind the body", _then(good, Peer.notify_end), RIGHT),
    _tls(
        "no length, and no close_notify in the middle",
        _ended(lambda reply: reply.without("Content-Length").encode()[: _middle(reply.without("Content-Length"))]),
        EIO,
    ),
]

# What is parsed is the same over TLS. How it is received, and what becomes of the connection, are not.
_PARSED = (*_STATUS_LINES, *_HEADERS, *_VERSIONS, *_REDIRECTS, *_REFUSALS, *_PAGES)
ROWS: Sequence[Row] = (
    *(replace(row, transports=("plain",)) for row in _PARSED),
    *(*_BODIES, *_CHUNKS, *_ENCODINGS, *_ERRORS, *_TLS),
)
BY_NAME = {row.name: row for row in ROWS}
