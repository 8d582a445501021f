"""Checks the bytes of objects against the checksums that the service keeps of them (semantics, "What is checked").

A file that one GET reads is checked against the head of that reply. With ``--verify`` larger objects are, too: the
first GET of one asks by HEAD for its checksum (or for those of the parts of its upload), and each GET adds the CRC of
its bytes. A HEAD that gets no answer fails the read. The piece that completes an object, or a part, is withheld until
the CRC of all pieces is right. What was handed out before cannot be taken back, so a wrong CRC fails this piece and
every later one of the same bytes. A hash takes pieces only in their order, each once those before it are there.

Bytes that are wrong are fetched once more. The pieces that were fetched last count; of those that the kernel keeps in
its page cache they are the same bytes, as long as this process lives and remembers the object.
"""

import hashlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import trio

from fastfuse.errors import DeadlineError, ForbiddenObjectError, IntegrityError, MissingObjectError, RefusedError
from fastfuse.metrics import Counters
from fastfuse.objects import Buffer, ObjectRef
from fastfuse.repeats import RepeatedFailures
from fastfuse.s3.checksums import Checksum, CrcPieces, digest_of, given_checksum, is_composite, md5_checksum
from fastfuse.s3.http1 import ReplyHead
from fastfuse.s3.threads import NoThreadError, in_thread

_log = logging.getLogger(__name__)

_HINT = "Something changes bytes on their way: use https, and look at proxies and network cards."

T = TypeVar("T")

# Objects whose pieces are remembered; one piece takes 200 bytes.
_MAX_OBJECTS = 4096
# A thread takes longer to be reached than the CRC of fewer bytes takes.
_THREAD_BYTES = 1 << 20
# S3 takes 10,000 parts.
_MOST_DIGITS = 9


@dataclass(slots=True)
class _Span:
    """A range that has a checksum of its own: the object, or the part `number` of its upload."""

    start: int
    end: int
    algorithm: str
    number: int
    # Asked for when all bytes of a part are there.
    expected: Checksum | None
    # None for a hash, which cannot be joined from pieces: it has taken those before `at`, in their order.
    pieces: CrcPieces | None
    at: int
    hash: "hashlib._Hash | None" = None
    is_verified: bool = False
    # Why it is read no more.
    failure: str = ""


@dataclass(slots=True, eq=False)
class _Object:
    """What is known of one version of an object; no spans where it cannot be checked."""

    spans: list[_Span] = field(default_factory=list)
    is_asked: bool = False
    asking: trio.Lock = field(default_factory=trio.Lock)
    # Where the GETs under way begin; `landed` is set, and replaced, as one of them ends.
    under_way: list[int] = field(default_factory=list)
    landed: trio.Event = field(default_factory=trio.Event)


class Integrity:
    """Checks what one client fetches."""

    def __init__(
        self,
        *,
        is_thorough: bool,
        deadline_s: float,
        fetch: Callable[[ObjectRef, int, int, float], Awaitable[tuple[Buffer, ReplyHead]]],
        head: Callable[[str, str, str], Awaitable[ReplyHead]],
        counters: Counters,
    ) -> None:
        """Check small files, and all others if `is_thorough`, each read within `deadline_s` in all.

        `fetch` takes when that is over, and `head` bucket, key and query.
        """
        self._is_thorough = is_thorough
        self._deadline_s = deadline_s
        self._fetch = fetch
        self._head = head
        self._counters = counters
        self._repeats = RepeatedFailures(_log)
        # Least recently fetched first.
        self._objects: dict[ObjectRef, _Object] = {}

    async def get(self, ref: ObjectRef, start: int, end: int, began_s: float) -> Buffer:
        """Return the bytes of `ref` from `start` to `end`, checked as far as they can be.

        The read began at `began_s` on trio's clock.

        Raises:
            IntegrityError: they are wrong, and were fetched twice.
            ReadError: they cannot be fetched.
        """
        ends_s = began_s + self._deadline_s
        if not self._is_thorough:
            data, head = await self._fetch(ref, start, end, ends_s)
            return data if len(data) < ref.size_bytes else await self._check_whole(ref, data, head, ends_s)
        known = self._known(ref)
        known.under_way.append(start)
        try:
            with trio.move_on_at(ends_s):
                data, head = await self._fetch(ref, start, end, ends_s)
                if len(data) == ref.size_bytes and not is_composite(head.headers):
                    return await self._check_whole(ref, data, head, ends_s)
                return await self._check_piece(known, ref, start, data, ends_s)
            raise DeadlineError.too_slow(ref.key, self._deadline_s, "read and checked")
        finally:
            known.under_way.remove(start)
            known.landed.set()
            known.landed = trio.Event()

    def _given(self, head: ReplyHead) -> Checksum | None:
        """Return the checksum of all that came behind `head`."""
        if "content-range" in head.headers:
            return None  # some services send the one of the whole object with any range
        return given_checksum(head.headers) or (md5_checksum(head.headers) if self._is_thorough else None)

    async def _check_whole(self, ref: ObjectRef, data: Buffer, head: ReplyHead, ends_s: float) -> Buffer:
        expected = self._given(head)
        if expected is None:
            self.count("none")
            return data
        digest = await _digest(expected.algorithm, data)
        if digest != expected.digest:
            with trio.move_on_at(ends_s) as within:
                data, head = await self._fetch(ref, 0, ref.size_bytes, ends_s)
            if within.cancelled_caught:
                raise DeadlineError.too_slow(ref.key, self._deadline_s, "read and checked")
            # The first one may have been damaged on its way, too.
            expected = self._given(head) or expected
            digest = await _digest(expected.algorithm, data)
            if digest != expected.digest:
                self.count("mismatch")
                raise IntegrityError(_failure(ref, 0, ref.size_bytes, expected, digest), hint=_HINT)
            self._fetched_again(ref)
        self.count("ok")
        return data

    async def _check_piece(self, known: _Object, ref: ObjectRef, start: int, data: Buffer, ends_s: float) -> Buffer:
        if not known.is_asked:
            async with known.asking:
                if not known.is_asked:
                    known.spans = await self._ask_spans(ref)
                    known.is_asked = True
                    self.count("begun" if known.spans else "none")
        if await self._first_wrong(known, ref, start, data) is not None:
            data, _ = await self._fetch(ref, start, start + len(data), ends_s)
            wrong = await self._first_wrong(known, ref, start, data)
            if wrong is not None:
                span, digest = wrong
                if not span.failure:
                    span.failure = _failure(ref, span.start, span.end, span.expected, digest)
                    self.count("mismatch")
                raise IntegrityError(span.failure, hint=_HINT)
            self._fetched_again(ref)
        return data

    def _known(self, ref: ObjectRef) -> _Object:
        known = self._objects.pop(ref, None) or _Object()
        self._objects[ref] = known
        if len(self._objects) > _MAX_OBJECTS:
            oldest = next(iter(self._objects))
            old = self._objects.pop(oldest)
            if any(span.failure for span in old.spans):
                self._objects[oldest] = old  # the page cache may have the wrong bytes
        return known

    async def _ask_spans(self, ref: ObjectRef) -> list[_Span]:
        """Return the ranges of `ref` that have checksums."""
        head = await self._ask(ref, 0)
        if head is None:
            return []
        expected = given_checksum(head.headers) or md5_checksum(head.headers)
        if expected is not None:
            return [_span(0, ref.size_bytes, 0, expected)]
        first = await self._ask(ref, 1) if is_composite(head.headers) else None
        if first is None:
            return []
        expected, part_bytes = given_checksum(first.headers, is_part=True), first.body_bytes
        count = _number(first.headers.get("x-amz-mp-parts-count", ""))
        if expected is None or not part_bytes or count != -(-ref.size_bytes // part_bytes):
            return []
        return [_span(*part, number, expected) for number, part in enumerate(ref.parts(part_bytes), 1)]

    async def _ask(self, ref: ObjectRef, part: int) -> ReplyHead | None:
        """Return the reply to a HEAD for the object or for a part of its upload; None if the service refuses it."""
        try:
            return await self._head(ref.bucket, ref.key, f"partNumber={part}" if part else "")
        except (ForbiddenObjectError, MissingObjectError, RefusedError):
            return None  # GETs may be allowed where HEADs are not

    async def _first_wrong(
        self, known: _Object, ref: ObjectRef, start: int, data: Buffer
    ) -> tuple[_Span, bytes] | None:
        """Add the piece at `start`; return the span that it completes to wrong bytes, or that failed before."""
        view, end = memoryview(data), start + len(data)
        for span in known.spans:
            if span.end <= start or end <= span.start:
                continue
            if span.failure:
                return span, b""
            first, last = max(start, span.start), min(end, span.end)
            piece = view[first - start : last - start]
            if span.pieces is None:
                digest = await _hashed(known, span, first, piece)
            else:
                digest = span.pieces.put(first, last, await _digest(span.algorithm, piece))
            if digest is None:
                continue
            expected = await self._expected(known, ref, span)
            if expected is None:
                return None
            if digest != expected.digest:
                return span, digest
            if not span.is_verified:
                span.is_verified = True
                if all(one.is_verified for one in known.spans):
                    self.count("ok")
        return None

    async def _expected(self, known: _Object, ref: ObjectRef, span: _Span) -> Checksum | None:
        """Return the checksum of `span`; None if the service does not give it, and then check the object no more."""
        if span.expected is None:
            head = await self._ask(ref, span.number)
            # The parts of an upload may have any sizes; all but the last have mostly the same.
            if head is not None and head.body_bytes == span.end - span.start:
                span.expected = given_checksum(head.headers, is_part=True)
            if span.expected is None:
                known.spans = []
                self.count("none")
        return span.expected

    def _fetched_again(self, ref: ObjectRef) -> None:
        self.count("refetched")
        self._repeats.tell(
            "objects received damaged and fetched again",
            ref.key,
            f"{ref.key!r} was received damaged, and right the second time. {_HINT}",
        )

    def count(self, outcome: str) -> None:
        """Count an object, or a small file that was checked elsewhere, by one of `metrics.CHECKS`."""
        self._counters.count("fastfuse_verified_objects", value=outcome)


def _span(start: int, end: int, number: int, expected: Checksum) -> _Span:
    """Return a span; `expected` is the checksum of the object, or that of the first part of its upload."""
    pieces = CrcPieces(expected.algorithm, start, end) if expected.is_crc else None
    return _Span(start, end, expected.algorithm, number, expected if number <= 1 else None, pieces, at=start)


async def _hashed(known: _Object, span: _Span, start: int, piece: memoryview) -> bytes | None:
    """Add a piece to the hash of `span` if it is the next one; return the digest if it is the last one.

    One that is fetched beside those before it waits for them. The last one is not added, as it may be fetched again.
    """
    while span.at < start and min(known.under_way, default=start) < start:
        await known.landed.wait()
    if start == span.start:
        span.at, span.hash = start, hashlib.new(span.algorithm, usedforsecurity=False)
    if span.at != start or span.hash is None:
        return None
    digest = span.hash.copy()
    if len(piece) <= _THREAD_BYTES:
        digest.update(piece)
    else:
        await _in_thread(partial(digest.update, piece))
    end = start + len(piece)
    if end == span.end:
        return digest.digest()
    span.at, span.hash = end, digest
    return None


async def _digest(algorithm: str, data: Buffer) -> bytes:
    if len(data) <= _THREAD_BYTES:
        return digest_of(algorithm, data)
    return await _in_thread(partial(digest_of, algorithm, data))


async def _in_thread(work: Callable[[], T]) -> T:
    """Call `work` in a thread, or here where the system has no room for one."""
    try:
        return await in_thread(work)
    except NoThreadError:
        return work()


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS else 0


def _failure(ref: ObjectRef, start: int, end: int, expected: Checksum | None, digest: bytes) -> str:
    part = "" if end - start == ref.size_bytes else f" in its bytes {start} to {end}"
    algorithm = expected.algorithm if expected else ""
    return (
        f"{ref.key!r} was received damaged{part}, twice: its checksum is {algorithm} {digest.hex()}, where the service "
        f"gives {expected}."
    )
