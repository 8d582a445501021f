"""Rules that inject faults into requests. They can be changed while the server runs.

Every rule that matches a request acts on it; of several answers, and of several ends of a body, the first counts.
"""

import random
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import NamedTuple


class Delay(NamedTuple):
    """Wait before the first byte of the reply."""

    seconds: float


class Limit(NamedTuple):
    """Send the body no faster than this."""

    bytes_per_s: float


class Answer(NamedTuple):
    """An S3 error in place of the reply."""

    status: int
    code: str
    message: str


SLOW_DOWN = Answer(503, "SlowDown", "Please reduce your request rate.")
SERVICE_UNAVAILABLE = Answer(503, "ServiceUnavailable", "Service is unable to handle request.")
INTERNAL_ERROR = Answer(500, "InternalError", "We encountered an internal error. Please try again.")
EXPIRED_TOKEN = Answer(400, "ExpiredToken", "The provided token has expired.")
ACCESS_DENIED = Answer(403, "AccessDenied", "Access Denied")


class Reset(NamedTuple):
    """Reset the connection after so many bytes of the body; None: instead of any reply.

    The client may see fewer: a reset discards what it has not read yet.
    """

    after_bytes: int | None


class Truncate(NamedTuple):
    """Close the connection in good order after so many bytes of the body."""

    after_bytes: int


class Stall(NamedTuple):
    """Stop after so many bytes of the body; go on when the rule is removed."""

    after_bytes: int


class WrongEtag(NamedTuple):
    """Send the right bytes under another ETag (with its quotes); ``If-Match`` is checked against the right one."""

    etag: str


class WrongLength(NamedTuple):
    """Send the right bytes under a Content-Length that is greater by so many (negative: smaller)."""

    extra_bytes: int


class WrongRange(NamedTuple):
    """Send the right bytes of a range under a Content-Range that lies so many bytes later."""

    shift_bytes: int


class Replace(NamedTuple):
    """Behave as if the object had been overwritten with `data` since it was listed."""

    data: bytes


class Flip(NamedTuple):
    """Flip a bit in some bytes, as a bad proxy does; `offsets` takes the range that is sent and returns which."""

    offsets: Callable[[int, int], Iterable[int]]


class ShortPage(NamedTuple):
    """Put at most so many entries on a page of a listing, although there are more; 0 makes it empty."""

    keys: int


Action = (
    Delay
    | Limit
    | Answer
    | Reset
    | Truncate
    | Stall
    | WrongEtag
    | WrongLength
    | WrongRange
    | Replace
    | Flip
    | ShortPage
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultRule:
    """Applies `action` to the requests that match; empty fields match all.

    `operation` is S3's name (``GetObject``, ``HeadObject``, ``ListObjectsV2``, …), `key` a shell pattern. Of the
    matching requests the first `skip` are spared, then each is hit with `probability` until `times` were hit. With
    `spared_per_s` so many a second are spared as well, from a bucket that holds those of one second.
    """

    action: Action
    operation: str = ""
    bucket: str = ""
    key: str = ""
    skip: int = 0
    times: int | None = None
    probability: float = 1.0
    seed: int = 0
    spared_per_s: float = 0.0

    def is_match(self, operation: str, bucket: str, key: str) -> bool:
        return (
            self.operation in ("", operation)
            and self.bucket in ("", bucket)
            and (not self.key or fnmatchcase(key, self.key))
        )


@dataclass(slots=True)
class Fault:
    """A rule in force and its progress; `removed` is set when the rule is removed."""

    rule: FaultRule
    random: random.Random
    clock: Callable[[], float]
    # The requests that may be spared, as of `filled_s`.
    spared: float
    filled_s: float
    matched: int = 0
    hit: int = 0
    removed: threading.Event = field(default_factory=threading.Event)

    @property
    def action(self) -> Action:
        return self.rule.action

    def take(self) -> bool:
        rule = self.rule
        self.matched += 1
        if self.matched <= rule.skip or (rule.times is not None and self.hit >= rule.times):
            return False
        if rule.probability < 1.0 and self.random.random() >= rule.probability:
            return False
        if rule.spared_per_s and self._spare():
            return False
        self.hit += 1
        return True

    def _spare(self) -> bool:
        """Take one request out of the bucket; False if it is empty."""
        now_s = self.clock()
        limit = self.rule.spared_per_s
        self.spared = min(max(1.0, limit), self.spared + (now_s - self.filled_s) * limit)
        self.filled_s = now_s
        if self.spared < 1.0:
            return False
        self.spared -= 1.0
        return True


class FaultSet:
    """The rules in force. Safe from any thread."""

    def __init__(self, rules: Iterable[FaultRule] = (), *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._live: dict[int, Fault] = {}
        self._next_id = 0
        for rule in rules:
            self.add(rule)

    def add(self, rule: FaultRule) -> int:
        """Put `rule` in force after the others, and return the number to remove it by."""
        with self._lock:
            self._next_id += 1
            self._live[self._next_id] = Fault(
                rule, random.Random(rule.seed), self._clock, max(1.0, rule.spared_per_s), self._clock()
            )
            return self._next_id

    def remove(self, rule_id: int) -> None:
        """End a rule and let the bodies that it stalls go on; `KeyError` if it is not in force."""
        with self._lock:
            self._live.pop(rule_id).removed.set()

    def clear(self) -> None:
        """End every rule."""
        with self._lock:
            for live in self._live.values():
                live.removed.set()
            self._live.clear()

    def hits(self, rule_id: int) -> int:
        """Return how many requests the rule has acted on; `KeyError` if it is not in force."""
        with self._lock:
            return self._live[rule_id].hit

    def take(self, operation: str, bucket: str, key: str) -> list[Fault]:
        """Return the faults of one request, and count it as a match of their rules."""
        if not self._live:
            return []
        with self._lock:
            return [live for live in self._live.values() if live.rule.is_match(operation, bucket, key) and live.take()]
