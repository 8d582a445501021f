"""The settings of one mount: the frozen result of parsing arguments and environment (`fastfuse.cli.config`)."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote

from fastfuse.cache.settings import CacheSettings
from fastfuse.errors import ConfigurationError
from fastfuse.index.origin import IndexOrigin
from fastfuse.index.sources.uri import S3Uri
from fastfuse.s3.base import ConnectionConfig

# Room for the parts of a few readers at once (16 parts of the default size).
MINIMUM_MEMORY_BYTES: Final = 128 << 20

# All processes of a mount may have this beside a small target (docs/MEASUREMENTS.md, `limits._CLIENT_OVERHEAD_BYTES`),
# and the inode table.
EXCESS_MEMORY_BYTES: Final = 64 << 20
# `python -m bench` sees 412 to 512 MiB with a target of 512 MiB.
_SPARE_BYTES: Final = 512 << 20


def quoted(source: str) -> str:
    """Return the name of `source` in mountinfo: libfuse splits options at commas, and pyfuse3 encodes them as ASCII."""
    return quote(source, safe="/:@!$&'()*+;=~ ")


def most_worker_bytes(target_bytes: int) -> int:
    """Return how much memory of its own ends a worker with this memory target: something keeps what it should not.

    The kernel would end more than the worker.
    """
    return 2 * target_bytes + _SPARE_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class MountSettings:
    """Everything the supervisor needs; each component is handed only its own part."""

    source: S3Uri
    mountpoint: Path
    # The mountpoint was made for this mount, and goes with it.
    is_temporary: bool = False
    connection: ConnectionConfig
    origin: IndexOrigin
    # The local tier, or None.
    cache: CacheSettings | None = None
    # Bytes of object data held or in flight, over all readers (default: a quarter of the RAM or of the cgroup's
    # limit, at most 4 GiB, at least 128 MiB; `config` resolves it).
    memory_target_bytes: int
    part_size_bytes: int
    # Prefetch large files at once, because training reads them to their end; else wait for signs of that.
    expects_whole_files: bool = False
    # Prefetch small files that were not asked for, because training reads every file: all that fit, if their order
    # is unknown.
    expects_every_file: bool = False
    uid: int
    gid: int
    # Permission bits that are taken from 0555 and 0444 (clause A1: they may narrow).
    umask: int = 0
    allow_other: bool = False
    # Create the missing parents of the mountpoint too: the parents of a channel's place are ours to make.
    create_parents: bool = False
    # Options of `-o` that are passed through to the kernel's mount (`nodev`, `noatime`, ...).
    mount_options: tuple[str, ...] = ()
    grace_s: float = 30.0
    # The socket of a helper that mounts (`fuse_helper`), or the descriptor of a mount that was made for us.
    fuse_socket: Path | None = None
    fuse_fd: int | None = None
    # (host, port) of the Prometheus endpoint, or None.
    metrics_listen: tuple[str, int] | None = None
    # $NOTIFY_SOCKET of the service manager, or None.
    notify_socket: str | None = None
    # The service manager ends a mount that it does not hear from for so long; None if it has not said.
    watchdog_s: float | None = None

    def __post_init__(self) -> None:
        """Check that the mount covers no directory that it writes to.

        Raises:
            ConfigurationError: it does.
        """
        written = {"--cache": self.cache.directory if self.cache else None, "--index": self.origin.saved}
        for option, path in written.items():
            if isinstance(path, Path) and path.is_relative_to(self.mountpoint):
                raise ConfigurationError(
                    f"{option} {str(path)!r} lies in the mountpoint {self.mountpoint}",
                    hint="name a place that the mount does not cover",
                )
