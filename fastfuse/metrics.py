"""Every metric, declared once; kept in shared memory, so that counters survive the death of the worker that counts.

A counter is one int64 in a page that the supervisor maps before it forks. Each has one writer at a time (the worker, or
the supervisor for its own), so ``+=`` needs no lock, costs well under a microsecond and can be read by any process.
`filesystem.figures.scrapes` serves them.

Labels are closed sets: outcomes, errnos, and what is mounted where; never a key or an endpoint.
"""

import errno as _errno
import mmap
import os
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from fastfuse.version import VERSION

# How a ranged GET ended; "ok" or the family of its error (fastfuse.errors).
OUTCOMES = ("ok", "changed", "denied", "unavailable", "deadline", "bad_reply", "cancelled", "other")

# A reader waits for it; it was foreseen behind a reader; it was foreseen before anybody began the file.
ASKERS = ("demanded", "ahead", "prefetched")

# A reader waited for none of its bytes, or for some.
READS = ("hit", "miss")

# Bytes that lay in memory when their reader came, and those that it had to wait for.
SOURCES = ("ahead", "demanded")

# Parts on their way, parts that nobody has read yet, and parts that were read.
MEMORY_USES = ("in_flight", "unread", "read")

# Why requests were tried again (s3.failures).
RETRY_CAUSES = ("throttled", "busy", "broken", "unreachable", "credentials", "other")

# How a check of an object's bytes against its checksum ended. "begun": a large one, which may be read only in part.
CHECKS = ("ok", "none", "begun", "refetched", "mismatch")

# The answers to reads that failed.
READ_ERRNOS = ("EIO", "ESTALE", "EACCES")

# The fates of bytes in the local tier (fastfuse.cache). Not kept were those that a full queue skipped, that the
# disk or the index did not take (dropped), and that have no room, or are not worth it (declined).
CACHE_EVENTS = ("served", "written", "skipped", "dropped", "declined", "evicted")

# Ranges that were not what was written; errors of the disk and of the index; the directory was removed.
CACHE_FAILURES = ("corrupt", "disk", "index", "directory")

# What readers were answered; anything not listed is counted as "other".
ERRNO_LABELS = (
    *(_errno.errorcode[n] for n in (_errno.EIO, _errno.ESTALE, _errno.EACCES, _errno.EROFS, _errno.ESHUTDOWN)),
    "other",
)


@dataclass(frozen=True, slots=True)
class Counter:
    """A declared metric: `name` without its suffix; `values` of its `label` are a closed set; counted in `unit`."""

    name: str
    help: str
    label: str = ""
    values: tuple[str, ...] = ("",)
    is_gauge: bool = False
    unit: float = 1


@dataclass(frozen=True, slots=True)
class Histogram:
    """A declared distribution of seconds: how many were at most each of `bounds_s`, how many were longer, their sum."""

    name: str
    help: str
    bounds_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Distribution:
    """The content of a `Histogram`: `counts` for each bound, and one for longer times."""

    bounds_s: tuple[float, ...]
    counts: tuple[int, ...]
    sum_s: float

    def quantile(self, share: float) -> float:
        """Return the time that `share` of all took at most, as Prometheus' ``histogram_quantile`` does; 0 without any.

        Within a bucket times are taken to be spread evenly; of those beyond the last bound only that one is known.
        """
        wanted, below, lower_s = share * sum(self.counts), 0, 0.0
        for count, upper_s in zip(self.counts, self.bounds_s, strict=False):
            if below + count >= wanted and count:
                return lower_s + (upper_s - lower_s) * (wanted - below) / count
            below, lower_s = below + count, upper_s
        return lower_s if below < sum(self.counts) else 0.0


# Times in one bucket differ by less than a factor of 2.5. A read that waits for nothing takes less than 0.1 ms.
_GET_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
HISTOGRAMS = (
    Histogram("fastfuse_get_first_byte_seconds", "From a GET to the head of its reply.", _GET_BOUNDS_S),
    Histogram("fastfuse_get_seconds", "From a GET to its last byte, retries included.", _GET_BOUNDS_S),
    Histogram("fastfuse_read_seconds", "From a request to read to its answer.", (0.0001, 0.0005, *_GET_BOUNDS_S)),
)

METRICS = (
    Counter("fastfuse_fetch_requests", "Ranged GETs finished, by outcome.", "outcome", OUTCOMES),
    Counter("fastfuse_fetched_bytes", "Bytes received from ranged GETs."),
    Counter("fastfuse_whole_gets", "GETs that fetched all of an object."),
    Counter("fastfuse_fetched_parts", "Ranges that were fetched, by who asked for them.", "asker", ASKERS),
    Counter("fastfuse_retries", "GETs that failed and were tried again, by cause.", "cause", RETRY_CAUSES),
    Counter("fastfuse_answered_gets", "Attempts of GETs that were answered, in whatever way."),
    Counter("fastfuse_refused_gets", "Those answered with a server error (5xx), for which S3 does not charge."),
    Counter("fastfuse_credentials_renewed", "Times that other AWS credentials took the place of the ones in use."),
    Counter("fastfuse_verified_objects", "Objects checked against their checksums, by outcome.", "outcome", CHECKS),
    Counter("fastfuse_read_served_bytes", "Bytes handed to readers."),
    Counter(
        "fastfuse_read_source_bytes",
        "Bytes handed to readers, by whether they lay in memory when their reader came.",
        "source",
        SOURCES,
    ),
    Counter("fastfuse_reads", "Reads that reached the mount, by whether they waited for bytes.", "outcome", READS),
    Counter("fastfuse_cache_bytes", "Bytes of the local tier, by what became of them.", "event", CACHE_EVENTS),
    Counter("fastfuse_cache_failures", "Failures of the local tier, by kind.", "kind", CACHE_FAILURES),
    Counter("fastfuse_cache_used_bytes", "Bytes of the local tier's segments.", is_gauge=True),
    Counter("fastfuse_cache_size_bytes", "The value of --cache-size, in bytes; 0 if unused.", is_gauge=True),
    Counter("fastfuse_cache_wanted", "1 if the mount was made with --cache.", is_gauge=True),
    Counter("fastfuse_wasted_bytes", "Bytes fetched and dropped before anybody read them."),
    Counter("fastfuse_requests", "Requests of the kernel answered, errors included."),
    Counter("fastfuse_errors", "Requests answered with an errno, by its name.", "errno", ERRNO_LABELS),
    Counter("fastfuse_handler_failures", "Requests that failed for an unforeseen reason (logged with a traceback)."),
    Counter("fastfuse_blocked_seconds", "Seconds that readers waited for the mount, summed over readers.", unit=1e-6),
    Counter("fastfuse_stalled_seconds", "Seconds in which at least one reader waited for the mount.", unit=1e-6),
    Counter("fastfuse_unserved_seconds", "Seconds in which readers waited for a dead or hung worker.", unit=1e-6),
    Counter("fastfuse_in_use_seconds", "Seconds in which files were read, pauses of up to 30 s included.", unit=1e-6),
    Counter("fastfuse_asked_seconds", "Seconds in which the kernel asked for anything.", unit=1e-6),
    Counter("fastfuse_waiting_reads", "Requests to read that wait for their bytes now.", is_gauge=True),
    Counter("fastfuse_gets_in_flight", "Ranged GETs under way, retries included.", is_gauge=True),
    Counter("fastfuse_in_trouble", "1 while requests to S3 fail and are tried again.", is_gauge=True),
    Counter("fastfuse_reads_failing", "1 while reads fail, as /healthz sees it.", is_gauge=True),
    Counter("fastfuse_draining", "1 once the mount refuses new reads.", is_gauge=True),
    Counter("fastfuse_streams", "Files of which the mount knows how they are read.", is_gauge=True),
    Counter("fastfuse_pool_bytes", "Bytes of parts held or in flight.", is_gauge=True),
    Counter("fastfuse_memory_bytes", "Bytes of parts, by use.", "use", MEMORY_USES, is_gauge=True),
    Counter("fastfuse_memory_target_bytes", "The value of --memory-target, in bytes.", is_gauge=True),
    Counter("fastfuse_worker_memory_bytes", "Bytes of memory that the worker shares with nobody.", is_gauge=True),
    Counter("fastfuse_kernel_readahead_bytes", "How far the kernel reads ahead in a file; 0: unknown.", is_gauge=True),
    Counter("fastfuse_cpu_seconds", "Seconds of CPU that workers have used.", unit=1e-6),
    Counter("fastfuse_loop_cpu_seconds", "Seconds of CPU that workers' event loops have used.", unit=1e-6),
    Counter("fastfuse_loop_cpu_wait_seconds", "Seconds that event loops waited for a CPU while asked.", unit=1e-6),
    Counter("fastfuse_cpu_limit", "CPUs that the mount may use at the same time.", is_gauge=True, unit=1e-3),
    Counter(
        "fastfuse_memory_limit_bytes",
        "Bytes of memory of the host, or of its control group if that has less.",
        is_gauge=True,
    ),
    Counter("fastfuse_hints", "Paths announced as about to be opened, by outcome.", "outcome", ("taken", "unknown")),
    Counter("fastfuse_objects_listed", "Objects listed; grows while a listing is made."),
    Counter("fastfuse_index_requests", "Requests that took making the index; refreshes that failed are left out."),
    Counter("fastfuse_table_files", "Files in the inode table.", is_gauge=True),
    Counter("fastfuse_table_bytes", "Bytes of these files.", is_gauge=True),
    Counter("fastfuse_table_memory_bytes", "Bytes of the inode table, which no memory target covers.", is_gauge=True),
    Counter("fastfuse_listed_timestamp_seconds", "When the table was listed, in seconds since 1970.", is_gauge=True),
    Counter("fastfuse_refreshes", "Refreshes finished, by outcome.", "outcome", ("ok", "failed")),
    Counter("fastfuse_worker_respawns", "Workers started after the death of their predecessor."),
    Counter("fastfuse_worker_hangs", "Workers killed because they hung."),
    Counter("fastfuse_worker_beats", "Seconds in which a worker showed that it does not hang."),
)


# Not counted, so it has no slot.
BUILD_INFO = Counter("fastfuse_build_info", "1, with the version of fastfuse.", "version", (VERSION,), is_gauge=True)


# The slots in the order of their numbers: a metric has one for each value of its label, a histogram for each bucket,
# by its place, and for the sum.
_SLOTS = {
    key: slot
    for slot, key in enumerate(
        (
            *((metric.name, value) for metric in METRICS for value in metric.values),
            *(
                (histogram.name, place)
                for histogram in HISTOGRAMS
                for place in (*map(str, range(len(histogram.bounds_s) + 1)), "sum")
            ),
        )
    )
}
_GAUGE_SLOTS = [_SLOTS[metric.name, value] for metric in METRICS if metric.is_gauge for value in metric.values]


class Counters:
    """The shared numbers, each by the name of its metric and a value of its label; `KeyError` for an undeclared one."""

    # The names of the numbers of a `copy`, in their order.
    NAMES = tuple(f"{name}/{value}" for name, value in _SLOTS)

    def __init__(self, numbers: Iterable[int] = (), labels: Mapping[str, str] | None = None) -> None:
        """Begin with the `numbers` of a `copy`, or with 0 everywhere. Whoever scrapes sees the `labels`."""
        self.labels = labels or {}
        # Anonymous and shared: every process forked from this one sees the same numbers.
        self._memory = mmap.mmap(-1, 8 * len(_SLOTS))
        self._values = memoryview(self._memory).cast("q")
        for slot, number in enumerate(numbers):
            self._values[slot] = number

    def copy(self) -> "array[int]":
        """Return the numbers as they are now."""
        return array("q", self._values)

    def since(self, earlier: "Counters") -> "Counters":
        """Return by how much the numbers grew since the `earlier` ones; gauges are as they are now."""
        grown = [max(0, now - before) for now, before in zip(self._values, earlier.copy(), strict=True)]
        for slot in _GAUGE_SLOTS:
            grown[slot] = self._values[slot]
        return Counters(grown)

    def get(self, name: str, value: str = "") -> int:
        return self._values[_SLOTS[name, value]]

    def set(self, name: str, number: int, value: str = "") -> None:
        self._values[_SLOTS[name, value]] = number

    def count(self, name: str, amount: int = 1, value: str = "") -> None:
        self._values[_SLOTS[name, value]] += amount

    def memory(self, name: str) -> memoryview:
        """Return the number of a metric as memory of one item, for compiled code and for the path of each read."""
        slot = _SLOTS[name, ""]
        return self._values[slot : slot + 1]

    def observer(self, name: str) -> Callable[[float], None]:
        """Return what counts a time, in seconds, in a histogram."""
        bounds_s = next(histogram.bounds_s for histogram in HISTOGRAMS if histogram.name == name)
        values, first, total = self._values, _SLOTS[name, "0"], _SLOTS[name, "sum"]

        def observe(took_s: float) -> None:
            values[first + bisect_left(bounds_s, took_s)] += 1
            values[total] += int(took_s * 1e6)

        return observe

    def distribution(self, histogram: Histogram) -> Distribution:
        """Return what `histogram` has seen until now."""
        name, bounds_s = histogram.name, histogram.bounds_s
        counts = tuple(self.get(name, str(place)) for place in range(len(bounds_s) + 1))
        return Distribution(bounds_s, counts, self.get(name, "sum") * 1e-6)

    def as_json(self) -> dict[str, float]:
        """Return every number by the name of its metric, with its label as Prometheus writes it."""
        numbers: dict[str, float] = {}
        for metric in METRICS:
            for value in metric.values:
                name = f'{metric.name}{{{metric.label}="{value}"}}' if metric.label else metric.name
                numbers[name] = self.get(metric.name, value) * metric.unit
        return numbers


def mount_labels(mountpoint: Path, bucket: str) -> dict[str, str]:
    """Return the labels of the metrics of a mount or a channel; `bucket` is empty if it is of no bucket."""
    # A scrape is UTF-8, and a path may be none.
    return {"mount": os.fsencode(mountpoint).decode(errors="replace"), "bucket": bucket}
