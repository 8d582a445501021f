"""Directories below the base directory of a job, opened without following a link that somebody put there."""

import errno
import os
from contextlib import suppress
from pathlib import Path

__all__ = ["open_directory", "path_of"]


def open_directory(path: Path, base: Path) -> int:
    """Return a descriptor of the directory `path`, made if it is missing, which lies below `base`.

    Whoever named `base` may have named a symbolic link. One below it is never followed: a job that runs as root would
    write wherever the owner of a directory likes. Each component is opened in the one before, as openat2(2) does with
    RESOLVE_NO_SYMLINKS, which old kernels and container engines do not know.

    Raises:
        OSError: it cannot be had; the error names the path.
    """
    base.mkdir(parents=True, exist_ok=True)
    names = path.relative_to(base).parts
    fd, place = os.open(base, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC), base
    for number, name in enumerate(names, 1):
        place /= name
        try:
            with suppress(FileExistsError):
                os.mkdir(name, dir_fd=fd)
            # Passing through a directory takes no right to read it.
            access = os.O_PATH if number < len(names) else os.O_RDONLY
            below = os.open(name, access | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
        except OSError as error:
            is_link = error.errno in {errno.ELOOP, errno.ENOTDIR} and place.is_symlink()
            reason = f"{place} is a symbolic link, and none below {base} is followed" if is_link else error.strerror
            raise OSError(error.errno, reason, str(place)) from error
        finally:
            os.close(fd)
        fd = below
    return fd


def path_of(fd: int) -> Path:
    """Return a path to the open directory `fd` that leads there whatever becomes of its name; proc(5)."""
    return Path(f"/proc/self/fd/{fd}")
