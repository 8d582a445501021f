"""What an epoch consists of: the objects of a table, or the lines of an augmented manifest."""

from collections.abc import Iterator
from typing import Protocol

import numpy as np

from fastfuse.errors import ConfigurationError, SourceError
from fastfuse.index.inodes.table import ROOT, InodeTable
from fastfuse.index.sources.uri import S3Uri
from fastfuse.sagemaker.pipe.epoch import Item
from fastfuse.sagemaker.pipe.lookahead import File
from fastfuse.sagemaker.pipe.manifest_lines import Attribute, attributes_of
from fastfuse.sagemaker.pipe.order import epoch_order, find_object, source_order
from fastfuse.sagemaker.pipe.pipe_settings import PipeSettings
from fastfuse.sagemaker.pipe.recordio import MAX_RECORD_BYTES

__all__ = ["Sequence", "sequence_of"]


class Sequence(Protocol):
    """The same for the same epoch, as often as it is asked for."""

    @property
    def table(self) -> InodeTable: ...

    def items(self, epoch: int) -> Iterator[Item]:
        """Everything, in order. May raise `SourceError`."""
        ...

    def files(self, epoch: int) -> Iterator[File]:
        """The objects among `items`; ends early where something is wrong, which `items` tells."""
        ...


def sequence_of(table: InodeTable, settings: PipeSettings) -> Sequence:
    """What `settings` want of `table`.

    Raises:
        ConfigurationError: an object is too long for a record, or the table is of no augmented manifest.
    """
    sequence = _Lines(table, settings) if settings.is_augmented else _Objects(table, settings)
    if settings.wraps_records and not settings.is_gzip:
        _check_records(table)
    return sequence


def _check_records(table: InodeTable) -> None:
    sizes = table.columns["sizes"]
    row = int(np.argmax(sizes))
    if int(sizes[row]) >= MAX_RECORD_BYTES:
        ref = table.ref(table.inode(row))
        raise ConfigurationError(
            f"{f's3://{ref.bucket}/{ref.key}'!r} has {ref.size_bytes:,} bytes; a RecordIO record holds less than "
            f"{MAX_RECORD_BYTES:,}",
            hint="leave RecordWrapperType out, or split the object",
        )


class _Objects:
    """Object after object, as the source orders them."""

    def __init__(self, table: InodeTable, settings: PipeSettings) -> None:
        self.table = table
        self._seed = settings.shuffle_seed
        self._inodes = source_order(table)

    def items(self, epoch: int) -> Iterator[Item]:
        yield from self.files(epoch)

    def files(self, epoch: int) -> Iterator[File]:
        for inode in epoch_order(self._inodes, self._seed, epoch):
            yield File(int(inode), self.table.ref(int(inode)))


class _Lines:
    """Line after line of the manifest that the table carries, attribute after attribute."""

    def __init__(self, table: InodeTable, settings: PipeSettings) -> None:
        self.table = table
        self._seed = settings.shuffle_seed
        self._names = settings.attribute_names
        self._path, self._text = _manifest(table)
        ends = np.flatnonzero(np.frombuffer(self._text, "uint8") == ord("\n"))
        # Where each line begins; the manifest was written with an end for each.
        self._starts = np.concatenate([[0], ends + 1]).astype("int64")

    def items(self, epoch: int) -> Iterator[Item]:
        for line in epoch_order(np.arange(len(self._starts) - 1), self._seed, epoch):
            for attribute in self._attributes(int(line)):
                yield attribute.text if attribute.uri is None else self._file(attribute.uri, int(line))

    def files(self, epoch: int) -> Iterator[File]:
        try:
            for item in self.items(epoch):
                if isinstance(item, File):
                    yield item
        except SourceError:
            return

    def _attributes(self, line: int) -> list[Attribute]:
        text = bytes(self._text[self._starts[line] : self._starts[line + 1]])
        try:
            return attributes_of(text, self._names)
        except ValueError as error:
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
    """Name and bytes of the one made file at the root."""
    for _, name, attributes in table.children(ROOT):
        if not attributes.is_directory and table.is_made(attributes.inode):
            return name.decode(), table.made(attributes.inode)
    raise ConfigurationError(
        "the index of the channel carries no augmented manifest", hint="its S3DataType must be AugmentedManifestFile"
    )
