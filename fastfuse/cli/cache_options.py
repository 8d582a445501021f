"""The options of the local tier, and their check."""

import os
from pathlib import Path
from typing import Annotated, Final

import typer

from fastfuse.cache.settings import CacheSettings
from fastfuse.errors import ConfigurationError
from fastfuse.sizes import MIB, format_size, parse_share

__all__ = ["cache"]

_CACHE = "Local cache"
# Segments of 1 MiB each, and an index.
_MINIMUM_BYTES: Final = 64 * MIB
_SIZE, _MIN_FREE = "80%", "10%"

Directory = Annotated[
    Path | None,
    typer.Option(
        "--cache", envvar="FASTFUSE_CACHE", metavar="DIR", rich_help_panel=_CACHE,
        help="Keep what is fetched in this directory, for every later reader on this node: it is made if it is "
        "missing. All mounts and jobs that name it share it.",
    ),
]  # fmt: skip
Size = Annotated[
    str,
    typer.Option(
        "--cache-size", envvar="FASTFUSE_CACHE_SIZE", metavar="SIZE|PERCENT", rich_help_panel=_CACHE,
        help="What the directory may take: 500GiB, or a share of its file system.",
    ),
]  # fmt: skip
MinFree = Annotated[
    str,
    typer.Option(
        "--cache-min-free", envvar="FASTFUSE_CACHE_MIN_FREE", metavar="SIZE|PERCENT", rich_help_panel=_CACHE,
        help="What has to stay free in that file system, whoever fills it.",
    ),
]  # fmt: skip


def cache(
    cache: Directory = None, cache_size: Size = _SIZE, cache_min_free: MinFree = _MIN_FREE
) -> CacheSettings | None:
    """Return the settings of the tier, or None without one. Asks the file system for its size.

    Raises:
        ConfigurationError: a size that is none, less than the minimum, or more than there is; or no directory for it.
    """
    if cache is None:
        if (cache_size, cache_min_free) != (_SIZE, _MIN_FREE):
            raise ConfigurationError("--cache-size and --cache-min-free take --cache", hint="name a directory with it")
        return None
    directory = Path(os.path.abspath(cache))
    try:
        there = os.statvfs(directory if directory.exists() else directory.parent)
    except OSError as error:
        raise ConfigurationError(
            f"--cache {str(directory)!r} cannot be used: {error.strerror}", hint="make the directory that it lies in"
        ) from error
    whole_bytes = there.f_blocks * there.f_frsize
    size_bytes = parse_share(cache_size, whole_bytes, "--cache-size")
    if not _MINIMUM_BYTES <= size_bytes <= whole_bytes:
        raise ConfigurationError(
            f"--cache-size {cache_size} is {format_size(size_bytes)}; a cache takes at least "
            f"{format_size(_MINIMUM_BYTES)}, and its file system has {format_size(whole_bytes)}",
            hint="give a percentage, as in 80%, to stay below it",
        )
    min_free_bytes = parse_share(cache_min_free, whole_bytes, "--cache-min-free")
    return CacheSettings(directory=directory, size_bytes=size_bytes, min_free_bytes=min_free_bytes)
