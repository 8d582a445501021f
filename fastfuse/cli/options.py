"""The options that commands share, with the environment variable and help text of each, and their groups.

A command takes a whole group as one argument (`takes`); the group is the function that checks it. No check needs the
network: each is made before anything is mounted, and fails with one sentence.
"""

import functools
import inspect
import os
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar
from urllib.parse import urlsplit

import typer

from fastfuse.cache.settings import CacheSettings
from fastfuse.cgroup import usable_cpus
from fastfuse.errors import ConfigurationError
from fastfuse.index.origin import IndexOrigin
from fastfuse.log import LogConfig
from fastfuse.s3.base import REGION_NAME, ConnectionConfig, enough_connections
from fastfuse.s3.sse import read_customer_key
from fastfuse.sizes import MIB, format_size, parse_share

MEMORY_PANEL = "Memory and speed"
VIEW_PANEL = "What the mount shows"
_CONNECTION = "Connection"
_LOGS = "Logs"
_READ_DEADLINE_S = ConnectionConfig().deadline_s
# The one above means "unchanged".
MOST_ID: Final = 2**32 - 2

T = TypeVar("T")


class LogFormat(StrEnum):
    HUMAN = "human"
    JSON = "json"


def option(usage: str, text: str, **more: Any) -> Any:  # noqa: ANN401 -- typer tells no type
    """Return an option as a help page shows it: ``--part-size SIZE`` and its text."""
    words = usage.split()
    flags = [word for word in words if word.startswith("-")]
    return typer.Option(*flags, metavar=None if flags == words else words[-1], help=text, **more)


def setting(usage: str, panel: str | None, text: str, **more: Any) -> Any:  # noqa: ANN401
    """Return an option of a panel that the environment can give, too: --part-size as FASTFUSE_PART_SIZE.

    Another ``envvar`` in `more` takes the place of that variable.
    """
    name = max((word for word in usage.split() if word.startswith("-")), key=len)
    variable = "FASTFUSE_" + name.removeprefix("--").replace("-", "_").upper()
    return option(usage, text, rich_help_panel=panel, **{"envvar": variable} | more)


def takes(**groups: Callable[..., object]) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Give a command the options of each group, and call it with one argument per group: the group's result.

    On the command line the group's own parameters replace the parameter that is named after the group. A caller in
    Python may leave options out, or give the result of a group.
    """

    def decorate(command: Callable[..., T]) -> Callable[..., T]:
        members = {name: inspect.signature(group).parameters for name, group in groups.items()}
        own = [item for item in inspect.signature(command).parameters.values() if item.name not in groups]
        shared = [item for parameters in members.values() for item in parameters.values()]

        @functools.wraps(command)
        def call(**values: Any) -> T:  # noqa: ANN401 -- of every type that an option has
            for name, parameters in members.items():
                given = {member: values.pop(member) for member in parameters if member in values}
                if name not in values:
                    values[name] = groups[name](**given)
            return command(**values)

        keyword_only = [item.replace(kind=inspect.Parameter.KEYWORD_ONLY) for item in (*own, *shared)]
        call.__signature__ = inspect.Signature(keyword_only)  # type: ignore[attr-defined]
        return call

    return decorate


# fmt: off
Source = Annotated[str, typer.Argument(metavar="S3_URI", envvar="FASTFUSE_SOURCE",
    help="s3://BUCKET/PREFIX, as it will be mounted.")]
PartSize = Annotated[str, setting("--part-size SIZE", MEMORY_PANEL, "The most bytes of one request, 1MiB to 64MiB.")]
MetricsListen = Annotated[str | None, setting("--metrics-listen [HOST:]PORT", None,
    "Serve Prometheus metrics over HTTP. On 127.0.0.1 unless HOST says otherwise; port 0 takes a free one "
    "and logs it.")]
Uid = Annotated[int | None, setting("--uid ID", VIEW_PANEL,
    "Owner of the mounted files; left out, you.", min=0, max=MOST_ID)]
Gid = Annotated[int | None, setting("--gid ID", VIEW_PANEL,
    "Group of the mounted files; left out, yours.", min=0, max=MOST_ID)]
# fmt: on


def connection(
    endpoint_url: Annotated[str | None, setting("--endpoint-url URL", _CONNECTION,
        "S3-compatible service to use instead of AWS.")] = None,
    region: Annotated[str | None, setting("--region NAME", _CONNECTION,
        # botocore knows AWS_DEFAULT_REGION only; containers and the other SDKs set AWS_REGION.
        "Region of the bucket.", envvar=["FASTFUSE_REGION", "AWS_REGION"])] = None,
    profile: Annotated[str | None, setting("--profile NAME", _CONNECTION,
        "Profile of the AWS configuration files.")] = None,
    no_sign_request: Annotated[bool, setting("--no-sign-request", _CONNECTION,
        "Use no credentials, for public buckets.")] = False,
    force_path_style: Annotated[bool, setting("--force-path-style", _CONNECTION,
        "Address buckets as https://HOST/BUCKET; the default with --endpoint-url.")] = False,
    ca_bundle: Annotated[Path | None, setting("--ca-bundle FILE", _CONNECTION,
        "PEM file of the authorities to trust.")] = None,
    no_verify_ssl: Annotated[bool, setting("--no-verify-ssl", _CONNECTION,
        "Accept any TLS certificate. Only for tests: anyone on the way can change the data.")] = False,
    request_payer: Annotated[bool, setting("--request-payer", _CONNECTION,
        "Pay for the requests to a requester-pays bucket.")] = False,
    sse_c_key_file: Annotated[Path | None, setting("--sse-c-key-file FILE", _CONNECTION,
        "File of the key that the objects are encrypted with (SSE-C): 32 bytes, or their Base64.")] = None,
    verify: Annotated[bool, setting("--verify", _CONNECTION,
        "Check every object that is read whole against the checksum that the service keeps of it, and fail the read "
        "of its last bytes if it is another one. Files that one GET reads are checked always, but for MD5s.")] = False,
    max_connections: Annotated[int | None, setting("--max-connections N", _CONNECTION,
        "Requests in flight at once; by default 32 for each core, 128 at least and 512 at most.",
        min=1, max=1024)] = None,
    read_deadline_s: Annotated[float, setting("--read-deadline-s SECONDS", _CONNECTION,
        "Fail a read that the service does not answer within this time, retries included.",
        min=1, max=3600)] = _READ_DEADLINE_S,
) -> ConnectionConfig:  # fmt: skip
    """Return the connection's options, checked one by one and together.

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
    if region is not None and not REGION_NAME.fullmatch(region):
        raise ConfigurationError(f"--region {region!r} is not the name of a region", hint="write it as eu-west-1")
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
        max_connections=max_connections or enough_connections(usable_cpus()),
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


def logs(
    verbose: Annotated[bool, setting("--verbose -v", _LOGS, "Log what fastfuse does in detail.")] = False,
    log_format: Annotated[LogFormat, setting("--log-format", _LOGS,
        "Lines for people, or one JSON object per line (errors included).")] = LogFormat.HUMAN,
    log_file: Annotated[Path | None, setting("--log-file FILE", _LOGS,
        "Append to this file instead of stderr, or of syslog with --daemon. It may be rotated.")] = None,
) -> LogConfig:  # fmt: skip
    """Return the logging options as one value."""
    # A daemon changes to the root directory.
    file = None if log_file is None else log_file.absolute()
    return LogConfig(json=log_format is LogFormat.JSON, verbose=verbose, file=file)


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
        has_room = parse_share(_SIZE, whole_bytes, "--cache-size") >= _MINIMUM_BYTES
        raise ConfigurationError(
            f"--cache-size {cache_size} is {format_size(size_bytes)}; a cache takes at least "
            f"{format_size(_MINIMUM_BYTES)}, and its file system has {format_size(whole_bytes)}",
            hint=f"give a percentage, as in {_SIZE}" if has_room else "name a directory of a larger file system",
        )
    min_free_bytes = parse_share(cache_min_free, whole_bytes, "--cache-min-free")
    return CacheSettings(directory=directory, size_bytes=size_bytes, min_free_bytes=min_free_bytes)


def checked_cache(
    cache: CacheSettings | None, connection: ConnectionConfig, *origins: IndexOrigin
) -> CacheSettings | None:
    """Return `cache`, unless it would hold an index of `origins`, or objects that a key of the user's decrypts.

    Raises:
        ConfigurationError: it would.
    """
    if cache is None:
        return None
    for origin in origins:
        if isinstance(origin.saved, Path) and origin.saved.is_relative_to(cache.directory):
            raise ConfigurationError(
                f"--index {str(origin.saved)!r} lies in the directory of --cache",
                hint="name a file beside that directory",
            )
    if connection.sse_c_key_file is not None:
        raise ConfigurationError(
            "--cache would keep objects in the clear that --sse-c-key-file decrypts", hint="give one of the two"
        )
    return cache
