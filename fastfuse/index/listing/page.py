"""ListObjectsV2 pages of one bucket: requested, parsed into columns, and checked.

`Pager` requests as many pages at once as the service accepts. It halves the number of requests in flight when the
service throttles. It adds one for each round of pages that arrived (additive increase, multiplicative decrease, as in
TCP).

`parse_page` takes about 2 µs an object; botocore's parser takes 130 µs, which is 7,000 objects a second on a whole
core. Pages as AWS and most servers write them go through one regular expression. A page that the expression does not
account for to the last object goes through ElementTree, which accepts any order, white space and additional elements.

Pages are hostile input. `parse_page` refuses a document type declaration (the door to entity expansion) in every
encoding, and numbers that no column can hold. `Pager` refuses keys outside the prefix that it requested.
"""

import logging
import re
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import unquote_to_bytes
from xml.etree import ElementTree

import numpy as np
import trio

from fastfuse.errors import ServiceError
from fastfuse.objects import MAX_MOMENT_MS, ObjectColumns, times_ns
from fastfuse.repeats import EVERY_S
from fastfuse.s3.base import LIST_DEADLINE_S, PageSource
from fastfuse.s3.failures import Kind
from fastfuse.s3.retries import Retries, RetryableError

_log = logging.getLogger(__name__)

# Only what both parsers understand alike: no white space that one of them strips, no element in another's place.
_CONTENTS = re.compile(
    rb"<Contents><Key>([^<]*)</Key><LastModified>([0-9TZ:.+-]*)</LastModified><ETag>([!-;=-~]*)</ETag>"
    rb"(?:<Checksum(?:Algorithm|Type)>[^<]*</Checksum(?:Algorithm|Type)>)*"
    rb"<Size>([0-9]{1,19})</Size>"
    rb"(?:<Owner>(?:<(?:ID|DisplayName)>[^<]*</(?:ID|DisplayName)>|<DisplayName/>)*</Owner>)?"
    rb"<StorageClass>([\w.-]+)</StorageClass></Contents>"
)
_FIELD = re.compile(rb"\s*<(\w+)(?:\s*/>|>([^<]*)</\1>)")
# A page with one empty row for all.
_FRAME = re.compile(
    rb"""(?:<\?xml version=["']1\.0["'](?: encoding=["'](?i:utf-8)["'])?\s*\?>)?\s*"""
    rb"""<ListBucketResult(?: xmlns=["'][\w:/.-]*["'])?>(?:%b)*\s*</ListBucketResult>\s*""" % _FIELD.pattern
)
_ENTITY = re.compile(r"&(?:#0*(\d{1,7})|#x0*([0-9a-fA-F]{1,6})|(amp|lt|gt|quot|apos));")
_ENTITIES = {"amp": "&", "lt": "<", "gt": ">", "quot": '"', "apos": "'"}
_NAMESPACE = re.compile(r"^\{[^}]*\}")
_DIGITS_AS_ZERO = bytes.maketrans(b"123456789", b"000000000")
_AWS_TIMES = {len(form): form for form in (b"0000-00-00T00:00:00Z", b"0000-00-00T00:00:00.000Z")}
_NOT_S3 = "is the endpoint an S3 service that speaks ListObjectsV2?"
# S3 answers at least 5,500 requests a second and prefix; 64 pages of 100 ms are 640, or 640,000 objects a second.
MAX_IN_FLIGHT: Final = 64
# A page takes well under a second, but minutes where a bucket holds many delete markers.
_SILENCE_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Page:
    """The objects of one page, in the page's order, and how to request the next page.

    Keys and `common_prefixes` are the exact bytes, decoded. More pages follow while `is_truncated`, whatever the number
    of keys: a page may be short or even empty.
    """

    columns: ObjectColumns
    is_truncated: bool
    next_token: str
    common_prefixes: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        if any(size < 0 or size >= 1 << 63 for size in self.columns.sizes):
            raise ServiceError("the LIST reply holds an object of an impossible size", hint=_NOT_S3)
        if self.is_truncated and not self.next_token and not self.names:
            raise ServiceError("the LIST reply is truncated and does not say how to go on", hint=_NOT_S3)

    @property
    def keys(self) -> list[bytes]:
        return self.columns.keys

    @property
    def names(self) -> list[bytes]:
        return self.common_prefixes + self.keys


def parse_page(body: bytes) -> Page:
    """Parse the body of a ListObjectsV2 reply.

    Raises:
        ServiceError: the body is no such reply, or a truncated page without a token and without names.
    """
    if b"<!DOCTYPE" in body or b"<!ENTITY" in body:
        raise ServiceError("the LIST reply declares a document type, which no S3 service does")
    if b"\0" in body:  # expat reads UTF-16 in any case, and a document type in it would go unnoticed
        raise ServiceError("the LIST reply is not XML in UTF-8", hint=_NOT_S3)
    rows = _CONTENTS.findall(body)
    begin, end = body.find(b"<Contents>"), body.rfind(b"</Contents>") + len(b"</Contents>")
    is_usual = len(rows) == body.count(b"<Contents") == body.count(b"</Contents><Contents>") + bool(rows)
    frame = body[:begin] + b"<Contents/>" + body[end:] if rows else body
    # A line's end in XML is one LF, however it is written.
    if not is_usual or b"\r" in body or _FRAME.fullmatch(frame) is None:
        return _parse_any_order(body)
    fields = dict(reversed(_FIELD.findall(frame)))  # of several with one name, the first
    truncated, encoding = fields.get(b"IsTruncated"), fields.get(b"EncodingType", b"")
    if truncated not in (b"true", b"false") or encoding not in (b"url", b"") or b"CommonPrefixes" in fields:
        return _parse_any_order(body)
    keys, times, etags, sizes, classes = zip(*rows, strict=True) if rows else ((),) * 5
    columns = ObjectColumns(
        keys=_decode_keys(list(keys), is_url=encoding == b"url"),
        sizes=list(map(int, sizes)),
        mtimes_ns=_parse_times(list(times)),
        etags=_decode_texts(etags),
        storage_classes=_decode_texts(classes),
    )
    return Page(
        columns,
        is_truncated=truncated == b"true",
        next_token=_unescape(fields.get(b"NextContinuationToken", b"").decode("utf-8", "replace")),
    )


def _parse_any_order(body: bytes) -> Page:
    try:
        root = ElementTree.fromstring(body)
    except (ElementTree.ParseError, LookupError, ValueError) as error:  # the last two: of an encoding it does not know
        raise ServiceError(f"the LIST reply is not XML: {error}", hint="is the endpoint an S3 service?") from error
    for element in root.iter():
        element.tag = _NAMESPACE.sub("", element.tag)
    truncated = root.findtext("IsTruncated", "").strip()
    if root.tag != "ListBucketResult" or truncated not in {"true", "false"}:
        raise ServiceError(f"the LIST reply is a <{root.tag[:64]}>, not a ListObjectsV2 result", hint=_NOT_S3)
    is_url = root.findtext("EncodingType", "").strip() == "url"
    contents = root.findall("Contents")
    try:
        columns = ObjectColumns(
            keys=_decode_names([_required(item, "Key") for item in contents], is_url=is_url),
            sizes=[int(_required(item, "Size")) for item in contents],
            mtimes_ns=_parse_times([_required(item, "LastModified").strip().encode() for item in contents]),
            etags=[item.findtext("ETag", "").strip() for item in contents],
            storage_classes=[item.findtext("StorageClass", "").strip() or "STANDARD" for item in contents],
        )
        return Page(
            columns,
            is_truncated=truncated == "true",
            next_token=root.findtext("NextContinuationToken", ""),
            common_prefixes=_decode_names(
                [_required(item, "Prefix") for item in root.findall("CommonPrefixes")], is_url=is_url
            ),
        )
    except ValueError as error:
        raise ServiceError(f"the LIST reply cannot be understood: {error}", hint=_NOT_S3) from error


def _required(item: ElementTree.Element, tag: str) -> str:
    text = item.findtext(tag)
    if text is None:
        raise ValueError(f"<{item.tag}> without <{tag}>")
    return text


def _decode_names(names: list[str], *, is_url: bool) -> list[bytes]:
    encoded = [name.encode() for name in names]
    return _unquote(encoded) if is_url else encoded


def _decode_keys(keys: list[bytes], *, is_url: bool) -> list[bytes]:
    """Undo XML's entities, then S3's url encoding; keys with neither stay as they are."""
    joined = b"\0".join(keys)  # NUL cannot occur in XML, escaped or not
    if b"&" in joined:
        keys = [_unescape_bytes(key) if b"&" in key else key for key in keys]
    if is_url and (b"%" in joined or b"+" in joined):
        keys = _unquote(keys)
    return keys


def _unescape_bytes(key: bytes) -> bytes:
    # surrogateescape: a server may put bytes into a key that are not UTF-8; the name rules refuse them later (N2).
    return _unescape(key.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")


def _unescape(text: str) -> str:
    """Undo XML's entities only: `html.unescape` would also replace control characters."""

    def character(match: re.Match[str]) -> str:
        decimal, hexadecimal, name = match.groups()
        if name:
            return _ENTITIES[name]
        code = int(decimal) if decimal else int(hexadecimal, 16)
        return chr(code) if code < 0x110000 and not 0xD800 <= code < 0xE000 else match[0]

    return _ENTITY.sub(character, text)


def _unquote(keys: list[bytes]) -> list[bytes]:
    # S3 writes a space as "+" and a plus as "%2B".
    return [unquote_to_bytes(key.replace(b"+", b" ")) for key in keys]


def _decode_texts(texts: tuple[bytes, ...]) -> list[str]:
    if not texts:
        return []
    # Quotes are around every ETag: replacing them in one text is a hundred times faster. Other entities come later.
    joined = b"\0".join(texts).decode("utf-8", "replace").replace("&quot;", '"')
    decoded = joined.split("\0")
    return [_unescape(text).strip() if "&" in text else text for text in decoded] if "&" in joined else decoded


def _parse_times(times: list[bytes]) -> list[int]:
    """Return nanoseconds since the epoch; parse the whole page at once if all times have AWS's form (``...Z``)."""
    if not times:
        return []
    text = b"".join(times)
    width = len(times[0])
    if text.translate(_DIGITS_AS_ZERO) == _AWS_TIMES.get(width, b"") * len(times):
        try:
            plain = np.frombuffer(text, f"S{width}").astype(f"S{width - 1}").astype(f"U{width - 1}")
            moments = plain.astype("datetime64[ms]").astype("int64")
        except ValueError:
            pass  # the slow way names the time that cannot be read
        else:
            if np.all((moments >= -MAX_MOMENT_MS) & (moments <= MAX_MOMENT_MS)):
                in_ns: list[int] = (moments * 1_000_000).tolist()
                return in_ns
    try:
        return times_ns(time.decode("ascii", "replace") for time in times)
    except ValueError as error:
        raise ServiceError(f"the LIST reply holds an unreadable time: {str(error)[:96]}", hint=_NOT_S3) from error


class Pager:
    """Requests the pages of one bucket from a `PageSource`, which stays the caller's."""

    def __init__(self, source: PageSource, bucket: str, retries: Retries) -> None:
        self._source = source
        self._bucket = bucket
        self._limiter = trio.CapacityLimiter(MAX_IN_FLIGHT)
        self._came_since_growth = 0
        self._halved_at_s = -1.0
        self._taken_count = 0
        self._retries = retries
        # What waits for its reply, by number of the request, and since when: the earliest first.
        self._asked: dict[int, tuple[str, float]] = {}
        self._is_watched = False
        self.request_count = 0
        self.throttled_count = 0

    @property
    def capacity(self) -> int:
        """The number of requests that may be in flight now."""
        return int(self._limiter.total_tokens)

    @property
    def in_flight(self) -> int:
        return self._limiter.borrowed_tokens

    async def page(
        self, prefix: str, *, start_after: str = "", continuation_token: str = "", delimiter: str = ""
    ) -> Page:
        """Return one page, whose keys all begin with `prefix`.

        Raises:
            ServiceError: the page holds a key outside `prefix`, or does not arrive within `LIST_DEADLINE_S`; or as
                `PageSource.list`.
            AccessError, SourceError, ConfigurationError: as `PageSource.list`.
        """
        name = f"page {self._taken_count + 1} of the listing of {f's3://{self._bucket}/{prefix}'!r}"

        async def request_once() -> bytes:
            async with self._limiter:
                begun_s = trio.current_time()
                self.request_count += 1
                number = self.request_count
                self._asked[number] = (name, begun_s)
                if not self._is_watched:
                    self._is_watched = True
                    trio.lowlevel.spawn_system_task(self._tell_silence)
                try:
                    return await self._source.list(
                        self._bucket,
                        prefix=prefix,
                        start_after=start_after,
                        continuation_token=continuation_token,
                        delimiter=delimiter,
                    )
                except RetryableError as error:
                    if error.failure.kind is Kind.THROTTLED:
                        self._shrink(begun_s)
                    raise
                finally:
                    del self._asked[number]

        with trio.move_on_after(LIST_DEADLINE_S):
            body = await self._retries.run(request_once, name=name)
            self._taken_count += 1
            self._grow()
            return _checked(parse_page(body), prefix)
        raise ServiceError(f"no LIST page of {self._bucket!r} arrived within {LIST_DEADLINE_S:.0f} s")

    async def _tell_silence(self) -> None:
        """Log what waits for its reply for long, once in 30 s, until nothing waits."""
        try:
            while self._asked:
                name, since_s = next(iter(self._asked.values()))
                waited_s = trio.current_time() - since_s
                if waited_s >= _SILENCE_S:
                    _log.warning("%s: no reply for %.0f s", name, waited_s)
                await trio.sleep(EVERY_S if waited_s >= _SILENCE_S else _SILENCE_S - waited_s)
        finally:
            self._is_watched = False

    def _grow(self) -> None:
        self._came_since_growth += 1
        if self._came_since_growth >= self.capacity < MAX_IN_FLIGHT:
            self._came_since_growth = 0
            self._limiter.total_tokens += 1

    def _shrink(self, begun_s: float) -> None:
        self.throttled_count += 1
        if begun_s > self._halved_at_s:  # requests sent before the last halving do not show its effect
            self._halved_at_s = trio.current_time()
            self._came_since_growth = 0
            self._limiter.total_tokens = max(self.capacity // 2, 1)


def _checked(page: Page, prefix: str) -> Page:
    start = prefix.encode()
    if not all(key.startswith(start) for key in page.keys):
        raise ServiceError(f"the LIST reply for {prefix!r} holds a key that does not begin with it")
    return page
