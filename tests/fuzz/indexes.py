"""Index files: each input is tried as a file, and as a header, a NUL and columns, of which a sound file is made."""

import json
import os
import struct
import zlib
from contextlib import suppress
from typing import Any

from fastfuse.errors import ConfigurationError
from fastfuse.index.inodes.table import ROOT, InodeTable
from fastfuse.index.snapshot import Snapshot, open_snapshot, verify_snapshot

TOKENS = (
    *(b'"source"', b'"view"', b'"listed_at_ns"', b'"refusals"', b'"counts"', b'"examples"', b'"metadata"'),
    *(b'"columns"', b'"bucket"', b'"key_prefix"', b'"file_count"', b'"directory_count"', b'"total_bytes"'),
    *(b'"storage_classes"', b'"other_etags"', b'"next_inode"', b'"type"', b'"offset"', b'"count"', b'"columns_bytes"'),
    *(b'"uint8"', b'"V16"', b'"names"', b'"name_ends"', b'"parents"', b'"kinds"', b'"etag_parts"', b'"sizes"'),
    *(b'"mtimes_ns"', b'"etags"', b'"made"', b'"source_order"', b'"inodes"', b'"inode_rows"', b'"gone_inodes"'),
    *(b'"uint32"', b'"uint64"', b'"int64"', b"/", b"..", b".", b"\0", b"\xff", b"\x80", b"\x01\x00\x00\x00"),
    *(b"\x00\x00\x00\x80", b"\xff\xff\xff\xff", b"-1", b"\x00" * 8, b"\xff" * 8, b"\x01" + b"\x00" * 7, b"1" * 30),
    *(b"64", b"1", b"null", b"[]", b"{}", b"FASTFUSE", b"1e999"),
)

_HEAD = struct.Struct("<8sIIII")
_ALIGNMENT_BYTES = 64


def try_one(data: bytes) -> None:
    for file in (data, _file(data)):
        opened = _read(file, is_verified=False)
        verified = _read(file, is_verified=True)
        assert verified is None or opened is not None
        if verified is not None:
            _walk(verified.table)


def _file(data: bytes) -> bytes:
    """Return an index with the header and the columns in `data`, whose sums and lengths are right."""
    text, _, columns = data.partition(b"\0")
    with suppress(ValueError, RecursionError):
        header: Any = json.loads(text)
        if isinstance(header, dict):
            text = json.dumps(header | {"columns_bytes": len(columns)}).encode()
    text += bytes(-(_HEAD.size + len(text)) % _ALIGNMENT_BYTES)
    return _HEAD.pack(b"FASTFUSE", 3, len(text), zlib.crc32(text), zlib.crc32(columns)) + text + columns


def _read(file: bytes, *, is_verified: bool) -> Snapshot | None:
    fd = os.memfd_create("fuzz")
    try:
        os.write(fd, file)
        return verify_snapshot(fd) if is_verified else open_snapshot(fd)
    except ConfigurationError:
        return None
    finally:
        os.close(fd)


def _walk(table: InodeTable) -> None:
    """Read every row as a mount may; none may make an error, and all are below the root."""
    seen, waiting = 1, [ROOT]
    while waiting:
        directory = waiting.pop()
        for name, attributes in table.children(directory):
            seen += 1
            assert name not in (b"", b".", b"..")
            assert len(name) <= 255
            assert not {b"/"[0], 0} & set(name)
            assert attributes.size_bytes >= 0
            assert table.parent(attributes.inode) == directory
            assert table.path(attributes.inode).removesuffix("/").encode().endswith(name)
            # A name that comes twice, or out of order, leads to one of its rows or to none.
            found = table.lookup(directory, name)
            assert found is None or (table.name_at(table.row(found)), table.parent(found)) == (name, directory)
            _read_row(table, attributes.inode)
            if attributes.is_directory:
                waiting.append(attributes.inode)
    assert seen == len(table)
    table.buckets()
    order = table.source_order()
    assert order is None or not any(table.is_directory(table.inode(row)) for row in order.tolist())


def _read_row(table: InodeTable, inode: int) -> None:
    if table.is_directory(inode):
        return
    ref = table.ref(inode)
    assert ref.key.encode()
    assert ref.bucket or table.is_made(inode)
    assert ref.storage_class in table.metadata.storage_classes
    assert not table.is_made(inode) or len(table.made(inode)) == ref.size_bytes
