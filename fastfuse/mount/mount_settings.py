"""What one mount is told to do: the frozen result of parsing arguments and environment (`fastfuse.cli.config`)."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from fastfuse.index.origin import IndexOrigin
from fastfuse.index.sources.uri import S3Uri
from fastfuse.s3.base import ConnectionConfig

__all__ = ["MINIMUM_MEMORY_BYTES", "MountSettings", "PageCacheUse"]

# Below this there is no room for the parts of a few readers at once (16 parts of the default size).
MINIMUM_MEMORY_BYTES: Final = 128 << 20


class PageCacheUse(StrEnum):
    """Whether what is read of large files stays in the kernel's page cache; values of ``--io``."""

    # What is better by measurement (`mount.kernel`), which is the page cache; tells what slows it down.
    AUTO = "auto"
    CACHED = "cached"
    DIRECT = "direct"


@dataclass(frozen=True, slots=True, kw_only=True)
class MountSettings:
    """Everything the supervisor needs; each component is handed only its own part."""

    source: S3Uri
    mountpoint: Path
    connection: ConnectionConfig
    origin: IndexOrigin
    # Bytes of object data held or in flight, whoever reads; resolved to bytes by `config` (default: a quarter of
    # the RAM or of the cgroup's limit, at most 4 GiB, at least 128 MiB).
    memory_target_bytes: int
    part_size_bytes: int
    # Of large files read ahead at once, as one who trains reads them to their end; else it is waited for signs of that.
    expects_whole_files: bool = False
    # As one who trains reads every one: of small files in an unknown order all are fetched ahead that fit, and of large
    # ones the first, before anybody opens one.
    expects_every_file: bool = False
    io: PageCacheUse = PageCacheUse.AUTO
    uid: int
    gid: int
    # Permission bits of `umask` are taken from 0555 and 0444 (clause A1: they may narrow).
    umask: int = 0
    allow_other: bool = False
    # Create the missing parents of the mountpoint too: those of a channel's place are ours to make.
    create_parents: bool = False
    # Options of `-o` that the kernel's mount understands and that are passed through (`nodev`, `noatime`, ...).
    mount_options: tuple[str, ...] = ()
    grace_s: float = 30.0
    # (host, port) of the Prometheus endpoint, or None.
    metrics_listen: tuple[str, int] | None = None
    # $NOTIFY_SOCKET of the service manager, or None.
    notify_socket: str | None = None
