"""Did readers wait for a mount, why, and what helps? Pure.

The rules are asked in the order in which they are written, and the first that holds is the verdict: a cause that hides
the others comes first. docs/TUNING.md explains each.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from fastfuse.metrics import HISTOGRAMS, RETRY_CAUSES, Counters, Distribution
from fastfuse.prices import Item, dollars
from fastfuse.sizes import MIB, format_size

__all__ = ["RULES", "Figures", "Verdict", "as_json", "figures_of", "judge", "summary_lines"]

# Less waiting than this is no reason to change anything.
_HARDLY = 0.05
# The share of GETs that are retried, above which retries are the cause of the waiting.
_OFTEN_RETRIED = 0.02
# The share of one core: the worker has one thread that takes requests.
_BUSY = 0.9
# The share of parts that readers asked for, above which little was foreseen.
_MOSTLY_DEMANDED = 0.5
# A GET of less takes longer to begin than to deliver.
_SMALL_BYTES = 1 * MIB
_KERNEL_READAHEAD_KIB = 128
# Bytes fetched for each byte that was read: more means that parts were dropped before they were read.
_TOO_MUCH = 1.3
# Readers that wait at the same time, of those that wait at all.
_ALONE = 1.5
# Fewer GETs tell nothing, nor do fewer parts, which are counted once a second.
_FEW = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The work of a mount from its start until now."""

    elapsed_s: float
    # The seconds in which the kernel asked for anything.
    active_s: float
    # Handed to the kernel, and fetched from S3. What the page cache served is not among them.
    served_bytes: int
    fetched_bytes: int
    gets: int
    # Readers waited at all in `stalled_s`; `blocked_s` is summed over readers.
    stalled_s: float
    blocked_s: float
    throttled: int
    # Other requests that were tried again.
    retried: int
    failed_reads: int
    # The CPU time of the worker; one core is 1 s a second.
    cpu_s: float
    # Parts by asker.
    demanded: int
    ahead: int
    prefetched: int
    hints: int
    files: int
    total_bytes: int
    # The kernel's readahead for this mount; 0 if unknown.
    readahead_kib: int
    first_byte_p50_s: float
    first_byte_p99_s: float
    read_p50_s: float
    read_p99_s: float

    @property
    def stalled_share(self) -> float:
        """The share of the time in which at least one reader waited."""
        return min(1.0, self.stalled_s / self.elapsed_s) if self.elapsed_s else 0.0

    @property
    def parts(self) -> int:
        return self.demanded + self.ahead + self.prefetched

    @property
    def foreseen_share(self) -> float:
        """The share of the parts that were fetched before a reader asked for them."""
        return (self.ahead + self.prefetched) / self.parts if self.parts else 0.0

    @property
    def mean_file_bytes(self) -> float:
        return self.total_bytes / self.files if self.files else 0.0

    @property
    def readers(self) -> float:
        """The readers that waited at the same time, on average while any waited."""
        return self.blocked_s / self.stalled_s if self.stalled_s else 0.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """Why readers waited, in a word that stays the same, in a sentence, and what helps."""

    name: str
    text: str
    advice: str


def figures_of(counters: Counters, *, elapsed_s: float, active_s: float, readahead_kib: int) -> Figures:
    """Return the figures of a mount that has served for `elapsed_s`, and was asked for anything in `active_s` of it."""
    seen: Mapping[str, Distribution] = {one.name: counters.distribution(one) for one in HISTOGRAMS}
    numbers = counters.as_json()

    def count(name: str, *values: str) -> int:
        return sum(counters.get(name, value) for value in values) if values else counters.get(name)

    first_byte, reads = seen["fastfuse_get_first_byte_seconds"], seen["fastfuse_read_seconds"]
    return Figures(
        elapsed_s=elapsed_s,
        active_s=active_s,
        served_bytes=count("fastfuse_read_served_bytes"),
        fetched_bytes=count("fastfuse_fetched_bytes"),
        gets=sum(first_byte.counts),
        stalled_s=numbers["fastfuse_stalled_seconds"],
        blocked_s=numbers["fastfuse_blocked_seconds"],
        throttled=count("fastfuse_retries", "throttled"),
        retried=count("fastfuse_retries", *(cause for cause in RETRY_CAUSES if cause != "throttled")),
        failed_reads=count("fastfuse_errors", "EIO", "EACCES", "ESTALE"),
        cpu_s=numbers["fastfuse_cpu_seconds"],
        demanded=count("fastfuse_fetched_parts", "demanded"),
        ahead=count("fastfuse_fetched_parts", "ahead"),
        prefetched=count("fastfuse_fetched_parts", "prefetched"),
        hints=count("fastfuse_hints", "taken"),
        files=count("fastfuse_table_files"),
        total_bytes=count("fastfuse_table_bytes"),
        readahead_kib=readahead_kib,
        first_byte_p50_s=first_byte.quantile(0.5),
        first_byte_p99_s=first_byte.quantile(0.99),
        read_p50_s=reads.quantile(0.5),
        read_p99_s=reads.quantile(0.99),
    )


# A verdict if it holds, or nothing.
Rule = Callable[[Figures], Verdict | None]


def _idle(it: Figures) -> Verdict | None:
    if min(it.gets, it.parts) < _FEW and it.stalled_share >= _HARDLY:
        return Verdict("too little to judge", "hardly anything was read", "ask again when more was read")
    if it.stalled_share < _HARDLY:
        return Verdict("not waiting", "readers hardly waited for data", "look elsewhere if the GPU waits")
    return None


def _throttled(it: Figures) -> Verdict | None:
    if it.throttled <= _OFTEN_RETRIED * it.gets:
        return None
    return Verdict(
        "throttled",
        f"S3 refused {it.throttled:,} requests because there were too many",
        "spread the data over more prefixes, make fewer and larger objects, or begin hosts one after the other",
    )


def _troubled(it: Figures) -> Verdict | None:
    if it.retried <= _OFTEN_RETRIED * it.gets:
        return None
    return Verdict(
        "requests failed",
        f"{it.retried:,} requests failed and were tried again",
        "the log and fastfuse_retries_total name the causes; ask the network and the service",
    )


def _busy(it: Figures) -> Verdict | None:
    if it.cpu_s < _BUSY * max(it.active_s, it.stalled_s):
        return None
    return Verdict(
        "CPU limit",
        f"the mount used {it.cpu_s / max(it.active_s, it.stalled_s):.1f} of a core while it was asked",
        "give the host more cores, or one mount to each half of the data; see --io direct for large files",
    )


def _too_little_memory(it: Figures) -> Verdict | None:
    is_fetched_twice = it.fetched_bytes > _TOO_MUCH * max(it.served_bytes, 1)
    if not is_fetched_twice or it.foreseen_share < _MOSTLY_DEMANDED:
        return None
    return Verdict(
        "memory target too small",
        f"{format_size(it.fetched_bytes)} were fetched for {format_size(it.served_bytes)} that were read: parts were "
        "dropped before their readers came",
        "raise --memory-target, or read fewer files at a time",
    )


def _without_readahead(it: Figures) -> Verdict | None:
    if not 0 < it.readahead_kib <= _KERNEL_READAHEAD_KIB or it.mean_file_bytes < 8 * _SMALL_BYTES:
        return None
    return Verdict(
        "readahead not permitted",
        f"the kernel reads only {it.readahead_kib} KiB ahead of readers of large files",
        "mount as root or where /sys is writable, or see docs/TUNING.md",
    )


def _small_files(it: Figures) -> Verdict | None:
    if it.mean_file_bytes > _SMALL_BYTES or it.hints or it.foreseen_share > _MOSTLY_DEMANDED:
        return None
    return Verdict(
        "small files without hints",
        f"files of {format_size(int(it.mean_file_bytes))} were fetched when they were opened, one GET each",
        "announce the order (docs/USAGE.md, hints), put many into one shard, or use more workers",
    )


def _again(it: Figures) -> Verdict | None:
    if not it.total_bytes or min(it.served_bytes, it.fetched_bytes) < _TOO_MUCH * it.total_bytes:
        return None
    return Verdict(
        "page cache too small",
        f"{format_size(it.served_bytes)} were read of {format_size(it.total_bytes)}: later epochs came from S3 again",
        "keep it on a local disk (--cache DIR), use a host with more memory than the data, or shard it over hosts",
    )


def _random(it: Figures) -> Verdict | None:
    if it.foreseen_share > _MOSTLY_DEMANDED or it.mean_file_bytes <= _SMALL_BYTES:
        return None
    return Verdict(
        "random reads",
        "large files were read here and there, and each reader waited for its GETs",
        "read in the order of the files, use more workers, or File mode for files that are read through memory maps",
    )


def _few_readers(it: Figures) -> Verdict | None:
    if it.readers >= _ALONE:
        return None
    return Verdict(
        "too few readers",
        f"{it.readers:.1f} readers waited at a time, for {it.first_byte_p50_s * 1000:.0f} ms until a GET's first byte",
        "use more DataLoader workers",
    )


def _network(it: Figures) -> Verdict | None:
    return Verdict(
        "network limit",
        f"{it.readers:.0f} readers waited at a time for what S3 and the network deliver, "
        f"{it.fetched_bytes / max(it.elapsed_s, 1e-9) / 1e6:,.0f} MB/s on average",
        "compare with fastfuse advise; a larger instance has a faster network",
    )


RULES: Final[tuple[Rule, ...]] = (
    *(_idle, _throttled, _troubled, _busy, _too_little_memory, _without_readahead, _small_files, _again, _random),
    *(_few_readers, _network),
)


def judge(figures: Figures) -> Verdict:
    """Return the verdict of the first rule that holds; the last one always does."""
    return next(verdict for verdict in (rule(figures) for rule in RULES) if verdict is not None)


def as_json(figures: Figures) -> dict[str, Any]:
    """Return figures, shares and verdict as JSON can carry them."""
    shares = {name: getattr(figures, name) for name in ("stalled_share", "foreseen_share", "parts", "readers")}
    return {**asdict(figures), **shares, "cost_usd": dollars(Item.GET, figures.gets), "verdict": asdict(judge(figures))}


def summary_lines(summary: Mapping[str, Any]) -> list[str]:
    """Return what `as_json` made for people."""
    verdict = summary["verdict"]
    return [
        f"read {format_size(summary['served_bytes'])}, fetched {format_size(summary['fetched_bytes'])} in "
        f"{summary['gets']:,} GETs (${summary['cost_usd']:.{4 if summary['cost_usd'] >= 0.01 else 6}f})"
        + (f", {summary['foreseen_share']:.0%} of the parts ahead" if summary["parts"] else ""),
        f"readers waited in {summary['stalled_share']:.1%} of {summary['elapsed_s']:,.0f} s; a read took "
        f"{_ms(summary['read_p50_s'])} (p99 {_ms(summary['read_p99_s'])}), a GET's first byte "
        f"{_ms(summary['first_byte_p50_s'])} (p99 {_ms(summary['first_byte_p99_s'])})",
        f"{verdict['name']}: {verdict['text']}; {verdict['advice']}",
    ]


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:,.3g} ms"
