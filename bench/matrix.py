"""What `make bench` measures, in less than 15 minutes on four cores; and any other choice of it."""

from collections.abc import Iterator, Sequence

from bench.candidates import LIMITED, MADE_UP, OTHERS, RCLONES
from bench.server import PROFILES
from bench.suite import Cell
from bench.workloads import WORKLOADS

__all__ = ["chosen", "default_matrix"]

_TUNED = "rclone-unchecked"
_HEADLINE = ("raw", "fastfuse", *RCLONES)

# Profile, workload, candidates, runs. The headline cells first: medians of five, everybody in turns; then what bounds
# the mount from above, and what has a target of its own; then one run each to see that nothing falls off.
_CELLS: tuple[tuple[str, str, tuple[str, ...], int], ...] = (
    ("s3", "sequential-1", ("raw", "fastfuse", LIMITED, *RCLONES), 5),
    ("s3", "sequential-4", ("raw", "fastfuse", LIMITED, *RCLONES), 5),
    ("fast-tls", "sequential-1", _HEADLINE, 5),
    ("fast-tls", "sequential-4", _HEADLINE, 5),
    ("fast", "small-16-shuffled", ("raw", "fuse-only", "fastfuse", "fastfuse-hints", *RCLONES), 3),
    ("s3", "small-16-shuffled", ("raw", "fastfuse", "fastfuse-hints", _TUNED), 3),
    ("s3-tls", "small-16-shuffled", ("fastfuse", "fastfuse-hints", _TUNED), 3),
    ("fast-tls", "small-16-shuffled", ("fastfuse", "fastfuse-hints", _TUNED), 1),
    ("s3", "small-1", ("fastfuse",), 3),
    ("s3", "first-byte", ("raw", "fastfuse", _TUNED), 3),
    ("s3", "random-4-256k", ("raw", "fastfuse"), 3),
    ("s3", "random-4-4k", ("raw", "fastfuse"), 1),
    ("s3", "warm-4", ("local", "fastfuse"), 3),
    ("s3", "open-64", (LIMITED,), 2),
    ("s3", "records-4", ("raw", "fastfuse", _TUNED), 1),
    ("fast", "sequential-1", ("raw", "fuse-only", "fastfuse", _TUNED), 1),
    ("fast", "sequential-4", ("raw", "fuse-only", "fastfuse", _TUNED), 1),
    ("s3-tls", "sequential-1", ("raw", "fastfuse", _TUNED), 1),
    ("s3", "sequential-16", ("raw", "fastfuse", _TUNED), 1),
    *(("s3", f"sequential-{readers}-{size}", ("fastfuse",), 1) for size in ("64k", "4m") for readers in (1, 4, 16)),
    ("s3", "small-16", ("fastfuse", _TUNED), 1),
    # Whoever of the other peers is there: most are not, and slow ones would take a median's time.
    ("s3", "sequential-1", OTHERS, 1),
    ("s3", "small-16-shuffled", OTHERS, 1),
)


def default_matrix(candidates: Sequence[str] = (), runs: int | None = None) -> list[Cell]:
    """The matrix of the targets; of these candidates only, and with so many runs of each, if given."""
    return list(_cells(_CELLS, candidates, runs))


def chosen(
    profiles: Sequence[str], workloads: Sequence[str], candidates: Sequence[str], runs: int | None = None
) -> list[Cell]:
    """Every one of `workloads` on every one of `profiles`, with each of `candidates` that makes sense there."""
    product = ((profile, workload, tuple(candidates), 3) for profile in profiles for workload in workloads)
    return list(_cells(product, (), runs))


def _cells(
    rows: Iterator[tuple[str, str, tuple[str, ...], int]] | Sequence[tuple[str, str, tuple[str, ...], int]],
    only: Sequence[str],
    runs: int | None,
) -> Iterator[Cell]:
    for profile, workload, candidates, usual_runs in rows:
        taken = [name for name in candidates if (not only or name in only) and _makes_sense(workload, name)]
        if taken:
            yield Cell(
                profile=PROFILES[profile], workload=WORKLOADS[workload], candidates=taken, runs=runs or usual_runs
            )


def _makes_sense(workload: str, candidate: str) -> bool:
    known = WORKLOADS[workload]
    if candidate == "local" and not known.is_warm:
        return False
    return candidate not in MADE_UP or not known.manner.is_records
