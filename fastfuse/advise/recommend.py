"""Which mode to take, and why: rules over the estimates. Pure; docs/ADVICE.md lists the rules.

The mode with the shortest job wins. A mode that takes less trouble, and is no more than a quarter slower, is preferred:
FastFile needs no disk and no change of the script, and a file system must be made and filled.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from fastfuse.advise.model import Access, Estimate, Job, Mode, Shape
from fastfuse.sizes import MIB, format_size

__all__ = ["Advice", "recommend"]

# The least trouble first.
_PREFERRED = (Mode.FAST_FILE, Mode.CACHED, Mode.HINTED, Mode.TIERED, Mode.FILE, Mode.PIPE, Mode.EFS, Mode.FSX)
_AS_GOOD = 1.25
_HOW: Final[Mapping[Mode, str]] = {
    Mode.CACHED: "The page cache holds all of it after the first epoch.",
    Mode.TIERED: "Mount with --cache DIR on a local disk: later epochs ask S3 for nothing.",
    Mode.HINTED: "Announce the order of the files (fastfuse.hints): they are fetched before they are opened.",
    Mode.PIPE: "The script has to read one stream, in the order of the channel.",
}
# Below a mean of so much, an epoch is bound by requests; and the size that AWS advises for shards.
_SMALL_BYTES = 4 * MIB
_MANY = 10_000
_SHARD_BYTES = 150 * MIB
# What S3 serves of GETs a second for one prefix before it divides it.
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
        yield f"{shape.objects:,} files are small: about {shards:,} shards of {format_size(_SHARD_BYTES)} read faster."
    if job.access is Access.RANDOM:
        yield "Random ranges take a GET each, and nothing can be fetched ahead: use more readers, or File."
    if chosen.epoch_gets > _GETS_PER_S * chosen.epoch_s:
        yield f"S3 may throttle: a prefix begins with {_GETS_PER_S:,} GETs/s for all hosts."
    if shape.archived_objects:
        yield f"{shape.archived_objects:,} objects are archived: restore them first."
