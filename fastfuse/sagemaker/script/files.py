"""The directories below ``/opt/ml`` that a training script finds, and the three files that describe the job.

They are as in https://docs.aws.amazon.com/sagemaker/latest/dg/your-algorithms-training-algo-running-container.html.
"""

import errno
import fcntl
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from fastfuse.errors import ConfigurationError, DiskError, FastfuseError
from fastfuse.sagemaker.description.channel import Channel, Cluster, InputMode, TrainingJob
from fastfuse.sagemaker.script.directories import open_directory

__all__ = [
    "BASE_DIR",
    "FREE_SPACE",
    "BaseDirInUseError",
    "JobPaths",
    "_cannot_make",
    "claim_base_dir",
    "input_data_config",
    "resource_config",
    "write_file",
    "write_job_files",
]

FREE_SPACE: Final = "free some space"

# Where SageMaker puts everything.
BASE_DIR: Final = Path("/opt/ml")


class BaseDirInUseError(ConfigurationError):
    """Another run has claimed the base directory."""


class JobPaths:
    """The places below `base`, ``/opt/ml`` on SageMaker."""

    def __init__(self, base: Path = BASE_DIR) -> None:
        self.base = base
        self.input = base / "input"
        self.config = self.input / "config"
        self.data = self.input / "data"
        self.model = base / "model"
        self.code = base / "code"
        # A script that fails writes ``failure`` here.
        self.output = base / "output"
        self.output_data = self.output / "data"
        self.output_intermediate = self.output / "intermediate"
        self.checkpoints = base / "checkpoints"

    def of(self, container_path: str) -> Path:
        """Return the place here of a path in SageMaker's container: what is below ``/opt/ml`` lies below `base`."""
        path = Path(container_path)
        return self.base / path.relative_to(BASE_DIR) if path.is_relative_to(BASE_DIR) else path

    def channel(self, name: str) -> Path:
        """Return the directory of a channel; a Pipe channel has FIFOs there, named after it and an epoch, instead."""
        return self.data / name


def input_data_config(job: TrainingJob, cluster: Cluster) -> dict[str, dict[str, str]]:
    """Return ``inputdataconfig.json``: the channels that this host gets."""
    return {channel.name: _channel_entry(channel) for channel in job.channels if cluster.gets(channel)}


def _channel_entry(channel: Channel) -> dict[str, str]:
    # The guide's order. XGBoost's container needs every key but ContentType.
    content_type = {} if channel.content_type is None else {"ContentType": channel.content_type}
    return content_type | {
        # SageMaker has file systems in File mode only.
        "TrainingInputMode": (InputMode.FILE if channel.is_put_in_place else channel.input_mode).value,
        "S3DistributionType": "ShardedByS3Key" if channel.is_sharded else "FullyReplicated",
        "RecordWrapperType": "RecordIO" if channel.wraps_records else "None",
    }


def resource_config(cluster: Cluster) -> dict[str, object]:
    """Return ``resourceconfig.json``, with the keys that real jobs have beyond the guide's three."""
    return {
        "current_host": cluster.current_host,
        "current_instance_type": cluster.current_instance_type,
        "current_group_name": cluster.current_group,
        "hosts": list(cluster.hosts),
        "instance_groups": [
            {"instance_group_name": group.name, "instance_type": group.instance_type, "hosts": list(group.hosts)}
            for group in cluster.instance_groups
        ],
        "network_interface_name": cluster.network_interface,
    }


def write_job_files(job: TrainingJob, cluster: Cluster, paths: JobPaths) -> None:
    """Make the directories, and put each file in place whole.

    Raises:
        ConfigurationError: something cannot be made below the base directory.
        DiskError: the disk is full.
    """
    files: dict[str, Mapping[str, object]] = {
        "hyperparameters.json": job.hyperparameters,
        "inputdataconfig.json": input_data_config(job, cluster),
        "resourceconfig.json": resource_config(cluster),
    }
    try:
        for directory in (paths.data, paths.model, paths.code, paths.output_data, paths.checkpoints):
            os.close(open_directory(directory, paths.base))
        config_fd = open_directory(paths.config, paths.base)
        try:
            for name, content in files.items():
                write_file(config_fd, name, json.dumps(content, separators=(",", ":")))
        finally:
            os.close(config_fd)
    except OSError as error:
        raise _cannot_make(paths.config / (error.filename or ""), error) from error


def _cannot_make(path: str | Path, error: OSError) -> FastfuseError:
    """Return the error for a path below the base directory that cannot be made."""
    message = f"{str(path)!r} cannot be made: {error.strerror}"
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return DiskError(message, hint=FREE_SPACE)
    if error.errno in {errno.ELOOP, errno.ENOTDIR, errno.EEXIST}:
        return ConfigurationError(message, hint="remove it, or name another directory with --base-dir")
    return ConfigurationError(message, hint="run as root, or name a directory of yours with --base-dir")


def write_file(directory_fd: int, name: str, text: str) -> None:
    """Put a file in place whole, or not at all."""
    hidden = f".{name}.{os.urandom(8).hex()}"
    # The script may be another user's.
    made = os.open(hidden, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644, dir_fd=directory_fd)
    try:
        with os.fdopen(made, "w", encoding="ascii") as file:
            os.fchmod(made, 0o644)
            file.write(text)
        os.replace(hidden, name, src_dir_fd=directory_fd, dst_dir_fd=directory_fd)
    except BaseException:
        with suppress(OSError):
            os.unlink(hidden, dir_fd=directory_fd)
        raise


def claim_base_dir(paths: JobPaths) -> int:
    """Return a descriptor that keeps other runs out until the last process that inherits it ends.

    Another run would take this one's FIFOs and files for leftovers.

    Raises:
        BaseDirInUseError: another run is there.
        ConfigurationError: the base directory cannot be made.
        DiskError: the disk is full.
    """
    try:
        fd = open_directory(paths.input, paths.base)
    except OSError as error:
        raise _cannot_make(error.filename or paths.input, error) from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(fd)
        raise BaseDirInUseError(
            f"another fastfuse run uses {paths.base}",
            hint="wait for its end, or give another --base-dir; processes of one job share it with --share",
        ) from error
    return fd
