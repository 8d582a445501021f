"""Estimates time and cost of each way to give a source to a job, and recommends one.

An epoch takes as long as its small objects at a rate of files, and then its large ones at a rate of bytes. The rate of
files is that of GETs in flight, each of which takes the time to the first byte and the transfer, up to what the CPU of
the host was measured to serve.

The mode with the shortest job is recommended. A mode that takes less trouble, and is no more than a quarter slower, is
preferred: FastFile needs no disk and no change of the script, and a file system must be made and filled.

Pure. docs/ADVICE.md has the formulas and the rules, and where each constant was measured.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from fastfuse.prices import FSX_LEAST_GB, Item, dollars
from fastfuse.sizes import GIB, KIB, MIB, format_size

# A larger object is fetched in several GETs; see `readahead.limits`.
PART_BYTES = 8 * MIB
# What a random read is taken to ask for.
RANDOM_BYTES = 256 * KIB


class Mode(StrEnum):
    FILE = "File"
    FAST_FILE = "FastFile"
    HINTED = "FastFile+hints"
    PAGE_CACHED = "FastFile+page cache"
    TIERED = "FastFile+--cache"
    PIPE = "Pipe"
    EFS = "EFS"
    FSX = "FSx Lustre"


class Access(StrEnum):
    """The order in which a job reads: shuffled files, files as they are listed, or random ranges of them."""

    SHUFFLED = "shuffled"
    LISTED = "listed"
    RANDOM = "random"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Counts and bytes of the objects of a source."""

    objects: int
    directories: int
    total_bytes: int
    median_bytes: int
    largest_bytes: int
    # Those of at most a part, which one GET brings.
    small_objects: int
    small_bytes: int
    # GETs of all objects: in whole parts, by readers of a mount (its first parts are smaller), and in random ranges.
    gets: int
    mounted_gets: int
    random_gets: int
    # Nobody can read these until they are restored.
    archived_objects: int

    @property
    def mean_bytes(self) -> float:
        return self.total_bytes / self.objects if self.objects else 0.0

    @property
    def large_bytes(self) -> int:
        return self.total_bytes - self.small_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """The network between a host and S3. The defaults are what AWS publishes, and a card of 10 Gbit/s."""

    latency_s: float = 0.020  # to the first byte of a GET
    connection_bytes_per_s: float = 90e6
    total_bytes_per_s: float = 1.25e9
    requests_per_s: float = math.inf  # of small GETs; what the host's CPU does, too


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A training job of `hosts`, each of which reads all of the source once in each epoch."""

    hosts: int = 1
    epochs: int = 1
    hours: float = 0.0  # what training takes if it never waits for data
    readers: int = 16
    access: Access = Access.SHUFFLED
    memory_bytes: int = 16 * GIB
    cores: float = 4
    disk_bytes_per_s: float = 250e6
    host_dollars_per_hour: float = 0.0
    region_factor: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """One mode. Seconds and rates are those of one host, requests and dollars of all hosts."""

    mode: Mode
    prepare_s: float  # once, before the first job
    start_s: float
    first_batch_s: float
    epoch_s: float
    later_epoch_s: float
    job_s: float
    mb_per_s: float
    files_per_s: float
    disk_bytes: int
    epoch_gets: int  # of an epoch that asks S3
    job_gets: int
    job_lists: int
    epoch_dollars: float
    job_dollars: float


@dataclass(frozen=True, slots=True)
class _Rates:
    files_per_s: float
    bytes_per_s: float

    def on(self, cores: float) -> "_Rates":
        """Return the rates of so many cores, these being those of four."""
        factor = min(cores, 16) / 4
        return _Rates(factor * self.files_per_s, factor * self.bytes_per_s)

    def seconds(self, shape: Shape) -> float:
        small_s = max(shape.small_objects / self.files_per_s, shape.small_bytes / self.bytes_per_s)
        return small_s + shape.large_bytes / self.bytes_per_s


# Measured for docs/MEASUREMENTS.md on four cores: files a second and bytes a second that the CPU of the host serves.
# Sixteen cores serve four times as much; more were not measured.
_CPU: Final[Mapping[Mode, _Rates]] = {
    Mode.FILE: _Rates(1_900, 1.8e9),
    Mode.FAST_FILE: _Rates(3_300, 2.2e9),
    Mode.HINTED: _Rates(4_200, 2.2e9),
    Mode.PIPE: _Rates(4_600, 2.5e9),
}
# Modes that read S3 as FastFile does in the first epoch, and not at all later.
_KEPT: Final = (Mode.PAGE_CACHED, Mode.TIERED)
# A quarter of the largest default memory target: so many small files are fetched ahead in any order.
_AHEAD_BYTES: Final = GIB
_CONNECTIONS_AHEAD: Final = {Mode.FILE: 64, Mode.HINTED: 96, Mode.PIPE: 64}
_RANDOM_READS_PER_S: Final = 2_060
_WARM: Final = _Rates(25_500, 23e9)
# What the page cache may take of a host's memory.
_CACHED_SHARE: Final = 0.8
# IOPS of gp3 without an extra charge.
_DISK_FILES_PER_S: Final = 3_000
# From the start of `fastfuse run` to the script without a listing; a page of a listing, and many of them.
_START_S: Final = 1.0
_LIST_PAGE_S: Final = 0.1
_LISTED_PER_S: Final = 180_000
_PAGE_KEYS: Final = 1_000
# EFS: at least 300 MB/s of reads while it has credits, 150 for each TB, 500 MiB/s for a client; 250 µs an operation, of
# which a file takes three. Filled at 100 MB/s.
_EFS_BURST, _EFS_PER_TB, _EFS_CLIENT, _EFS_WRITE, _EFS_FILE_S = 300e6, 150e6, 524e6, 100e6, 0.00075
# FSx for Lustre, scratch: 200 MB/s for each TB; names are imported at 555 objects/s; a mount takes 12 s.
_FSX_PER_TB, _FSX_IMPORT, _FSX_START_S, _FSX_FILE_S, _FSX_STEP_GB = 200e6, 555, 12.0, 0.0005, 2400


def estimates(shape: Shape, network: Network, job: Job) -> list[Estimate]:
    """Return an estimate for every mode that can serve the job, in the order of `Mode`."""
    found = [_downloaded(shape, network, job)]
    found += [_streamed(mode, shape, network, job) for mode in (Mode.FAST_FILE, Mode.HINTED, *_KEPT, Mode.PIPE)]
    found += [_in_file_system(mode, shape, network, job) for mode in (Mode.EFS, Mode.FSX)]
    return [estimate for estimate in found if _can_serve(estimate.mode, shape, job)]


def _can_serve(mode: Mode, shape: Shape, job: Job) -> bool:
    if mode is Mode.PAGE_CACHED:
        return job.epochs > 1 and _fits_memory(shape, job)
    if mode is Mode.TIERED:
        # Random ranges of the next epoch are others.
        return job.epochs > 1 and not _fits_memory(shape, job) and job.access is not Access.RANDOM
    if mode is Mode.HINTED:
        return job.access is Access.SHUFFLED
    return mode is not Mode.PIPE or job.access is not Access.RANDOM


def _fits_memory(shape: Shape, job: Job) -> bool:
    return shape.total_bytes <= _CACHED_SHARE * job.memory_bytes


def _list_s(shape: Shape) -> float:
    pages = math.ceil(shape.objects / _PAGE_KEYS)
    return _LIST_PAGE_S * min(max(pages, 1), 4) + shape.objects / _LISTED_PER_S


def _s3_rates(mode: Mode, network: Network, shape: Shape, job: Job, in_flight: int) -> _Rates:
    get_s = network.latency_s + shape.small_bytes / max(shape.small_objects, 1) / network.connection_bytes_per_s
    cpu = _CPU[mode].on(job.cores)
    return _Rates(
        min(in_flight / get_s, network.requests_per_s, cpu.files_per_s), min(network.total_bytes_per_s, cpu.bytes_per_s)
    )


def _epoch_s(mode: Mode, shape: Shape, network: Network, job: Job) -> float:
    """Return the seconds of an epoch that asks S3."""
    if job.access is Access.RANDOM:
        get_s = network.latency_s + RANDOM_BYTES / network.connection_bytes_per_s
        reads_per_s = min(job.readers / get_s, network.requests_per_s, _RANDOM_READS_PER_S)
        return max(shape.random_gets / reads_per_s, shape.total_bytes / network.total_bytes_per_s)
    in_flight = _CONNECTIONS_AHEAD[Mode.HINTED]
    if mode in _CONNECTIONS_AHEAD:
        in_flight = _CONNECTIONS_AHEAD[mode]
    elif job.access is Access.SHUFFLED and shape.small_bytes > _AHEAD_BYTES:
        # In an order that nobody announced, small files come ahead of their readers only if all of them fit.
        in_flight = job.readers
    return _s3_rates(mode, network, shape, job, in_flight).seconds(shape)


def _streamed(mode: Mode, shape: Shape, network: Network, job: Job) -> Estimate:
    """Estimate a mode that reads S3 while it trains, and perhaps later what it has kept."""
    epoch_s = _epoch_s(Mode.FAST_FILE if mode in _KEPT else mode, shape, network, job)
    later_s = epoch_s
    if mode is Mode.PAGE_CACHED:
        later_s = _WARM.seconds(shape)
    elif mode is Mode.TIERED:
        later_s = _tier_s(shape, job)
    read_gets = shape.gets if mode is Mode.PIPE else shape.mounted_gets
    epoch_gets = shape.random_gets if job.access is Access.RANDOM else read_gets
    return _estimate(
        mode,
        shape,
        job,
        start_s=_START_S + _list_s(shape),
        latency_s=network.latency_s,
        epochs_s=(epoch_s, later_s),
        epoch_gets=job.hosts * epoch_gets,
        job_gets=job.hosts * epoch_gets * (1 if mode in _KEPT else job.epochs),
        lists=job.hosts,
        storage=(Item.EBS, shape.total_bytes / 1e9, job.hosts) if mode is Mode.TIERED else None,
    )


def _tier_s(shape: Shape, job: Job) -> float:
    """Return the seconds of an epoch that reads the local tier: as fast as FUSE serves, and the disk reads."""
    cpu = _CPU[Mode.FAST_FILE].on(job.cores)
    rates = _Rates(min(cpu.files_per_s, _DISK_FILES_PER_S), min(cpu.bytes_per_s, job.disk_bytes_per_s))
    return rates.seconds(shape)


def _downloaded(shape: Shape, network: Network, job: Job) -> Estimate:
    rates = _s3_rates(Mode.FILE, network, shape, job, _CONNECTIONS_AHEAD[Mode.FILE])
    download_s = max(rates.seconds(shape), shape.total_bytes / job.disk_bytes_per_s)
    # What was just written is in the page cache if it fits.
    disk = _WARM if _fits_memory(shape, job) else _Rates(_DISK_FILES_PER_S, job.disk_bytes_per_s)
    return _estimate(
        Mode.FILE,
        shape,
        job,
        start_s=_START_S + _list_s(shape) + download_s,
        epochs_s=(disk.seconds(shape), disk.seconds(shape)),
        job_gets=job.hosts * shape.gets,
        lists=job.hosts,
        storage=(Item.EBS, shape.total_bytes / 1e9, job.hosts),
    )


def _in_file_system(mode: Mode, shape: Shape, network: Network, job: Job) -> Estimate:
    """Estimate EFS or FSx for Lustre, filled before the job and deleted after it."""
    size_gb = shape.total_bytes / 1e9
    # The probe cannot see all that a fast network carries, for S3 as for a file system.
    most_bytes_per_s = max(network.total_bytes_per_s, Network().total_bytes_per_s)
    if mode is Mode.EFS:
        shared = max(_EFS_BURST, _EFS_PER_TB * size_gb / 1000)
        rates = _Rates(job.readers / _EFS_FILE_S, min(shared / job.hosts, _EFS_CLIENT))
        prepare_s = shape.total_bytes / _EFS_WRITE + shape.objects * _EFS_FILE_S
    else:
        size_gb = FSX_LEAST_GB if size_gb <= FSX_LEAST_GB else math.ceil(size_gb / _FSX_STEP_GB) * _FSX_STEP_GB
        shared = _FSX_PER_TB * size_gb / 1000
        rates = _Rates(job.readers / _FSX_FILE_S, min(shared / job.hosts, most_bytes_per_s))
        prepare_s = shape.objects / _FSX_IMPORT
    epoch_s = rates.seconds(shape)
    return _estimate(
        mode,
        shape,
        job,
        start_s=_START_S if mode is Mode.EFS else _FSX_START_S,
        prepare_s=prepare_s,
        epochs_s=(epoch_s, min(_WARM.seconds(shape), epoch_s) if _fits_memory(shape, job) else epoch_s),
        job_gets=shape.gets,
        lists=1,
        storage=(Item.EFS if mode is Mode.EFS else Item.FSX, size_gb, 1),
    )


def _estimate(
    mode: Mode,
    shape: Shape,
    job: Job,
    *,
    start_s: float,
    epochs_s: tuple[float, float],
    job_gets: int,
    lists: int,
    latency_s: float = 0.0,
    prepare_s: float = 0.0,
    epoch_gets: int = 0,
    storage: tuple[Item, float, int] | None = None,
) -> Estimate:
    """Add up one mode: the first epoch and each later one, listings, and `storage` in GB, so many times."""
    epoch_s, later_s = epochs_s
    job_s = start_s + max(epoch_s + (job.epochs - 1) * later_s, job.hours * 3600)
    job_lists = lists * max(math.ceil(shape.objects / _PAGE_KEYS), 1)
    paid = dollars(Item.GET, job_gets) + dollars(Item.LIST, job_lists)
    if storage is not None:
        item, size_gb, volumes = storage
        paid += volumes * dollars(item, size_gb, hours=(prepare_s + job_s) / 3600)
    return Estimate(
        mode=mode,
        prepare_s=prepare_s,
        start_s=start_s,
        first_batch_s=start_s + latency_s,
        epoch_s=epoch_s,
        later_epoch_s=later_s,
        job_s=job_s,
        mb_per_s=shape.total_bytes / 1e6 / epoch_s if epoch_s else 0.0,
        files_per_s=shape.objects / epoch_s if epoch_s else 0.0,
        disk_bytes=0 if storage is None else int(storage[1] * 1e9),
        epoch_gets=epoch_gets,
        job_gets=job_gets,
        job_lists=job_lists,
        epoch_dollars=job.region_factor * dollars(Item.GET, epoch_gets),
        job_dollars=job.region_factor * paid + job.hosts * job_s / 3600 * job.host_dollars_per_hour,
    )


# The least trouble first.
_PREFERRED = (Mode.FAST_FILE, Mode.PAGE_CACHED, Mode.HINTED, Mode.TIERED, Mode.FILE, Mode.PIPE, Mode.EFS, Mode.FSX)
_AS_GOOD = 1.25
_HOW: Final[Mapping[Mode, str]] = {
    Mode.PAGE_CACHED: "The page cache holds all of it after the first epoch.",
    Mode.TIERED: "Mount with --cache DIR on a local disk: later epochs ask S3 for nothing.",
    Mode.HINTED: "Announce the order of the files (fastfuse.hints): they are fetched before they are opened.",
    Mode.PIPE: "The script has to read one stream, in the order of the channel.",
}
# Below a mean of so much, an epoch is bound by requests; and the size that AWS advises for shards.
_SMALL_BYTES = 4 * MIB
_MANY = 10_000
_SHARD_BYTES = 150 * MIB
# S3 serves so many GETs a second for one prefix before it divides it.
_GETS_PER_S = 5_500


@dataclass(frozen=True, slots=True)
class Advice:
    """The mode to take and the reasons, each a sentence; no mode for a source without objects."""

    mode: Mode | None
    reasons: tuple[str, ...]

    @property
    def text(self) -> str:
        return " ".join((f"{self.mode or 'Nothing to read'}:", *self.reasons))


def recommend(shape: Shape, found: Sequence[Estimate], job: Job) -> Advice:
    """Return the mode whose job is shortest, or nearly so with less trouble."""
    if not shape.objects:
        return Advice(None, ("The source has no objects.",))
    times_s = {estimate.mode: estimate.prepare_s + estimate.job_s for estimate in found}
    shortest_s = min(times_s.values())
    mode = next(mode for mode in _PREFERRED if times_s.get(mode, float("inf")) <= _AS_GOOD * shortest_s)
    chosen = next(estimate for estimate in found if estimate.mode is mode)
    return Advice(mode, tuple(_reasons(shape, chosen, {each.mode: each for each in found}, job)))


def _reasons(shape: Shape, chosen: Estimate, by_mode: dict[Mode, Estimate], job: Job) -> Iterator[str]:
    file, fast = by_mode[Mode.FILE], by_mode[Mode.FAST_FILE]
    if chosen.mode is Mode.FILE:
        yield f"Epochs read the local disk, where FastFile would take {fast.epoch_s:,.0f} s for each."
    elif chosen.mode in (Mode.EFS, Mode.FSX):
        yield "The file system serves an epoch sooner than S3 does, and is filled once."
    else:
        yield f"Training begins after {chosen.start_s:,.1f} s, where File takes {file.start_s:,.1f} s and a disk."
    if chosen.mode in _HOW:
        yield _HOW[chosen.mode]
    if shape.objects >= _MANY and shape.mean_bytes < _SMALL_BYTES:
        shards = max(round(shape.total_bytes / _SHARD_BYTES), 1)
        faster = f"about {shards:,} shards of {format_size(_SHARD_BYTES)} read" if shards > 1 else "one shard reads"
        yield f"{shape.objects:,} files are small: {faster} faster."
    if job.access is Access.RANDOM:
        yield "Random ranges take a GET each, and nothing can be fetched ahead: use more readers, or File."
    if chosen.epoch_gets > _GETS_PER_S * chosen.epoch_s:
        yield f"S3 may throttle: a prefix begins with {_GETS_PER_S:,} GETs/s for all hosts."
    if shape.archived_objects:
        yield f"{shape.archived_objects:,} objects are archived: restore them first."
