"""What to do in place of options that other programs have and fastfuse lacks.

Users of Mountpoint, s3fs, goofys, rclone and gcsfuse type what they are used to. docs/MIGRATION.md has every option.
Here are those that are typed most and that no option of fastfuse resembles.
"""

from collections.abc import Mapping
from typing import Final

_SOURCE: Final = "the prefix is part of the source: s3://BUCKET/PREFIX"
_ALWAYS: Final = "leave it out: every mount is like that"
_FOREGROUND: Final = "leave it out: a mount stays in the foreground without --daemon"
_VIEW: Final = "leave it out: a mount shows a listing, which 'fastfuse refresh MOUNTPOINT' renews"
_CACHE: Final = "--cache DIR keeps what was fetched on a local disk, up to --cache-size"
_READAHEAD: Final = "leave it out: readahead grows as files are read, within --memory-target"
_MODES: Final = "--umask takes permissions from 0444 of files and 0555 of directories"
_EMPTY: Final = "mount on an empty directory"
_PAGE_CACHE: Final = "leave it out: files are read through the page cache, and past it they are read no faster"
_INDEX: Final = "no listing is kept unless --index FILE --index-max-age TIME says where and for how long"
# fmt: off
INSTEAD: Final[Mapping[str, str]] = {
    "prefix": _SOURCE, "only-dir": _SOURCE,
    "read-only": _ALWAYS, "implicit-dirs": _ALWAYS, "auto-unmount": _ALWAYS, "vfs-refresh": _ALWAYS,
    "foreground": _FOREGROUND, "f": _FOREGROUND,
    "metadata-ttl": _VIEW, "negative-metadata-ttl": _VIEW, "metadata-cache-ttl-secs": _VIEW, "stat-cache-ttl": _VIEW,
    "type-cache-ttl": _VIEW, "kernel-list-cache-ttl-secs": _VIEW, "dir-cache-time": _VIEW, "attr-timeout": _VIEW,
    "poll-interval": _VIEW, "stat-cache-expire": _VIEW,
    "cache-dir": _CACHE, "max-cache-size": _CACHE, "vfs-cache-mode": _CACHE, "vfs-cache-max-size": _CACHE,
    "file-cache-max-size-mb": _CACHE, "use-cache": _CACHE,
    "vfs-read-ahead": _READAHEAD, "vfs-read-chunk-size": _READAHEAD, "buffer-size": _READAHEAD,
    "max-read-ahead": _READAHEAD,
    "file-mode": _MODES, "dir-mode": _MODES, "file-perms": _MODES, "dir-perms": _MODES, "mp-umask": _MODES,
    "nonempty": _EMPTY, "allow-non-empty": _EMPTY,
    "direct-io": _PAGE_CACHE,
    # Of fastfuse itself, before its first release.
    "io": _PAGE_CACHE, "index-cache": _INDEX, "no-index-cache": _INDEX,
    "allow-root": "--allow-other lets every user in, root too",
    "debug": "--verbose logs in detail", "log-severity": "--verbose logs in detail",
    "url": "write endpoint_url=URL", "use-path-request-style": "write force_path_style",
}
# fmt: on


def instead_of(option: str) -> str | None:
    """Return what to do in place of `option`, with or without hyphens before it; None for one that nobody knows."""
    return INSTEAD.get(option.lstrip("-").replace("_", "-"))
