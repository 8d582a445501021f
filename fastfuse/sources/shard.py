"""``ShardedByS3Key``: which of the objects of a channel one host gets. Pure."""

from dataclasses import dataclass

__all__ = ["Shard"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """Part `index` of `count`, counted from 0.

    SageMaker promises each host "approximately 1/n" of the objects and says no more; how they are dealt out is ours.
    """

    index: int
    count: int
    # Shares of about as many bytes each, not of as many objects.
    by_bytes: bool = False
