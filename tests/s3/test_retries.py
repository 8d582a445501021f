import gc
import time
import weakref
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from itertools import chain, repeat
from math import inf

import pytest
import trio
from trio.testing import MockClock

from fastfuse.errors import UnavailableError
from fastfuse.metrics import Counters
from fastfuse.s3.failures import Failure, Kind
from fastfuse.s3.retries import Retries, RetryableError
from fastfuse.s3.retry_policy import RETRIES_PER_S, RETRY_BURST

BUSY = Failure(kind=Kind.BUSY, detail="500 InternalError", request_id="4442587FB7D0A2F9")


EXPIRED = Failure(kind=Kind.EXPIRED, detail="400 ExpiredToken")  # tried four times in all


def failing(times: float, *, failure: Failure = BUSY) -> tuple[Callable[[], Awaitable[str]], list[float]]:
    """An attempt that fails `times` times, and the list of trio times at which it was made."""
    made: list[float] = []

    async def attempt() -> str:
        await trio.lowlevel.checkpoint()
        made.append(trio.current_time())
        if len(made) <= times:
            raise RetryableError(UnavailableError(f"failure {len(made)}"), failure)
        return "done"

    return attempt, made


async def test_a_last_attempt_without_answer_ends_with_the_error_before(autojump_clock: MockClock) -> None:
    failures = ["first", "second"]

    async def attempt() -> None:
        if failures:
            raise RetryableError(UnavailableError(failures.pop(0)), BUSY)
        await trio.sleep_forever()

    began = trio.current_time()
    with trio.move_on_after(30) as scope, pytest.raises(UnavailableError, match="second"):
        await Retries().run(attempt, name="x")
    assert not scope.cancelled_caught
    assert 29 < trio.current_time() - began < 30


class Memory:
    """What can be referred to weakly."""


@pytest.mark.parametrize(("times", "is_late"), [(1, False), (inf, False), (1, True)])
async def test_nothing_is_kept_of_attempts_that_failed(times: float, is_late: bool, autojump_clock: MockClock) -> None:
    made: list[weakref.ref[Memory]] = []

    async def attempt(memory: Memory) -> None:
        await trio.lowlevel.checkpoint()
        made.append(weakref.ref(memory))
        if len(made) <= times:
            failed = RetryableError(UnavailableError("failure"), EXPIRED)
            raise failed
        if is_late:
            await trio.sleep_forever()

    gc.disable()
    try:
        with suppress(UnavailableError), trio.move_on_after(30):
            await Retries().run(partial(attempt, Memory()), name="x")
        await trio.lowlevel.checkpoint()  # until then trio keeps the last cancellation
        assert made[0]() is None
    finally:
        gc.enable()


async def test_a_failure_before_is_an_attempt(autojump_clock: MockClock, caplog: pytest.LogCaptureFixture) -> None:
    attempt, made = failing(inf, failure=EXPIRED)
    began_s = trio.current_time()
    await trio.sleep(3)
    failed = RetryableError(UnavailableError("failure 0"), EXPIRED)
    with pytest.raises(UnavailableError, match="failure 3"):
        await Retries().run(attempt, name="x", failed=failed, began_s=began_s)
    assert len(made) == 3
    assert made[0] > 3
    assert "(attempt 1 failed, 3.0 s so far)" in caplog.messages[0]


async def test_a_failure_that_is_final_is_raised_without_another_attempt() -> None:
    attempt, made = failing(0)
    final = RetryableError(UnavailableError("final"), Failure(kind=Kind.DENIED, detail=""))
    with pytest.raises(UnavailableError, match="final"):
        await Retries().run(attempt, name="x", failed=final)
    assert made == []


async def test_requests_that_all_fail_are_tried_at_the_budgets_rate(autojump_clock: MockClock) -> None:
    retries = Retries()
    made = 0

    async def attempt() -> None:
        nonlocal made
        made += 1
        raise RetryableError(UnavailableError("u"), BUSY)

    async def run_one() -> None:
        with trio.move_on_after(60), suppress(UnavailableError):
            await retries.run(attempt, name="x")

    async with trio.open_nursery() as nursery:
        for _ in range(1000):
            nursery.start_soon(run_one)
    # Each is tried at last shortly before its deadline, whatever the budget.
    assert 2000 < made - 1000 <= RETRY_BURST + 60 * RETRIES_PER_S + 1000


async def test_an_outage_shorter_than_the_deadline_fails_no_request(autojump_clock: MockClock) -> None:
    """The budget lets each of them be tried again every 20 s only."""
    retries = Retries()
    back_s = trio.current_time() + 50

    async def attempt() -> str:
        if trio.current_time() < back_s:
            raise RetryableError(UnavailableError("u"), BUSY)
        return "done"

    async def run_one() -> None:
        with trio.fail_after(60):
            assert await retries.run(attempt, name="x") == "done"

    async with trio.open_nursery() as nursery:
        for _ in range(1024):
            nursery.start_soon(run_one)


async def test_answers_let_more_requests_retry(autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("random.random", lambda: 0.0)
    retries = Retries()
    began_s = trio.current_time()
    for _ in range(400):
        await retries.run(failing(1)[0], name="x")
    assert trio.current_time() - began_s < (400 - RETRY_BURST) / RETRIES_PER_S / 2


async def test_trouble_of_a_client_that_is_no_more_ends_with_the_first_answer(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    retries = Retries()
    trouble = {"since": time.time() - 12, "failures": {"503 SlowDown": 3, "other failures": 2}, "requests": 4}
    retries.take_over(trouble)
    told = retries.trouble()
    assert told is not None
    assert told["failures"] == trouble["failures"]
    await retries.run(failing(0)[0], name="x")
    (line,) = caplog.messages
    assert line.startswith("answered again after ")
    assert line.endswith(" s: 3 × 503 SlowDown, 2 × other failures; 4 requests waited")
    assert retries.trouble() is None


async def test_trouble_is_told_once_with_all_that_is_known_and_so_is_its_end(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("random.random", lambda: 1.0)
    caplog.set_level("INFO")
    counters = Counters()
    retries = Retries(counters)
    async with trio.open_nursery() as nursery:
        for number in range(3):
            attempt, _ = failing(7)
            nursery.start_soon(partial(retries.run, attempt, name=f"'s3://b/{number}'"))
    assert caplog.messages[0].endswith(
        "': 500 InternalError, request 4442587FB7D0A2F9; trying again (attempt 1 failed, 0.0 s so far)"
    )
    assert caplog.messages[1:] == ["answered again after 16.2 s: 21 × 500 InternalError; 3 requests waited"]
    assert counters.get("fastfuse_retries", "busy") == 21
    assert not retries.is_in_trouble
    # The end has counted all, and a warning after it would look like new trouble.
    caplog.clear()
    await trio.sleep(31)
    assert caplog.messages == []


async def test_an_untold_trouble_has_no_told_end(autojump_clock: MockClock, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    retries = Retries()
    for _ in range(10):
        await retries.run(failing(1)[0], name="x")
    assert len(caplog.messages) == 2


async def test_a_trouble_in_a_summary_has_its_end(autojump_clock: MockClock, caplog: pytest.LogCaptureFixture) -> None:
    """It begins within 30 s of the line that tells the trouble before."""
    caplog.set_level("INFO")
    retries = Retries()
    await retries.run(failing(1)[0], name="x")
    await trio.sleep(10)
    began_s = trio.current_time()
    await retries.run(failing(40)[0], name="x")
    assert trio.current_time() > began_s + 30
    assert " more in the last 30 s" in caplog.messages[2]
    assert caplog.messages[-1] == (
        f"answered again after {trio.current_time() - began_s:.1f} s: 40 × 500 InternalError; 1 request waited"
    )


async def test_ever_new_words_do_not_fill_the_log(autojump_clock: MockClock, caplog: pytest.LogCaptureFixture) -> None:
    """A page may show the number of the request, and a code may be anything."""
    caplog.set_level("INFO")
    retries = Retries()
    for code in ("", "Code{}"):
        left = list(range(500))

        async def attempt(code: str = code, left: list[int] = left) -> None:
            if left:
                number = left.pop()
                detail = f"502 {code.format(number)}".strip() + f", text/html: 'request {number}'"
                raise RetryableError(UnavailableError("u"), Failure(kind=Kind.BUSY, detail=detail))

        await retries.run(attempt, name="x")
    lasts_s = trio.current_time()
    assert len(caplog.messages) < 22 * (1 + lasts_s / 30)
    first, second = (line for line in caplog.messages if line.startswith("answered again after "))
    assert first.endswith(": 500 × 502; 1 request waited")
    assert second.endswith(" other failures; 1 request waited")
    assert second.count(" × ") == 6


async def test_trouble_goes_on_until_what_waits_is_answered(autojump_clock: MockClock) -> None:
    retries = Retries()
    attempt, _ = failing(1000)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(retries.run, attempt, name="x"))
        await trio.sleep(10)
        await retries.run(failing(0)[0], name="y")
        assert retries.is_in_trouble
        nursery.cancel_scope.cancel()
    assert retries.is_in_trouble
    await retries.run(failing(0)[0], name="y")
    assert not retries.is_in_trouble


@pytest.mark.parametrize(
    ("kind", "is_answer"),
    [
        *((kind, True) for kind in (Kind.CHANGED, Kind.DENIED, Kind.OTHER)),
        (Kind.EXPIRED, False),
        (Kind.UNREACHABLE, False),
    ],
)
async def test_only_a_refusal_for_good_is_an_answer(autojump_clock: MockClock, kind: Kind, is_answer: bool) -> None:
    retries, failures = Retries(), chain([BUSY], repeat(Failure(kind=kind, detail="")))

    async def attempt() -> None:
        raise RetryableError(UnavailableError("u"), next(failures))

    with pytest.raises(UnavailableError):
        await retries.run(attempt, name="x")
    await trio.sleep(10)
    assert (retries.silent_s == 0) == is_answer
    assert is_answer or retries.silent_s >= 10


@pytest.mark.parametrize("is_answered", [False, True])
async def test_a_request_that_hangs_is_silence(autojump_clock: MockClock, *, is_answered: bool) -> None:
    retries = Retries()

    async def hang() -> None:
        with trio.move_on_after(30):
            await retries.run(trio.sleep_forever, name="x")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(hang)
        await trio.sleep(20)
        if is_answered:
            await retries.run(failing(0)[0], name="y")
    assert retries.silent_s == pytest.approx(10 if is_answered else 30)


async def test_a_request_that_is_cancelled_is_no_silence(autojump_clock: MockClock) -> None:
    retries = Retries()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(retries.run, trio.sleep_forever, name="x"))
        await trio.sleep(20)
        nursery.cancel_scope.cancel()
    assert retries.silent_s == 0
