"""No read waits for longer than its deadline, whatever it waits for; virtual time."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import trio
from trio.testing import MockClock

from fastfuse.errors import DeadlineError, ReadError, UnavailableError
from fastfuse.objects import Buffer, ObjectRef
from fastfuse.readahead import ReadaheadConfig, ReadEngine
from fastfuse.s3.failures import Failure, Kind
from fastfuse.s3.retries import Retries, RetryableError
from tests.readahead.books import check_books, parts_waiting
from tests.readahead.readers import KIB, MIB, SMALL, Files, ScriptedReader, content, listed, running, settled

DEADLINE_S = 60.0
CONFIG = ReadaheadConfig(max_parts_in_flight=4, read_deadline_s=DEADLINE_S)
PART_BYTES = CONFIG.part_size_bytes


class Service:
    """A client that tries again until the deadline of each GET; the service fails, after `takes_s`, or is back."""

    def __init__(self, *, takes_s: float) -> None:
        self.is_back = False
        self._takes_s = takes_s
        self._retries = Retries()

    async def get(self, ref: ObjectRef, start: int, end: int) -> Buffer:
        with trio.move_on_after(DEADLINE_S):
            return await self._retries.run(partial(self._try, ref, start, end), name=ref.key)
        raise DeadlineError(f"{ref.key!r} could not be read within 60 s.")

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()

    async def _try(self, ref: ObjectRef, start: int, end: int) -> Buffer:
        if self.is_back:
            await trio.lowlevel.checkpoint()
            return bytes(end - start)
        await trio.sleep(self._takes_s)
        raise RetryableError(UnavailableError(f"{ref.key!r}: 503 SlowDown."), Failure(kind=Kind.BUSY, detail="503"))


def wanted(*, is_one_file: bool) -> list[tuple[int, ObjectRef, int]]:
    """Return 12 reads: of parts of one file, or of pages of as many files."""
    if is_one_file:
        ref = listed("large", 12 * PART_BYTES)
        return [(1, ref, number * PART_BYTES + MIB) for number in range(12)]
    return [(number, listed(f"file{number}", 3 * MIB), 0) for number in range(1, 13)]


@pytest.mark.parametrize("is_one_file", [False, True])
@pytest.mark.parametrize("takes_s", [0.01, 20.0, 1000.0], ids=["refuses", "stalls", "is silent"])
async def test_more_readers_than_connections_fail_at_their_deadlines_and_read_once_the_service_is_back(
    autojump_clock: MockClock, takes_s: float, *, is_one_file: bool
) -> None:
    """Semantics D5: half of them come later, while all connections are taken."""
    service, took_s, errors = Service(takes_s=takes_s), list[float](), list[ReadError]()

    async def fail(engine: ReadEngine, inode: int, ref: ObjectRef, offset: int, after_s: float) -> None:
        await trio.sleep(after_s)
        began_s = trio.current_time()
        with pytest.raises(ReadError) as caught:
            await engine.read(inode, ref, offset, 128 * KIB)
        took_s.append(trio.current_time() - began_s)
        errors.append(caught.value)

    async with trio.open_nursery() as nursery:
        engine = ReadEngine(service, CONFIG, nursery, lambda: Files([]))
        async with trio.open_nursery() as readers:
            for number, read in enumerate(wanted(is_one_file=is_one_file)):
                readers.start_soon(fail, engine, *read, 0.0 if number < 6 else 30.0)
        assert len(took_s) == 12
        assert max(took_s) <= DEADLINE_S
        if takes_s < 1:
            assert all("503" in str(error) for error in errors)
        check_books(engine)
        service.is_back = True
        await trio.sleep(2 * DEADLINE_S)
        began_s = trio.current_time()
        for inode, ref, offset in wanted(is_one_file=is_one_file):
            assert await engine.read(inode, ref, offset, 128 * KIB) == bytes(128 * KIB)
        assert trio.current_time() == began_s
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("is_announced", [False, True])
@pytest.mark.parametrize(("takes_s", "cause"), [(0.01, "503"), (15.0, "503"), (1000.0, "within 60 s")])
async def test_the_error_of_a_part_that_a_thread_got_in_vain_names_its_cause(
    autojump_clock: MockClock, takes_s: float, cause: str, *, is_announced: bool
) -> None:
    size_bytes, offset = (128 * KIB, 0) if is_announced else (4 * PART_BYTES, PART_BYTES)
    ref, config = listed("stalled", size_bytes), replace(CONFIG, max_window_bytes=MIB * is_announced)
    table = Files([ref])

    def begin(_ref: ObjectRef, _start: int, _end: int, done: Callable[[Buffer | None], None]) -> bool:
        async def end() -> None:
            await trio.sleep(20)
            done(None)

        nursery.start_soon(end)
        return True

    async with trio.open_nursery() as nursery:
        engine = ReadEngine(Service(takes_s=takes_s), config, nursery, lambda: table)
        engine.fetches.begin = begin
        if is_announced:
            await engine.new_order().announce([1])
            assert engine.counts.prefetched_parts == 1
        began_s = trio.current_time()
        with pytest.raises(ReadError, match=cause):
            await engine.read(1, ref, offset, 128 * KIB)
        assert trio.current_time() <= began_s + DEADLINE_S
        await settled()
        check_books(engine)
        assert engine.pool.parts_in_flight == 0
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("size_bytes", [128 * KIB, MIB, 4 * PART_BYTES])
@pytest.mark.parametrize(("takes_s", "cause"), [(0.01, "503"), (1000.0, "60 s. A worker died meanwhile")])
async def test_a_read_of_a_worker_that_died_has_the_rest_of_its_deadline_and_its_error_names_the_cause(
    autojump_clock: MockClock, takes_s: float, cause: str, size_bytes: int
) -> None:
    async with trio.open_nursery() as nursery:
        engine = ReadEngine(Service(takes_s=takes_s), CONFIG, nursery, lambda: Files([]))
        ends_s = trio.current_time() + 5
        with pytest.raises(ReadError, match=cause):
            await engine.read(1, listed("large", size_bytes), 0, 128 * KIB, ends_s)
        assert trio.current_time() <= ends_s
        check_books(engine)
        nursery.cancel_scope.cancel()


async def test_what_no_reader_waits_for_any_more_is_not_fetched(autojump_clock: MockClock) -> None:
    """Each read is of two parts."""
    ref, config = listed("silent", MIB), replace(SMALL, max_parts_in_flight=4, read_deadline_s=DEADLINE_S)
    answered_s: list[float] = []

    async def read(engine: ReadEngine, offset: int) -> None:
        began_s = trio.current_time()
        with pytest.raises(DeadlineError):
            await engine.read(1, ref, offset, 100 * KIB)
        answered_s.append(trio.current_time() - began_s)

    async with running(config) as (engine, reader):
        reader.holds = lambda *_: True
        with trio.fail_after(2 * DEADLINE_S):
            async with trio.open_nursery() as readers:
                for index in range(8):
                    readers.start_soon(read, engine, index * 128 * KIB)
                    await trio.sleep(0.01)
                assert parts_waiting(engine) > 10
        assert answered_s == pytest.approx([DEADLINE_S] * 8)
        assert parts_waiting(engine) == 0
        gets = [*reader.gets]
        reader.let_go()
        await settled()
        assert reader.gets == gets


async def test_a_part_that_another_reader_waits_for_stays(autojump_clock: MockClock) -> None:
    ref = listed("hiccup", 5 * PART_BYTES)

    async def read(engine: ReadEngine, offset: int) -> None:
        assert await engine.read(1, ref, offset, 4 * KIB) == content(ref)[offset : offset + 4 * KIB]

    async def fail(engine: ReadEngine, offset: int) -> None:
        with pytest.raises(DeadlineError, match=r"^'hiccup' could not be read within 60 s\.$") as late:
            await engine.read(1, ref, offset, 4 * KIB)
        assert late.value.hint == DeadlineError.TOO_SLOW_HINT

    async with running(CONFIG) as (engine, reader), trio.open_nursery() as readers:
        reader.holds = lambda *_: True
        for index in range(1, 5):
            readers.start_soon(fail, engine, index * PART_BYTES)
            await settled()
        await trio.sleep(59)
        readers.start_soon(read, engine, 4 * PART_BYTES)
        await trio.sleep(2)
        await trio.sleep(2)
        assert parts_waiting(engine) == 1
        assert len(reader.gets) == 3
        reader.failures = {("hiccup", start): DeadlineError("60 s") for _, start, _ in reader.gets}
        reader.let_go()


async def test_one_get_past_its_deadline_fails_nobody_who_waits_for_memory(autojump_clock: MockClock) -> None:
    ref = listed("slow", 16 * MIB)
    whole = content(ref)
    config = ReadaheadConfig(
        part_size_bytes=MIB,
        first_part_bytes=MIB,
        max_window_bytes=0,
        memory_limit_bytes=4 * MIB,
        read_deadline_s=DEADLINE_S,
    )

    async def fail(engine: ReadEngine) -> None:
        with pytest.raises(DeadlineError):
            await engine.read(1, ref, 0, MIB)

    async def read(engine: ReadEngine, offset: int) -> None:
        assert await engine.read(1, ref, offset, MIB) == whole[offset : offset + MIB]

    async with running(config, delay_s=10) as (engine, reader), trio.open_nursery() as readers:
        reader.holds = lambda _key, start, _end: start == 0
        reader.failures = {("slow", 0): DeadlineError("60 s")}
        readers.start_soon(fail, engine)
        await trio.sleep(50)
        for offset in range(MIB, ref.size_bytes, MIB):
            readers.start_soon(read, engine, offset)
        await trio.sleep(10)
        assert parts_waiting(engine) > 5
        reader.let_go()


async def test_an_answer_of_several_parts_takes_memory_when_the_first_is_there_and_waits_until_there_is_some(
    autojump_clock: MockClock,
) -> None:
    ref, reader, taken, got = listed("file", 2 * PART_BYTES), ScriptedReader(), list[int](), list[Buffer]()

    def take(size_bytes: int) -> memoryview:
        taken.append(size_bytes)
        if len(taken) < 3:
            raise MemoryError
        return memoryview(bytearray(size_bytes))

    async def read() -> None:
        got.append(await engine.read(1, ref, 0, 2 * PART_BYTES))

    async with trio.open_nursery() as nursery:
        engine = ReadEngine(reader, CONFIG, nursery, lambda: Files([]))
        engine.fetches.take = take
        reader.holds = lambda _key, _start, _end: True
        nursery.start_soon(read)
        await settled()
        assert reader.gets
        assert not taken
        reader.let_go()
    assert got == [content(ref)]
    assert taken == 3 * [ref.size_bytes]


async def test_a_read_for_which_the_system_has_no_memory_fails_at_its_deadline(autojump_clock: MockClock) -> None:
    def take(_: int) -> memoryview:
        raise MemoryError

    async with trio.open_nursery() as nursery:
        engine = ReadEngine(ScriptedReader(), CONFIG, nursery, lambda: Files([]))
        engine.fetches.take = take
        with pytest.raises(DeadlineError):
            await engine.read(1, listed("file", 2 * PART_BYTES), 0, 2 * PART_BYTES)
