"""What the C library keeps of the memory that it has given out."""

import ctypes


def trim_malloc() -> None:
    """Give what is free back to the system, wherever it lies; by itself, the C library gives back only the end."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):  # musl has none
        libc.malloc_trim(0)
