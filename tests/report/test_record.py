"""Tests what is recorded, and what a report makes of it. Pure."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfuse.errors import ConfigurationError
from fastfuse.filesystem.figures.recorder import Recorder, samples_of
from fastfuse.metrics import Counters
from fastfuse.report.intervals import figures, intervals
from fastfuse.report.records import read_record
from tests.report.records import START, mount, samples

SERVED = "fastfuse_read_served_bytes"


def recorded(seconds: int) -> list[tuple[float, Counters]]:
    """A look every second, in each of which a byte is read."""
    counters = Counters()
    recorder = Recorder(counters)
    for second in range(seconds):
        recorder.look(float(second), START + second)
        counters.count(SERVED)
    found = recorder.record(START + seconds)
    return samples_of(found["at"], found["numbers"])


@pytest.mark.parametrize("seconds", [0, 1, 10, 11, 7200, 30_000])
def test_the_last_two_hours_are_kept_every_ten_seconds_and_what_is_older_every_five_minutes(seconds: int) -> None:
    found = recorded(seconds)
    assert [numbers.get(SERVED) for _, numbers in found] == [round(at - START) for at, _ in found]
    ages = [seconds - round(at - START) for at, _ in found]
    assert ages[-1] == 0
    steps = {"new": set[int](), "old": set[int]()}
    for age, older in zip(ages[1:], ages, strict=False):
        steps["old" if older > 7200 else "new"].add(older - age)
    assert max(steps["new"], default=0) <= 10
    assert steps["old"] <= {300, *range(10, 300, 10)}
    assert seconds < 10_000 or 300 in steps["old"]


def test_a_record_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastfuse.filesystem.figures.recorder._RECENT", 5)
    monkeypatch.setattr("fastfuse.filesystem.figures.recorder._COARSE", 3)
    recorder = Recorder(Counters())
    for second in range(0, 1_000_000, 10):
        recorder.look(float(second), START + second)
    assert len(recorder.record(START)["at"]) == 2016 + 5 + 1


def test_numbers_that_are_not_known_are_left_out_and_new_ones_are_0() -> None:
    ((_, found),) = samples_of([START], {f"{SERVED}/": [7], "fastfuse_of_tomorrow/": 9})
    assert found.get(SERVED) == 7
    assert sum(found.copy()) == 7


@given(st.lists(st.tuples(st.integers(-5, 5000), st.integers(0, 10**6)), min_size=1, max_size=400))
def test_intervals_are_few_and_have_everything(steps: list[tuple[int, int]]) -> None:
    at, total, found = START, 0, []
    for elapsed_s, read_bytes in steps:
        at, total = at + elapsed_s, total + read_bytes
        numbers = Counters()
        numbers.set(SERVED, total)
        found.append((at, numbers))
    pieces = intervals(found)
    assert len(pieces) <= 121
    assert all(piece.figures.elapsed_s > 0 for piece in pieces)
    assert figures(found).served_bytes == total - steps[0][1]
    if all(elapsed_s > 0 for elapsed_s, _ in steps):
        assert sum(piece.figures.served_bytes for piece in pieces) == total - steps[0][1]
        assert sum(piece.figures.elapsed_s for piece in pieces) == at - found[0][0]


def test_figures_are_of_their_interval() -> None:
    found = samples()
    pieces = [piece.figures for piece in intervals(samples_of(found["at"], found["numbers"]))]
    assert len(pieces) == 120
    assert {(piece.served_bytes, piece.elapsed_s, piece.gets) for piece in pieces} == {(30 * 10**8, 30.0, 300)}
    assert [round(piece.stalled_share, 3) for piece in (pieces[0], pieces[-1])] == [0.1, 1.0]
    assert sum(piece.failed_reads for piece in pieces) == 6


@pytest.mark.parametrize(
    "change",
    [
        {"channels": [{"source": "s3://b", "at": [], "numbers": {}}]},
        {"channels": [{"source": "s3://b", "at": [1.0, 2.0], "numbers": {f"{SERVED}/": [1]}}]},
        {"channels": [{"source": "s3://b", "at": [float("nan")], "numbers": {}}]},
        {"channels": [{"source": "s3://b", "at": [1e300], "numbers": {}}]},
        {"channels": [{"source": "s3://b", "at": [1.0], "numbers": {f"{SERVED}/": -1}}]},
        {"channels": [{"source": "s3://b", "at": [1.0], "numbers": {f"{SERVED}/": 1 << 63}}]},
        {"channels": [{"source": "s3://b", "at": [1.0], "numbers": {f"{SERVED}/": "many"}}]},
        {"channels": "all"},
        {"errors": [["late", "x"]]},
        {"phases": [["Training"]]},
        {"job": []},
    ],
)
def test_what_is_no_record_is_one_line(change: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=r"^it is no record of fastfuse: [^\n]+$"):
        read_record(mount() | change)


def test_the_record_of_a_host_without_a_channel_is_told_apart() -> None:
    with pytest.raises(ConfigurationError, match="the run had no channel on this host"):
        read_record(mount() | {"channels": []})
