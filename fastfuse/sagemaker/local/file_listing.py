"""List the files below a directory as the objects of a prefix, for shards and for Pipe mode.

The table's bucket is the directory, and its keys are the paths below it: shards, order and shuffling are those of keys.
Links to files are followed as long as they stay in the file system of the channel.
"""

import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from fastfuse.errors import EmptySourceError, SourceError
from fastfuse.index.inodes.builder import TableBuilder
from fastfuse.index.inodes.selection import take_part
from fastfuse.index.inodes.table import InodeTable
from fastfuse.index.inodes.tree import Refusals
from fastfuse.index.snapshot import Snapshot, save_snapshot
from fastfuse.index.sources.shard import Shard
from fastfuse.sagemaker.description.channel import LocalDirectory
from fastfuse.sagemaker.local.finding import Found, find_directory

__all__ = ["index_files", "list_files"]


class _File(NamedTuple):
    key: bytes
    size_bytes: int
    mtime_ns: int


def list_files(found: Found, shard: Shard | None, *, allow_empty: bool) -> InodeTable:
    """Return a table of the files of the directory, or of a host's share of them.

    Raises:
        SourceError: the directory cannot be read, has no file, or has one that cannot be taken.
    """
    builder = TableBuilder(str(found.path), "")
    waiting = [b""]
    try:
        while waiting:
            files = list(_look_into(found, waiting.pop(), waiting))
            _, sizes, mtimes = zip(*files, strict=True) if files else ((), (), ())
            builder.add([file.key for file in files], sizes, mtimes, [""] * len(files), ["STANDARD"] * len(files))
    except OSError as error:
        raise SourceError(f"{_shown(error.filename)} cannot be read: {error.strerror}") from error
    table, refusals = builder.build()
    if refusals.total:
        name, reason = refusals.examples[0]
        raise SourceError(f"{_shown(name)} in {found.path} cannot be taken: {reason}", hint="rename the file")
    if not table.metadata.file_count and not allow_empty:
        raise EmptySourceError(f"no file is below {found.path}", hint="--allow-empty takes it as it is")
    return table if shard is None else take_part(table, shard.positions)


def index_files(source: LocalDirectory, place: Path, shard: Shard | None, *, allow_empty: bool) -> tuple[int, int]:
    """Return a descriptor of an index of the directory that a channel streams at `place`, and the number of files.

    Raises:
        FastfuseError: as `find_directory` and `list_files`.
    """
    table = list_files(find_directory(source, place, allow_empty=allow_empty), shard, allow_empty=allow_empty)
    fd = os.memfd_create("fastfuse-files", os.MFD_CLOEXEC)
    save_snapshot(Snapshot(source=str(source), listed_at_ns=time.time_ns(), table=table, refusals=Refusals()), fd)
    return fd, table.metadata.file_count


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
                    f"{_shown(entry.path)} is neither a file nor a directory, nor a link to a file",
                    hint="remove it, or read the directory unsharded in File or FastFile mode, which shows it as it is",
                )
            yield _File(folder + entry.name, status.st_size, status.st_mtime_ns)


def _check_link(found: Found, path: bytes) -> None:
    target = Path(os.fsdecode(os.path.realpath(path)))
    if not target.is_relative_to(found.root):
        raise SourceError(
            f"{_shown(path)} is a link to {str(target)!r}, outside of {str(found.root)!r}",
            hint="put the file there in the place of the link, or read the directory unsharded in FastFile mode",
        )


def _shown(path: bytes | str) -> str:
    return repr(os.fsdecode(path))
