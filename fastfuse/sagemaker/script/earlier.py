"""Moves aside the files that an earlier run left below the base directory: each job begins with empty directories.

SageMaker gives each job a new instance. Here the files of the earlier run move to ``runs/<its name>`` on the same disk,
and nothing is deleted. A file in the base directory names the run whose files are there: others are not ours to move.
"""

import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path

from fastfuse.errors import ConfigurationError, DiskError
from fastfuse.filesystem.mountpoint import find_mount
from fastfuse.sagemaker.script.directories import open_directory
from fastfuse.sagemaker.script.files import FREE_SPACE, JobPaths

__all__ = ["put_aside"]

_MARK = ".fastfuse-run"
_RUNS = "runs"
_MOST_NAME_BYTES = 4096


def put_aside(paths: JobPaths, name: str, *, keeps: bool, fetches_code: bool = False) -> Path | None:
    """Move what the earlier run left, unless this one `keeps` it, and note that the run `name` begins.

    The code goes, too, if the run `fetches_code`: SageMaker's toolkit would run the earlier run's.

    Return where it is now, or None where nothing was moved. The caller has claimed the base directory.

    Raises:
        ConfigurationError: files are there that no run of fastfuse made, or that cannot be moved.
    """
    base_fd = open_directory(paths.base, paths.base)
    try:
        moved = None if keeps else _put_aside(paths, base_fd, fetches_code=fetches_code)
        fd = os.open(_MARK, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644, dir_fd=base_fd)
        with os.fdopen(fd, "w", encoding="utf-8") as mark:
            json.dump({"name": name}, mark)
        return moved
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise DiskError(f"nothing can be written below {paths.base}: {error.strerror}", hint=FREE_SPACE) from error
        raise ConfigurationError(
            f"what an earlier run left below {paths.base} cannot be moved: {error.filename}: {error.strerror}",
            hint="move it yourself, begin with it (--keep), or give another --base-dir",
        ) from error
    finally:
        os.close(base_fd)


def _put_aside(paths: JobPaths, base_fd: int, *, fetches_code: bool) -> Path | None:
    left, name = list(_left(paths)), _earlier_name(base_fd)
    if fetches_code and name is not None and _has_files(paths.code):
        left.append(paths.code)
    if not left:
        return None
    if name is None:
        raise ConfigurationError(
            f"{left[0]} has files that no run of fastfuse left there",
            hint="give another --base-dir, or begin with them (--keep)",
        )
    aside = _new_directory(paths.base, name)
    for path in left:
        below = path.relative_to(paths.base)
        from_fd, to_fd = open_directory(path.parent, paths.base), open_directory((aside / below).parent, paths.base)
        try:
            os.rename(below.name, below.name, src_dir_fd=from_fd, dst_dir_fd=to_fd)
        finally:
            os.close(from_fd)
            os.close(to_fd)
    return aside


def _left(paths: JobPaths) -> Iterator[Path]:
    """Yield the channels, and the other directories, that have files. A mount is somebody's, and stays."""
    try:
        channels = sorted(paths.data.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        channels = []
    for path in (*channels, paths.model, paths.output, paths.checkpoints):
        is_mounted_channel = path.parent == paths.data and find_mount(path) is not None
        if not is_mounted_channel and _has_files(path):
            yield path


def _has_files(path: Path) -> bool:
    if path.is_symlink() or (path.exists() and not path.is_dir()):
        return True
    # A directory is looked into and no further than to its first file; links to directories are files, too.
    for top, folders, files in os.walk(path):
        if files or any(os.path.islink(os.path.join(top, folder)) for folder in folders):
            return True
    return False


def _earlier_name(base_fd: int) -> str | None:
    """Return the name of the run whose files are there, fit for a directory; None if there was none."""
    try:
        fd = os.open(_MARK, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=base_fd)
    except FileNotFoundError:
        return None
    with os.fdopen(fd, "rb") as mark:
        text = mark.read(_MOST_NAME_BYTES)
    try:
        name = str(json.loads(text)["name"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return "earlier"
    return name if name.replace("-", "").isalnum() and name.isascii() else "earlier"


def _new_directory(base: Path, name: str) -> Path:
    runs_fd = open_directory(base / _RUNS, base)
    try:
        number = 1
        while True:
            chosen = name if number == 1 else f"{name}-{number}"
            try:
                os.mkdir(chosen, dir_fd=runs_fd)
            except OSError as error:
                if error.errno != errno.EEXIST:
                    raise
                number += 1
            else:
                return base / _RUNS / chosen
    finally:
        os.close(runs_fd)
