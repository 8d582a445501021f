import errno
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfuse.objects import ObjectRef
from fastfuse.s3.failures import CODES, STATUSES, Failure, Kind, read_error
from fastfuse.s3.retry_policy import (
    LAST_ATTEMPT_S,
    LAST_ATTEMPT_SHARE,
    LONGEST_PAUSE_S,
    RETRIES_PER_S,
    RETRY_BURST,
    UNTIL_DEADLINE,
    FailedAttempts,
    RetryBudget,
    attempts,
    longest_pause_s,
)


def policy_table() -> str:
    """Generate the table of the retry policy, as docs/SEMANTICS.md shows it."""
    lines = [
        "| failure | replies that mean it | a read is tried | a command is tried | the reader gets |",
        "|---|---|---|---|---|",
    ]
    for kind in Kind:
        codes = [f"`{code}`" for code, its_kind in sorted(CODES.items()) if its_kind is kind]
        statuses = [str(status) for status, its_kind in sorted(STATUSES.items()) if its_kind is kind]
        if kind is Kind.BUSY:
            statuses.append("other 5xx but 501")
        error = read_error(Failure(kind=kind, detail=""), ObjectRef("bucket", "key", 1, ""))
        counts = [_shown_count(attempts(kind, is_read=is_read)) for is_read in (True, False)]
        replies = ", ".join(codes + statuses) or "–"
        lines.append(f"| {kind.name.lower()} | {replies} | {' | '.join(counts)} | `{errno.errorcode[error.errno]}` |")
    return "\n".join(lines)


def _shown_count(count: int) -> str:
    return "until its deadline" if count == UNTIL_DEADLINE else "once" if count == 1 else f"{count} times"


def test_the_page_shows_the_policy() -> None:
    page = (Path(__file__).parents[2] / "docs/SEMANTICS.md").read_text()
    assert f"\n\n{policy_table()}\n\n" in page, f"docs/SEMANTICS.md should have this table:\n{policy_table()}"


@pytest.mark.parametrize("kind", Kind)
def test_what_was_mended_is_tried_again_and_a_denied_object_a_few_times_only(kind: Kind) -> None:
    expected = 4 if kind is Kind.DENIED else UNTIL_DEADLINE
    assert attempts(kind, is_read=False, is_mended=True) == expected


def test_retries_are_spread_once_a_burst_is_used_up_and_answers_allow_more() -> None:
    budget = RetryBudget()
    assert [budget.wait_s(100.0) for _ in range(RETRY_BURST)] == [0.0] * RETRY_BURST
    waits = [budget.wait_s(100.0) for _ in range(100)]
    assert waits == pytest.approx([(number + 1) / RETRIES_PER_S for number in range(100)])
    for _ in range(200):
        budget.answered()
    assert budget.wait_s(100.0) == pytest.approx(1 / RETRIES_PER_S)
    assert budget.wait_s(200.0) == 0


def test_the_longest_pause_doubles_up_to_its_limit() -> None:
    assert [longest_pause_s(failures) for failures in (1, 2, 3)] == [0.2, 0.4, 0.8]
    assert {longest_pause_s(failures) for failures in (6, 100, 5000)} == {LONGEST_PAUSE_S}


@given(
    kinds=st.lists(st.sampled_from([Kind.BUSY, Kind.EXPIRED, Kind.UNREACHABLE, Kind.DENIED]), max_size=12),
    draws=st.lists(st.floats(0, 1), min_size=12, max_size=12),
    deadline_s=st.floats(0, 200),
)
def test_a_request_is_given_up_by_the_count_of_its_kind_or_the_deadline(
    kinds: list[Kind], draws: list[float], deadline_s: float
) -> None:
    budget = RetryBudget()
    failed, now_s = FailedAttempts(budget, began_s=0.0, deadline_s=deadline_s), 0.0
    latest_s = deadline_s - min(LAST_ATTEMPT_S, LAST_ATTEMPT_SHARE * deadline_s)
    for number, (kind, draw) in enumerate(zip(kinds, draws, strict=False), 1):
        allowed = attempts(kind, is_read=False)
        pause_s = failed.pause_s(kind, allowed, draw=draw, now_s=now_s)
        if pause_s is None:
            assert kinds[:number].count(kind) >= allowed or now_s >= latest_s
            return
        assert kinds[:number].count(kind) < allowed
        # The budget is not used up by one request.
        assert pause_s == min(draw * longest_pause_s(number), latest_s - now_s)
        now_s += pause_s


@pytest.mark.parametrize("deadline_s", [2.0, 60.0])
@pytest.mark.parametrize("failed_before", [0, 5000])
def test_a_pause_longer_than_the_time_that_is_left_ends_shortly_before_the_deadline(
    deadline_s: float, failed_before: int
) -> None:
    """Its length is drawn, or other requests have used up the budget."""
    budget, now_s = RetryBudget(), deadline_s - 1.5
    for _ in range(failed_before):
        budget.wait_s(0.0)
    failed = FailedAttempts(budget, began_s=0.0, deadline_s=deadline_s)
    for _ in range(10):
        failed.pause_s(Kind.BUSY, UNTIL_DEADLINE, draw=1.0, now_s=0.0)
    pause_s = failed.pause_s(Kind.BUSY, UNTIL_DEADLINE, draw=0.0 if failed_before else 1.0, now_s=now_s)
    assert pause_s is not None
    assert 0.9 * deadline_s < now_s + pause_s < deadline_s
    assert failed.pause_s(Kind.BUSY, UNTIL_DEADLINE, draw=0.0, now_s=now_s + pause_s + 0.001) is None
