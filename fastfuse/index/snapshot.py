"""An index as one file or memfd: the lister writes it, every worker maps it, `fastfuse index` stores it.

Layout, little-endian::

    0   8 bytes   magic "FASTFUSE"
    8   uint32    format version: 3
    12  uint32    bytes of the header
    16  uint32    CRC-32 of the header
    20  uint32    CRC-32 of everything behind the padded header
    24  header    JSON, padded with zeros to a multiple of 64 bytes; see below
    ..  columns   each at a multiple of 64 bytes behind the header, in the types of `index.inodes.columns`

The header is ``{"source": URI, "view": str, "listed_at_ns": int,
"refusals": {"counts": {reason: int}, "examples": [[key, reason]]},
"metadata": {...}, "columns": {name: {"type", "offset", "count"}}, "columns_bytes": int}``.

The file is not compressed. zstd makes it a third of the size (the ETags are random), but then opening takes two to four
times as long, and the columns need memory of their own instead of a mapping. Measured with three million objects, 168
MB: copied and checked in 0.09 s, decompressed in 0.12 s to 0.35 s.

Columns are mapped and never copied, so opening costs the same for ten objects and for ten million. A worker maps an
index that its lister has just written or verified. `open_snapshot` checks the places of the columns, not their
contents, which would read all of the file. The table never reads outside the mapping: a damaged column makes an error
of the file that needs it. Every index from outside goes through `verify_snapshot` first.
"""

import codecs
import errno
import json
import mmap
import os
import struct
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sized
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from fastfuse.errors import ConfigurationError, FastfuseError
from fastfuse.index.inodes.columns import BLOBS, COLUMN_TYPES, OPTIONAL_COLUMN_TYPES, Kind, are_made, are_objects
from fastfuse.index.inodes.table import InodeTable, TableMetadata
from fastfuse.index.inodes.tree import MAX_NAME_BYTES, Reason, Refusals
from fastfuse.sizes import format_size

_MAGIC = b"FASTFUSE"
_VERSION = 3
_HEAD = struct.Struct("<8sIIII")
_ALIGNMENT_BYTES = 64  # a cache line; more than any column's item
_TYPES = {**COLUMN_TYPES, **OPTIONAL_COLUMN_TYPES}
# An index lies in memory. A hundred million objects take 7 GB.
_MOST_BYTES = 64 << 30
# Names are checked in blocks of this size.
_STEP_BYTES = 1 << 20
_MAKE_AGAIN = "make it again with 'fastfuse index'"


class OldFormatError(ConfigurationError):
    """An index was written by an earlier fastfuse; of which source, if it is undamaged."""

    def __init__(self, message: str, *, hint: str = "", source: str = "") -> None:
        super().__init__(message, hint=hint)
        self.source = source


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The objects of a source at one time, and the keys that cannot be shown."""

    source: str  # its URI
    listed_at_ns: int  # since the epoch; when the listing began
    table: InodeTable
    refusals: Refusals
    # The way in which the source was listed and the part that is shown, in words; empty: all of a prefix.
    view: str = ""


def save_snapshot(snapshot: Snapshot, fd: int) -> None:
    """Write `snapshot` to the empty file `fd`, from its beginning.

    Raises:
        FastfuseError: this process may not make a file of that size, or nobody could read it.
    """
    columns = {name: np.ascontiguousarray(column) for name, column in snapshot.table.columns.items()}
    # Offsets are relative to the end of the header, whose length depends on them otherwise.
    offset = body_crc = 0
    described: dict[str, dict[str, Any]] = {}
    for name, column in columns.items():
        described[name] = {"type": _TYPES[name], "offset": offset, "count": len(column)}
        data = column.view("uint8").data
        body_crc = zlib.crc32(_padding(data.nbytes), zlib.crc32(data, body_crc))
        offset = _aligned(offset + column.nbytes)
    refusals = snapshot.refusals
    about = {
        "source": snapshot.source,
        "view": snapshot.view,
        "listed_at_ns": snapshot.listed_at_ns,
        "refusals": {
            "counts": refusals.counts,
            "examples": [[key.decode("utf-8", "surrogateescape"), reason] for key, reason in refusals.examples],
        },
        "metadata": asdict(snapshot.table.metadata),
        "columns": described,
        "columns_bytes": offset,
    }
    header = json.dumps(about).encode()
    header += _padding(_HEAD.size + len(header))
    size_bytes = _HEAD.size + len(header) + offset
    check_size("the index", size_bytes)
    try:
        with os.fdopen(os.dup(fd), "wb") as file:
            file.seek(0)  # the descriptor may have been read before
            file.write(_HEAD.pack(_MAGIC, _VERSION, len(header), zlib.crc32(header), body_crc) + header)
            for column in columns.values():
                file.write(column.view("uint8").data)
                file.write(_padding(column.nbytes))
    except OSError as error:
        if error.errno != errno.EFBIG:
            raise
        raise FastfuseError(
            f"the index has {size_bytes:,} bytes, and the limit on the size of files is lower",
            hint="raise the limit: see ulimit -f",
        ) from error


def check_size(name: str, size_bytes: int) -> None:
    """Raise `ConfigurationError` if no index called `name` may have that size."""
    if size_bytes > _MOST_BYTES:
        raise ConfigurationError(
            f"{name} has {format_size(size_bytes)}, more than the {format_size(_MOST_BYTES)} of any index",
            hint="mount narrower prefixes",
        )


def open_snapshot(fd: int) -> Snapshot:
    """Map the snapshot in `fd`; the mapping outlives the descriptor, and does not keep it from being sealed.

    Raises:
        ConfigurationError: `fd` holds no snapshot, is cut short, or has a version that this fastfuse does not read
            (`OldFormatError`, if that is of an earlier one).
    """
    if os.fstat(fd).st_size < _HEAD.size:
        raise _useless("the index is cut short")
    mapping = memoryview(mmap.mmap(fd, 0, mmap.MAP_PRIVATE, mmap.PROT_READ))
    magic, version, header_bytes, header_crc, _ = _HEAD.unpack_from(mapping)
    if magic != _MAGIC:
        raise _useless("it is not a fastfuse index")
    told = f"the index has format {version}, this fastfuse reads {_VERSION}"
    if version > _VERSION:
        raise _useless(told)
    text = bytes(mapping[_HEAD.size : _HEAD.size + header_bytes])
    if len(text) != header_bytes or (_HEAD.size + header_bytes) % _ALIGNMENT_BYTES or zlib.crc32(text) != header_crc:
        raise _useless()
    try:
        header = json.loads(text.rstrip(b"\0"))
        if version < _VERSION:
            raise OldFormatError(told, hint=_MAKE_AGAIN, source=str(header["source"]))
        body = mapping[_HEAD.size + header_bytes :]
        if header["columns_bytes"] != len(body):
            raise ValueError("columns of another length than the header says")
        return _snapshot(header, body)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise _useless() from error


def verify_snapshot(fd: int) -> Snapshot:
    """Map the snapshot in `fd` as `open_snapshot` does, after reading and checking all of it.

    The checks find every byte that was changed by accident. They also hold for a file of a hostile author: its
    directories are a tree, so every walk down from the root ends; its names can be names of files; no row makes an
    error; and it has no inode numbers of its own, because those belong to a mount. An index of a million
    objects takes 0.1 s.
    """
    snapshot = open_snapshot(fd)
    with mmap.mmap(fd, 0, mmap.MAP_PRIVATE, mmap.PROT_READ) as mapping, memoryview(mapping) as data:
        _, _, header_bytes, _, body_crc = _HEAD.unpack_from(data)
        with data[_HEAD.size + header_bytes :] as body:
            is_sound = zlib.crc32(body) == body_crc
    table = snapshot.table
    new_columns = {*COLUMN_TYPES, "source_order", "made", "other_etags"}
    is_new = not table.metadata.next_inode and table.columns.keys() <= new_columns
    checks = (_is_tree, _has_its_words, _has_names, _has_its_contents, _orders_its_files)
    if not (is_sound and is_new and all(holds(table) for holds in checks)):
        raise _useless()
    return snapshot


def _useless(message: str = "the index is damaged") -> ConfigurationError:
    return ConfigurationError(message, hint=_MAKE_AGAIN)


def _snapshot(header: dict[str, Any], body: memoryview) -> Snapshot:
    described = header["columns"]
    columns = {
        name: _column(body, kind, described[name])
        for name, kind in _TYPES.items()
        if name in COLUMN_TYPES or name in described
    }
    _check_lengths(columns)
    refusals = header["refusals"]
    return Snapshot(
        source=_text(header["source"]),
        listed_at_ns=_number(header["listed_at_ns"]),
        table=InodeTable(_metadata(header["metadata"]), columns),
        refusals=Refusals(
            Counter({Reason(reason): _number(count) for reason, count in refusals["counts"].items()}),
            [(key.encode("utf-8", "surrogateescape"), Reason(reason)) for key, reason in refusals["examples"]],
        ),
        view=_text(header["view"]),
    )


def _column(body: memoryview, kind: str, described: dict[str, Any]) -> npt.NDArray[np.generic]:
    if described["type"] != kind:
        raise ValueError(f"a column of type {described['type']}, not {kind}")
    if described["offset"] < 0 or described["offset"] % _ALIGNMENT_BYTES:
        raise ValueError("a column begins before the columns do, or between two items")
    return np.frombuffer(body, kind, described["count"], described["offset"])


def _check_lengths(columns: dict[str, npt.NDArray[np.generic]]) -> None:
    rows = len(columns["kinds"])
    if not rows or any(len(column) != rows for name, column in columns.items() if name not in BLOBS):
        raise ValueError("columns of different lengths")
    if int(columns["name_ends"][-1]) != len(columns["names"]):
        raise ValueError("names of another length than their ends say")


def _is_tree(table: InodeTable) -> bool:
    """Return whether the children of each directory follow those of the directory before, and all rows are children.

    The builder lays rows out in this way: every row but the root is the child of exactly one directory.
    """
    directories = np.flatnonzero(table.columns["kinds"] == Kind.DIRECTORY)
    firsts, counts = table.columns["etags"][directories].view("uint64").reshape(-1, 2).T
    parents = table.columns["parents"]
    return (
        bool(table.columns["kinds"][0] == Kind.DIRECTORY)
        and bool(np.all(counts < len(table)))  # or their sum might overflow
        and int(counts.sum()) == len(table) - 1
        and np.array_equal(firsts, 1 + np.cumsum(counts) - counts)
        and bool(np.all(firsts > directories))  # or a directory might lie in itself, below no other
        and int(parents[0]) == 0
        and np.array_equal(parents[1:], np.repeat(directories, counts.astype("int64")))
    )


def _has_names(table: InodeTable) -> bool:
    """Return whether every row but the root has a name of 1 to 255 bytes of UTF-8 that can be the name of a file."""
    names, ends = table.columns["names"].view("uint8"), table.columns["name_ends"].view("uint64")
    if ends[0] or not np.all(ends[1:] > ends[:-1]) or not np.all(ends[1:] - ends[:-1] <= MAX_NAME_BYTES):
        return False
    starts, lasts = ends[:-1], ends[1:] - 1
    are_dots = (lasts - starts < 2) & (names[starts] == ord(".")) & (names[lasts] == ord("."))
    # No name begins within a character.
    if np.any(are_dots) or np.any(names[starts] & 0xC0 == 0x80):
        return False
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        for at in range(0, len(names), _STEP_BYTES):
            text = decoder.decode(names[at : at + _STEP_BYTES].tobytes())
            if "/" in text or "\0" in text:
                return False
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return False
    return True


def _has_its_words(table: InodeTable) -> bool:
    """Return whether the kinds exist, and the table has all storage classes and all ETags that are no MD5."""
    columns = table.columns
    starts, sizes = columns["etags"][columns["kinds"] == Kind.FILE_OTHER_ETAG].view("uint64").reshape(-1, 2).T
    return bool(
        columns["kinds"].max() <= max(Kind)
        and columns["storage_classes"].max() < len(table.metadata.storage_classes)
        and _lie_within(starts, sizes, columns.get("other_etags", ()))
    )


def _orders_its_files(table: InodeTable) -> bool:
    """Return whether the source's order, if it has one, consists of rows of files."""
    order = table.source_order()
    if order is None or not len(order):
        return True
    return bool(order.max() < len(table) and np.all(table.columns["kinds"][order] != Kind.DIRECTORY))


def _has_its_contents(table: InodeTable) -> bool:
    """Return whether every size is one, the table has the bytes of all made files, and every object has a bucket."""
    kinds = table.columns["kinds"]
    is_made = are_made(kinds)
    sizes = table.columns["sizes"].view("int64")[is_made]
    starts = table.columns["etags"][is_made].view("uint64")[::2]
    return bool(
        np.all(table.columns["sizes"].view("int64") >= 0)
        and (table.metadata.bucket or not np.any(are_objects(kinds[1 : 1 + table.span(0)[1]])))
        and _lie_within(starts, sizes.view("uint64"), table.columns.get("made", ()))
    )


def _lie_within(starts: npt.NDArray[Any], sizes: npt.NDArray[Any], blob: Sized) -> bool:
    return bool(np.all(starts <= len(blob)) and np.all(sizes <= len(blob) - starts))


def _metadata(fields: dict[str, Any]) -> TableMetadata:
    metadata = TableMetadata(**{name: _METADATA_FIELDS[name](value) for name, value in fields.items()})
    if metadata.key_prefix and not metadata.key_prefix.endswith("/"):
        raise ValueError("a prefix that is no folder")
    return metadata


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    value.encode()  # JSON can spell text that UTF-8 cannot
    return value


def _texts(values: object) -> tuple[str, ...]:
    if not isinstance(values, list):
        raise TypeError(f"{values!r} is no list")
    return tuple(map(_text, values))


def _number(value: object, bits: int = 63) -> int:
    if type(value) is not int or not 0 <= value < 1 << bits:
        raise ValueError(f"{value!r} is no number of the kind")
    return value


_METADATA_FIELDS: Mapping[str, Callable[[Any], Any]] = {
    "bucket": _text,
    "key_prefix": _text,
    "file_count": _number,
    "directory_count": _number,
    "total_bytes": partial(_number, bits=63 + 32),  # the sizes of up to 2^32 rows
    "storage_classes": _texts,
    "next_inode": _number,
}


def _aligned(offset: int) -> int:
    return -(-offset // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES


def _padding(offset: int) -> bytes:
    return bytes(_aligned(offset) - offset)
