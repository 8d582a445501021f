"""The facts that the model needs: counts and sums of a listing, and the network between this host and the source.

The network is measured: latency, the rate of one connection, and that of many. It asks for bytes of objects that the
index names, a few seconds long at most, and for a bounded number of bytes. What cannot be measured, because all objects
are small, keeps the model's default.
"""

import statistics
from collections.abc import Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from itertools import cycle, islice

import numpy as np
import numpy.typing as npt
import trio

from fastfuse.advise.model import PART_BYTES, RANDOM_BYTES, Network, Shape
from fastfuse.errors import FastfuseError, ObjectChangedError, ObjectDeniedError, first_of
from fastfuse.index.inodes.columns import are_objects, exact_sum
from fastfuse.index.inodes.selection import archived, readable_rows
from fastfuse.index.inodes.table import InodeTable
from fastfuse.objects import ObjectRef
from fastfuse.readahead import ReadaheadConfig, opening_ends
from fastfuse.s3.aws import S3Session
from fastfuse.s3.base import ConnectionConfig, RangeReader
from fastfuse.s3.client import S3Client
from fastfuse.sizes import KIB, MIB

_Range = tuple[ObjectRef, int, int]
_Ranges = Sequence[_Range]

_PATIENCE_S = 5.0
_LATENCY_GETS = 5
_SMALL_GETS = 512
_SMALL_BYTES = 16 * KIB
_PARTS = 24
_AT_ONCE = 64
# A shorter transfer is lost in the latency.
_LEAST_BYTES = MIB
_LIMITS = ReadaheadConfig()
_OPENING_ENDS = np.array(opening_ends(_LIMITS.first_part_bytes, PART_BYTES, _LIMITS.max_parts_in_flight))
MOST_BYTES = _LATENCY_GETS + _AT_ONCE + _SMALL_GETS * _SMALL_BYTES + (1 + _PARTS) * (1 + PART_BYTES)


@dataclass(frozen=True, slots=True)
class Probe:
    """The network, why not all of it is measured (empty if all is), and which of its figures are."""

    network: Network
    note: str = ""
    measured: frozenset[str] = frozenset()


def probe(table: InodeTable, connection: ConnectionConfig) -> Probe:
    """Measure the network to the objects in `table`. Failures are told in the note: the defaults stand in."""
    largest, any_of_them = _samples(table)
    return trio.run(_probe, connection, largest, any_of_them) if largest else Probe(Network(), "nothing to read")


async def _probe(connection: ConnectionConfig, largest: Sequence[ObjectRef], spread: Sequence[ObjectRef]) -> Probe:
    async with aclosing(S3Client(S3Session(connection))) as client:
        return await measure_network(client, largest, spread)


async def measure_network(objects: RangeReader, largest: Sequence[ObjectRef], spread: Sequence[ObjectRef]) -> Probe:
    """Measure by GETs of parts of `largest`, and of the first bytes of `spread`; what cannot be read is left out."""
    found: dict[str, float] = {}
    note = f"the network is measured in part only: it took more than {_PATIENCE_S:.0f} s"
    try:
        with trio.move_on_after(_PATIENCE_S):
            asked = dict.fromkeys([*spread[:_AT_ONCE], *largest[: 1 + _PARTS]])
            readable = await _readable(objects, islice(cycle(asked), max(len(asked), _AT_ONCE)))  # opens connections
            note = await _measure(objects, readable, found)
    except* FastfuseError as errors:
        note = f"the network is not measured: {first_of(errors)}"
    return Probe(Network(**found), note, frozenset(found))


async def _readable(objects: RangeReader, refs: Iterable[ObjectRef]) -> list[ObjectRef]:
    """Return the objects of which a byte can be read; raise the failure of one if none can."""
    readable: dict[ObjectRef, None] = {}
    failures: list[FastfuseError] = []

    async def ask(ref: ObjectRef) -> None:
        try:
            await objects.get(ref, 0, 1)
            readable[ref] = None
        except (ObjectChangedError, ObjectDeniedError) as error:
            failures.append(error)

    async with trio.open_nursery() as nursery:
        for ref in refs:
            nursery.start_soon(ask, ref)
    if not readable:
        raise failures[0]
    return list(readable)


async def _measure(objects: RangeReader, refs: Sequence[ObjectRef], found: dict[str, float]) -> str:
    """Put into `found` what can be measured. Say what cannot."""
    times_s = [await _seconds(objects, [(ref, 0, 1)]) for ref in islice(cycle(refs), _LATENCY_GETS)]
    found["latency_s"] = latency_s = statistics.median(times_s)
    largest = sorted(refs, key=lambda ref: -ref.size_bytes)
    parts = list(islice(((ref, *part) for ref in largest for part in ref.parts(PART_BYTES)), 1 + _PARTS))
    firsts = [(ref, 0, min(ref.size_bytes, _SMALL_BYTES)) for ref in islice(cycle(refs), _SMALL_GETS)]
    found["requests_per_s"] = len(firsts) / await _seconds(objects, firsts)
    size_bytes = _bytes_of(parts[:1])
    if size_bytes < _LEAST_BYTES:
        return "the rates of bytes are not measured: all objects are small"
    found["connection_bytes_per_s"] = one = size_bytes / max(await _seconds(objects, parts[:1]) - latency_s, 1e-6)
    many_s = await _seconds(objects, parts[1:] or parts)
    found["total_bytes_per_s"] = max(_bytes_of(parts[1:] or parts) / many_s, one)
    return ""


async def _seconds(objects: RangeReader, ranges: _Ranges) -> float:
    """Return how long it takes to get all `ranges`, up to `_AT_ONCE` of them at once."""
    left = iter(ranges)

    async def get_some() -> None:
        for ref, start, end in left:
            await objects.get(ref, start, end)

    started_s = trio.current_time()
    async with trio.open_nursery() as nursery:
        for _ in range(min(_AT_ONCE, len(ranges))):
            nursery.start_soon(get_some)
    return max(trio.current_time() - started_s, 1e-6)


def _bytes_of(ranges: _Ranges) -> int:
    return sum(end - start for _, start, end in ranges)


def _samples(table: InodeTable) -> tuple[list[ObjectRef], list[ObjectRef]]:
    """Return the largest objects, and some that are spread over the listing; none that is empty or archived."""
    rows = readable_rows(table)
    if not len(rows):
        return [], []
    count = min(_AT_ONCE, len(rows))
    largest = rows[np.argsort(table.columns["sizes"][rows], kind="stable")[: -count - 1 : -1]]
    spread = rows[np.linspace(0, len(rows) - 1, count).astype("int64")]
    first, second = ([table.ref(table.inode(row)) for row in chosen.tolist()] for chosen in (largest, spread))
    return first, second


def shape_of(table: InodeTable) -> Shape:
    """Return the shape of the objects in `table`: 50 ms for a million."""
    is_object = are_objects(table.columns["kinds"])
    sizes = table.columns["sizes"][is_object].astype("int64", copy=False)
    is_small = sizes <= PART_BYTES
    return Shape(
        objects=len(sizes),
        directories=table.metadata.directory_count,
        total_bytes=table.metadata.total_bytes,
        median_bytes=int(np.partition(sizes, len(sizes) // 2)[len(sizes) // 2]) if len(sizes) else 0,
        largest_bytes=int(sizes.max(initial=0)),
        small_objects=int(np.count_nonzero(is_small)),
        small_bytes=exact_sum(sizes[is_small]),
        gets=exact_sum(_ranges(sizes, PART_BYTES)),
        mounted_gets=exact_sum(np.where(is_small, sizes > 0, _mounted_parts(sizes))),
        random_gets=exact_sum(_ranges(sizes, RANDOM_BYTES)),
        archived_objects=int(np.count_nonzero(archived(table) & is_object)),
    )


def _mounted_parts(sizes_bytes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return into about how many parts a mount divides a large file of each size that is read from its begin."""
    rests_bytes = np.maximum(sizes_bytes - _OPENING_ENDS[-1], 1)
    return np.asarray(np.searchsorted(_OPENING_ENDS, sizes_bytes) + _ranges(rests_bytes, PART_BYTES), "int64")


def _ranges(sizes_bytes: npt.NDArray[np.int64], range_bytes: int) -> npt.NDArray[np.int64]:
    """Return how many ranges each size is divided into. Adding before dividing would overflow at 8 EiB."""
    return np.asarray(sizes_bytes // range_bytes + (sizes_bytes % range_bytes != 0), "int64")
