"""One run at a time below one base directory: the second would take the first one's FIFOs and files for leftovers."""

import fcntl
import os

from fastfuse.errors import ConfigurationError
from fastfuse.sagemaker.files import JobPaths

__all__ = ["claim"]


def claim(paths: JobPaths) -> int:
    """A descriptor that keeps other runs out until the last process that inherited it has ended.

    Raises:
        ConfigurationError: another run is there, or the base directory cannot be made.
    """
    try:
        paths.input.mkdir(parents=True, exist_ok=True)
        fd = os.open(paths.input, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise ConfigurationError(
            f"{str(paths.input)!r} cannot be made: {error.strerror}",
            hint="run as root, or name a directory of yours with --base-dir",
        ) from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(fd)
        raise ConfigurationError(
            f"another fastfuse run uses {paths.base}", hint="wait for its end, or give another --base-dir"
        ) from error
    return fd
