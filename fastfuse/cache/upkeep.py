"""What `fastfuse cache` does with a tier, also while mounts use it: verify it, clear it, pin objects in it."""

import mmap
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from fastfuse.cache.catalog import MAX_EXTENT_BYTES, Index, gaps, identity
from fastfuse.cache.directory import OpenCache
from fastfuse.cache.segments import DamagedError, Segments, evict
from fastfuse.cache.settings import CacheSettings
from fastfuse.errors import DiskError
from fastfuse.objects import ObjectRef


@contextmanager
def disk_errors(settings: CacheSettings) -> Iterator[None]:
    """Raise a `DiskError` where disk or index cannot be used, in a command that is of no use without them."""
    try:
        yield
    except (OSError, sqlite3.Error) as error:
        hint = "see whether its disk works, and is writable"
        raise DiskError(f"the cache {settings.directory} cannot be used: {error}", hint=hint) from error


def status(cache: OpenCache) -> dict[str, int]:
    """Count what is kept. Takes a second for a million ranges."""
    found, index_bytes = Index(cache.reading).totals(), cache.index_bytes()
    used_bytes, size_bytes = found.pop("room_bytes") + index_bytes, cache.settings.size_bytes
    return {"used_bytes": used_bytes, "size_bytes": size_bytes, "index_bytes": index_bytes, **found}


def verify(cache: OpenCache, tell: Callable[[int], None]) -> dict[str, int]:
    """Read every range that is kept, and forget those that are not what was written. `tell` gets the bytes read."""
    index, segments = Index(cache.writing, waits=True), Segments(cache.directory_fd)
    room = memoryview(mmap.mmap(-1, MAX_EXTENT_BYTES))
    ranges = size_bytes = bad = 0
    for number in index.segments():
        for object_id, extent in index.find_in(number):
            count = extent.end - extent.start
            ranges += 1
            try:
                if not 0 < count <= MAX_EXTENT_BYTES:
                    raise DamagedError("its row in the index is damaged")
                segments.read(extent, extent.seed + extent.start, extent.start, extent.end, room[:count])
                size_bytes += count
            except (DamagedError, OSError):
                # One that was evicted or replaced meanwhile is no failure.
                bad += extent in (one for _, one in index.find_in(number))
                index.drop(object_id, extent)
            tell(size_bytes)
    return {"ranges": ranges, "bytes": size_bytes, "bad": bad}


def clear(cache: OpenCache) -> dict[str, int]:
    """Remove every segment that no process fills now, pinned ones, too. Readers go on from S3."""
    index, segments = Index(cache.writing, waits=True), Segments(cache.directory_fd)
    removed = size_bytes = busy = 0
    for number in index.segments().keys() | set(segments.numbers()):
        with segments.locked(number) as is_ours:
            if is_ours:
                size_bytes += evict(index, segments, number) or 0
            removed += is_ours
            busy += not is_ours
    return {"segments": removed, "bytes": size_bytes, "busy_segments": busy}


def pin(cache: OpenCache, refs: Iterable[ObjectRef], endpoint_url: str, *, is_pinned: bool) -> dict[str, int]:
    """Keep all segments with ranges of `refs` from being evicted, or let them be. Say what of `refs` is not kept."""
    index = Index(cache.writing, waits=True)
    objects = whole_bytes = missing_bytes = 0
    numbers: set[int] = set()
    for ref in refs:
        objects += 1
        extents = index.find(identity(endpoint_url, ref)[0], 0, ref.size_bytes) if ref.etag else []
        numbers.update(one.segment for one in extents)
        missing = gaps(extents, 0, ref.size_bytes)
        missing_bytes += sum(end - start for start, end in missing)
        whole_bytes += ref.size_bytes
    index.pin(numbers, is_pinned=is_pinned)
    return {
        "objects": objects,
        "segments": len(numbers),
        "kept_bytes": whole_bytes - missing_bytes,
        "missing_bytes": missing_bytes,
    }


def unpin_all(cache: OpenCache) -> dict[str, int]:
    """Let every segment be evicted again."""
    index = Index(cache.writing, waits=True)
    numbers = index.segments()
    index.pin(numbers, is_pinned=False)
    return {"segments": len(numbers), "kept_bytes": sum(numbers.values()), "missing_bytes": 0}
