"""When reads count as failing: a rule for probes, looked at once a second."""

from collections.abc import Iterable

import pytest

from fastfuse.filesystem.failing import FailingReads


def looks(ends: Iterable[str], *, trouble_since_s: int | None = None) -> str:
    """Return what each second says: `ends` has the read that ended in it (`d`elivered, `f`ailed, none); `!` fails."""
    reads, delivered, failed, said = FailingReads(7, {"EIO": 7}), 7, 7, ""
    for now_s, end in enumerate(ends):
        delivered += end == "d"
        failed += end == "f"
        trouble_s = 0 if trouble_since_s is None else max(0, now_s - trouble_since_s)
        said += "!" if reads.look(float(now_s), delivered, {"EIO": failed}, trouble_s=trouble_s) else "."
    return said


@pytest.mark.parametrize(
    ("ends", "said"),
    [
        # Nothing is read.
        ("    ", "...."),
        # One read fails; 10 s later nothing is known.
        ("f            ", "!!!!!!!!!!!.."),
        # Reads fail all the time, and one is delivered.
        ("fffffffffdf", "!!!!!!!!!.."),
        # Of many that are delivered some fail.
        ("dfdfdfdf", "........"),
        # After the last one was delivered all fail.
        ("dffffffffffff", "...........!!"),
        # They failed before that.
        ("fd            ", "!............."),
    ],
)
def test_reads_fail_if_none_is_delivered_in_ten_seconds_and_one_failed(ends: str, said: str) -> None:
    assert looks(ends) == said


def test_a_request_that_is_tried_again_is_a_failure_after_ten_seconds() -> None:
    assert looks(" " * 13, trouble_since_s=0) == "...........!!"


def test_requests_that_are_tried_again_while_others_are_answered_are_no_failure() -> None:
    assert looks("d    " * 6, trouble_since_s=0) == "." * 30


def test_what_fails_is_told_since_the_last_delivery() -> None:
    reads = FailingReads(0, {"EIO": 3, "EACCES": 0})
    assert reads.failures(0.0) == (0.0, {})
    reads.look(1.0, 0, {"EIO": 4, "EACCES": 0}, trouble_s=0)
    reads.look(2.0, 1, {"EIO": 4, "EACCES": 0}, trouble_s=0)
    assert reads.failures(2.0) == (0.0, {})
    reads.look(5.0, 1, {"EIO": 5, "EACCES": 2}, trouble_s=0)
    reads.look(9.0, 1, {"EIO": 5, "EACCES": 4}, trouble_s=0)
    assert reads.failures(9.0) == (4.0, {"EIO": 1, "EACCES": 4})
