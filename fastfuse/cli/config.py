"""The settings of one mount, from its options; and the checks of sizes and addresses that other commands share.

Every check that needs no network is made here, before anything is mounted, and fails with one sentence.
"""

import math
import os
import re
from pathlib import Path
from typing import Annotated, Final

import typer

from fastfuse.cache.settings import CacheSettings
from fastfuse.cgroup import available_memory_bytes
from fastfuse.cli.index_options import origin
from fastfuse.cli.options import (
    MEMORY_PANEL,
    VIEW_PANEL,
    Gid,
    MetricsListen,
    PartSize,
    Uid,
    cache,
    checked_cache,
    connection,
    setting,
    takes,
)
from fastfuse.errors import ConfigurationError
from fastfuse.filesystem.mounting.mount_settings import MINIMUM_MEMORY_BYTES, MountSettings
from fastfuse.index.origin import IndexOrigin
from fastfuse.index.sources.uri import S3Uri
from fastfuse.s3.base import ConnectionConfig
from fastfuse.sizes import GIB, KIB, MIB, format_size, parse_share, parse_size

# Where a SageMaker training job finds the data of its channels.
CHANNELS_ROOT: Final = Path("/opt/ml/input/data")
# SageMaker's own rule for ChannelName.
_CHANNEL: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
_RIGHTS = "Mounting without rights"
# The options of a kernel's mount that every mount has, whoever makes it.
_ALWAYS_SO: Final = {"nodev", "nosuid", "async", "default_permissions"}

# Eight times what a fast host needs in flight (64 parts of 8 MiB). The page cache makes better use of the rest.
MAXIMUM_DEFAULT_MEMORY_BYTES: Final = 4 * GIB
# One part being read and three on their way: with fewer the reader waits for every part.
MINIMUM_PARTS: Final = 4
# Smaller parts cost a request each for no gain; larger ones keep the first byte of a read waiting.
MINIMUM_PART_BYTES: Final = MIB
MAXIMUM_PART_BYTES: Final = 64 * MIB
# Parts meet at page borders, so that a page comes from one part.
PAGE_BYTES: Final = 4 * KIB


def memory_target_bytes(text: str | None, available_bytes: int) -> int:
    """Return the memory target: `text`, a size or a percentage of the available memory, or by default a quarter of it.

    Raises:
        ConfigurationError: no size and no percentage, under the minimum, or more than there is.
    """
    if text is None:
        return min(max(available_bytes // 4, MINIMUM_MEMORY_BYTES), MAXIMUM_DEFAULT_MEMORY_BYTES)
    size_bytes = parse_share(text, available_bytes, "--memory-target")
    if size_bytes < MINIMUM_MEMORY_BYTES:
        raise ConfigurationError(
            f"--memory-target {text} is {format_size(size_bytes)}, less than the minimum of "
            f"{format_size(MINIMUM_MEMORY_BYTES)}",
            hint="leave it out for a quarter of the memory that is available",
        )
    if size_bytes > available_bytes:
        raise ConfigurationError(
            f"--memory-target {text} is {format_size(size_bytes)}, more than the {format_size(available_bytes)} of "
            "this machine or control group",
            hint="give a percentage, as in 25%, to stay below it",
        )
    return size_bytes


def job_memory_bytes(text: str | None, minimum_bytes: int) -> int:
    """Return the memory target of all channels of a job: as `memory_target_bytes`, for this machine.

    By default it is at least `minimum_bytes`, which the channels need, but no more than half of the available memory.

    Raises:
        ConfigurationError: as `memory_target_bytes`.
    """
    available_bytes = available_memory_bytes()
    target_bytes = memory_target_bytes(text, available_bytes)
    return target_bytes if text is not None else max(target_bytes, min(minimum_bytes, available_bytes // 2))


def parse_part_size(text: str, memory_bytes: int) -> int:
    """Return the bytes of one part, of which a memory target of `memory_bytes` has to hold enough.

    Raises:
        ConfigurationError: out of range, not a multiple of the page size, or too large for the memory target.
    """
    size_bytes = parse_size(text, "--part-size")
    if not MINIMUM_PART_BYTES <= size_bytes <= MAXIMUM_PART_BYTES or size_bytes % PAGE_BYTES:
        raise ConfigurationError(
            f"--part-size {text} is not a multiple of 4 KiB from {format_size(MINIMUM_PART_BYTES)} to "
            f"{format_size(MAXIMUM_PART_BYTES)}",
            hint="8MiB, the default, suits most data sets",
        )
    if size_bytes * MINIMUM_PARTS > memory_bytes:
        raise ConfigurationError(
            f"--part-size {text} is too large for a memory target of {format_size(memory_bytes)}, which must hold "
            f"{MINIMUM_PARTS} parts",
            hint="lower --part-size or raise --memory-target",
        )
    return size_bytes


def parse_listen_address(text: str) -> tuple[str, int]:
    """Parse ``PORT``, ``:PORT``, ``HOST:PORT`` or ``[ADDRESS]:PORT`` as (host, port); the default host is loopback.

    Port 0 takes a free one, which the log names.

    Raises:
        ConfigurationError: `text` is none of these, or the port is none.
    """
    host, _, port = text.rpartition(":")
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    digits = re.fullmatch(r"\d{1,5}", port, re.ASCII)
    if not digits or int(port) >= 65536 or set(host) & set("[]/ "):
        raise ConfigurationError(
            f"--metrics-listen {text!r} is not an address to listen on", hint="write it as 9567 or 127.0.0.1:9567"
        )
    return host or "127.0.0.1", int(port)


def channel_mountpoint(channel: str) -> Path:
    """Return the default mountpoint of `channel`.

    Raises:
        ConfigurationError: `channel` cannot be the name of one.
    """
    if not _CHANNEL.fullmatch(channel) or channel in {".", ".."}:
        raise ConfigurationError(
            f"{channel!r} is not a channel name", hint="use 1 to 64 letters, digits, dots, underscores and hyphens"
        )
    return CHANNELS_ROOT / channel


@takes(origin=origin, cache=cache, connection=connection)
def mount_settings(
    source: Annotated[str, typer.Argument(metavar="S3_URI", envvar="FASTFUSE_SOURCE",
        help="s3://BUCKET/PREFIX, or s3://BUCKET/KEY for one object.")],
    mountpoint: Annotated[Path | None, typer.Argument(metavar="MOUNTPOINT", envvar="FASTFUSE_MOUNTPOINT",
        parser=Path,  # checks nothing there: a hung mount would hang this process, too
        help="An empty directory, created if it is missing. Left out, it is /opt/ml/input/data/CHANNEL.")] = None,
    *,
    channel: Annotated[str | None, setting("--channel NAME", None,
        "Channel that names the default mountpoint ('training' if left out). Not together with MOUNTPOINT.")] = None,
    mount_option: Annotated[list[str] | None, setting("-o --mount-option OPTIONS", None,
        "Options as in fstab, separated by commas: any of these long options (region=eu-west-1), and those of "
        "mount(8), of which what a read-only mount has no use for is ignored.", envvar=None)] = None,
    metrics_listen: MetricsListen = None,
    grace_s: Annotated[float, setting("--grace-s SECONDS", None,
        "How long a stopping mount lets reads under way end.")] = 30.0,
    uid: Uid = None,
    gid: Gid = None,
    umask: Annotated[str, setting("--umask OCTAL", VIEW_PANEL,
        "Permissions to take from the 0444 of files and the 0555 of directories.")] = "000",
    allow_other: Annotated[bool, setting("--allow-other", VIEW_PANEL,
        "Let other users in (unless you are root, /etc/fuse.conf must have user_allow_other).")] = False,
    memory_target: Annotated[str | None, setting("--memory-target SIZE|PERCENT", MEMORY_PANEL,
        "Memory for data on its way to readers: 2GiB, or 25% of the RAM or of the control group's limit, whichever is "
        "less. At least 128MiB; left out, a quarter, but at most 4GiB.")] = None,
    fuse_socket: Annotated[Path | None, setting("--fuse-socket PATH", _RIGHTS,
        "Mount through the helper that listens there ('fastfuse fuse-helper'), at its place, so that this process "
        "needs no rights.")] = None,
    fuse_fd: Annotated[int | None, setting("--fuse-fd N", _RIGHTS,
        "Serve the mount at MOUNTPOINT that was made with this descriptor of /dev/fuse; whoever made it unmounts it.",
        min=3)] = None,
    part_size: PartSize = "8MiB",
    training: Annotated[bool, setting("--training", MEMORY_PANEL,
        "Expect what training does, that every file is read whole, once in each epoch: large files are read far ahead "
        "at once, and of small ones in an order that nobody has announced "
        "those are fetched that nobody has opened yet, within the memory. Whoever reads only a few small files has "
        "caused up to four times as many GETs, and of large ones up to 256 MiB for nothing.")] = False,
    origin: IndexOrigin,
    cache: CacheSettings | None,
    connection: ConnectionConfig,
) -> MountSettings:  # fmt: skip
    """Return the settings of one mount. Reads the machine's RAM and cgroup, the user's id, and the working directory.

    Raises:
        ConfigurationError: an option that cannot be right, or two that contradict each other.
    """
    if mountpoint is not None and channel is not None:
        raise ConfigurationError(
            "MOUNTPOINT and --channel contradict each other: a channel's place is given by its name",
            hint=f"give a MOUNTPOINT, or --channel NAME for {CHANNELS_ROOT}/NAME",
        )
    if fuse_socket is not None and (fuse_fd, mountpoint, channel) != (None, None, None):
        raise ConfigurationError(
            "--fuse-socket leaves the place to the helper that listens there",
            hint="give the helper its MOUNTPOINT, and this mount neither that nor --channel nor --fuse-fd",
        )
    refused = {*(mount_option or ())} - _ALWAYS_SO
    if refused and (fuse_socket, fuse_fd) != (None, None):
        raise ConfigurationError(
            f"-o {min(refused)} is for a mount that this process makes",
            hint="leave it out with --fuse-socket and --fuse-fd, whose mount another process makes",
        )
    place = channel_mountpoint(channel or "training") if mountpoint is None else Path(os.path.abspath(mountpoint))
    memory_bytes = memory_target_bytes(memory_target, available_memory_bytes())
    if not re.fullmatch("[0-7]{1,4}", umask, re.ASCII) or int(umask, 8) > 0o777:
        raise ConfigurationError(f"--umask {umask!r} is not an octal mask", hint="write it as 022")
    if grace_s < 0 or not math.isfinite(grace_s):
        raise ConfigurationError(f"--grace-s {grace_s} is not a number of seconds", hint="30 is the default")
    return MountSettings(
        source=S3Uri.given(source),
        mountpoint=place,
        connection=connection,
        origin=origin,
        cache=checked_cache(cache, connection, origin),
        memory_target_bytes=memory_bytes,
        part_size_bytes=parse_part_size(part_size, memory_bytes),
        expects_whole_files=training,
        expects_every_file=training,
        uid=os.getuid() if uid is None else uid,
        gid=os.getgid() if gid is None else gid,
        umask=int(umask, 8),
        # A helper mounts for everybody: whoever it does so for has another user or container.
        allow_other=allow_other or fuse_socket is not None,
        # fastfuse creates the parents of a channel's place. Elsewhere a missing parent is probably mistyped.
        create_parents=place.parent == CHANNELS_ROOT,
        mount_options=tuple(mount_option or ()),
        grace_s=grace_s,
        # A daemon changes to the root directory.
        fuse_socket=None if fuse_socket is None else fuse_socket.absolute(),
        fuse_fd=fuse_fd,
        metrics_listen=None if metrics_listen is None else parse_listen_address(metrics_listen),
    )
