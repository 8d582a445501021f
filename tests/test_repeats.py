"""How often failures that repeat are told."""

import logging
import re

import pytest
import trio
import trio.testing

from fastfuse.repeats import EVERY_S, RepeatedFailures

_log = logging.getLogger("fastfuse.test")


async def test_a_class_has_a_line_at_once_and_then_one_in_30_s_with_what_came_meanwhile(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    repeats = RepeatedFailures(_log)
    for number in range(100):
        repeats.tell("resets", f"object {number % 4}", f"reset {number}")
        await trio.sleep(1.1)
    await trio.sleep(2 * EVERY_S)
    assert caplog.messages == [
        "reset 0",
        *3 * ["resets: 27 more in the last 30 s, of 4 objects"],
        "resets: 18 more in the last 30 s, of 4 objects",
    ]


async def test_a_failure_that_comes_long_after_another_is_told_at_once(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    repeats = RepeatedFailures(_log)
    for line in ("first", "second"):
        repeats.tell("resets", "object", line)
        assert repeats.told_s == trio.current_time()
        await trio.sleep(EVERY_S)
    assert caplog.messages == ["first", "second"]


async def test_a_server_that_finds_new_words_for_each_refusal_fills_no_log(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    repeats = RepeatedFailures(_log)
    for number in range(10_000):
        repeats.tell(f"word {number}", "object", f"line {number}")
        await trio.sleep(0.01)
    assert len(caplog.messages) < 21 * (1 + 100 / EVERY_S)
    assert "other failures: " in caplog.text


async def test_all_failures_are_in_the_lines_whatever_their_words(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    repeats = RepeatedFailures(_log)
    for number in range(1000):
        repeats.tell(f"word {number % 50}", "object", "line")
        await trio.sleep(0.1)
    await trio.sleep(2 * EVERY_S)
    counts = re.findall(r": (\d+) more in the last", caplog.text)
    assert caplog.messages.count("line") + sum(map(int, counts)) == 1000


def test_the_end_of_a_run_tells_what_no_line_has_counted_yet(caplog: pytest.LogCaptureFixture) -> None:
    async def fail() -> None:
        repeats = RepeatedFailures(_log)
        for number in range(6):
            repeats.tell(f"class {number % 2}", f"object {number}", "line")
        await trio.testing.wait_all_tasks_blocked()

    trio.run(fail, clock=trio.testing.MockClock())
    assert caplog.messages[2:] == [f"class {number}: 2 more in the last 0 s, of 2 objects" for number in range(2)]
