"""Bytes that are damaged on their way: fetched once more, or an error; never the wrong ones."""

import errno
import hashlib
import random
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from functools import partial
from itertools import count, pairwise
from math import inf
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from bench.s3server import (
    ACCESS_DENIED,
    SLOW_DOWN,
    Answer,
    Delay,
    FaultRule,
    Flip,
    LoopbackServer,
    MemoryObjects,
    Replace,
    Reset,
    ServerConfig,
    UploadedPart,
)
from bench.s3server.faults import Action
from fastfuse.errors import DeadlineError, IntegrityError, ObjectChangedError, ObjectDeniedError, ReadError
from fastfuse.metrics import CHECKS, Counters
from fastfuse.objects import ObjectRef
from fastfuse.s3.aws import S3Session
from fastfuse.s3.base import ConnectionConfig
from fastfuse.s3.checksums import digest_of
from fastfuse.s3.client import S3Client
from fastfuse.s3.connection import Connection, Patience
from fastfuse.s3.http1 import ReplyHead
from fastfuse.s3.integrity import Integrity
from fastfuse.s3.routes import NotConnectedError, Route

DATA = random.Random(1).randbytes(3_000_000)
ALGORITHMS = ["crc64nvme", "crc32c", "crc32", "sha1", "sha256"]
CRCS = ALGORITHMS[:3]
# Of 8 parts, all but the last of one size; and of the same number, of two sizes.
EVEN = [*range(0, len(DATA), 400_000), len(DATA)]
ODD = [0, 400_000, 700_000, *EVEN[3:]]


def told(algorithm: str, data: bytes, suffix: str = "") -> dict[str, str]:
    return {f"x-amz-checksum-{algorithm}": b64encode(digest_of(algorithm, data)).decode() + suffix}


class Bench:
    """A server with one object, a client that counts, and what the two did."""

    def __init__(self, server: LoopbackServer, objects: MemoryObjects, client: S3Client, counters: Counters) -> None:
        self.server = server
        self.objects = objects
        self.client = client
        self._counters = counters

    def put(self, data: bytes = DATA, checksums: dict[str, str] | None = None, **others: object) -> ObjectRef:
        stored = self.objects.put("key", data, checksums=checksums, **others)  # type: ignore[arg-type]
        return ObjectRef("bucket", "key", len(data), stored.etag)

    def put_parts(self, algorithm: str, borders: list[int], data: bytes = DATA) -> ObjectRef:
        pieces = [data[start:end] for start, end in pairwise(borders)]
        digests = b"".join(digest_of(algorithm, piece) for piece in pieces)
        return self.put(
            data,
            told(algorithm, digests, f"-{len(pieces)}") | {"x-amz-checksum-type": "COMPOSITE"},
            parts=tuple(UploadedPart(len(piece), told(algorithm, piece)) for piece in pieces),
            etag=f'"{hashlib.md5(data).hexdigest()}-{len(pieces)}"',
        )

    def flip(self, *offsets: int, times: int | None = None, skip: int = 0) -> None:
        action = Flip(lambda start, end: offsets)
        self.server.faults.add(FaultRule(action=action, operation="GetObject", times=times, skip=skip))

    async def read(self, ref: ObjectRef, piece_bytes: int, order: list[int] | None = None) -> bytes:
        """Read the object in pieces, in the order of their starts or in another."""
        starts = list(range(0, ref.size_bytes, piece_bytes))
        pieces = {}
        for start in order or starts:
            pieces[start] = bytes(await self.client.get(ref, start, min(start + piece_bytes, ref.size_bytes)))
        return b"".join(pieces[start] for start in starts)

    def counts(self) -> dict[str, int]:
        counts = {name: self._counters.get("fastfuse_verified_objects", name) for name in CHECKS}
        return {name: count for name, count in counts.items() if count}

    def requests(self, operation: str) -> int:
        return self.server.statistics().requests.get(operation, 0)


@asynccontextmanager
async def benched(*, verify: bool, config: ServerConfig | None = None, deadline_s: float = 60) -> AsyncIterator[Bench]:
    objects, counters = MemoryObjects(), Counters()
    with LoopbackServer({"bucket": objects}, config) as server:
        connection = ConnectionConfig(
            endpoint_url=server.endpoint_url,
            region="us-east-1",
            sign_request=False,
            verify=verify,
            deadline_s=deadline_s,
        )
        client = S3Client(S3Session(connection), counters=counters)
        yield Bench(server, objects, client, counters)
        await client.aclose()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("size_bytes", [1, 39_000, len(DATA)])
async def test_an_object_that_one_get_reads_is_right_fetched_again_or_an_error(algorithm: str, size_bytes: int) -> None:
    data = DATA[:size_bytes]
    async with benched(verify=False) as bench:
        ref = bench.put(data, told(algorithm, data))
        assert await bench.read(ref, size_bytes) == data
        assert bench.counts() == {"ok": 1}
        bench.flip(size_bytes - 1, times=1)
        assert await bench.read(ref, size_bytes) == data
        assert bench.counts() == {"ok": 2, "refetched": 1}
        bench.flip(0)
        wrong = digest_of(algorithm, bytes([data[0] ^ 1]) + data[1:]).hex()
        with pytest.raises(IntegrityError, match=f"'key'.*{algorithm} {wrong}.*{digest_of(algorithm, data).hex()}"):
            await bench.read(ref, size_bytes)
        assert bench.counts() == {"ok": 2, "refetched": 1, "mismatch": 1}
        bench.server.faults.clear()
        assert await bench.read(ref, size_bytes) == data
        assert bench.requests("GetObject") == 6


async def test_bytes_are_checked_where_there_is_no_room_for_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CRC of all of them, and a hash of pieces of them."""

    def no_room(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(trio.lowlevel, "start_thread_soon", no_room)
    for algorithm, piece_bytes in (("crc64nvme", len(DATA)), ("sha256", 2 * len(DATA) // 3)):
        async with benched(verify=True) as bench:
            ref = bench.put(DATA, told(algorithm, DATA))
            assert await bench.read(ref, piece_bytes) == DATA
            assert bench.counts()["ok"] == 1


async def test_an_md5_is_checked_only_if_everything_is() -> None:
    for verify in (False, True):
        async with benched(verify=verify) as bench:
            ref = bench.put()
            bench.flip(7)
            if verify:
                with pytest.raises(IntegrityError, match=f"md5 {hashlib.md5(DATA).hexdigest()}"):
                    await bench.read(ref, len(DATA))
            else:
                assert await bench.read(ref, len(DATA)) != DATA
            assert bench.counts() == ({"mismatch": 1} if verify else {"none": 1})


@pytest.mark.parametrize(
    ("algorithm", "order"), [*((crc, None) for crc in CRCS), ("crc32c", [1_400_000, 0, 2_800_000, 700_000, 2_100_000])]
)
async def test_a_large_object_is_right_or_its_last_piece_is_an_error(algorithm: str, order: list[int] | None) -> None:
    piece_bytes = 700_000
    async with benched(verify=True) as bench:
        ref = bench.put(DATA, told(algorithm, DATA))
        assert await bench.read(ref, piece_bytes, order) == DATA
        assert (bench.counts(), bench.requests("HeadObject")) == ({"begun": 1, "ok": 1}, 1)
        # A piece that is fetched again, as the page cache has dropped it, is compared with the others.
        bench.flip(1_500_000, times=1)
        assert bytes(await bench.client.get(ref, 1_400_000, 2_100_000)) == DATA[1_400_000:2_100_000]
        assert bench.counts() == {"begun": 1, "ok": 1, "refetched": 1}


async def test_bytes_that_were_handed_out_wrong_keep_the_object_from_being_read_to_its_end() -> None:
    async with benched(verify=True) as bench:
        ref = bench.put(DATA, told("crc32c", DATA))
        bench.flip(1_000_001, times=2)  # the pieces at 0 and at 1,000,000
        starts = [0, 1_000_000, 2_000_000]
        assert bytes(await bench.client.get(ref, 0, 1_000_000)) == DATA[:1_000_000]
        assert bytes(await bench.client.get(ref, 1_000_000, 2_000_000)) != DATA[1_000_000:2_000_000]
        for start in (2_000_000, *starts):  # whoever asks again would otherwise take the file for complete
            with pytest.raises(IntegrityError, match=f"'key'.*{digest_of('crc32c', DATA).hex()}"):
                await bench.client.get(ref, start, start + 1_000_000)
        assert bench.counts() == {"begun": 1, "mismatch": 1}
        # Another version is another object.
        again = bench.put(DATA[:-1], told("crc32c", DATA[:-1]))
        assert await bench.read(again, 1_000_000) == DATA[:-1]


@pytest.mark.parametrize("piece_bytes", [300_000, 400_000, 1_000_000])
async def test_an_upload_in_parts_is_checked_by_part(piece_bytes: int) -> None:
    async with benched(verify=True) as bench:
        ref = bench.put_parts("crc32", EVEN)
        assert await bench.read(ref, piece_bytes) == DATA
        assert (bench.counts(), bench.requests("HeadObject")) == ({"begun": 1, "ok": 1}, 1 + 8)
    async with benched(verify=True) as bench:
        ref = bench.put_parts("crc32", EVEN)
        bench.flip(500_000)
        with pytest.raises(IntegrityError, match="bytes 400000 to 800000"):
            await bench.read(ref, piece_bytes)
        # The other parts are not concerned.
        assert bytes(await bench.client.get(ref, 800_000, 1_600_000)) == DATA[800_000:1_600_000]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
async def test_a_small_upload_in_parts_is_checked_too(algorithm: str) -> None:
    async with benched(verify=True) as bench:
        ref = bench.put_parts(algorithm, EVEN)
        bench.flip(2_999_999, times=1)
        assert await bench.read(ref, len(DATA)) == DATA
        assert bench.counts() == {"begun": 1, "ok": 1, "refetched": 1}
        bench.flip(2_999_999)
        with pytest.raises(IntegrityError, match="bytes 2800000 to 3000000"):
            await bench.read(ref, len(DATA))


@pytest.mark.parametrize("algorithm", ["sha1", "sha256", "md5"])
async def test_a_hash_is_checked_where_pieces_are_fetched_in_order_and_come_in_another(algorithm: str) -> None:
    async with benched(verify=True) as bench:
        ref = bench.put(DATA, {} if algorithm == "md5" else told(algorithm, DATA))
        pieces: dict[int, bytes] = {}

        async def fetch(start: int) -> None:
            pieces[start] = bytes(await bench.client.get(ref, start, start + 1_000_000))

        bench.server.faults.add(FaultRule(action=Delay(0.05), operation="GetObject", times=1))
        async with trio.open_nursery() as nursery:
            for start in range(0, 3_000_000, 1_000_000):
                nursery.start_soon(fetch, start)
        assert b"".join(pieces[start] for start in sorted(pieces)) == DATA
        assert bench.counts() == {"begun": 1, "ok": 1}
        bench.flip(2_500_000, times=1)
        await fetch(2_000_000)
        assert pieces[2_000_000] == DATA[2_000_000:]
        assert bench.counts() == {"begun": 1, "ok": 1, "refetched": 1}
        bench.server.faults.clear()
        bench.flip(1_500_000)
        await bench.client.get(ref, 0, 1_000_000)
        await bench.client.get(ref, 1_000_000, 2_000_000)
        for _ in range(2):
            with pytest.raises(IntegrityError, match=f"{algorithm} .*{digest_of(algorithm, DATA).hex()}"):
                await bench.client.get(ref, 2_000_000, 3_000_000)


async def test_a_piece_of_a_hash_that_is_fetched_alone_waits_for_nothing() -> None:
    async with benched(verify=True) as bench:
        ref = bench.put(DATA, told("sha256", DATA))
        for start in (2_000_000, 0, 2_000_000):
            assert bytes(await bench.client.get(ref, start, start + 500)) == DATA[start : start + 500]
        # The other one must not take its place, nor come after it.
        bench.server.faults.add(FaultRule(action=Delay(0.05), operation="GetObject", times=1))
        rule = bench.server.faults.add(FaultRule(action=ACCESS_DENIED, operation="GetObject", times=1))
        async with trio.open_nursery() as nursery:

            async def denied() -> None:
                with pytest.raises(ObjectDeniedError):
                    await bench.client.get(ref, 500, 1000)

            nursery.start_soon(denied)
            while not bench.server.faults.hits(rule):  # noqa: ASYNC110 - another thread counts them
                await trio.sleep(0.001)
            assert bytes(await bench.client.get(ref, 1000, 1500)) == DATA[1000:1500]
        assert bench.counts() == {"begun": 1}


async def test_parts_of_many_sizes_are_not_checked() -> None:
    async with benched(verify=True) as bench:
        ref = bench.put_parts("crc32c", ODD)
        assert await bench.read(ref, 300_000) == DATA
        assert bench.counts() == {"begun": 1, "none": 1}


async def test_what_cannot_be_checked_is_read_and_counted() -> None:
    async with benched(verify=True) as bench:
        # A checksum of checksums without its parts, nothing at all.
        for checksums in (told("crc32", b"", "-8"), {}):
            ref = bench.put(DATA, checksums, etag=f'"{len(checksums)}{sorted(checksums)}-2"')
            assert await bench.read(ref, 1_000_000) == DATA
        assert bench.counts() == {"none": 2}


@pytest.mark.parametrize("status", [400, 403, 404, 405, 501])
@pytest.mark.parametrize("is_of_part", [False, True])
async def test_an_object_whose_head_is_refused_is_read_and_counted_once(status: int, is_of_part: bool) -> None:
    async with benched(verify=True) as bench:
        ref = bench.put_parts("crc32", EVEN)
        refusal = Answer(status, "Refused", "")
        bench.server.faults.add(FaultRule(action=refusal, operation="HeadObject", skip=2 if is_of_part else 0))
        assert await bench.read(ref, 1_000_000) == DATA
        assert bench.counts() == ({"begun": 1, "none": 1} if is_of_part else {"none": 1})
        assert bench.requests("HeadObject") == (3 if is_of_part else 1)


REFUSED_CONNECTION = "refused connection"
PASSING = [SLOW_DOWN, Reset(None), REFUSED_CONNECTION]


def hinder_heads(
    monkeypatch: pytest.MonkeyPatch, bench: Bench, trouble: Action | str, *, skip: int, times: int | None
) -> None:
    if not isinstance(trouble, str):
        bench.server.faults.add(FaultRule(action=trouble, operation="HeadObject", skip=skip, times=times))
        return
    ask, asked = bench.client._routes.ask, count()

    async def refuse(route: Route, request: bytes, patience: Patience, **others: Any) -> tuple[Connection, ReplyHead]:  # noqa: ANN401 - those of `Routes.ask`
        if request.startswith(b"HEAD") and skip <= next(asked) < (inf if times is None else skip + times):
            raise NotConnectedError(ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"))
        return await ask(route, request, patience, **others)

    monkeypatch.setattr(bench.client._routes, "ask", refuse)


@pytest.mark.parametrize("trouble", PASSING)
@pytest.mark.parametrize("skip", [0, 1, 2], ids=["the object", "its first part", "another part"])
async def test_heads_may_fail_for_a_while(monkeypatch: pytest.MonkeyPatch, trouble: Action | str, skip: int) -> None:
    monkeypatch.setattr("random.random", lambda: 0.0)  # pauses of 0
    async with benched(verify=True) as bench:
        ref = bench.put_parts("crc32c", EVEN)
        hinder_heads(monkeypatch, bench, trouble, skip=skip, times=6)  # a command has 4 attempts
        bench.flip(2_500_000)
        with pytest.raises(IntegrityError, match="bytes 2400000 to 2800000"):
            await bench.read(ref, 400_000)
        assert bench.counts() == {"begun": 1, "mismatch": 1}


@pytest.mark.parametrize("trouble", PASSING)
@pytest.mark.parametrize("skip", [0, 2], ids=["the object", "a part"])
async def test_a_read_whose_heads_fail_until_its_deadline_fails_and_the_next_one_asks_again(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    mock_clock: trio.testing.MockClock,
    trouble: Action | str,
    skip: int,
) -> None:
    """Time passes only while they fail."""
    monkeypatch.setattr("fastfuse.s3.client.stall_timeout_s", lambda _: 60.0)
    async with benched(verify=True, deadline_s=0.5) as bench:
        ref = bench.put_parts("crc32c", EVEN)
        hinder_heads(monkeypatch, bench, trouble, skip=skip, times=None)
        start = 400_000 if skip else 0
        if skip:
            await bench.client.get(ref, 0, start)
        mock_clock.rate = 1.0
        for _ in range(2):
            with pytest.raises(ReadError, match="'key' could not be read") as caught:
                await bench.client.get(ref, start, start + 400_000)
            assert caught.value.errno == errno.EIO
        assert len([message for message in caplog.messages if "(attempt 1 failed" in message]) == 1
        mock_clock.rate = 0.0
        bench.server.faults.clear()
        monkeypatch.undo()
        assert await bench.read(ref, 400_000) == DATA
        assert bench.counts() == {"begun": 1, "ok": 1}


@pytest.mark.parametrize("verify", [False, True])
async def test_a_second_fetch_has_the_same_deadline(verify: bool, autojump_clock: MockClock) -> None:
    head = ReplyHead(status=200, headers=told("crc32c", b"right"), is_persistent=True, body_bytes=5)

    async def fetch(ref: ObjectRef, start: int, end: int, ends_s: float) -> tuple[bytes, ReplyHead]:
        await trio.sleep(40)
        return b"wrong", head

    async def ask(bucket: str, key: str, query: str = "") -> ReplyHead:
        raise AssertionError

    integrity = Integrity(is_thorough=verify, deadline_s=60.0, fetch=fetch, head=ask, counters=Counters())
    began_s = trio.current_time()
    with pytest.raises(DeadlineError) as caught:
        await integrity.get(ObjectRef("bucket", "key", 5, ""), 0, 5, trio.current_time())
    assert caught.value.hint == DeadlineError.TOO_SLOW_HINT
    assert trio.current_time() - began_s == 60


async def test_a_checked_read_takes_one_deadline_in_all(autojump_clock: MockClock) -> None:
    """Also where it waits for the question of another one, which began later and takes longer."""
    head = ReplyHead(status=206, headers={}, is_persistent=True, body_bytes=0)

    async def fetch(ref: ObjectRef, start: int, end: int, ends_s: float) -> tuple[bytes, ReplyHead]:
        await trio.sleep(40 if start else 0)
        return bytes(end - start), head

    async def ask(bucket: str, key: str, query: str = "") -> ReplyHead:
        await trio.sleep(59)
        return head

    integrity = Integrity(is_thorough=True, deadline_s=60.0, fetch=fetch, head=ask, counters=Counters())
    ref = ObjectRef("bucket", "key", 2000, "")
    ended_s: dict[str, float] = {}

    async def read(name: str, start: int, *, begins_s: float) -> None:
        await trio.sleep_until(began_s + begins_s)
        with pytest.raises(DeadlineError) if name == "late" else nullcontext():
            await integrity.get(ref, start, start + 1000, trio.current_time())
        ended_s[name] = trio.current_time() - began_s

    began_s = trio.current_time()
    await read("late", 1000, begins_s=0)
    assert ended_s.pop("late") == 60
    began_s = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(read, "late", 1000, begins_s=0))
        nursery.start_soon(partial(read, "in time", 0, begins_s=30))
    assert ended_s == {"late": 60, "in time": 89}


async def test_the_checksum_of_another_version_tells_that_the_object_has_changed() -> None:
    async with benched(verify=True) as bench:
        ref = bench.put(DATA, told("crc32", DATA))
        assert bytes(await bench.client.get(ref, 0, 1_000_000)) == DATA[:1_000_000]
        bench.server.faults.add(FaultRule(action=Replace(DATA[::-1])))
        with pytest.raises(ObjectChangedError):
            await bench.client.get(ref, 1_000_000, 2_000_000)


async def test_a_checksum_of_the_object_beside_a_range_is_not_taken_for_that_of_the_range() -> None:
    async with benched(verify=False, config=ServerConfig(honour_ranges=False)) as bench:
        ref = bench.put(DATA, told("crc32", DATA))
        assert bytes(await bench.client.get(ref, 0, 10)) == DATA[:10]
        assert bench.counts() == {}
