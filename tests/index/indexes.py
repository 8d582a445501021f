"""Indexes for tests."""

import os
import time

from fastfuse.index.inodes.builder import TableBuilder
from fastfuse.index.inodes.table import InodeTable
from fastfuse.index.snapshot import Snapshot, save_snapshot
from tests.tables import check_table

__all__ = ["MD5", "columns", "index_bytes", "index_of", "memfd"]

MD5 = '"' + "0123456789abcdef" * 2 + '"'


def index_of(objects: dict[str, int], *, source: str = "s3://bucket/", age_s: float = 0.0) -> Snapshot:
    """An index of keys and sizes, listed `age_s` ago."""
    builder = TableBuilder("bucket", "")
    keys = [key.encode() for key in objects]
    builder.add(keys, list(objects.values()), [10**18] * len(keys), [MD5] * len(keys), ["STANDARD"] * len(keys))
    table, refusals = builder.build()
    listed_at_ns = time.time_ns() - int(age_s * 1e9)
    return Snapshot(source=source, listed_at_ns=listed_at_ns, table=table, refusals=refusals)


def columns(table: InodeTable) -> dict[str, bytes]:
    check_table(table)
    return {name: column.tobytes() for name, column in table.columns.items()}


def index_bytes(snapshot: Snapshot) -> bytes:
    fd = memfd()
    try:
        save_snapshot(snapshot, fd)
        return os.pread(fd, 1 << 24, 0)
    finally:
        os.close(fd)


def memfd(data: bytes = b"") -> int:
    fd = os.memfd_create("test")
    os.write(fd, data)
    return fd
