"""Ends the wait of a connection over which nothing comes."""

from typing import Protocol

import trio

__all__ = ["StallWatch"]


class Stallable(Protocol):
    """A connection that a task waits for."""

    def stall(self) -> None:
        """Make that task raise `TimeoutError`."""


class StallWatch:
    """Ends the wait of each connection that has waited for longer than `stall_s`.

    One task watches all of them, and only while one waits: a cancel scope for each GET takes a tenth of its CPU time.
    """

    def __init__(self, stall_s: float, most_s: float) -> None:
        """End the wait for a reply after `most_s`, whatever comes meanwhile."""
        self.stall_s = stall_s
        self._most_s = most_s
        # The time on trio's clock since when each waits, the earliest first.
        self._waiting: dict[Stallable, float] = {}
        self._is_running = False

    def begin(self, connection: Stallable) -> float:
        """Note that `connection` begins to wait, and return the time on trio's clock."""
        now_s = self._waiting[connection] = trio.current_time()
        if not self._is_running:
            self._is_running = True
            # A system task, because connections outlive the tasks that use them. It ends with the run if not before.
            trio.lowlevel.spawn_system_task(self._run)
        return now_s

    def go_on(self, connection: Stallable, began_s: float) -> None:
        """Note that bytes came of the reply that `connection` has awaited since `began_s`."""
        now_s = trio.current_time()
        if now_s + self.stall_s < began_s + self._most_s and self._waiting.pop(connection, None) is not None:
            self._waiting[connection] = now_s  # put behind those that wait for longer; a stalled one stays stalled

    def end(self, connection: Stallable) -> None:
        """Note that `connection` does not wait any more. Idempotent."""
        self._waiting.pop(connection, None)

    async def _run(self) -> None:
        try:
            while self._waiting:
                connection, since_s = next(iter(self._waiting.items()))
                if since_s + self.stall_s > trio.current_time():
                    await trio.sleep_until(since_s + self.stall_s)
                else:
                    self.end(connection)
                    connection.stall()
        finally:
            self._is_running = False
