"""The options of the local tier, and their check."""

import os
from pathlib import Path
from typing import Annotated, Final

from fastfuse.cache.settings import CacheSettings
from fastfuse.cli.options import setting
from fastfuse.errors import ConfigurationError
from fastfuse.s3.base import ConnectionConfig
from fastfuse.sizes import MIB, format_size, parse_share

__all__ = ["cache", "checked_cache"]

_CACHE = "Local cache"
# Segments of 1 MiB each, and an index.
_MINIMUM_BYTES: Final = 64 * MIB
_SIZE, _MIN_FREE = "80%", "10%"


def cache(
    cache: Annotated[Path | None, setting("--cache DIR", _CACHE,
        "Keep what is fetched in this directory, for every later reader on this node: it is made if it is missing. "
        "All mounts and jobs that name it share it.")] = None,
    cache_size: Annotated[str, setting("--cache-size SIZE|PERCENT", _CACHE,
        "What the directory may take: 500GiB, or a share of its file system.")] = _SIZE,
    cache_min_free: Annotated[str, setting("--cache-min-free SIZE|PERCENT", _CACHE,
        "What has to stay free in that file system, whoever fills it.")] = _MIN_FREE,
) -> CacheSettings | None:  # fmt: skip
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


def checked_cache(cache: CacheSettings | None, connection: ConnectionConfig) -> CacheSettings | None:
    """Return `cache`, unless it would keep in the clear what is encrypted with a key of the user's.

    Raises:
        ConfigurationError: it would.
    """
    if cache is not None and connection.sse_c_key_file is not None:
        raise ConfigurationError(
            "--cache would keep objects in the clear that --sse-c-key-file decrypts", hint="give one of the two"
        )
    return cache
