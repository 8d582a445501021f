"""Rates of the last ten seconds, what a worker shows, and the states of a mount."""

from itertools import count, pairwise

import pytest

from fastfuse.filesystem.figures import status
from fastfuse.filesystem.figures.recorder import samples_of
from fastfuse.filesystem.figures.status import Board, Recent
from fastfuse.metrics import Counters


def test_rates_look_ten_seconds_back(clock: list[float]) -> None:
    counters = Counters()
    recent = Recent(counters)
    for second in range(30):
        recent.look()
        clock[0] += 1.0
        counters.count("fastfuse_read_served_bytes", 1000 if second >= 20 else 5)
        counters.count("fastfuse_blocked_seconds", 500_000)
    rates = recent.rates()
    assert rates["seconds"] == 10.0
    assert rates["fastfuse_read_served_bytes"] == 1000.0
    assert rates["fastfuse_blocked_seconds"] == 0.5
    assert rates["fastfuse_fetched_bytes"] == 0.0


def test_seconds_are_active_in_which_the_kernel_asks(clock: list[float]) -> None:
    counters = Counters()
    recent = Recent(counters)
    recent.begin()
    for asked in (0, 5, 0, 1, 0):
        counters.count("fastfuse_requests", asked)
        clock[0] += 1.0
        recent.look()
    assert recent.summary()["active_s"] == 2.0


# Each letter is a second: `r` is one in which a read ends, `w` one in which a read waits.
@pytest.mark.parametrize(
    ("seconds", "in_use_s"),
    [
        (" " * 100, 0),
        ("r" * 10, 10),
        # The pauses of a job that computes are part of its time; an hour without a read is not.
        ("r" + " " * 29 + "r", 31),
        ("r" + " " * 3600 + "r", 2),
        (" " * 3600 + "w" * 100, 100),
        ("r" + " " * 3600, 1),
    ],
)
def test_a_mount_is_in_use_while_it_is_read_and_in_pauses_of_half_a_minute(
    clock: list[float], seconds: str, in_use_s: float
) -> None:
    counters = Counters()
    recent = Recent(counters)
    recent.begin()
    for second in seconds:
        counters.count("fastfuse_blocked_seconds", 500_000 * (second == "r"))
        counters.count("fastfuse_stalled_seconds", 500_000 * (second == "r"))
        counters.set("fastfuse_waiting_reads", int(second == "w"))
        clock[0] += 1.0
        recent.look()
    summary = recent.summary()
    assert (summary["in_use_s"], summary["elapsed_s"]) == (in_use_s, len(seconds))
    if "r" in seconds:
        assert summary["stalled_share"] == seconds.count("r") / 2 / in_use_s


def test_limits_that_have_changed_since_are_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    recent = Recent(Counters())
    recent.begin()
    monkeypatch.setattr(status, "usable_cpus", lambda: 0.5)
    monkeypatch.setattr(status, "available_memory_bytes", count(7).__next__)
    summary = recent.summary()
    assert (summary["cpus"], summary["memory_bytes"]) == (0.5, 7)
    record = recent.record(dict.fromkeys(("version", "source", "mountpoint", "state", "errors"), ""))
    assert samples_of(record["at"], record["numbers"])[-1][1].get("fastfuse_memory_limit_bytes") == 8


def test_a_clock_that_is_set_makes_no_step_in_a_record(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.clock_gettime", lambda _: clock[0])
    recent = Recent(Counters())
    recent.begin()
    for set_to in (0.0, 2e9, 1e9):
        monkeypatch.setattr("time.time", lambda set_to=set_to: set_to)
        clock[0] += 10.0
        recent.look()
    at = recent.record(dict.fromkeys(("version", "source", "mountpoint", "state", "errors"), ""))["at"]
    assert [later - earlier for earlier, later in pairwise(at)] == pytest.approx([10.0] * 3 + [0.0])


@pytest.mark.parametrize("failed", [0, 1])
def test_a_mount_of_which_every_read_failed_is_summed_up(failed: int, caplog: pytest.LogCaptureFixture) -> None:
    counters = Counters()
    counters.count("fastfuse_errors", failed, "EIO")
    with caplog.at_level("INFO"):
        Recent(counters).tell_summary()
    assert len(caplog.messages) == 3 * failed


def test_without_a_look_there_are_no_rates(clock: list[float]) -> None:
    assert Recent(Counters()).rates()["fastfuse_requests"] == 0.0


@pytest.mark.parametrize("seen", [slice(0, 4), slice(4, 8), slice(8, 40), slice(24, 72)])
def test_what_a_writer_left_half_or_is_seen_in_another_order_is_nothing(seen: slice) -> None:
    board, later = Board(), Board()
    board.show({"a": "1" * 40})
    later.show({"b": "2" * 50})
    board._memory[seen] = later._memory[seen]
    assert board.read() == {}
    board.show({"a": 2})
    assert board.read() == {"a": 2}


def test_what_is_longer_than_the_memory_is_not_shown() -> None:
    board = Board()
    board.show({"a": 1})
    board.show({"a": "x" * (64 << 10)})
    assert board.read() == {"a": 1}
