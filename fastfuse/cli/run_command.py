"""Defines the options of ``fastfuse run`` and runs it."""

import os
import re
import socket
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fastfuse import log
from fastfuse.cache.settings import CacheSettings
from fastfuse.cli import index_options, messages, options, startup
from fastfuse.cli.config import job_memory_bytes, parse_listen_address, parse_part_size
from fastfuse.cli.index_options import INDEX_PANEL, ShardBy, by_channel, origin
from fastfuse.cli.options import MEMORY_PANEL, setting
from fastfuse.errors import ConfigurationError
from fastfuse.log import LogConfig
from fastfuse.s3.base import ConnectionConfig

if TYPE_CHECKING:
    from fastfuse.sagemaker.description.channel import Channel, Cluster, TrainingJob

_JOB = "Job"
# Variables of this run alone: with them a run or a mount of the command would want the same address, index and place.
_ITS_OWN = re.compile("FASTFUSE_(BASE_DIR|HOST|INDEX|INDEX_MAX_AGE|INVENTORY|JOB|KEEP|METRICS_LISTEN|SHARD_BY|SHARE)")

EPILOG = (
    "The exit code is the command's, 128 and the signal if one killed it; where the job cannot be prepared, it is "
    "that of 'fastfuse mount' (see 'fastfuse --help')."
)


@options.takes(cache=options.cache, connection=options.connection, logs=options.logs)
def run(
    command: Annotated[list[str] | None, typer.Argument(metavar="COMMAND ARGS",
        help="What to run once every channel can be read. Left out, the channels stay up until SIGTERM or Ctrl-C.")]
        = None,
    *,
    context: typer.Context,
    job: Annotated[Path | None, setting("--job FILE", _JOB,
        "A CreateTrainingJob request, a DescribeTrainingJob answer or an InputDataConfig array, as JSON.")] = None,
    channel: Annotated[list[str] | None, setting("--channel NAME=SOURCE[,...]", _JOB,
        "A channel, instead of a job file: train=s3://BUCKET/PREFIX, or train=/DIRECTORY of this host, with options "
        "after commas, as in train=s3://BUCKET/PREFIX,mode=Pipe. FastFile if no mode is given. Can be repeated.",
        envvar=None)] = None,
    file_system: Annotated[list[str] | None, setting("--file-system ID=DIR", _JOB,
        "Where the file system of a channel's FileSystemDataSource is mounted, as in fs-0123456789abcdef0=/mnt/efs. "
        "Can be repeated.", envvar=None)] = None,
    explain: Annotated[bool, setting("--explain", _JOB,
        "Print what becomes of each field that the job gives, and run nothing; --job may be left out before the file.",
        envvar=None)] = False,
    base_dir: Annotated[Path, setting("--base-dir DIR", _JOB,
        "Where to make input/config, input/data and the rest. With another one than SageMaker's you need not be root.",
        parser=Path)] = Path("/opt/ml"),
    keep: Annotated[bool, setting("--keep", _JOB,
        "Begin with what an earlier run left there: downloaded files, model, output, checkpoints. Left out, they are "
        "moved to runs/ below it.")] = False,
    record_etags: Annotated[bool, setting("--record-etags", _JOB,
        "Write bucket, key, size and ETag of each object that a channel held into output/job-etags/CHANNEL.jsonl, and "
        "upload it with the job's record.")] = False,
    share: Annotated[bool, setting("--share", _JOB,
        "Several processes of a launcher run this on one host: the first prepares the channels, the others wait and "
        "share them, and the last to end takes them down. Not with Pipe channels.")] = False,
    host: Annotated[str | None, setting("--host I/N", _JOB,
        "Which of the job's N hosts this is, from 1. Left out, SM_HOSTS, RANK and WORLD_SIZE, or what Slurm or "
        "Kubernetes set says so; else there is one, and a job of more instances is refused.")] = None,
    address: Annotated[list[str] | None, setting("--address HOST=ADDRESS", _JOB,
        "The IP address of a host of the job, as in algo-2=10.0.0.2, or its own name, for the command's look-ups. Can "
        "be repeated.", envvar=None)] = None,
    shard_by: Annotated[ShardBy, setting("--shard-by", _JOB,
        "Of a channel that is ShardedByS3Key, hosts get about as many objects, or about as many bytes.",
    )] = ShardBy.COUNT,
    stop_timeout: Annotated[float, setting("--stop-timeout SECONDS", _JOB,
        "How long the command may take to end that was sent SIGTERM; 120 is SageMaker's promise.", min=0)] = 120.0,
    grace_s: Annotated[float, setting("--grace-s SECONDS", _JOB,
        "How long, after that, reads of others that are under way may take to end.", min=0, max=86400)] = 30.0,
    metrics_listen: options.MetricsListen = None,
    uid: options.Uid = None,
    gid: options.Gid = None,
    allow_other: Annotated[bool, setting("--allow-other", _JOB,
        "Let other users into what is mounted (unless you are root, /etc/fuse.conf must have user_allow_other).",
    )] = False,
    memory_target: Annotated[str | None, setting("--memory-target SIZE|PERCENT", MEMORY_PANEL,
        "Memory for data of all channels, which divide it: 2GiB, or 25% of the RAM or of the control group's limit, "
        "whichever is less. At least 128MiB for each channel; left out, a quarter, but at most 4GiB.")] = None,
    part_size: options.PartSize = "8MiB",
    index: Annotated[list[str] | None, setting("--index [CHANNEL=]FILE|S3_URI", INDEX_PANEL,
        "As of 'fastfuse mount', for one channel; its name may be left out where there is only one. Repeat it for "
        "several.")] = None,
    inventory: Annotated[list[str] | None, setting("--inventory [CHANNEL=]S3_URI", INDEX_PANEL,
        "As of 'fastfuse mount', for one channel; its name may be left out where there is only one. Repeat it for "
        "several.")] = None,
    index_max_age: index_options.IndexMaxAge = None,
    strict: index_options.Strict = False,
    allow_empty: index_options.AllowEmpty = False,
    cache: CacheSettings | None,
    connection: ConnectionConfig,
    logs: LogConfig,
) -> int:  # fmt: skip
    """Run a training job as SageMaker does.

    Each channel is mounted (FastFile), downloaded (File) or streamed through FIFOs (Pipe), below /opt/ml/input/data,
    then the script is run. It finds SM_CHANNEL_TRAIN and the like, and /opt/ml/input/config; all is taken down when it
    ends. --max-connections is for each channel. Manifests in FastFile and File mode, and the rule by which the objects
    of a ShardedByS3Key channel are dealt out, are fastfuse's own.
    """
    with startup.loading():
        from fastfuse.sagemaker.description.channel import InputMode, LocalDirectory, divide_memory, minimum_job_bytes
        from fastfuse.sagemaker.description.cluster import find_cluster
        from fastfuse.sagemaker.description.job import located
        from fastfuse.sagemaker.files import JobPaths
        from fastfuse.sagemaker.run_settings import RunSettings
        from fastfuse.sagemaker.running.run import run as run_job
        from fastfuse.sagemaker.training import parse_addresses
    if explain and job is None and not channel and command and len(command) == 1:
        job = Path(command[0])
    asked = _described(job, channel or ())
    if explain:
        messages.say("\n".join(map(str, asked.fields)))
        return 0
    described = located(asked, file_system or ())
    cluster = find_cluster(described, os.environ, host, machine=socket.gethostname())
    channels = [item for item in described.channels if cluster.gets(item)]
    shares = divide_memory(job_memory_bytes(memory_target, minimum_job_bytes(channels)), channels)
    # Those of other hosts' groups, too: every host may be started with the same options.
    listed = [item.name for item in described.channels if not isinstance(item.source, LocalDirectory)]
    indexes = by_channel("--index", index or (), listed)
    inventories = by_channel("--inventory", inventory or (), listed)
    for item in channels:
        if item.is_key_name_prefix and item.name in inventories:
            raise ConfigurationError(
                f"--inventory takes folders, and channel {item.name} takes every key that begins with {item.source}",
                hint="end the prefix with /",
            )
    origins = {
        item.name: replace(
            origin(
                index=indexes.get(item.name),
                inventory=inventories.get(item.name),
                index_max_age=index_max_age if item.name in indexes or not indexes else None,
                strict=strict,
                allow_empty=allow_empty,
                source_type=item.source_kind,
                shard=(shard := _shard(item, cluster)),
                shard_by=None if shard is None else shard_by,
            ),
            is_key_name_prefix=item.is_key_name_prefix,
            attribute_names=item.attribute_names,
        )
        for item in channels
    }
    settings = RunSettings(
        job=described,
        cluster=cluster,
        paths=JobPaths(Path(os.path.abspath(base_dir))),
        connection=connection,
        origins=origins,
        memory_target_bytes=shares,
        part_size_bytes=parse_part_size(part_size, min(shares.values(), default=sys.maxsize)),
        cache=options.checked_cache(cache, connection, *origins.values()),
        shard_by_bytes=shard_by is ShardBy.BYTES,
        addresses=parse_addresses(address or (), cluster.hosts),
        uid=os.getuid() if uid is None else uid,
        gid=os.getgid() if gid is None else gid,
        allow_other=allow_other,
        metrics_listen=None if metrics_listen is None else parse_listen_address(metrics_listen),
        keeps=keep,
        records_etags=record_etags,
        is_shared=share,
        grace_s=grace_s,
        command=tuple(command or described.command),
        stop_timeout_s=stop_timeout,
        environment={name: value for name, value in context.obj.items() if not _ITS_OWN.fullmatch(name)},
        is_json=logs.json,
    )
    if share and any(item.input_mode is InputMode.PIPE for item in channels):
        raise ConfigurationError("--share is given, and a stream has one reader", hint="use FastFile or File mode")
    if share and not settings.command:
        raise ConfigurationError("--share is given without a command", hint="give the command after --")
    log.configure(logs)
    return run_job(settings)


def _shard(channel: "Channel", cluster: "Cluster") -> str | None:
    """Return the part of the channel that this host lists, as ``--shard`` has it; None: all of it."""
    shard = None if channel.is_dealt_anew else cluster.shard(channel)
    return None if shard is None else f"{shard.index + 1}/{shard.count}"


def _described(file: Path | None, channels: Sequence[str]) -> "TrainingJob":
    from fastfuse.sagemaker.description.job import channels_job, read_job

    if (file is None) == (not channels):
        raise ConfigurationError(
            "run takes either --job FILE or --channel NAME=SOURCE", hint="see 'fastfuse run --help'"
        )
    return channels_job(channels) if file is None else read_job(file)
