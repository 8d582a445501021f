"""Channels that are directories of this host: on its own disk, or of a file system that is mounted (EFS, FSx, NFS).

`find_directory` refuses a directory that is missing, empty, not mounted, or elsewhere than it seems. For Pipe mode, for
shards and for manifests its files are listed as the objects of a prefix: the table's bucket is the directory, and its
keys are the paths below it. `FileReader` reads them in the place of an S3 client. `local_places` shows them in other
modes.
"""

import os
import stat
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import trio

from fastfuse.errors import (
    ConfigurationError,
    EmptySourceError,
    ObjectChangedError,
    ObjectDeniedError,
    SourceError,
    UnavailableError,
)
from fastfuse.filesystem.mounting.mountpoint import mount_holding
from fastfuse.index.inodes.builder import TableBuilder
from fastfuse.index.inodes.selection import take_part
from fastfuse.index.inodes.table import InodeTable
from fastfuse.index.inodes.tree import Refusals
from fastfuse.index.listing.named import MAX_MANIFEST_BYTES
from fastfuse.index.origin import IndexOrigin, SourceKind
from fastfuse.index.snapshot import Snapshot, save_snapshot
from fastfuse.index.sources.manifests import AugmentedLine, filtered_manifest, read_augmented_manifest, read_manifest
from fastfuse.index.sources.shard import Shard
from fastfuse.index.sources.uri import S3Uri, shown
from fastfuse.metrics import Counters
from fastfuse.objects import Buffer, ObjectRef
from fastfuse.regular_files import open_regular
from fastfuse.s3.buffers import PartBuffers
from fastfuse.s3.whole import read_fully
from fastfuse.sagemaker.description.channel import LocalDirectory
from fastfuse.sagemaker.files import quoted


class Found(NamedTuple):
    """The directory of a channel, and the one that nothing in it may lead out of, whose path has no link in it."""

    path: Path
    root: Path


def find_directory(source: LocalDirectory, place: Path | None, *, allow_empty: bool) -> Found:
    """Return where the directory is that a channel will show at `place`; None: it shows files that a manifest names.

    Raises:
        ConfigurationError: `place` lies in the directory.
        SourceError: the directory cannot be used; the error says why, and what to do.
    """
    try:
        root = Path(os.path.realpath(source.mounted_at or source.path, strict=True))
        path = _below(root, source) if source.file_system else root
        with os.scandir(path) as entries:
            is_empty = not any(entries)
    except OSError as error:
        shown = f"{source.path!r} of {source.file_system}" if source.file_system else repr(source.path)
        raise SourceError(
            f"the directory {shown} cannot be used: {error.filename!r}: {error.strerror}",
            hint="is its file system mounted? Mount it, or name another directory",
        ) from error
    if is_empty and not allow_empty:
        raise EmptySourceError(
            f"the directory {str(path)!r} is empty",
            hint="is its file system mounted? With --allow-empty it is taken as it is",
        )
    if place is not None and Path(os.path.realpath(place.parent), place.name).is_relative_to(path):
        raise ConfigurationError(
            f"the directory {str(path)!r} holds {str(place)!r}, where the channel belongs",
            hint="leave the channel out if its data are there already, or give another --base-dir",
        )
    return Found(path, root)


def _below(root: Path, source: LocalDirectory) -> Path:
    """Return the directory of a file system that is mounted at `root`."""
    mount = mount_holding(root)
    if mount is None or mount.path == Path("/"):
        raise SourceError(
            f"nothing is mounted at {str(root)!r}, where --file-system says that {source.file_system} is",
            hint="mount the file system there, or name the place where it is mounted",
        )
    # An NFS or Lustre mount of HOST:/FOLDER shows that folder, and DirectoryPath begins at the file system's root: on
    # FSx for Lustre with the mount name.
    _, _, folder = mount.source.rpartition(":/")
    path = PurePosixPath(f"/{source.path.lstrip('/')}")  # more slashes at its begin mean one
    is_shown = mount.path == root and path.is_relative_to(f"/{folder}")
    place = root / path.relative_to(f"/{folder}" if is_shown else "/")
    found = Path(os.path.realpath(place, strict=True))
    if not found.is_relative_to(root):
        raise SourceError(
            f"the directory {str(place)!r} is a link to {str(found)!r}, outside of the file system",
            hint=f"give {found} as a channel of its own, or a directory without such a link",
        )
    return found


_ALLOW_EMPTY = "--allow-empty takes it as it is"
# Key, size in bytes and time of the last change in nanoseconds.
_File = tuple[bytes, int, int]


def _find_named(source: LocalDirectory, origin: IndexOrigin) -> tuple[Found, InodeTable]:
    """Return the directory of the prefix of a manifest, and a table of the files that it names, in its order."""
    directory = ""

    def below(uri: str) -> S3Uri:
        nonlocal directory
        path = _path_of(uri)
        # The first URI is the prefix, with which the others begin.
        directory = directory or path.rpartition("/")[0] or "/"
        return S3Uri(directory, path.removeprefix(directory).lstrip("/"))

    names = [one.key.encode() for one in read_manifest(_read(source.path), source.path, below)]
    if not names and not origin.allow_empty:
        raise EmptySourceError(f"the manifest {source.path!r} names no file", hint=_ALLOW_EMPTY)
    found = find_directory(LocalDirectory(path=directory), None, allow_empty=origin.allow_empty)
    return found, list_files(found, origin.shard, allow_empty=origin.allow_empty, names=names)


def _find_lines(source: LocalDirectory, origin: IndexOrigin) -> tuple[Found, InodeTable]:
    """Return the directory that holds every file of an augmented manifest, and a table of the files of a host's lines.

    The table has these lines, too, as a file of the manifest's name. Links in the path of the directory stay, because
    the lines have them.
    """
    lines = read_augmented_manifest(_read(source.path), source.path, origin.attribute_names, _file_of)
    if not lines and not origin.allow_empty:
        raise EmptySourceError(f"the manifest {source.path!r} has no lines", hint=_ALLOW_EMPTY)
    folders = {one.bucket for line in lines for one in line.references}
    directory = os.path.commonpath(folders or {os.path.dirname(source.path)})
    found = find_directory(LocalDirectory(path=directory), None, allow_empty=True)._replace(path=Path(directory))

    def names(lines: Iterable[AugmentedLine]) -> list[bytes]:
        files = (f"{one.bucket}/{one.key}" for line in lines for one in line.references)
        return [file.removeprefix(directory).lstrip("/").encode() for file in files]

    if (shard := origin.shard) is not None:
        weighed = {*names(lines)} if shard.by_bytes else ()
        sizes = {name: size_bytes for name, size_bytes, _ in _look_at(found, weighed)}
        loads = [sum(sizes.get(name, 0) for name in names([line])) for line in lines]
        lines = [lines[at] for at in shard.positions(loads)]
    made = (os.path.basename(source.path).encode(), filtered_manifest(lines))
    return found, list_files(found, None, allow_empty=True, names=names(lines), made=made)


def _read(path: str) -> bytes:
    """Return the content of a manifest."""
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            data = file.read(MAX_MANIFEST_BYTES + 1)
    except OSError as error:
        raise SourceError(f"the manifest {path!r} cannot be read: {error.strerror}") from error
    if len(data) > MAX_MANIFEST_BYTES:
        raise SourceError(
            f"the manifest {path!r} has more than {MAX_MANIFEST_BYTES:,} bytes", hint="is it the manifest?"
        )
    return data


def _path_of(uri: str, *refused: str) -> str:
    """Return the path in a ``file://`` URI; no part of it may be one of `refused`, or ``..``."""
    scheme, _, path = uri.partition("://")
    first, *parts = path.split("/")
    is_text = "\0" not in path and path.encode(errors="replace").decode() == path
    if scheme != "file" or first or not {"..", *refused}.isdisjoint(parts) or not is_text:
        raise ConfigurationError(
            f"{shown(uri)} is not the full path of a file of this host",
            hint="a manifest of this host has file:///DIRECTORY/FILE, and no .. in it",
        )
    return path


def _file_of(uri: str) -> S3Uri:
    """Return directory and name of the file that a line of an augmented manifest names."""
    directory, _, name = _path_of(uri, ".", "").rpartition("/")
    return S3Uri(directory or "/", name)


def list_files(
    found: Found,
    shard: Shard | None,
    *,
    allow_empty: bool,
    names: Sequence[bytes] | None = None,
    made: tuple[bytes, bytes] | None = None,
) -> InodeTable:
    """Return a table of the files of the directory, or of those whose `names` are given, or of a host's share of them.

    It has a file that is `made`, too: a name and a content.

    Raises:
        SourceError: the directory cannot be read, has no file, or has one that cannot be taken.
    """
    builder = TableBuilder(str(found.path), "")
    try:
        if names is None:
            waiting = [b""]
            while waiting:
                _add(builder, _look_into(found, waiting.pop(), waiting))
        else:
            places = {name: at for at, name in enumerate(sorted({*names}))}
            _add(builder, _look_at(found, places))
            builder.set_source_order([places[name] for name in names])
    except OSError as error:
        raise _unreadable(error) from error
    if made is not None:
        builder.add_made(*made, mtime_ns=0)
    table, refusals = builder.build()
    if refusals.total:
        name, reason = refusals.examples[0]
        raise SourceError(f"{quoted(name)} in {found.path} cannot be taken: {reason}", hint="rename the file")
    if not table.metadata.file_count and not allow_empty:
        raise EmptySourceError(f"no file is below {found.path}", hint=_ALLOW_EMPTY)
    return table if shard is None else take_part(table, shard.positions)


def index_files(source: LocalDirectory, place: Path, origin: IndexOrigin) -> int:
    """Return a descriptor of an index of the directory that a channel streams at `place`.

    Raises:
        FastfuseError: as `find_directory` and `list_files`.
    """
    table = find_files(source, place, origin)[1]
    fd = os.memfd_create("fastfuse-files", os.MFD_CLOEXEC)
    save_snapshot(Snapshot(source=str(source), listed_at_ns=time.time_ns(), table=table, refusals=Refusals()), fd)
    return fd


def find_files(source: LocalDirectory, place: Path, origin: IndexOrigin) -> tuple[Found, InodeTable]:
    """Return the directory of a source, and a table of its files, of those that a manifest names, or of a share.

    Raises:
        FastfuseError: a manifest cannot be read, or as `find_directory` and `list_files`.
    """
    if origin.kind is SourceKind.AUGMENTED_MANIFEST:
        return _find_lines(source, origin)
    if origin.kind is SourceKind.MANIFEST:
        return _find_named(source, origin)
    found = find_directory(source, place, allow_empty=origin.allow_empty)
    return found, list_files(found, origin.shard, allow_empty=origin.allow_empty)


def _add(builder: TableBuilder, found: Iterable[_File]) -> None:
    files = list(found)
    keys, sizes, mtimes = zip(*files, strict=True) if files else ((), (), ())
    builder.add(keys, sizes, mtimes, [""] * len(files), ["STANDARD"] * len(files))


def _look_at(found: Found, names: Iterable[bytes]) -> Iterator[_File]:
    """Yield the files below the directory that have these names."""
    for name in names:
        path = os.path.join(os.fsencode(found.path), name)
        try:
            status = os.stat(path)
        except OSError as error:
            raise _unreadable(error) from error
        if not stat.S_ISREG(status.st_mode):
            raise SourceError(f"{quoted(path)}, which the manifest names, is no file", hint="take it out")
        _check_link(found, path)
        yield name, status.st_size, status.st_mtime_ns


def _look_into(found: Found, folder: bytes, waiting: list[bytes]) -> Iterator[_File]:
    """Yield the files of a folder, and add its subdirectories to `waiting`; both are paths below the directory."""
    with os.scandir(os.path.join(os.fsencode(found.path), folder)) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                waiting.append(folder + entry.name + b"/")
                continue
            if entry.is_symlink():
                _check_link(found, entry.path)
            status = entry.stat()
            if not stat.S_ISREG(status.st_mode):
                raise SourceError(
                    f"{quoted(entry.path)} is neither a file nor a directory, nor a link to a file",
                    hint="remove it, or read the directory unsharded in File or FastFile mode, which shows it as it is",
                )
            yield folder + entry.name, status.st_size, status.st_mtime_ns


def _unreadable(error: OSError) -> SourceError:
    return SourceError(f"{quoted(error.filename)} cannot be read: {error.strerror}")


def _check_link(found: Found, path: bytes) -> None:
    target = Path(os.fsdecode(os.path.realpath(path)))
    if not target.is_relative_to(found.root):
        raise SourceError(
            f"{quoted(path)} is a link to {str(target)!r}, outside of {str(found.root)!r}",
            hint="put the file there in the place of the link, or read the directory unsharded in FastFile mode",
        )


class FileReader:
    """A `RangeReader` of files: the bucket of a ref is a directory, and its key a path below."""

    def __init__(self, buffers: PartBuffers, counters: Counters) -> None:
        self._buffers = buffers
        self._counters = counters

    async def get(self, ref: ObjectRef, start: int, end: int) -> Buffer:
        """Return the bytes as `RangeReader.get` does; a file system that does not answer is waited for."""
        buffer = self._buffers.take(end - start)
        await trio.to_thread.run_sync(_fill, buffer, ref, start, abandon_on_cancel=True)
        self._counters.count("fastfuse_fetched_bytes", end - start)
        return buffer

    async def aclose(self) -> None:
        """Close nothing: no file is open between two reads."""


def _fill(buffer: memoryview, ref: ObjectRef, start: int) -> None:
    try:
        fd = os.open(f"{ref.bucket}/{ref.key}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            # It may be written to meanwhile.
            is_same = _is_of(ref, fd) and read_fully(buffer, fd, start) and _is_of(ref, fd)
        finally:
            os.close(fd)
    except FileNotFoundError as error:
        raise ObjectChangedError(f"{ref.uri!r} was removed since the job began") from error
    except OSError as error:
        kind = ObjectDeniedError if isinstance(error, PermissionError) else UnavailableError
        raise kind(f"{ref.uri!r} cannot be read: {error.strerror}") from error
    if not is_same:
        raise ObjectChangedError(f"{ref.uri!r} has changed since the job began")


def _is_of(ref: ObjectRef, fd: int) -> bool:
    """Return whether an open file has the size and the time that were listed."""
    status = os.fstat(fd)
    return (status.st_size, status.st_mtime_ns) == (ref.size_bytes, ref.modified_ns)
