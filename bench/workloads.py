"""What is read: objects of the loopback server, and which reader reads which ranges of them in which order."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from bench.readers import Manner, Span
from bench.s3server.synthetic import parse_synthetic

# The size of an image of ImageNet at 256 pixels, and what SageMaker's users have by the million.
SMALL_FILE_BYTES = 39_000
_KIB, _MIB = 1 << 10, 1 << 20
# The kernel reads whole pages; places as fio chooses them.
_PAGE_BYTES = 4096
# What an open file is asked for first, at once: the range that the mount, too, gets first.
_FIRST_BYTES = _MIB
_FIRST_FILES = 40
_OPEN_FILES = 64

Unit = Literal["MB/s", "reads/s", "files/s"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much is read.

    One reader reads a shard of `shard_bytes`; four read three eighths of that each, sixteen an eighth. The small files
    and the random reads are shared by all readers.
    """

    shard_bytes: int = 1 << 30
    # Four thousand a second are to be read for longer than it takes to begin.
    small_files: int = 6000
    random_reads: int = 400


@dataclass(frozen=True, slots=True)
class DataSet:
    """What the server serves, and its files with their sizes, in the order of a listing."""

    source: str | Path
    files: Sequence[tuple[str, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """`readers` processes that start at the same moment; `share` says what each one reads."""

    name: str
    description: str
    readers: int
    unit: Unit
    # Given an empty directory, for what cannot be made up.
    data_set: Callable[[Scale, Path], DataSet]
    share: Callable[[DataSet, int, Scale], list[list[Span]]]
    manner: Manner = field(default_factory=Manner)
    # Read everything before the run that counts, as earlier epochs have.
    is_warm: bool = False
    # A library that is not there on every machine.
    needs: str | None = None

    @property
    def is_bulk(self) -> bool:
        """Whether it goes by bytes; elsewhere by how long each read takes."""
        return self.unit == "MB/s"


def _synthetic(source: str) -> DataSet:
    objects = parse_synthetic(source)
    return DataSet(source, [(objects.key_at(index).decode(), objects.size_bytes) for index in range(objects.count)])


def _shard_bytes(count: int, scale: Scale) -> int:
    return scale.shard_bytes * {1: 8, 4: 3, 16: 1}[count] // 8


def _shards(count: int) -> Callable[[Scale, Path], DataSet]:
    return lambda scale, _: _synthetic(f"count={count},size={_shard_bytes(count, scale)},suffix=.tfrecord")


def _large(count: int) -> Callable[[Scale, Path], DataSet]:
    """Files that are not read whole cost nothing, whatever their size."""
    return lambda scale, _: _synthetic(f"count={count},size={scale.shard_bytes},suffix=.bin")


def _open_files(scale: Scale, _: Path) -> DataSet:
    return _synthetic(f"count={_OPEN_FILES},size={scale.shard_bytes // (_OPEN_FILES // 2)},suffix=.bin")


def _small_files(scale: Scale, _: Path) -> DataSet:
    folders = -(-scale.small_files // 1000)
    return _synthetic(f"count={scale.small_files},size={SMALL_FILE_BYTES},layout=dirs,dirs={folders},suffix=.jpg")


def _records(count: int) -> Callable[[Scale, Path], DataSet]:
    def make(scale: Scale, directory: Path) -> DataSet:
        from bench.shards import create_shards

        made = create_shards(directory, count, _shard_bytes(count, scale) // 2)
        return DataSet(directory, [(file.name, file.size_bytes) for file in made])

    return make


def _whole(data: DataSet) -> list[Span]:
    return [Span(name, 0, size_bytes) for name, size_bytes in data.files]


def _dealt(spans: list[Span], readers: int) -> list[list[Span]]:
    return [spans[reader::readers] for reader in range(readers)]


def _in_order(data: DataSet, readers: int, _: Scale) -> list[list[Span]]:
    return _dealt(_whole(data), readers)


def _eighths(data: DataSet, readers: int, _: Scale) -> list[list[Span]]:
    [(name, size_bytes)] = data.files
    return [
        [Span(name, size_bytes * reader // readers, size_bytes * (reader + 1) // readers)] for reader in range(readers)
    ]


def _three_times(data: DataSet, _: int, __: Scale) -> list[list[Span]]:
    return [_whole(data) * 3]


def _shuffled(data: DataSet, readers: int, _: Scale) -> list[list[Span]]:
    spans = _whole(data)
    random.Random(1).shuffle(spans)
    return _dealt(spans, readers)


def _beginnings(data: DataSet, readers: int, _: Scale) -> list[list[Span]]:
    return _dealt([Span(name, 0, min(_FIRST_BYTES, size_bytes)) for name, size_bytes in data.files], readers)


def _random_ranges(read_bytes: int) -> Callable[[DataSet, int, Scale], list[list[Span]]]:
    def share(data: DataSet, readers: int, scale: Scale) -> list[list[Span]]:
        places = random.Random(1)

        def span(reader: int) -> Span:
            name, size_bytes = data.files[reader % len(data.files)]
            start = places.randrange((size_bytes - read_bytes) // _PAGE_BYTES) * _PAGE_BYTES
            return Span(name, start, start + read_bytes)

        return [[span(reader) for _ in range(scale.random_reads // readers)] for reader in range(readers)]

    return share


_READ_SIZES = {"": (_MIB, "1 MiB"), "-64k": (64 * _KIB, "64 KiB"), "-4m": (4 * _MIB, "4 MiB")}
_READERS = {1: "one reader", 4: "four readers", 16: "sixteen readers"}


def _sequential(readers: int, suffix: str) -> Workload:
    read_bytes, text = _READ_SIZES[suffix]
    return Workload(
        name=f"sequential-{readers}{suffix}", description=f"{_READERS[readers]}, a shard each, {text} at once",
        readers=readers, unit="MB/s", data_set=_shards(readers), share=_in_order, manner=Manner(read_bytes=read_bytes),
    )  # fmt: skip


def _random(name: str, read_bytes: int, text: str) -> Workload:
    return Workload(
        name=name, description=f"four readers, {text} at random places of a large file each", readers=4,
        unit="reads/s", data_set=_large(4), share=_random_ranges(read_bytes), manner=Manner(read_bytes=read_bytes),
    )  # fmt: skip


def _small(readers: int, *, is_shuffled: bool) -> Workload:
    return Workload(
        name=f"small-{readers}{'-shuffled' if is_shuffled else ''}",
        description=f"{_READERS[readers]}, files of 39 KB {'shuffled' if is_shuffled else 'in the order of a listing'}",
        readers=readers, unit="files/s", data_set=_small_files, share=_shuffled if is_shuffled else _in_order,
    )  # fmt: skip


_ALL = (
    *(_sequential(readers, suffix) for suffix in _READ_SIZES for readers in _READERS),
    _random("random-4-4k", 4 * _KIB, "4 KiB"),
    _random("random-4-256k", 256 * _KIB, "256 KiB"),
    *(_small(readers, is_shuffled=is_shuffled) for is_shuffled in (True, False) for readers in (1, 16)),
    Workload(
        name="records-4", description="four readers of TFRecords, by the library tfrecord, a shard each", readers=4,
        unit="MB/s", data_set=_records(4), share=_in_order, manner=Manner(is_records=True), needs="tfrecord",
    ),
    Workload(
        name="first-byte", description="one reader, the first MiB of one large file after the other", readers=1,
        unit="files/s", data_set=_large(_FIRST_FILES), share=_beginnings,
    ),
    Workload(
        name="eighths-8", description="eight readers, an eighth of the same file each", readers=8, unit="MB/s",
        data_set=_shards(1), share=_eighths,
    ),
    Workload(
        name="again-1", description="one reader, the same file three times over", readers=1, unit="MB/s",
        data_set=_shards(1), share=_three_times,
    ),
    Workload(
        name="open-64", description="sixty-four readers, a file each", readers=_OPEN_FILES, unit="MB/s",
        data_set=_open_files, share=_in_order,
    ),
    Workload(
        name="warm-4", description="four readers, a shard each, in a later epoch", readers=4, unit="MB/s",
        data_set=_shards(4), share=_in_order, is_warm=True,
    ),
    Workload(
        name="warm-small-16", description="sixteen readers, shuffled files of 39 KB in a later epoch", readers=16,
        unit="files/s", data_set=_small_files, share=_shuffled, is_warm=True,
    ),
)  # fmt: skip
WORKLOADS = {workload.name: workload for workload in _ALL}
