"""Indexes for tests."""

import os
import resource
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType

from fastfuse.index.inodes.builder import TableBuilder
from fastfuse.index.inodes.table import InodeTable
from fastfuse.index.inodes.tree import Refusals
from fastfuse.index.snapshot import Snapshot, save_snapshot
from tests.tables import check_table

MD5 = '"' + "0123456789abcdef" * 2 + '"'


# Size, time, ETag, storage class.
Row = tuple[int, int, str, str]


def table_of(
    objects: Mapping[str, Row] | Iterable[str],
    *,
    bucket: str = "bucket",
    prefix: str = "",
    made: Mapping[bytes, bytes] = MappingProxyType({}),
    order: Sequence[int] | None = None,
) -> InodeTable:
    """Return the table of objects, by their keys below `prefix`, and of the made files."""
    rows = objects if isinstance(objects, Mapping) else dict.fromkeys(objects, (1, 10**18, MD5, "STANDARD"))
    builder = TableBuilder(bucket, prefix)
    builder.add([f"{prefix}{key}".encode() for key in rows], *(zip(*rows.values(), strict=True) if rows else [()] * 4))
    for path, content in made.items():
        builder.add_made(path, content, 5)
    if order is not None:
        builder.set_source_order(order)
    return builder.build()[0]


def index_of(objects: dict[str, int], *, source: str = "s3://bucket/", age_s: float = 0.0) -> Snapshot:
    """An index of keys and sizes, listed `age_s` ago."""
    table = table_of({key: (size_bytes, 10**18, MD5, "STANDARD") for key, size_bytes in objects.items()})
    listed_at_ns = time.time_ns() - int(age_s * 1e9)
    return Snapshot(source=source, listed_at_ns=listed_at_ns, table=table, refusals=Refusals())


def columns(table: InodeTable) -> dict[str, bytes]:
    check_table(table)
    return {name: column.tobytes() for name, column in table.columns.items()}


def index_bytes(snapshot: Snapshot) -> bytes:
    with memory_file() as fd:
        save_snapshot(snapshot, fd)
        return os.pread(fd, 1 << 24, 0)


@contextmanager
def file_size_limit(size_bytes: int) -> Iterator[None]:
    """Let this process make no larger files until the end of the block, as after ``ulimit -S -f``."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@contextmanager
def memory_file(data: bytes = b"") -> Iterator[int]:
    fd = os.memfd_create("test")
    try:
        os.write(fd, data)
        yield fd
    finally:
        os.close(fd)
