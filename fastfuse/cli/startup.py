"""Start and end fast: nearly everything that a command loads lives until its process ends."""

import atexit
import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["loading", "prepare"]


def prepare() -> None:
    """Set up the process before it loads what it needs."""
    # numpy serves for its arrays only. Its OpenBLAS would start a thread for each core, and until the first fork ends
    # them they spin: 100 to 200 ms of CPU on four cores.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # As it ends, Python searches all objects for garbage: 250 ms of CPU after a mount, 30 ms if they are frozen.
    atexit.register(gc.freeze)


@contextmanager
def loading() -> Iterator[None]:
    """Load modules without searches for garbage in between, which take a tenth of the start of a mount."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
