"""Frozen values that every layer shares."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import compress
from typing import Any, Final, NamedTuple

# https://docs.aws.amazon.com/AmazonS3/latest/userguide/object-keys.html
MAX_KEY_BYTES = 1024

# https://docs.aws.amazon.com/AmazonS3/latest/userguide/restoring-objects.html: these need a restore before a GET.
# GLACIER_IR ("instant retrieval") does not.
ARCHIVE_STORAGE_CLASSES = frozenset({"GLACIER", "DEEP_ARCHIVE"})

# What a store hands out and pyfuse3 writes to the kernel: any contiguous buffer, read-only by agreement.
Buffer = bytes | memoryview


@dataclass(frozen=True, slots=True)
class ObjectRef:
    """One version of one object, as it was listed.

    `key` is the whole key (valid UTF-8 by clause N2), `etag` is as listed, with its quotes, or empty where the
    server lists none; `modified_ns` is LastModified in nanoseconds since the epoch.
    """

    bucket: str
    key: str
    size_bytes: int
    etag: str
    modified_ns: int = 0
    storage_class: str = "STANDARD"

    @property
    def uri(self) -> str:
        """The URI for messages; in the place of a bucket a local file has the directory that its key lies below."""
        return f"{'file' if self.bucket.startswith('/') else 's3'}://{self.bucket}/{self.key}"

    def parts(self, part_bytes: int) -> Iterator[tuple[int, int]]:
        """Yield the ranges of the object, each of `part_bytes` but the last."""
        for start in range(0, self.size_bytes, part_bytes):
            yield start, min(start + part_bytes, self.size_bytes)


# The ETag of an empty object: its MD5.
EMPTY_ETAG: Final = "d41d8cd98f00b204e9800998ecf8427e"


def known_etag(etag: str) -> str:
    """Return `etag`, or nothing if its quotes are empty, as rclone sends them of what has no MD5."""
    return etag if bare_etag(etag) else ""


def bare_etag(etag: str) -> str:
    """Return what is in the quotes of an ETag, if there are any."""
    return etag.strip().removeprefix("W/").strip('"')


class ObjectColumns(NamedTuple):
    """Objects in columns of equal length, as listings bring them and an inode table is built of them.

    The keys are whole and exact; the ETags have their quotes; times are in nanoseconds since the epoch.
    """

    keys: list[bytes]
    sizes: list[int]
    mtimes_ns: list[int]
    etags: list[str]
    storage_classes: list[str]

    def rows(self, rows: slice) -> "ObjectColumns":
        """Return the objects of these rows."""
        columns: Iterator[Any] = (column[rows] for column in self)
        return ObjectColumns(*columns)

    def chosen(self, is_chosen: Sequence[bool]) -> "ObjectColumns":
        """Return the objects for which `is_chosen` is true."""
        columns: Iterator[Any] = (list(compress(column, is_chosen)) for column in self)
        return self if all(is_chosen) else ObjectColumns(*columns)

    def refs(self, bucket: str) -> list[ObjectRef]:
        """Return the objects one by one; all of them are of `bucket`."""
        keys = [key.decode(errors="replace") for key in self.keys]
        rows = zip(keys, self.sizes, self.etags, self.mtimes_ns, self.storage_classes, strict=True)
        return [ObjectRef(bucket, *row) for row in rows]


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
# int64 nanoseconds since the epoch reach from 1677 to 2262, as everywhere in numpy.
MAX_MOMENT_MS = ((1 << 63) - 1) // 1_000_000


def times_ns(words: Iterable[str]) -> list[int]:
    """Parse times of ISO 8601 to the millisecond, as UTC where they name no zone.

    Raises:
        ValueError: a word is no time, or a time that 63 bits cannot hold.
    """
    moments = map(datetime.fromisoformat, words)
    in_ms = [((at if at.tzinfo else at.replace(tzinfo=UTC)) - _EPOCH) // _MILLISECOND for at in moments]
    if max(map(abs, in_ms), default=0) > MAX_MOMENT_MS:
        raise ValueError("a time beyond the range of 63 bits")
    return [moment * 1_000_000 for moment in in_ms]
