"""What is read: objects of the loopback server, and which reader reads which ranges of them in which order."""

import random
from collections.abc import Callable
from dataclasses import dataclass

from bench.readers import Span
from fastfuse.testing.synthetic import SyntheticObjects

__all__ = ["WORKLOADS", "Scale", "Workload"]

# The size of an image of ImageNet at 256 pixels, and what SageMaker's users have by the million.
SMALL_FILE_BYTES = 39_000
RANDOM_READ_BYTES = 128 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much is read: the size of a shard, and how many small files or random reads all readers share."""

    shard_bytes: int = 1 << 30
    small_files: int = 4000
    random_reads: int = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """`readers` processes that start at the same moment; `share` says what each one reads."""

    name: str
    description: str
    readers: int
    objects: Callable[[Scale], SyntheticObjects]
    share: Callable[[SyntheticObjects, int, Scale], list[list[Span]]]
    # Read everything once before the run that counts.
    is_warm: bool = False

    def source(self, scale: Scale) -> str:
        """The objects as `fastfuse.testing` takes them on its command line."""
        objects = self.objects(scale)
        return (
            f"count={objects.count},size={objects.size_bytes},layout={objects.layout},dirs={objects.directories},"
            f"suffix={objects.suffix}"
        )

    def tasks(self, scale: Scale) -> list[list[Span]]:
        """One list of spans per reader."""
        return self.share(self.objects(scale), self.readers, scale)


def _shards(count: int) -> Callable[[Scale], SyntheticObjects]:
    return lambda scale: SyntheticObjects(count=count, size_bytes=scale.shard_bytes, suffix=".tfrecord")


def _small_files(scale: Scale) -> SyntheticObjects:
    folders = -(-scale.small_files // 1000)
    return SyntheticObjects(
        count=scale.small_files, size_bytes=SMALL_FILE_BYTES, layout="dirs", directories=folders, suffix=".jpg"
    )


def _whole(objects: SyntheticObjects) -> list[Span]:
    return [Span(objects.key_at(index).decode(), 0, objects.size_bytes) for index in range(objects.count)]


def _in_order(objects: SyntheticObjects, readers: int, _: Scale) -> list[list[Span]]:
    spans = _whole(objects)
    return [spans[reader::readers] for reader in range(readers)]


def _shuffled(objects: SyntheticObjects, readers: int, _: Scale) -> list[list[Span]]:
    spans = _whole(objects)
    random.Random(1).shuffle(spans)
    return [spans[reader::readers] for reader in range(readers)]


def _random_ranges(objects: SyntheticObjects, readers: int, scale: Scale) -> list[list[Span]]:
    places = random.Random(1)
    names = [span.name for span in _whole(objects)]

    def span(reader: int) -> Span:
        start = places.randrange(max(1, objects.size_bytes - RANDOM_READ_BYTES))
        return Span(names[reader % len(names)], start, min(start + RANDOM_READ_BYTES, objects.size_bytes))

    return [[span(reader) for _ in range(scale.random_reads // readers)] for reader in range(readers)]


_ALL = (
    Workload(
        name="sequential-1", description="one reader, one shard", readers=1, objects=_shards(1), share=_in_order
    ),
    Workload(
        name="sequential-4", description="four readers, a shard each", readers=4, objects=_shards(4), share=_in_order
    ),
    Workload(
        name="warm-4", description="the same again, a second epoch", readers=4, objects=_shards(4), share=_in_order,
        is_warm=True,
    ),
    Workload(
        name="random-4", description="four readers, 128 KiB at random places of a shard each", readers=4,
        objects=_shards(4), share=_random_ranges,
    ),
    Workload(
        name="small-8", description="eight readers, files of 39 KB in the order of their names", readers=8,
        objects=_small_files, share=_in_order,
    ),
    Workload(
        name="small-shuffled-8", description="eight readers, files of 39 KB in any order", readers=8,
        objects=_small_files, share=_shuffled,
    ),
)  # fmt: skip
WORKLOADS = {workload.name: workload for workload in _ALL}
