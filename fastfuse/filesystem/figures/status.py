"""What is known of a mount: the counters of its last seconds and hours, and what its worker shows of itself."""

import json
import logging
import mmap
import struct
import time
import zlib
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict
from math import inf
from typing import Any, Final

from fastfuse.cgroup import available_memory_bytes, usable_cpus
from fastfuse.filesystem.figures.recorder import Recorder, moment
from fastfuse.filesystem.figures.verdict import Figures, figures_of, judge
from fastfuse.filesystem.mounting.mountpoint import readahead_kib
from fastfuse.filesystem.processes.health import FailingReads
from fastfuse.metrics import METRICS, READ_ERRNOS, Counters
from fastfuse.sizes import format_size, three_digits

_log = logging.getLogger(__name__)

# The counters whose rates are told.
_RATED: Final = (
    "fastfuse_read_served_bytes",
    "fastfuse_fetched_bytes",
    "fastfuse_requests",
    "fastfuse_blocked_seconds",
    "fastfuse_stalled_seconds",
)
_REQUESTS: Final = _RATED.index("fastfuse_requests")
_BLOCKED: Final = _RATED.index("fastfuse_blocked_seconds")
_RATED_FOR_S: Final = 10.0
# A training step, or a pass of validation from memory, lies between two reads that belong together; not a night.
_PAUSE_S: Final = 30.0
# What a `Board` holds: the length of a text, its CRC, and the text.
_HEAD = struct.Struct("=II")
_MOST_SHOWN_BYTES = 64 << 10
_TRIES = 20


class Recent:
    """The counters of the last seconds, for rates, and of the last hours, for reports."""

    def __init__(self, counters: Counters, mode: str = "") -> None:
        """`mode` is the input mode of a channel that is not mounted."""
        self._mode = mode
        # The bdi of the mount; "" if there is none.
        self.device = ""
        self.counters = counters
        self._looks: deque[tuple[float, tuple[int, ...]]] = deque(maxlen=64)
        self._recorder = Recorder(counters)
        # The begin of the mount: in seconds since 1970, and on the monotonic clock.
        self.mounted_at = self._mounted_s = 0.0
        # The last look, what was counted then, and the last that found files being read.
        self._looked_s, self._counted = 0.0, self._numbers()
        self._read_s = -inf

    def begin(self) -> None:
        """Note that what is counted serves from now on."""
        self.mounted_at, self._mounted_s = time.time(), time.monotonic()
        self._looked_s, self._counted = self._mounted_s, self._numbers()
        self._note_limits()
        self._recorder.look(self._mounted_s, moment())

    def summary(self) -> dict[str, Any]:
        """Return what the mount did since it began, and whether readers waited for it."""
        self.look()
        self._note_limits()
        return as_json(figures_of(self.counters, elapsed_s=time.monotonic() - self._mounted_s), self._mode)

    def tell_summary(self) -> None:
        """Log the summary, if anything was read or fetched, or a read failed."""
        summary = self.summary()
        if summary["served_bytes"] or summary["fetched_bytes"] or summary["failed_reads"]:
            for line in summary_lines(summary):
                _log.info("%s", line)

    def record(self, status: Mapping[str, Any]) -> dict[str, Any]:
        """Return a record, as of `filesystem.figures.recorder`, of the mount whose `status` this is."""
        self._note_limits()
        told = ("version", "source", "mountpoint", "state", "errors")
        return {**{name: status[name] for name in told}, **self._recorder.record(moment())}

    def _note_limits(self) -> None:
        """Note what others may have changed since."""
        self.counters.set("fastfuse_cpu_limit", int(usable_cpus() * 1000))
        self.counters.set("fastfuse_memory_limit_bytes", available_memory_bytes())
        if self.device:
            self.counters.set("fastfuse_kernel_readahead_bytes", readahead_kib(self.device) << 10)

    def look(self) -> None:
        """Note what the counters are now; call it about once a second."""
        now_s, numbers = time.monotonic(), self._numbers()
        self._note_use(now_s, numbers)
        self._recorder.look(now_s, moment())
        if not self._looks or now_s >= self._looks[-1][0] + 0.5:
            self._looks.append((now_s, numbers))

    def _note_use(self, now_s: float, numbers: tuple[int, ...]) -> None:
        elapsed_s, before = now_s - self._looked_s, self._counted
        self._looked_s, self._counted = now_s, numbers
        if numbers[_REQUESTS] > before[_REQUESTS]:
            self.counters.count("fastfuse_asked_seconds", int(elapsed_s * 1e6))
        if numbers[_BLOCKED] > before[_BLOCKED] or self.counters.get("fastfuse_waiting_reads"):
            pause_s = now_s - self._read_s
            used_s = pause_s if pause_s <= _PAUSE_S else elapsed_s
            self.counters.count("fastfuse_in_use_seconds", int(used_s * 1e6))
            self._read_s = now_s

    def rates(self) -> dict[str, float]:
        """Return the seconds looked back on, and by how much each counter grew in one second of them."""
        now_s, numbers = time.monotonic(), self._numbers()
        first_s, first = next((look for look in self._looks if look[0] >= now_s - _RATED_FOR_S), (now_s, numbers))
        elapsed_s = now_s - first_s
        units = {metric.name: metric.unit for metric in METRICS}
        grown = zip(_RATED, numbers, first, strict=True)
        rates = {name: (now - then) * units[name] / elapsed_s if elapsed_s else 0.0 for name, now, then in grown}
        return {"seconds": elapsed_s, **rates}

    def _numbers(self) -> tuple[int, ...]:
        return tuple(self.counters.get(name) for name in _RATED)


def as_json(figures: Figures, mode: str = "") -> dict[str, Any]:
    """Return figures, shares and verdict as JSON can carry them."""
    derived = ("stalled_share", "foreseen_share", "hit_share", "parts", "readers", "cost_usd")
    shares = {name: getattr(figures, name) for name in derived}
    return {**asdict(figures), **shares, "verdict": asdict(judge(figures, mode))}


def summary_lines(summary: Mapping[str, Any]) -> list[str]:
    """Return what `as_json` made for people."""
    verdict, cost_usd, in_use_s = summary["verdict"], summary["cost_usd"], summary["in_use_s"]
    files = f"{summary['files']:,} file{'s' * (summary['files'] != 1)}"
    source = f"{files}, {format_size(summary['total_bytes'])}: " if summary["files"] else ""
    read = f"read {format_size(summary['served_bytes'])}, " if summary["served_bytes"] else ""
    refused = f", {summary['refused']:,} more refused" if summary["refused"] else ""
    wasted = f", {format_size(summary['wasted_bytes'])} dropped unread" if summary["wasted_bytes"] else ""
    ahead = f", {summary['foreseen_share']:.0%} of the parts ahead" if summary["fetched_bytes"] else ""
    failed = f"; {summary['failed_reads']:,} of {summary['reads']:,} reads failed" if summary["failed_reads"] else ""
    hits = f", {summary['hit_share']:.0%} of the reads hit" if summary["hits"] + summary["misses"] else ""
    read_s, byte_s = summary["read_p50_s"], summary["first_byte_p50_s"]
    took = f"a read took {_ms(read_s)} (p99 {_ms(summary['read_p99_s'])})" if read_s else ""
    began = f"a GET's first byte {_ms(byte_s)} (p99 {_ms(summary['first_byte_p99_s'])})" if byte_s else ""
    times = ", ".join(filter(None, (took, began)))
    return [
        f"{source}{read}fetched {format_size(summary['fetched_bytes'])} "
        f"in {summary['gets'] - summary['refused']:,} GETs "
        f"(${cost_usd:.{4 if cost_usd >= 0.01 else 6}f}){refused}{wasted}{ahead}{hits}",
        f"readers waited in {summary['stalled_share']:.1%} of {in_use_s:,.{0 if in_use_s >= 10 else 1}f} s in use"
        f"{'; ' if times else ''}{times}{failed}",
        f"{verdict['name']}: {verdict['text']}; {verdict['advice']}",
    ]


def _ms(seconds: float) -> str:
    return f"{three_digits(seconds * 1000)} ms"


class TroubleGauges:
    """The gauges that ``/healthz`` and alerts ask for, of a process that looks once a second whether its reads fail."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self.reads = FailingReads(*self._counted())

    def look(self, trouble: Mapping[str, Any] | None, now_s: float) -> bool:
        """Set the gauges, and return whether reads fail. `trouble` is that of the requests, as of `s3.retries`."""
        # Nobody waits for a trouble without requests: it is over with the next answer.
        trouble_s = time.time() - trouble["since"] if trouble and trouble["requests"] else 0.0
        is_failing = self.reads.look(now_s, *self._counted(), trouble_s=trouble_s)
        self._counters.set("fastfuse_in_trouble", int(trouble is not None))
        self._counters.set("fastfuse_reads_failing", int(is_failing))
        return is_failing

    def _counted(self) -> tuple[int, dict[str, int]]:
        """Return a number that grows with each GET and each read that succeeds, and how many reads failed, by errno.

        Leave out reads whose object S3 calls gone or replaced (ESTALE).
        """
        get = self._counters.get
        delivered = get("fastfuse_fetch_requests", "ok") + get("fastfuse_read_served_bytes")
        return delivered, {name: get("fastfuse_errors", name) for name in READ_ERRNOS if name != "ESTALE"}


class Board:
    """What a worker shows of itself: one JSON object in memory that the supervisor made and can read at any time.

    One process writes at a time. A reader never waits for it: a text without its CRC is being written, or a writer died
    halfway. That holds in whatever order the processor lets the reader see what was written.
    """

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _HEAD.size + _MOST_SHOWN_BYTES)
        self._shown: bytes = b""

    def show(self, value: dict[str, Any]) -> None:
        """Replace what is shown by `value`, which has at most 64 KiB as JSON; a longer one is not shown."""
        text = json.dumps(value).encode()
        if text == self._shown or len(text) > _MOST_SHOWN_BYTES:
            return
        self._shown = text
        self._memory[: _HEAD.size + len(text)] = _HEAD.pack(len(text), zlib.crc32(text)) + text

    def read(self) -> dict[str, Any]:
        """Return what is shown, or nothing if it is being written or was never written."""
        for _ in range(_TRIES):
            length, crc = _HEAD.unpack_from(self._memory)
            text = self._memory[_HEAD.size : _HEAD.size + length]
            if length and zlib.crc32(text) == crc:
                value: dict[str, Any] = json.loads(text)
                return value
        return {}
