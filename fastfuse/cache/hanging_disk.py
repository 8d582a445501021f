"""Decides whether the disk of a tier is asked: not for a while after a failure, nor while it owes an answer.

No thread that waits for a disk can be ended. A disk that hangs therefore keeps those that ask it, with the memory that
they fill. It is asked again once it has answered all of them.
"""

import threading
from collections.abc import Callable

import trio

from fastfuse.s3.threads import in_thread

# After a failure the disk, or the index on it, is left alone for so long.
OFF_S = 30.0


class Disk:
    """The disk of one tier, for one trio run."""

    def __init__(self, patience_s: float) -> None:
        """Give each answer `patience_s`."""
        self.patience_s = patience_s
        self._off_until_s = 0.0
        # Set when a thread ends that nobody waits for any more; and when its answer is due.
        self._unanswered: list[tuple[threading.Event, float]] = []

    @property
    def is_off(self) -> bool:
        """Return whether nobody may ask it now."""
        self._unanswered = [(has_ended, due_s) for has_ended, due_s in self._unanswered if not has_ended.is_set()]
        now_s = trio.current_time()
        return now_s < self._off_until_s or any(due_s <= now_s for _, due_s in self._unanswered)

    def leave_alone(self) -> None:
        """Have nobody ask it for `OFF_S`."""
        self._off_until_s = trio.current_time() + OFF_S

    async def ask(self, work: Callable[[], None]) -> None:
        """Call `work` in a thread, which goes on if the caller is cancelled, and raise what it raises.

        Raises:
            trio.TooSlowError: it takes too long; it goes on, and the disk is off until it ends.
            NoThreadError: `work` will not be called.
        """
        has_ended, due_s = threading.Event(), trio.current_time() + self.patience_s

        def call() -> None:
            try:
                work()
            finally:
                has_ended.set()

        try:
            with trio.fail_at(due_s):
                await in_thread(call)
        except (trio.TooSlowError, trio.Cancelled):
            self._unanswered.append((has_ended, due_s))
            raise


def unanswered_reason(waited_s: float) -> str:
    """Return the reason why a disk that owes an answer for so long is off."""
    return f"its disk has not answered within {waited_s:g} s, and is not asked again before it does"
