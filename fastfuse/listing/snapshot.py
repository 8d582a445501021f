"""An inode table as one file (or memfd): written by the lister, mapped by every worker.

Layout, little-endian::

    0   8 bytes   magic "FASTFUSE"
    8   uint32    format version
    12  uint32    bytes of the header
    16  uint32    CRC-32 of the header
    20  header    JSON: {"metadata": {...}, "columns": {name: {"type", "offset", "count"}}}
    ..  columns   each at a multiple of 64 bytes, in the types of `inodes.table.COLUMN_TYPES`

Columns are mapped and never copied, so opening costs the same for ten objects and for ten million. What says where they
lie is checked; what they hold is not (that would read all of it), and the table never leaves the mapping for it: a
damaged column makes an error of the file that needs it.
"""

import json
import mmap
import os
import struct
import zlib
from dataclasses import asdict
from typing import Any

import numpy as np
import numpy.typing as npt

from fastfuse.errors import ConfigurationError
from fastfuse.inodes.table import COLUMN_TYPES, InodeTable, TableMetadata

__all__ = ["open_snapshot", "save_snapshot"]

_MAGIC = b"FASTFUSE"
_VERSION = 1
_HEAD = struct.Struct("<8sIII")
_ALIGNMENT_BYTES = 64  # a cache line; more than any column's item


def save_snapshot(table: InodeTable, fd: int) -> None:
    """Write `table` to the empty file `fd`, from its beginning."""
    columns = {name: np.ascontiguousarray(table.columns[name]) for name in COLUMN_TYPES}
    # Offsets are relative to the end of the header, whose length depends on them otherwise.
    offset = 0
    described: dict[str, dict[str, Any]] = {}
    for name, column in columns.items():
        described[name] = {"type": COLUMN_TYPES[name], "offset": offset, "count": len(column)}
        offset = _aligned(offset + column.nbytes)
    header = json.dumps({"metadata": asdict(table.metadata), "columns": described}).encode()
    base = _aligned(_HEAD.size + len(header))
    with os.fdopen(os.dup(fd), "wb") as file:
        file.write(_HEAD.pack(_MAGIC, _VERSION, len(header), zlib.crc32(header)) + header)
        for name, column in columns.items():
            file.seek(base + described[name]["offset"])
            file.write(column.view("uint8").data)
        file.truncate(base + offset)


def open_snapshot(fd: int) -> InodeTable:
    """Map the snapshot in `fd`; the mapping outlives the descriptor.

    Raises:
        ConfigurationError: not a snapshot, cut short, or of a version that this fastfuse does not read.
    """
    size = os.fstat(fd).st_size
    if size < _HEAD.size:
        raise ConfigurationError("the index file is cut short", hint=_MAKE_ANEW)
    mapping = memoryview(mmap.mmap(fd, 0, prot=mmap.PROT_READ))
    magic, version, header_bytes, header_crc = _HEAD.unpack_from(mapping)
    if magic != _MAGIC:
        raise ConfigurationError("the file is not a fastfuse index", hint=_MAKE_ANEW)
    if version != _VERSION:
        raise ConfigurationError(f"the index has format {version}, this fastfuse reads {_VERSION}", hint=_MAKE_ANEW)
    text = bytes(mapping[_HEAD.size : _HEAD.size + header_bytes])
    if len(text) != header_bytes or zlib.crc32(text) != header_crc:
        raise ConfigurationError(_DAMAGED, hint=_MAKE_ANEW)
    try:
        header = json.loads(text)
        base = _aligned(_HEAD.size + header_bytes)
        columns = {name: _column(mapping, base, name, header["columns"]) for name in COLUMN_TYPES}
        _check_lengths(columns)
        return InodeTable(_metadata(header["metadata"]), columns)
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(_DAMAGED, hint=_MAKE_ANEW) from error


_DAMAGED = "the index file is damaged"
_MAKE_ANEW = "list the source again"


def _column(mapping: memoryview, base: int, name: str, described: dict[str, Any]) -> npt.NDArray[np.generic]:
    entry = described[name]
    if entry["type"] != COLUMN_TYPES[name]:
        raise ValueError(f"column {name} has type {entry['type']}")
    if entry["offset"] < 0:
        raise ValueError(f"column {name} begins before the columns do")
    return np.frombuffer(mapping, entry["type"], entry["count"], base + entry["offset"])


def _check_lengths(columns: dict[str, npt.NDArray[np.generic]]) -> None:
    rows = len(columns["kinds"])
    if not rows or any(len(column) != rows for name, column in columns.items() if name != "names"):
        raise ValueError("columns of different lengths")
    if int(columns["name_ends"][-1]) != len(columns["names"]):
        raise ValueError("names of another length than their ends say")


def _metadata(fields: dict[str, Any]) -> TableMetadata:
    return TableMetadata(
        **{**fields, "storage_classes": tuple(fields["storage_classes"]), "other_etags": tuple(fields["other_etags"])}
    )


def _aligned(offset: int) -> int:
    return -(-offset // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
