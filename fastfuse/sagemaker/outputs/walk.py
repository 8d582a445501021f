"""Finds the files that a job has made, in the same order each time, without following a link."""

import logging
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from fastfuse.errors import OutputError
from fastfuse.sagemaker.script.directories import open_directory, path_of

__all__ = ["Found", "open_found", "unreadable", "walk"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Found:
    """A file, a directory or a symbolic link."""

    # The directory that holds it, open until the next one is asked for.
    parent_fd: int
    name: str
    # The path below the directory where the walk began.
    path: str
    status: os.stat_result

    @property
    def is_file(self) -> bool:
        return stat.S_ISREG(self.status.st_mode)

    @property
    def is_directory(self) -> bool:
        return stat.S_ISDIR(self.status.st_mode)

    @property
    def is_link(self) -> bool:
        return stat.S_ISLNK(self.status.st_mode)

    @property
    def place(self) -> Path:
        """A path to it that leads through no link."""
        return path_of(self.parent_fd) / self.name


def walk(directory: Path, base: Path) -> Iterator[Found]:
    """Yield everything below `directory`, which lies below `base`: by name, each directory before what it holds.

    FIFOs, sockets and devices are left out, with a warning. So is what vanishes meanwhile, without one.

    Raises:
        OutputError: something cannot be read; the message names it.
    """
    try:
        fd = open_directory(directory, base)
    except OSError as error:
        raise unreadable(directory, error) from error
    try:
        yield from _walk(fd, directory, "")
    finally:
        os.close(fd)


def _walk(fd: int, directory: Path, above: str) -> Iterator[Found]:
    try:
        for name in sorted(os.listdir(fd)):
            path = above + name
            try:
                status = os.stat(name, dir_fd=fd, follow_symlinks=False)
            except FileNotFoundError:
                continue
            found = Found(fd, name, path, status)
            if not (found.is_file or found.is_directory or found.is_link):
                _log.warning("%r is neither a file, a directory nor a link, and is left out", str(directory / path))
                continue
            yield found
            if found.is_directory:
                try:
                    below_fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
                except FileNotFoundError:
                    continue
                try:
                    yield from _walk(below_fd, directory, f"{path}/")
                finally:
                    os.close(below_fd)
    except OSError as error:
        raise unreadable(directory / above / str(error.filename or ""), error) from error


def open_found(found: Found) -> BinaryIO:
    """Open a file for reading.

    Raises:
        OSError: it cannot be opened, or is no file any more.
    """
    # A FIFO in its place must not make us wait.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    return os.fdopen(os.open(found.name, flags, dir_fd=found.parent_fd), "rb")


def unreadable(path: Path, error: OSError) -> OutputError:
    """Return the error for something that cannot be read; `error` has the reason."""
    return OutputError(f"{str(path)!r} cannot be read: {error.strerror or error}")
