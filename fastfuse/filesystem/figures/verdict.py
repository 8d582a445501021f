"""Did readers wait for a mount, why, and what helps? Pure.

The rules are asked in the order in which they are written, and the first that holds is the verdict: a cause that hides
the others comes first. docs/TUNING.md explains each.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, Final, NamedTuple

from fastfuse.metrics import HISTOGRAMS, METRICS, READ_ERRNOS, RETRY_CAUSES, Counters
from fastfuse.prices import Item, dollars
from fastfuse.sizes import MIB, format_size, three_digits

# Less waiting than this is no reason to change anything.
_HARDLY = 0.05
# The share of GETs that are retried, above which retries are the cause of the waiting; and of reads that fail.
_OFTEN = 0.02
# The share of the one core that an event loop can use, and of those that the mount may use.
_BUSY = 0.9
# The share of the time in which the loop is ready to run and has no core, above which that is why readers wait.
_STARVED = 0.5
# The share of parts that were fetched ahead, up to which little was foreseen.
_LITTLE_FORESEEN = 0.5
# The share of what was read that was fetched when it was asked for (MEASUREMENTS.md, "verdicts").
_MUCH_DEMANDED = 0.1
# A GET of less takes longer to begin than to deliver.
_SMALL_BYTES = 1 * MIB
# At 20 ms and 90 MB/s a GET of so much takes seven times as long to begin as to deliver; two cores take 10 Gbit/s.
_TINY_BYTES = 256 << 10
_KERNEL_READAHEAD_KIB = 128
# The kernel asks for less than this at a time only where a program does.
_READAHEAD_REQUEST_BYTES = 256 << 10
# Bytes dropped unread for each byte that was read, where files are read here and there (MEASUREMENTS.md, "verdicts").
_MUCH_WASTE = 0.5
# What a reader needs: one part.
_PART_BYTES = 8 * MIB
# Bytes read for each byte of the source.
_TOO_MUCH = 1.3
# The page cache surely has this share of the memory; scripts and the mount take the rest.
_PAGE_CACHE_SHARE = 0.5
# Readers that wait at the same time, of those that wait at all: while one waits, the kernel asks for what comes next.
_ALONE = 2.0
# Fewer GETs tell nothing, nor do fewer parts, which are counted once a second, nor does a shorter time of waiting.
_FEW = 20
_SHORT_S = 0.25


def _counted(name: str, *values: str) -> Any:  # noqa: ANN401 -- a field of any type
    """Return a field that is the sum of a metric's `values`, or the metric itself."""
    return field(metadata={"counted": (name, values or ("",))})


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The work of a mount from its start until now."""

    elapsed_s: float
    # The seconds in which files were read, short pauses included, and those in which the kernel asked for anything.
    in_use_s: float = _counted("fastfuse_in_use_seconds")
    active_s: float = _counted("fastfuse_asked_seconds")
    # Handed to the kernel, and fetched from S3. What the page cache served is not among them.
    served_bytes: int = _counted("fastfuse_read_served_bytes")
    fetched_bytes: int = _counted("fastfuse_fetched_bytes")
    # Fetched and dropped before anybody read it.
    wasted_bytes: int = _counted("fastfuse_wasted_bytes")
    # GETs that were answered, and those of them that S3 refused with 5xx, for which it does not charge.
    gets: int = _counted("fastfuse_answered_gets")
    refused: int = _counted("fastfuse_refused_gets")
    whole_gets: int = _counted("fastfuse_whole_gets")
    kept_bytes: int = _counted("fastfuse_cache_bytes", "served")
    reads: int
    # Readers waited at all in `stalled_s`; `blocked_s` is summed over readers.
    stalled_s: float = _counted("fastfuse_stalled_seconds")
    blocked_s: float = _counted("fastfuse_blocked_seconds")
    # Readers waited for a worker that had died or hung.
    unserved_s: float = _counted("fastfuse_unserved_seconds")
    throttled: int = _counted("fastfuse_retries", "throttled")
    # Other requests that were tried again.
    retried: int = _counted("fastfuse_retries", *(cause for cause in RETRY_CAUSES if cause != "throttled"))
    failed_reads: int = _counted("fastfuse_errors", *READ_ERRNOS)
    # The CPU time of the worker, and of its event loop, which has one core at most, and the time it waited for one.
    cpu_s: float = _counted("fastfuse_cpu_seconds")
    loop_cpu_s: float = _counted("fastfuse_loop_cpu_seconds")
    loop_wait_s: float = _counted("fastfuse_loop_cpu_wait_seconds")
    # The CPUs that the mount may use; 0 if unknown.
    cpus: float = _counted("fastfuse_cpu_limit")
    # Parts by asker.
    demanded: int = _counted("fastfuse_fetched_parts", "demanded")
    ahead: int = _counted("fastfuse_fetched_parts", "ahead")
    prefetched: int = _counted("fastfuse_fetched_parts", "prefetched")
    # Reads of the kernel that waited for nothing, and the others.
    hits: int = _counted("fastfuse_reads", "hit")
    misses: int = _counted("fastfuse_reads", "miss")
    # Announced paths, and those that are no files of the mount.
    hints: int = _counted("fastfuse_hints", "taken")
    unknown_hints: int = _counted("fastfuse_hints", "unknown")
    files: int = _counted("fastfuse_table_files")
    total_bytes: int = _counted("fastfuse_table_bytes")
    memory_target_bytes: int = _counted("fastfuse_memory_target_bytes")
    # The host, or the control group of the mount, has so much; 0 if unknown.
    memory_bytes: int = _counted("fastfuse_memory_limit_bytes")
    # 0 without a local tier.
    cache_size_bytes: int = _counted("fastfuse_cache_size_bytes")
    # The kernel's readahead for this mount; 0 if unknown.
    readahead_kib: int
    # 0 without GETs and without reads.
    first_byte_p50_s: float
    first_byte_p99_s: float
    read_p50_s: float
    read_p99_s: float

    @property
    def stalled_share(self) -> float:
        """The share of the time in use in which at least one reader waited; idle hours are no part of it."""
        return min(1.0, self.stalled_s / self.in_use_s) if self.in_use_s else float(self.stalled_s > 0)

    @property
    def cost_usd(self) -> float:
        """The price of the GETs that S3 charges for."""
        return dollars(Item.GET, self.gets - self.refused)

    @property
    def parts(self) -> int:
        return self.demanded + self.ahead + self.prefetched

    @property
    def foreseen_share(self) -> float:
        """The share of the parts that were fetched before a reader asked for them."""
        return (self.ahead + self.prefetched) / self.parts if self.parts else 0.0

    @property
    def demanded_share(self) -> float:
        """The share of what was read that was fetched only when a reader asked for it; guesses in vain are no part.

        What readers had from the local tier was demanded, and not fetched.
        """
        fetched_bytes = self.demanded * self.mean_get_bytes - self.kept_bytes
        return min(1.0, max(0.0, fetched_bytes / max(1, self.served_bytes)))

    @property
    def hit_share(self) -> float:
        """The share of the reads that waited for nothing; the page cache's own are not known."""
        return self.hits / max(1, self.hits + self.misses)

    @property
    def mean_get_bytes(self) -> float:
        """The mean of what a GET fetched."""
        return self.fetched_bytes / max(1, self.gets - self.refused)

    @property
    def has_whole_gets(self) -> bool:
        """True if most GETs fetched a file each."""
        return 2 * self.whole_gets > self.gets - self.refused

    @property
    def mean_file_bytes(self) -> float:
        """The mean size of the files that were read, as far as known; 0 if the files are unknown.

        A source of many small files and a few large ones may be read for the large ones, or for the small ones.
        """
        if not self.files:
            return 0.0
        return self.mean_get_bytes if self.has_whole_gets else max(self.total_bytes / self.files, self.mean_get_bytes)

    @property
    def readers(self) -> float:
        """The readers that waited at the same time, on average while any waited, and so at least one.

        For one reader of a large file the kernel reads ahead with several requests at a time, all of which wait.
        """
        if not self.stalled_s or not self.reads:
            return 0.0
        mean_read_bytes = self.served_bytes / self.reads
        reads_ahead = mean_read_bytes >= _READAHEAD_REQUEST_BYTES
        ahead_bytes = min(self.readahead_kib << 10, self.mean_file_bytes) if reads_ahead else 0.0
        return max(1.0, self.blocked_s / self.stalled_s / max(1.0, ahead_bytes / max(1.0, mean_read_bytes)))


@dataclass(frozen=True, slots=True)
class Verdict:
    """Why readers waited, in a word that stays the same, in a sentence, and what helps."""

    name: str
    text: str
    advice: str


def figures_of(counters: Counters, *, elapsed_s: float) -> Figures:
    """Return the figures of a mount that has served for `elapsed_s`."""
    units = {metric.name: metric.unit for metric in METRICS}
    counted: dict[str, Any] = {
        one.name: sum(counters.get(name, value) for value in values) * units[name]
        for one in fields(Figures)
        for name, values in one.metadata.values()
    }
    seen = {one.name: counters.distribution(one) for one in HISTOGRAMS}
    first_byte, reads = seen["fastfuse_get_first_byte_seconds"], seen["fastfuse_read_seconds"]
    return Figures(
        elapsed_s=elapsed_s,
        reads=sum(reads.counts),
        readahead_kib=counters.get("fastfuse_kernel_readahead_bytes") >> 10,
        first_byte_p50_s=first_byte.quantile(0.5),
        first_byte_p99_s=first_byte.quantile(0.99),
        read_p50_s=reads.quantile(0.5),
        read_p99_s=reads.quantile(0.99),
        **counted,
    )


class Rule(NamedTuple):
    """A verdict, the figures for which it holds, and what it says of them."""

    name: str
    holds: Callable[[Figures], bool]
    text: Callable[[Figures], str]
    advice: str


def _asked_s(it: Figures) -> float:
    """Return the seconds in which the mount was asked, or readers waited."""
    return max(it.active_s, it.stalled_s)


def _in_use_s(it: Figures) -> float:
    return max(it.in_use_s, it.stalled_s, 1e-9)


def _is_fetched_again(it: Figures) -> bool:
    return 0 < _TOO_MUCH * it.total_bytes <= min(it.served_bytes, it.fetched_bytes)


def _read_again(it: Figures) -> str:
    return f"{format_size(it.served_bytes)} were read of {format_size(it.total_bytes)}: later epochs came from S3 again"


def _is_short_of_memory(it: Figures) -> bool:
    if _is_random(it) and it.served_bytes < _READAHEAD_REQUEST_BYTES * it.reads:
        return False  # no more is fetched for them than they ask for
    needed_bytes = min(it.readers * min(it.mean_file_bytes, _PART_BYTES), it.total_bytes)
    # Parts have at least half of the target.
    return 0 < it.memory_target_bytes < 2 * needed_bytes


def _is_random(it: Figures) -> bool:
    is_demanded = it.foreseen_share <= _LITTLE_FORESEEN and not it.has_whole_gets
    is_wasted = it.wasted_bytes >= _MUCH_WASTE * max(it.served_bytes, 1)
    return (is_demanded or is_wasted) and it.mean_file_bytes > _SMALL_BYTES


def _are_small(it: Figures) -> bool:
    """Return True if one GET fetches a file: of several, the others come while a reader has the first."""
    return it.mean_file_bytes <= _SMALL_BYTES or (it.has_whole_gets and not _is_random(it))


def _is_too_little(it: Figures) -> bool:
    if 2 * (it.throttled + it.retried) > it.gets:
        return False
    return it.stalled_s < _SHORT_S or (min(it.gets, it.parts) < _FEW and not _is_of_tier(it))


def _is_of_tier(it: Figures) -> bool:
    return it.gets < _FEW <= it.parts and it.cache_size_bytes > 0


RULES: Final = (
    Rule(
        "reads failed",
        lambda it: it.failed_reads > _OFTEN * it.reads > 0,
        lambda it: f"{it.failed_reads:,} of {it.reads:,} reads ended with an error",
        "fastfuse status and the log tell why",
    ),
    Rule(
        "workers died",
        lambda it: it.unserved_s > _HARDLY * it.in_use_s,
        lambda it: f"readers waited {it.unserved_s:.0f} s for workers that had died or hung",
        "the log tells how each ended, and what a hung one was doing",
    ),
    Rule(
        "not waiting",
        lambda it: it.stalled_share < _HARDLY,
        lambda _: "readers hardly waited for data",
        "look elsewhere if the GPU waits",
    ),
    Rule(
        "too little to judge",
        _is_too_little,
        lambda it: (
            "hardly anything was fetched from S3"
            if it.stalled_s >= _SHORT_S
            else f"readers waited for {it.stalled_s:.1f} s in all"
        ),
        "ask again when more was read",
    ),
    Rule(
        "throttled",
        lambda it: it.throttled > _OFTEN * it.gets,
        lambda it: f"S3 refused {it.throttled:,} requests because there were too many",
        "spread the data over more prefixes, make fewer and larger objects, or begin hosts one after the other",
    ),
    Rule(
        "requests failed",
        lambda it: it.retried > _OFTEN * it.gets,
        lambda it: f"{it.retried:,} requests failed and were tried again",
        "the log and fastfuse_retries_total name the causes; ask the network and the service",
    ),
    Rule(
        "CPU limit",
        lambda it: it.cpus > 0 and it.cpu_s >= _BUSY * it.cpus * _asked_s(it),
        lambda it: f"the mount used {it.cpu_s / _asked_s(it):.2g} of its {it.cpus:g} CPUs while it was asked",
        "give it more: a larger host, or a higher limit of its container or service",
    ),
    Rule(
        "CPU limit",
        lambda it: it.loop_wait_s > _STARVED * _asked_s(it),
        lambda it: f"the mount waited for a CPU in {min(1, it.loop_wait_s / _asked_s(it)):.0%} of the time",
        "use fewer workers of the script, a larger host, or a higher limit of its container or service",
    ),
    Rule(
        "readahead not permitted",
        lambda it: 0 < it.readahead_kib <= _KERNEL_READAHEAD_KIB and it.mean_file_bytes >= 8 * _SMALL_BYTES,
        lambda it: f"the kernel reads only {it.readahead_kib} KiB ahead of readers of large files",
        "mount as root or where /sys is writable, or see docs/TUNING.md",
    ),
    Rule(
        "CPU limit",
        lambda it: it.loop_cpu_s >= _BUSY * _asked_s(it),
        lambda it: f"the loop that takes requests was at work in {it.loop_cpu_s / _asked_s(it):.0%} of the time",
        "mount each half of the data by itself",
    ),
    Rule(
        "memory target too small",
        _is_short_of_memory,
        lambda it: f"{it.readers:.0f} readers waited at a time, within {format_size(it.memory_target_bytes)}",
        "raise --memory-target, or read fewer files at a time",
    ),
    Rule(
        "local tier limit",
        _is_of_tier,
        lambda it: (
            f"readers waited for the cache, which served nearly all, "
            f"{three_digits(it.served_bytes / _in_use_s(it) / 1e6)} MB/s on average"
        ),
        "use more DataLoader workers; compare with what the disk of --cache delivers",
    ),
    Rule(
        "wrong hints",
        # Hosts that have a shard each may well announce all files.
        lambda it: it.unknown_hints > it.hints and it.demanded_share > _MUCH_DEMANDED,
        lambda it: (
            f"{it.unknown_hints:,} of {it.hints + it.unknown_hints:,} announced paths were no files of the mount, "
            f"and {it.demanded_share:.0%} of what was read was fetched when a reader asked for it"
        ),
        "announce paths below the mountpoint, or relative to it; the log names one that is none",
    ),
    Rule(
        "small files without hints",
        lambda it: _are_small(it) and not it.hints and it.demanded_share > _MUCH_DEMANDED,
        lambda it: (
            f"files of {format_size(int(it.mean_get_bytes))} were fetched one by one, "
            f"{it.demanded_share:.0%} of them when they were opened"
        ),
        "announce the order (docs/USAGE.md, hints), put many into one shard, or use more workers",
    ),
    Rule(
        "local tier too small",
        lambda it: it.cache_size_bytes > 0 and _is_fetched_again(it),
        lambda it: f"{_read_again(it)}, beside a cache of {format_size(it.cache_size_bytes)}",
        "raise --cache-size, make room on its disk, or see in fastfuse status and the log why the cache fails",
    ),
    Rule(
        "page cache too small",
        lambda it: _is_fetched_again(it) and it.total_bytes > _PAGE_CACHE_SHARE * it.memory_bytes,
        _read_again,
        "keep it on a local disk (--cache DIR), use a host with more memory than the data, or shard it over hosts",
    ),
    Rule(
        "random reads",
        _is_random,
        lambda _: "large files were read here and there, and each reader waited for its GETs",
        "read in the order of the files, use more workers, or File mode for files that are read through memory maps",
    ),
    Rule(
        "too few readers",
        lambda it: it.readers < _ALONE,
        lambda it: (
            f"{it.readers:.1f} readers waited at a time, "
            f"for {it.first_byte_p50_s * 1000:.0f} ms until a GET's first byte"
        ),
        "use more DataLoader workers",
    ),
    Rule(
        "request limit",
        lambda it: 0 < it.mean_file_bytes <= _TINY_BYTES,
        lambda it: (
            f"files of {format_size(int(it.mean_get_bytes))} take a GET each, "
            f"{three_digits(it.gets / _in_use_s(it))} a second on average"
        ),
        "put many into one shard; compare with fastfuse advise",
    ),
    Rule(
        "network limit",
        lambda _: True,
        lambda it: (
            # A download and a stream count no readers.
            f"readers waited{f', {it.readers:.0f} at a time,' if it.reads else ''} "
            f"for what S3 and the network deliver, "
            f"{three_digits(it.fetched_bytes / _in_use_s(it) / 1e6)} MB/s on average"
        ),
        "compare with fastfuse advise; raise --max-connections, or use an instance with a faster network",
    ),
)

# A stream and a download are fetched in their order, by as many GETs at a time as the network bears; what is wrong then
# is not how the files are read.
OF_CHANNELS: Final = (
    "not waiting",
    "too little to judge",
    "throttled",
    "requests failed",
    "request limit",
    "network limit",
)


def judge(figures: Figures, mode: str = "") -> Verdict:
    """Return the verdict of the first rule that holds; `mode` is the input mode of a channel that is not mounted."""
    is_channel = mode in {"File", "Pipe"}
    found = next(rule for rule in RULES if rule.holds(figures) and (not is_channel or rule.name in OF_CHANNELS))
    return Verdict(found.name, found.text(figures), found.advice)
