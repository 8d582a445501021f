"""A bounded log of the requests to a server, and counters.

A request is recorded before the first byte of its reply is sent, with the bytes that are meant to follow, so a client
that has its reply finds the request in the log. The bytes are corrected where the client left early.
"""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """One request and its reply. `range` is ``(start, end)``, end exclusive, where a range was served.

    `connection` numbers the connections from 1; `query` holds decoded parameters. `status` 0 means that the
    connection was reset before a reply. Authorization is never kept.
    """

    connection: int
    method: str
    operation: str
    bucket: str
    key: str
    query: Mapping[str, str]
    range: tuple[int, int] | None
    if_match: str
    status: int
    sent_bytes: int


@dataclass(slots=True, kw_only=True)
class Statistics:
    """Totals since the start; `sent_bytes` counts bodies only. They go on when the log is full or off."""

    requests: dict[str, int] = field(default_factory=dict)
    sent_bytes: int = 0
    in_flight: int = 0
    connections: int = 0
    open_connections: int = 0


class RequestLog:
    """Keeps the last `limit` requests and the counters. Safe from any thread."""

    # INVARIANT: `_records` holds at most `_limit` records, by ascending number. GUARDED BY `_changed`.

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._changed = threading.Condition()
        self._records: dict[int, RequestRecord] = {}
        self._last_number = 0
        self._now = Statistics()

    def open_connection(self) -> int:
        """Count a new connection and return its number."""
        with self._changed:
            self._now.connections += 1
            self._now.open_connections += 1
            self._changed.notify_all()
            return self._now.connections

    def close_connection(self) -> None:
        with self._changed:
            self._now.open_connections -= 1
            self._changed.notify_all()

    def begin(self, record: RequestRecord) -> int:
        """Record a request whose reply is about to be sent, and return its number for `finish`."""
        with self._changed:
            self._last_number += 1
            now = self._now
            now.requests[record.operation] = now.requests.get(record.operation, 0) + 1
            now.sent_bytes += record.sent_bytes
            now.in_flight += 1
            self._records[self._last_number] = record
            self._records.pop(self._last_number - self._limit, None)
            self._changed.notify_all()
            return self._last_number

    def finish(self, number: int, *, missing_bytes: int) -> None:
        """Note that the reply is sent, but for `missing_bytes` that the client did not take."""
        with self._changed:
            self._now.in_flight -= 1
            self._now.sent_bytes -= missing_bytes
            record = self._records.get(number)
            if record is not None and missing_bytes:
                self._records[number] = replace(record, sent_bytes=record.sent_bytes - missing_bytes)
            self._changed.notify_all()

    def records(self) -> tuple[RequestRecord, ...]:
        with self._changed:
            return tuple(self._records.values())

    def clear(self) -> None:
        """Forget the records; the counters go on."""
        with self._changed:
            self._records.clear()

    def statistics(self) -> Statistics:
        with self._changed:
            return self._statistics()

    def _statistics(self) -> Statistics:
        return replace(self._now, requests=dict(self._now.requests))

    def wait_until(self, is_met: Callable[[Statistics], bool], timeout_s: float) -> Statistics:
        """Block until the counters meet a condition; `TimeoutError` after `timeout_s`."""
        with self._changed:
            if not self._changed.wait_for(lambda: is_met(self._statistics()), timeout_s):
                raise TimeoutError(f"the condition was not met in {timeout_s} s: {self._statistics()}")
            return self._statistics()
