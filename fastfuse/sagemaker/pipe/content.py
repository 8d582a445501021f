"""The content of an epoch: its objects or manifest lines in order, and the encodings of their bytes. Pure.

Each manifest line comes from the filtered manifest that the index carries: checked, with the attributes asked for, in
their order.

A channel that is sharded and shuffled is dealt out to the hosts anew in each epoch: all hosts have the whole table and
make the same permutation of it, and each takes its part of that.

The encodings are gzip, taken away, and RecordIO. A RecordIO record is ``magic, length, data, zeros up to a multiple of
four bytes``, numbers as little-endian uint32. dmlc-core's writer splits data that holds the magic, for readers that
begin in the middle of a file. A reader of a FIFO goes by length, and sagemaker_tensorflow joins such pieces without
the magic, so data stays whole here.
"""

import struct
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import chain
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fastfuse.errors import ConfigurationError, SourceError
from fastfuse.index.inodes.columns import are_objects
from fastfuse.index.inodes.selection import key_order
from fastfuse.index.inodes.table import ROOT, InodeTable
from fastfuse.index.origin import SourceKind
from fastfuse.index.sources.manifests import REFERENCE_SUFFIX, JsonText, Member
from fastfuse.index.sources.shard import Shard
from fastfuse.index.sources.shuffle import shuffled
from fastfuse.index.sources.uri import S3Uri
from fastfuse.objects import Buffer, ObjectRef
from fastfuse.sagemaker.description.channel import Channel


class File(NamedTuple):
    """An object to be streamed."""

    inode: int
    ref: ObjectRef


# An object, or bytes that stand in a manifest.
Item = File | bytes


def attributes_of(line: bytes) -> list[str | bytes]:
    """Return the attributes of `line` as they come.

    Text is the S3 URI of an object to stream; bytes are streamed themselves. A string loses its quotes; anything else
    is as the line has it, numbers digit for digit.

    Raises:
        ValueError: the line is no JSON object.
        ConfigurationError: it is damaged.
    """
    text = JsonText(line.decode(), "line")
    start = text.after_space(0)
    if not text.text.startswith("{", start):
        raise ValueError("a line that is no JSON object")
    return [_attribute(one, text.text[one.start : one.end]) for one in text.members(start)]


def _attribute(member: Member, text: str) -> str | bytes:
    if not isinstance(member.value, str):
        return text.encode()
    # JSON can spell half a surrogate pair, which UTF-8 cannot.
    is_reference = member.name.endswith(REFERENCE_SUFFIX)
    return member.value if is_reference else member.value.encode("utf-8", "surrogatepass")


Inodes = npt.NDArray[np.int64]


def source_order(table: InodeTable) -> Inodes:
    """Return the inodes of all objects, as the source names them (twice where it does) or by key, as S3 lists them."""
    given = table.source_order()
    rows = key_order(table) if given is None else given.astype("int64")
    rows = rows[are_objects(table.columns["kinds"][rows])]
    inodes = table.columns.get("inodes")
    return rows + 1 if inodes is None else inodes[rows].astype("int64")


def epoch_order(
    items: Inodes, seed: int | None, epoch: int, shard: Shard | None = None, sizes_bytes: Inodes | None = None
) -> Inodes:
    """Return `items`, or the part `shard` of them, in the order of `epoch`; `sizes_bytes` serve a part by bytes."""
    if seed is None:
        return items
    order = shuffled(len(items), seed, epoch)
    if shard is None:
        return items[order]
    sizes = range(len(items)) if sizes_bytes is None else sizes_bytes[order].tolist()
    own: Inodes = order[np.array(shard.positions(sizes, are_shuffled=True), "int64")]
    return items[own]


def find_object(table: InodeTable, bucket: str, key: str) -> int | None:
    """Return the inode of an object; None where the table does not have it."""
    metadata = table.metadata
    if not metadata.bucket:  # of several buckets, each a directory
        path = f"{bucket}/{key}"
    elif bucket == metadata.bucket and key.startswith(metadata.key_prefix):
        path = key.removeprefix(metadata.key_prefix)
    else:
        return None
    inode = table.find(path.encode())
    return None if inode is None or table.is_directory(inode) else inode


def _order(
    channel: Channel, shard: Shard | None, pieces: Inodes, size_bytes_of: Callable[[int], int]
) -> Callable[[int], Iterator[int]]:
    """Return a function of an epoch, which returns its pieces in order."""
    sizes_bytes: Inodes | None = None
    if shard is not None and shard.by_bytes:
        sizes_bytes = np.array([size_bytes_of(piece) for piece in pieces.tolist()], "int64")
    return lambda epoch: map(int, epoch_order(pieces, channel.shuffle_seed, epoch, shard, sizes_bytes))


class Objects:
    """One object after the other, as the source orders them."""

    def __init__(self, table: InodeTable, channel: Channel, shard: Shard | None) -> None:
        self.table = table
        sizes = table.columns["sizes"]
        self._order = _order(channel, shard, source_order(table), lambda inode: int(sizes[table.row(inode)]))

    def items(self, epoch: int) -> Iterator[Item]:
        yield from self.files(epoch)

    def files(self, epoch: int) -> Iterator[File]:
        for inode in self._order(epoch):
            yield File(inode, self.table.ref(inode))


class Lines:
    """One line of the table's manifest after the other, attribute by attribute."""

    def __init__(self, table: InodeTable, channel: Channel, shard: Shard | None) -> None:
        self.table = table
        self._path, self._text = _manifest(table)
        ends = np.flatnonzero(np.frombuffer(self._text, "uint8") == ord("\n"))
        # The offset of each line, and the end; every line ends with a newline.
        self._starts = np.concatenate([[0], ends + 1]).astype("int64")
        self._order = _order(channel, shard, np.arange(len(ends)), self._size_bytes)

    def items(self, epoch: int) -> Iterator[Item]:
        return chain.from_iterable(map(self._line, self._order(epoch)))

    def files(self, epoch: int) -> Iterator[File]:
        with suppress(SourceError):  # which `items` raises in its turn
            yield from (item for item in self.items(epoch) if isinstance(item, File))

    def _size_bytes(self, line: int) -> int:
        return sum(item.ref.size_bytes for item in self._line(line) if isinstance(item, File))

    def _line(self, line: int) -> Iterator[Item]:
        text = bytes(self._text[self._starts[line] : self._starts[line + 1]])
        return (self._file(one, line) if isinstance(one, str) else one for one in attributes_of(text))

    def _file(self, uri: str, line: int) -> File:
        bucket = self.table.metadata.bucket
        directory = f"file://{bucket.rstrip('/')}/"
        is_local = uri.startswith(directory)
        source = S3Uri(bucket, uri.removeprefix(directory)) if is_local else S3Uri.parse(uri)
        inode = find_object(self.table, source.bucket, source.path)
        if inode is None:
            raise SourceError(
                f"{self._path}:{line + 1}: {uri!r} is not among the objects of the channel",
                hint="its name may be one that no file can have",
            )
        return File(inode, self.table.ref(inode))


def _manifest(table: InodeTable) -> tuple[str, memoryview]:
    """Return name and bytes of the synthetic file at the root."""
    for name, attributes in table.children(ROOT):
        if not attributes.is_directory and table.is_made(attributes.inode):
            return name.decode(), table.made(attributes.inode)
    raise ConfigurationError(
        "the index of the channel carries no augmented manifest", hint="its S3DataType must be AugmentedManifestFile"
    )


def sequence_of(table: InodeTable, channel: Channel, shard: Shard | None = None) -> Objects | Lines:
    """Return the sequence that `channel` wants of `table`; with `shard`, of that part of each epoch.

    Raises:
        ConfigurationError: an object is too long for a record, or the table has no augmented manifest.
    """
    kind = Lines if channel.source_kind is SourceKind.AUGMENTED_MANIFEST else Objects
    sequence = kind(table, channel, shard)
    if channel.wraps_records and not channel.is_gzip:
        _check_records(table)
    return sequence


def _check_records(table: InodeTable) -> None:
    sizes = table.columns["sizes"]
    row = int(np.argmax(sizes))
    if int(sizes[row]) >= MAX_RECORD_BYTES:
        ref = table.ref(table.inode(row))
        raise ConfigurationError(
            f"{ref.uri!r} has {ref.size_bytes:,} bytes; a RecordIO record holds less than {MAX_RECORD_BYTES:,}",
            hint="leave RecordWrapperType out, or split the object",
        )


# The input and output of one step: a few bytes can become a thousand times as many.
_STEP_BYTES = 1 << 20
_GZIP_ONLY = zlib.MAX_WBITS | 16


class Gunzip:
    """A gzip file in chunks: members, and zeros behind them (RFC 1952, section 2.2). An empty one is empty.

    Each method raises `ValueError` where the data is anything else.
    """

    def __init__(self) -> None:
        self._member = zlib.decompressobj(_GZIP_ONLY)
        # True once a member has begun, and once one has ended.
        self._is_within = self._is_past_first = False

    def feed(self, chunk: Buffer) -> Iterator[bytes]:
        """Yield what `chunk` decompresses to, a MiB at a time; take all of it before the next chunk."""
        data = memoryview(chunk)
        for start in range(0, len(data), _STEP_BYTES):
            yield from self._decompressed(data[start : start + _STEP_BYTES])

    def finish(self) -> None:
        """Check that the last member is complete."""
        if self._is_within:
            raise ValueError("the gzip data is cut short")

    def _decompressed(self, data: Buffer) -> Iterator[bytes]:
        while data:
            if not self._is_within and self._is_past_first:
                data = bytes(data).lstrip(b"\0")
                if not data:
                    return
            self._is_within = True
            try:
                piece = self._member.decompress(data, _STEP_BYTES)
            except zlib.error as error:
                raise ValueError(_meaning(error, is_first=not self._is_past_first)) from error
            if piece:
                yield piece
            data = self._member.unconsumed_tail
            if self._member.eof:
                data = self._member.unused_data
                self._member = zlib.decompressobj(_GZIP_ONLY)
                self._is_within, self._is_past_first = False, True


def _meaning(error: zlib.error, *, is_first: bool) -> str:
    if "incorrect header check" in str(error):
        return "it is not gzip data" if is_first else "something that is not gzip data follows the gzip data"
    return f"the gzip data is damaged ({error})"


_MAGIC = 0xCED7230A
_HEADER = struct.Struct("<II")
# Exclusive: the upper three bits of a length say which piece of a record it is of.
MAX_RECORD_BYTES = 1 << 29


def record_header(size_bytes: int) -> bytes:
    """Return what stands before the data of a record."""
    return _HEADER.pack(_MAGIC, size_bytes)


def record_padding(size_bytes: int) -> bytes:
    """Return what stands behind the data of a record."""
    return bytes(-size_bytes % 4)
