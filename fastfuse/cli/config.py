"""Turns options and environment variables into the frozen configuration of each component.

Every check that needs no network is made here, before anything is mounted, and fails with one sentence.
"""

import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from fastfuse.cache.settings import CacheSettings
from fastfuse.cgroup import memory_limit_bytes
from fastfuse.errors import ConfigurationError
from fastfuse.filesystem.mount_settings import MINIMUM_MEMORY_BYTES, MountSettings, PageCacheUse
from fastfuse.index.origin import IndexOrigin
from fastfuse.index.sources.uri import S3Uri
from fastfuse.s3.base import ConnectionConfig
from fastfuse.s3.sse import read_customer_key
from fastfuse.sizes import GIB, KIB, MIB, format_size, parse_share, parse_size

__all__ = [
    "CHANNELS_ROOT",
    "DemoSettings",
    "channel_mountpoint",
    "checked_cache",
    "connection_config",
    "demo_settings",
    "job_memory_bytes",
    "memory_target_bytes",
    "mount_settings",
    "parse_listen_address",
    "parse_part_size",
    "parse_size",
]

# Where a SageMaker training job finds the data of its channels.
CHANNELS_ROOT: Final = Path("/opt/ml/input/data")
# SageMaker's own rule for ChannelName.
_CHANNEL: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")

# Eight times what a fast host needs in flight (64 parts of 8 MiB). The page cache makes better use of the rest.
MAXIMUM_DEFAULT_MEMORY_BYTES: Final = 4 * GIB
# One part being read and three on their way: with fewer the reader waits for every part.
MINIMUM_PARTS: Final = 4
# Smaller parts cost a request each for no gain; larger ones keep the first byte of a read waiting.
MINIMUM_PART_BYTES: Final = MIB
MAXIMUM_PART_BYTES: Final = 64 * MIB
# Parts meet at page borders, so that a page comes from one part.
PAGE_BYTES: Final = 4 * KIB

_AWS_REGION: Final = re.compile(r"[a-z]{2,}(-[a-z]+)+-\d{1,2}", re.ASCII)
_ANY_REGION: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?", re.ASCII)
# If one of these is set, botocore talks to another service than AWS, whose regions may have any name.
_ENDPOINT_VARIABLES: Final = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoSettings:
    """The settings of `fastfuse demo`: what it makes, reads and leaves behind."""

    # The data set of the built-in server: sequential shards, and many small files.
    shard_count: int
    shard_bytes: int
    small_file_count: int
    small_file_bytes: int
    reader_count: int
    # Leave the mount and the server up until interrupted, to look around.
    keep: bool
    # Read this instead of the built-in server's data set.
    source: S3Uri | None
    connection: ConnectionConfig
    # The environment of the processes that the demo starts. It may hold credentials, so it is not shown.
    environment: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)


def memory_target_bytes(text: str | None, ram_bytes: int, cgroup_limit_bytes: int | None) -> int:
    """Return the memory target: `text`, a size or a percentage of the available memory, or by default a quarter of it.

    The available memory is the RAM or the cgroup's limit, whichever is less.

    Raises:
        ConfigurationError: no size and no percentage, under the minimum, or more than there is.
    """
    available_bytes = min(ram_bytes, cgroup_limit_bytes or ram_bytes)
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
    ram_bytes, limit_bytes = _ram_bytes(), memory_limit_bytes()
    target_bytes = memory_target_bytes(text, ram_bytes, limit_bytes)
    if text is not None:
        return target_bytes
    return max(target_bytes, min(minimum_bytes, min(ram_bytes, limit_bytes or ram_bytes) // 2))


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


def connection_config(
    *,
    endpoint_url: str | None = None,
    region: str | None = None,
    profile: str | None = None,
    no_sign_request: bool = False,
    force_path_style: bool = False,
    ca_bundle: Path | None = None,
    no_verify_ssl: bool = False,
    request_payer: bool = False,
    sse_c_key_file: Path | None = None,
    verify: bool = False,
    max_connections: int = 128,
    read_deadline_s: float = 60.0,
    environ: Mapping[str, str] = os.environ,
) -> ConnectionConfig:
    """Return the connection's options, checked one by one and together; `environ` is only asked for an endpoint.

    Raises:
        ConfigurationError: an option that cannot be right, or two that contradict each other.
    """
    if no_sign_request and profile is not None:
        raise ConfigurationError(
            "--no-sign-request and --profile contradict each other: unsigned requests use no credentials",
            hint="give one of the two",
        )
    if no_verify_ssl and ca_bundle is not None:
        raise ConfigurationError(
            "--no-verify-ssl and --ca-bundle contradict each other: nothing is verified with the bundle",
            hint="give one of the two",
        )
    if endpoint_url is not None:
        _check_endpoint(endpoint_url)
    if region is not None:
        _check_region(region, aws=not (endpoint_url or any(environ.get(name) for name in _ENDPOINT_VARIABLES)))
    if ca_bundle is not None and not os.access(ca_bundle, os.R_OK):
        raise ConfigurationError(
            f"--ca-bundle {str(ca_bundle)!r} cannot be read", hint="name a readable file of PEM certificates"
        )
    if sse_c_key_file is not None:
        read_customer_key(sse_c_key_file)
    return ConnectionConfig(
        endpoint_url=endpoint_url,
        region=region,
        profile=profile,
        sign_request=not no_sign_request,
        force_path_style=force_path_style,
        # A daemon changes to the root directory, so paths are absolute.
        ca_bundle=None if ca_bundle is None else str(ca_bundle.absolute()),
        verify_ssl=not no_verify_ssl,
        request_payer=request_payer,
        sse_c_key_file=None if sse_c_key_file is None else str(sse_c_key_file.absolute()),
        verify=verify,
        max_connections=max_connections,
        deadline_s=read_deadline_s,
    )


def _check_endpoint(url: str) -> None:
    try:
        parts = urlsplit(url)
        usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise ConfigurationError("--endpoint-url is not an http or https URL", hint="write it as https://HOST[:PORT]")
    if parts.username is not None or parts.query or parts.fragment:
        # The message does not repeat the URL: it may hold a secret.
        raise ConfigurationError(
            "--endpoint-url holds more than a host, a port and a path",
            hint="credentials belong in a profile or in the environment, never in the URL",
        )


def _check_region(region: str, *, aws: bool) -> None:
    if not (_AWS_REGION if aws else _ANY_REGION).fullmatch(region):
        raise ConfigurationError(
            f"--region {region!r} is not the name of {'an AWS' if aws else 'a'} region",
            hint="AWS regions look like eu-west-1; for another service give its --endpoint-url too",
        )


def mount_settings(
    *,
    source: str,
    mountpoint: Path | None = None,
    channel: str | None = None,
    connection: ConnectionConfig,
    origin: IndexOrigin | None = None,
    cache: CacheSettings | None = None,
    memory_target: str | None = None,
    part_size: str = "8MiB",
    training: bool = False,
    io: PageCacheUse = PageCacheUse.AUTO,
    uid: int | None = None,
    gid: int | None = None,
    umask: str = "000",
    allow_other: bool = False,
    mount_options: Sequence[str] = (),
    grace_s: float = 30.0,
    fuse_socket: Path | None = None,
    fuse_fd: int | None = None,
    metrics_listen: str | None = None,
    notify_socket: str | None = None,
    watchdog_usec: str = "",
) -> MountSettings:
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
    place = channel_mountpoint(channel or "training") if mountpoint is None else Path(os.path.abspath(mountpoint))
    memory_bytes = memory_target_bytes(memory_target, _ram_bytes(), memory_limit_bytes())
    if not re.fullmatch("[0-7]{1,4}", umask, re.ASCII) or int(umask, 8) > 0o777:
        raise ConfigurationError(f"--umask {umask!r} is not an octal mask", hint="write it as 022")
    if grace_s < 0 or not math.isfinite(grace_s):
        raise ConfigurationError(f"--grace-s {grace_s} is not a number of seconds", hint="30 is the default")
    return MountSettings(
        source=S3Uri.parse(source),
        mountpoint=place,
        connection=connection,
        origin=origin or IndexOrigin(),
        cache=checked_cache(cache, connection),
        memory_target_bytes=memory_bytes,
        part_size_bytes=parse_part_size(part_size, memory_bytes),
        expects_whole_files=training,
        expects_every_file=training,
        io=io,
        uid=os.getuid() if uid is None else uid,
        gid=os.getgid() if gid is None else gid,
        umask=int(umask, 8),
        # A helper mounts for everybody: whoever it does so for has another user or container.
        allow_other=allow_other or fuse_socket is not None,
        # fastfuse creates the parents of a channel's place. Elsewhere a missing parent is probably mistyped.
        create_parents=place.parent == CHANNELS_ROOT,
        mount_options=tuple(mount_options),
        grace_s=grace_s,
        fuse_socket=fuse_socket,
        fuse_fd=fuse_fd,
        metrics_listen=None if metrics_listen is None else parse_listen_address(metrics_listen),
        notify_socket=notify_socket,
        # Its sender is the service manager, so what is no number is none of its.
        watchdog_s=int(watchdog_usec) / 1e6 if watchdog_usec.isascii() and watchdog_usec.isdigit() else None,
    )


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


def _ram_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def demo_settings(
    *,
    shards: int,
    shard_size: str,
    small_files: int,
    small_file_size: str,
    readers: int,
    keep: bool,
    uri: str | None,
    connection: ConnectionConfig,
    environ: Mapping[str, str] = os.environ,
) -> DemoSettings:
    """Return the demo's options, checked.

    Raises:
        ConfigurationError: a size or an S3 URI that is none.
    """
    return DemoSettings(
        shard_count=shards,
        shard_bytes=parse_size(shard_size, "--shard-size"),
        small_file_count=small_files,
        small_file_bytes=parse_size(small_file_size, "--small-file-size"),
        reader_count=readers,
        keep=keep,
        source=None if uri is None else S3Uri.parse(uri),
        connection=connection,
        environment=dict(environ),
    )
