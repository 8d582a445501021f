"""One run at a time below one base directory: the second would take the first one's FIFOs and files for leftovers."""

import fcntl
import os

from fastfuse.errors import ConfigurationError
from fastfuse.sagemaker.files import JobPaths, cannot_make

__all__ = ["claim"]


def claim(paths: JobPaths) -> int:
    """A descriptor that keeps other runs out until the last process that inherited it has ended.

    Raises:
        ConfigurationError: another run is there, or the base directory cannot be made.
        DiskError: the disk is full.
    """
    try:
        paths.input.mkdir(parents=True, exist_ok=True)
        fd = os.open(paths.input, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise cannot_make(paths.input, error) from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(fd)
        raise ConfigurationError(
            f"another fastfuse run uses {paths.base}", hint="wait for its end, or give another --base-dir"
        ) from error
    return fd
