import errno
from collections.abc import Awaitable, Callable
from itertools import pairwise
from pathlib import Path

import pytest
import trio
import trio.testing

from fastfuse.errors import UnavailableError
from fastfuse.objects import ObjectRef
from fastfuse.s3.failures import CODES, STATUSES, Failure, Kind, read_error
from fastfuse.s3.retries import LONGEST_PAUSE_S, UNTIL_DEADLINE, RetryableError, attempts, retrying


def failing(times: int, *, attempts: int = 100) -> tuple[Callable[[], Awaitable[str]], list[float]]:
    """An attempt that fails `times` times, and the list of trio times at which it was made."""
    made: list[float] = []

    async def attempt() -> str:
        await trio.lowlevel.checkpoint()
        made.append(trio.current_time())
        if len(made) <= times:
            raise RetryableError(UnavailableError(f"failure {len(made)}"), attempts=attempts)
        return "done"

    return attempt, made


async def test_a_failure_is_tried_again_until_it_succeeds(autojump_clock: trio.testing.MockClock) -> None:
    attempt, made = failing(5)
    assert await retrying(attempt) == "done"
    assert len(made) == 6


async def test_the_last_error_is_raised_when_the_attempts_are_used_up(autojump_clock: trio.testing.MockClock) -> None:
    attempt, made = failing(10, attempts=3)
    with pytest.raises(UnavailableError, match="failure 3"):
        await retrying(attempt)
    assert len(made) == 3


async def test_retrying_ends_with_the_error_before_the_deadline(autojump_clock: trio.testing.MockClock) -> None:
    attempt, made = failing(10**6, attempts=10**6)
    began = trio.current_time()
    with trio.move_on_after(30) as scope, pytest.raises(UnavailableError):
        await retrying(attempt)
    assert not scope.cancelled_caught
    assert trio.current_time() - began < 30
    assert len(made) > 5


async def test_no_pause_is_longer_than_the_longest(autojump_clock: trio.testing.MockClock) -> None:
    attempt, made = failing(40)
    await retrying(attempt)
    pauses = [later - earlier for earlier, later in pairwise(made)]
    assert max(pauses) <= LONGEST_PAUSE_S
    assert max(pauses[10:]) > max(pauses[:2])


async def test_any_other_error_is_not_retried(autojump_clock: trio.testing.MockClock) -> None:
    made = 0

    async def attempt() -> None:
        nonlocal made
        made += 1
        raise UnavailableError("final")

    with pytest.raises(UnavailableError, match="final"):
        await retrying(attempt)
    assert made == 1


async def test_a_failure_that_has_happened_counts_as_an_attempt(autojump_clock: trio.testing.MockClock) -> None:
    failed = RetryableError(UnavailableError("failure 0"), attempts=3)
    attempt, made = failing(10, attempts=3)
    with pytest.raises(UnavailableError, match="failure 2"):
        await retrying(attempt, failed=failed)
    assert len(made) == 2
    assert made[0] > 0


async def test_a_failure_that_has_happened_and_is_final_is_raised_without_an_attempt() -> None:
    attempt, made = failing(0)
    with pytest.raises(UnavailableError, match="final"):
        await retrying(attempt, failed=RetryableError(UnavailableError("final"), attempts=1))
    assert made == []


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
            statuses.append("5xx but 501")
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


@pytest.mark.parametrize("is_read", [True, False])
def test_which_failures_are_tried_again_and_how_often(*, is_read: bool) -> None:
    again = {kind: attempts(kind, is_read=is_read) for kind in Kind if attempts(kind, is_read=is_read) > 1}
    assert again == {
        Kind.BUSY: UNTIL_DEADLINE,
        Kind.UNREACHABLE: UNTIL_DEADLINE if is_read else 4,
        Kind.EXPIRED: 4,
        Kind.SKEWED: 4,
    }


async def test_a_few_attempts_are_over_within_two_seconds(autojump_clock: trio.testing.MockClock) -> None:
    attempt, _ = failing(100, attempts=attempts(Kind.UNREACHABLE, is_read=False))
    began_s = trio.current_time()
    with pytest.raises(UnavailableError):
        await retrying(attempt)
    assert trio.current_time() - began_s < 2
