"""The content of an epoch, in order: the objects of a table, or the lines of an augmented manifest. Pure.

Each manifest line comes from the filtered manifest that the index carries: checked, with the attributes asked for.

A channel that is sharded and shuffled is dealt out to the hosts anew in each epoch: all hosts have the whole table and
make the same permutation of it, and each takes its part of that.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fastfuse.errors import ConfigurationError, SourceError
from fastfuse.index.inodes.columns import are_objects
from fastfuse.index.inodes.selection import key_order
from fastfuse.index.inodes.table import ROOT, InodeTable
from fastfuse.index.origin import SourceKind
from fastfuse.index.sources.manifests import JsonText, Member
from fastfuse.index.sources.shard import Shard
from fastfuse.index.sources.shuffle import shuffled
from fastfuse.index.sources.uri import S3Uri
from fastfuse.objects import ObjectRef
from fastfuse.sagemaker.description.channel import Channel
from fastfuse.sagemaker.pipe.encodings import MAX_RECORD_BYTES

__all__ = ["File", "Item", "Lines", "Objects", "sequence_of"]

_REFERENCE_SUFFIX = "-ref"


class File(NamedTuple):
    """An object to be streamed."""

    inode: int
    ref: ObjectRef


# An object, or bytes that stand in a manifest.
Item = File | bytes


class Attribute(NamedTuple):
    """The S3 URI of an object to stream, or the text to stream itself."""

    uri: str | None
    text: bytes


def attributes_of(line: bytes, names: Sequence[str] = ()) -> list[Attribute]:
    """Return the attributes of `line` in the order of `names`, or all as they come.

    A string loses its quotes; anything else is as the line has it, numbers digit for digit.

    Raises:
        ValueError: the line is no JSON object, or lacks an attribute.
        ConfigurationError: it is damaged.
    """
    text = JsonText(line.decode(), "line")
    start = text.after_space(0)
    if not text.text.startswith("{", start):
        raise ValueError("a line that is no JSON object")
    members = {member.name: member for member in text.members(start)}
    try:
        chosen = [members[name] for name in names] if names else members.values()
    except KeyError as error:
        raise ValueError(f"no attribute {error}") from error
    return [_attribute(one, text.text[one.start : one.end]) for one in chosen]


def _attribute(member: Member, text: str) -> Attribute:
    if not isinstance(member.value, str):
        return Attribute(None, text.encode())
    if member.name.endswith(_REFERENCE_SUFFIX):
        return Attribute(member.value, b"")
    # JSON can spell half a surrogate pair, which UTF-8 cannot.
    return Attribute(None, member.value.encode("utf-8", "surrogatepass"))


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
    inode: int | None = ROOT
    for name in path.encode().split(b"/"):
        if inode is None or not table.is_directory(inode):
            return None
        inode = table.lookup(inode, name)
    return None if inode is None or table.is_directory(inode) else inode


class _Sequence:
    """The items of each epoch; the same for the same epoch."""

    def __init__(self, table: InodeTable, channel: Channel, shard: Shard | None) -> None:
        self.table = table
        self._channel = channel
        self._shard = shard
        self._all = self._pieces()
        # A shard by bytes needs them, in the order of the pieces.
        self._sizes_bytes: Inodes | None = None
        if shard is not None and shard.by_bytes:
            self._sizes_bytes = np.array([self._size_bytes(piece) for piece in self._all.tolist()], "int64")

    def _pieces(self) -> Inodes:
        raise NotImplementedError

    def _size_bytes(self, piece: int) -> int:
        raise NotImplementedError

    def _order(self, epoch: int) -> Iterator[int]:
        return map(int, epoch_order(self._all, self._channel.shuffle_seed, epoch, self._shard, self._sizes_bytes))


class Objects(_Sequence):
    """One object after the other, as the source orders them."""

    def items(self, epoch: int) -> Iterator[Item]:
        yield from self.files(epoch)

    def files(self, epoch: int) -> Iterator[File]:
        for inode in self._order(epoch):
            yield File(inode, self.table.ref(inode))

    def _pieces(self) -> Inodes:
        return source_order(self.table)

    def _size_bytes(self, piece: int) -> int:
        return int(self.table.columns["sizes"][self.table.row(piece)])


class Lines(_Sequence):
    """One line of the table's manifest after the other, attribute by attribute."""

    def items(self, epoch: int) -> Iterator[Item]:
        for line in self._order(epoch):
            for attribute in self._attributes(line):
                yield attribute.text if attribute.uri is None else self._file(attribute.uri, line)

    def files(self, epoch: int) -> Iterator[File]:
        with suppress(SourceError):  # which `items` raises in its turn
            yield from (item for item in self.items(epoch) if isinstance(item, File))

    def _pieces(self) -> Inodes:
        self._path, self._text = _manifest(self.table)
        ends = np.flatnonzero(np.frombuffer(self._text, "uint8") == ord("\n"))
        # The offset of each line, and the end; every line ends with a newline.
        self._starts = np.concatenate([[0], ends + 1]).astype("int64")
        return np.arange(len(ends))

    def _size_bytes(self, piece: int) -> int:
        uris = (attribute.uri for attribute in self._attributes(piece))
        return sum(self._file(uri, piece).ref.size_bytes for uri in uris if uri is not None)

    def _attributes(self, line: int) -> list[Attribute]:
        text = bytes(self._text[self._starts[line] : self._starts[line + 1]])
        try:
            return attributes_of(text, self._channel.attribute_names)
        except (ValueError, ConfigurationError) as error:
            raise SourceError(f"{self._path}:{line + 1}: this line makes no sense: {error}") from error

    def _file(self, uri: str, line: int) -> File:
        try:
            source = S3Uri.parse(uri)
        except ConfigurationError as error:
            raise SourceError(f"{self._path}:{line + 1}: {error}") from error
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
