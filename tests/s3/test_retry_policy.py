import errno
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from fastfuse.objects import ObjectRef
from fastfuse.s3.failures import CODES, STATUSES, Failure, Kind, read_error
from fastfuse.s3.retry_policy import (
    LAST_ATTEMPT_S,
    LAST_ATTEMPT_SHARE,
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


@given(
    kinds=st.lists(st.sampled_from([Kind.BUSY, Kind.EXPIRED, Kind.UNREACHABLE, Kind.DENIED]), max_size=12),
    draws=st.lists(st.floats(0, 1), min_size=12, max_size=12),
    deadline_s=st.floats(0, 200),
)
def test_a_request_is_given_up_by_count_or_deadline(kinds: list[Kind], draws: list[float], deadline_s: float) -> None:
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
