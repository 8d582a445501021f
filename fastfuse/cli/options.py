"""The options that commands share, with the environment variable and help text of each, and their groups.

A command takes a whole group as one argument (`takes`); the group is the function that checks it.
"""

import functools
import inspect
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from fastfuse.cli.config import connection_config
from fastfuse.cli.index_options import index_origin
from fastfuse.filesystem.mount_settings import PageCacheUse
from fastfuse.index.origin import IndexOrigin, SourceKind
from fastfuse.log import LogConfig
from fastfuse.s3.base import ConnectionConfig

__all__ = ["LogFormat", "ShardBy", "connection", "logs", "origin", "takes"]

MEMORY_PANEL = "Memory and speed"
VIEW_PANEL = "What the mount shows"
_CONNECTION = "Connection"
_LOGS = "Logs"
_INDEX = "Index"
_SOURCE = "What the source is"
_RIGHTS = "Mounting without rights"
_MAX_CONNECTIONS = ConnectionConfig().max_connections
_READ_DEADLINE_S = ConnectionConfig().deadline_s


class ShardBy(StrEnum):
    COUNT = "count"
    BYTES = "bytes"


class LogFormat(StrEnum):
    HUMAN = "human"
    JSON = "json"


EndpointUrl = Annotated[
    str | None,
    typer.Option(
        "--endpoint-url", envvar="FASTFUSE_ENDPOINT_URL", metavar="URL", rich_help_panel=_CONNECTION,
        help="S3-compatible service to use instead of AWS.",
    ),
]  # fmt: skip
Region = Annotated[
    str | None,
    typer.Option(
        # botocore knows AWS_DEFAULT_REGION only; containers and the other SDKs set AWS_REGION.
        "--region", envvar=["FASTFUSE_REGION", "AWS_REGION"], metavar="NAME", rich_help_panel=_CONNECTION,
        help="Region of the bucket.",
    ),
]  # fmt: skip
Profile = Annotated[
    str | None,
    typer.Option(
        "--profile", envvar="FASTFUSE_PROFILE", metavar="NAME", rich_help_panel=_CONNECTION,
        help="Profile of the AWS configuration files.",
    ),
]  # fmt: skip
NoSignRequest = Annotated[
    bool,
    typer.Option(
        "--no-sign-request", envvar="FASTFUSE_NO_SIGN_REQUEST", rich_help_panel=_CONNECTION,
        help="Use no credentials, for public buckets.",
    ),
]  # fmt: skip
ForcePathStyle = Annotated[
    bool,
    typer.Option(
        "--force-path-style", envvar="FASTFUSE_FORCE_PATH_STYLE", rich_help_panel=_CONNECTION,
        help="Address buckets as https://HOST/BUCKET, for services without a host name per bucket.",
    ),
]  # fmt: skip
CaBundle = Annotated[
    Path | None,
    typer.Option(
        "--ca-bundle", envvar="FASTFUSE_CA_BUNDLE", metavar="FILE", rich_help_panel=_CONNECTION,
        help="PEM file of the authorities to trust.",
    ),
]  # fmt: skip
NoVerifySsl = Annotated[
    bool,
    typer.Option(
        "--no-verify-ssl", envvar="FASTFUSE_NO_VERIFY_SSL", rich_help_panel=_CONNECTION,
        help="Accept any TLS certificate. Only for tests: anyone on the way can change the data.",
    ),
]  # fmt: skip
RequestPayer = Annotated[
    bool,
    typer.Option(
        "--request-payer", envvar="FASTFUSE_REQUEST_PAYER", rich_help_panel=_CONNECTION,
        help="Pay for the requests to a requester-pays bucket.",
    ),
]  # fmt: skip
SseCKeyFile = Annotated[
    Path | None,
    typer.Option(
        "--sse-c-key-file", envvar="FASTFUSE_SSE_C_KEY_FILE", metavar="FILE", rich_help_panel=_CONNECTION,
        help="File of the key that the objects are encrypted with (SSE-C): 32 bytes, or their Base64.",
    ),
]  # fmt: skip
Verify = Annotated[
    bool,
    typer.Option(
        "--verify", envvar="FASTFUSE_VERIFY", rich_help_panel=_CONNECTION,
        help="Check every object that is read whole against the checksum that the service keeps of it, and fail the "
        "read of its last bytes if it is another one. Files that one GET reads are checked always, but for MD5s.",
    ),
]  # fmt: skip
MaxConnections = Annotated[
    int,
    typer.Option(
        "--max-connections", envvar="FASTFUSE_MAX_CONNECTIONS", metavar="N", min=1, max=1024,
        rich_help_panel=_CONNECTION, help="Requests in flight at once.",
    ),
]  # fmt: skip
ReadDeadline = Annotated[
    float,
    typer.Option(
        "--read-deadline-s", envvar="FASTFUSE_READ_DEADLINE_S", metavar="SECONDS", min=1, max=3600,
        rich_help_panel=_CONNECTION, help="Fail a read that the service does not answer within this time, retries "
        "included.",
    ),
]  # fmt: skip

PartSize = Annotated[
    str,
    typer.Option(
        "--part-size", envvar="FASTFUSE_PART_SIZE", metavar="SIZE", rich_help_panel=MEMORY_PANEL,
        help="Bytes fetched by one request, 1MiB to 64MiB.",
    ),
]  # fmt: skip

Io = Annotated[
    PageCacheUse,
    typer.Option(
        "--io", envvar="FASTFUSE_IO", rich_help_panel=MEMORY_PANEL,
        help="'cached' reads through the kernel's page cache: what fits there is fetched once. 'direct' reads files of "
        "a part or more past it: faster for reads of 1 MiB or more where the kernel's readahead cannot be raised, "
        "slower for small ones. 'auto' is 'cached', and warns where that readahead slows readers down.",
    ),
]  # fmt: skip
MetricsListen = Annotated[
    str | None,
    typer.Option(
        "--metrics-listen", envvar="FASTFUSE_METRICS_LISTEN", metavar="[HOST:]PORT",
        help="Serve Prometheus metrics over HTTP. On 127.0.0.1 unless HOST says otherwise; port 0 takes a free one "
        "and logs it.",
    ),
]  # fmt: skip
Uid = Annotated[
    int | None,
    typer.Option(
        "--uid", envvar="FASTFUSE_UID", metavar="ID", min=0, max=2**32 - 2, rich_help_panel=VIEW_PANEL,
        help="Owner of the mounted files; left out, you.",
    ),
]  # fmt: skip
Gid = Annotated[
    int | None,
    typer.Option(
        "--gid", envvar="FASTFUSE_GID", metavar="ID", min=0, max=2**32 - 2, rich_help_panel=VIEW_PANEL,
        help="Group of the mounted files; left out, yours.",
    ),
]  # fmt: skip

FuseSocket = Annotated[
    Path | None,
    typer.Option(
        "--fuse-socket", envvar="FASTFUSE_FUSE_SOCKET", metavar="PATH", rich_help_panel=_RIGHTS,
        help="Mount through the helper that listens there ('fastfuse fuse-helper'), at its place, so that this "
        "process needs no rights.",
    ),
]  # fmt: skip
FuseFd = Annotated[
    int | None,
    typer.Option(
        "--fuse-fd", envvar="FASTFUSE_FUSE_FD", metavar="N", min=3, rich_help_panel=_RIGHTS,
        help="Serve the mount at MOUNTPOINT that was made with this descriptor of /dev/fuse; whoever made it "
        "unmounts it.",
    ),
]  # fmt: skip

Training = Annotated[
    bool,
    typer.Option(
        "--training", envvar="FASTFUSE_TRAINING", rich_help_panel=MEMORY_PANEL,
        help="Expect what training does, that every file is read whole, once in each epoch: large files are read far "
        "ahead at once, the first ones before anybody opens them, and of small ones in an order that nobody has "
        "announced those are fetched that nobody has opened yet, within the memory. Whoever reads only a few small "
        "files has caused up to four times as many GETs, and of large ones up to 256 MiB for nothing.",
    ),
]  # fmt: skip

Index = Annotated[
    str | None,
    typer.Option(
        "--index", envvar="FASTFUSE_INDEX", metavar="FILE|S3_URI", rich_help_panel=_INDEX,
        help="Take the index that 'fastfuse index' wrote there, instead of listing. With --index-max-age an object of "
        "S3 is made where it is missing or older: one host lists and writes it, the others wait for it.",
    ),
]  # fmt: skip
Inventory = Annotated[
    str | None,
    typer.Option(
        "--inventory", envvar="FASTFUSE_INVENTORY", metavar="S3_URI", rich_help_panel=_INDEX,
        help="Take the objects from this manifest.json of an S3 Inventory report (CSV or Parquet), instead of listing.",
    ),
]  # fmt: skip
KeysFrom = Annotated[
    Path | None,
    typer.Option(
        "--keys-from", envvar="FASTFUSE_KEYS_FROM", metavar="FILE", rich_help_panel=_INDEX,
        help="Show the keys in this file only, one on each line, instead of listing. Each is asked for its size.",
    ),
]  # fmt: skip
ChannelIndex = Annotated[
    list[str] | None,
    typer.Option(
        "--index", envvar="FASTFUSE_INDEX", metavar="[CHANNEL=]FILE|S3_URI", rich_help_panel=_INDEX,
        help="As of 'fastfuse mount', for one channel; its name may be left out where there is only one. Repeat it "
        "for several.",
    ),
]  # fmt: skip
ChannelInventory = Annotated[
    list[str] | None,
    typer.Option(
        "--inventory", envvar="FASTFUSE_INVENTORY", metavar="[CHANNEL=]S3_URI", rich_help_panel=_INDEX,
        help="As of 'fastfuse mount', for one channel; its name may be left out where there is only one. Repeat it "
        "for several.",
    ),
]  # fmt: skip
IndexCache = Annotated[
    Path | None,
    typer.Option(
        "--index-cache", envvar="FASTFUSE_INDEX_CACHE", metavar="DIR", rich_help_panel=_INDEX,
        help="Keep the last listing of each source here (left out, below your cache directory).",
    ),
]  # fmt: skip
NoIndexCache = Annotated[
    bool,
    typer.Option(
        "--no-index-cache", envvar="FASTFUSE_NO_INDEX_CACHE", rich_help_panel=_INDEX, help="Keep no listing.",
    ),
]  # fmt: skip
IndexMaxAge = Annotated[
    str | None,
    typer.Option(
        "--index-max-age", envvar="FASTFUSE_INDEX_MAX_AGE", metavar="TIME", rich_help_panel=_INDEX,
        help="Take the kept listing if it is no older (90s, 15m, 12h, 7d), instead of listing.",
    ),
]  # fmt: skip
Strict = Annotated[
    bool,
    typer.Option(
        "--strict", envvar="FASTFUSE_STRICT", rich_help_panel=_INDEX,
        help="Fail if any key cannot be shown as a file, instead of leaving it out.",
    ),
]  # fmt: skip
AllowEmpty = Annotated[
    bool,
    typer.Option(
        "--allow-empty", envvar="FASTFUSE_ALLOW_EMPTY", rich_help_panel=_INDEX,
        help="Take a prefix without objects as an empty directory, instead of failing.",
    ),
]  # fmt: skip

SourceType = Annotated[
    SourceKind,
    typer.Option(
        "--source-type", envvar="FASTFUSE_SOURCE_TYPE", rich_help_panel=_SOURCE,
        help="What S3_URI names: a prefix, or a manifest of SageMaker, whose objects are shown under their whole keys "
        "(below the names of their buckets if there are several). An augmented manifest is shown beside what its "
        "lines refer to, under its own name. SageMaker's FastFile mode takes prefixes only: manifests are an extension "
        "of fastfuse.",
    ),
]  # fmt: skip
AttributeName = Annotated[
    list[str] | None,
    typer.Option(
        "--attribute-name", envvar="FASTFUSE_ATTRIBUTE_NAME", metavar="NAME", rich_help_panel=_SOURCE,
        help="Keep this attribute of each line of an augmented manifest; repeat it for several, in their order (left "
        "out, all are kept). Case-sensitive; in the environment separated by spaces.",
    ),
]  # fmt: skip
PartOf = Annotated[
    str | None,
    typer.Option(
        "--shard", envvar="FASTFUSE_SHARD", metavar="I/N", rich_help_panel=_SOURCE,
        help="Show shard I of N, counted from 1: of the objects, or of the lines of an augmented manifest. The N "
        "shards have nothing in common and are everything together, as SageMaker's ShardedByS3Key promises; which "
        "shard has what is fastfuse's own rule. A shard may be empty.",
    ),
]  # fmt: skip
DividedBy = Annotated[
    ShardBy | None,
    typer.Option(
        "--shard-by", envvar="FASTFUSE_SHARD_BY", rich_help_panel=_SOURCE,
        help="Make shards of as many objects each ('count', the default), or of about as many bytes.",
    ),
]  # fmt: skip

Verbose = Annotated[
    bool,
    typer.Option(
        "--verbose", "-v", envvar="FASTFUSE_VERBOSE", rich_help_panel=_LOGS,
        help="Log what fastfuse does in detail.",
    ),
]  # fmt: skip
Format = Annotated[
    LogFormat,
    typer.Option(
        "--log-format", envvar="FASTFUSE_LOG_FORMAT", rich_help_panel=_LOGS,
        help="Lines for people, or one JSON object per line (errors included).",
    ),
]  # fmt: skip
File = Annotated[
    Path | None,
    typer.Option(
        "--log-file", envvar="FASTFUSE_LOG_FILE", metavar="FILE", rich_help_panel=_LOGS,
        help="Append to this file instead of stderr, or of syslog with --daemon. It may be rotated.",
    ),
]  # fmt: skip


def connection(
    endpoint_url: EndpointUrl = None,
    region: Region = None,
    profile: Profile = None,
    no_sign_request: NoSignRequest = False,
    force_path_style: ForcePathStyle = False,
    ca_bundle: CaBundle = None,
    no_verify_ssl: NoVerifySsl = False,
    request_payer: RequestPayer = False,
    sse_c_key_file: SseCKeyFile = None,
    verify: Verify = False,
    max_connections: MaxConnections = _MAX_CONNECTIONS,
    read_deadline_s: ReadDeadline = _READ_DEADLINE_S,
) -> ConnectionConfig:
    """Check the connection options and return them as one value."""
    return connection_config(
        endpoint_url=endpoint_url,
        region=region,
        profile=profile,
        no_sign_request=no_sign_request,
        force_path_style=force_path_style,
        ca_bundle=ca_bundle,
        no_verify_ssl=no_verify_ssl,
        request_payer=request_payer,
        sse_c_key_file=sse_c_key_file,
        verify=verify,
        max_connections=max_connections,
        read_deadline_s=read_deadline_s,
    )


def origin(
    index: Index = None,
    inventory: Inventory = None,
    keys_from: KeysFrom = None,
    index_cache: IndexCache = None,
    no_index_cache: NoIndexCache = False,
    index_max_age: IndexMaxAge = None,
    strict: Strict = False,
    allow_empty: AllowEmpty = False,
    source_type: SourceType = SourceKind.PREFIX,
    attribute_name: AttributeName = None,
    shard: PartOf = None,
    shard_by: DividedBy = None,
) -> IndexOrigin:
    """Check the options of the source and of its index, and return them as one value."""
    return index_origin(
        index=index,
        inventory=inventory,
        keys_from=keys_from,
        index_cache=index_cache,
        no_index_cache=no_index_cache,
        index_max_age=index_max_age,
        strict=strict,
        allow_empty=allow_empty,
        source_type=source_type,
        attribute_names=attribute_name or (),
        shard=shard,
        shard_by=shard_by,
    )


def logs(verbose: Verbose = False, log_format: Format = LogFormat.HUMAN, log_file: File = None) -> LogConfig:
    """Return the logging options as one value."""
    # A daemon changes to the root directory.
    file = None if log_file is None else log_file.absolute()
    return LogConfig(json=log_format is LogFormat.JSON, verbose=verbose, file=file)


def takes(**groups: Callable[..., object]) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Give a command the options of each group, and call it with one argument per group: the group's result.

    On the command line the group's own parameters replace the parameter that is named after the group.
    """

    def decorate(command: Callable[..., int]) -> Callable[..., int]:
        members = {name: inspect.signature(group).parameters for name, group in groups.items()}
        own = [item for item in inspect.signature(command).parameters.values() if item.name not in groups]
        shared = [item for parameters in members.values() for item in parameters.values()]

        @functools.wraps(command)
        def call(**values: object) -> int:
            made = {
                name: groups[name](**{member: values.pop(member) for member in parameters})
                for name, parameters in members.items()
            }
            return command(**values, **made)

        keyword_only = [item.replace(kind=inspect.Parameter.KEYWORD_ONLY) for item in (*own, *shared)]
        call.__signature__ = inspect.Signature(keyword_only)  # type: ignore[attr-defined]
        return call

    return decorate
