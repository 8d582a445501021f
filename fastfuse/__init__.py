"""fastfuse: an S3 prefix as a read-only file system, streamed to training jobs.

`mount`, `stats`, `hints` and `errors` are for Python programs::

    with fastfuse.mount("s3://bucket/train/") as mnt:
        dataset = Images(mnt.path)

docs/ARCHITECTURE.md draws the processes and the floors of this package, explains its words, and says where to change
what. `tests/test_architecture.py` owns the table of who may import whom.
"""

import importlib
from typing import TYPE_CHECKING, Any

from fastfuse.version import VERSION as __version__

if TYPE_CHECKING:
    from fastfuse import errors, hints
    from fastfuse.api import Mount, mount, stats

__all__ = ["Mount", "__version__", "errors", "hints", "mount", "stats"]


def __getattr__(name: str) -> Any:  # noqa: ANN401 -- a module, a class or a function
    """Load what is asked for: the command line, which imports this package first, needs none of it."""
    if name in {"errors", "hints"}:
        return importlib.import_module(f"fastfuse.{name}")
    if name in __all__:
        return getattr(importlib.import_module("fastfuse.api"), name)
    raise AttributeError(f"module 'fastfuse' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Name them to `help` and to completion, although they are not loaded yet."""
    return __all__
