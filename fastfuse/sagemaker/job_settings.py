"""What `fastfuse run` is told to do: the frozen result of parsing its options, its job and its environment."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fastfuse.index.origin import IndexOrigin
from fastfuse.s3.base import ConnectionConfig
from fastfuse.sagemaker.channel import Channel, Cluster, TrainingJob
from fastfuse.sagemaker.files import JobPaths

__all__ = ["RunSettings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """One run of a job on this host."""

    job: TrainingJob
    cluster: Cluster
    # ``/opt/ml`` of SageMaker.
    base_dir: Path
    connection: ConnectionConfig
    # What all channels share of it; kind, attributes and shard are each channel's own.
    origin: IndexOrigin
    # By name of channel (`budget`).
    memory_target_bytes: Mapping[str, int]
    part_size_bytes: int
    shard_by_bytes: bool = False
    allow_other: bool = False
    # How long a stopping mount lets open files be read.
    grace_s: float = 30.0
    # Empty: the channels stay up until we are told to stop.
    command: tuple[str, ...] = ()
    # How long the command may take to end that was told to.
    stop_timeout_s: float = 120.0
    # What the command inherits, before what the job adds; not shown, for it may hold credentials.
    environment: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    # Phases go to the log, as records, and not to standard error, as lines.
    is_json: bool = False

    @property
    def channels(self) -> tuple[Channel, ...]:
        """Those that this host's instance group gets."""
        return tuple(channel for channel in self.job.channels if self.cluster.gets(channel))

    @property
    def paths(self) -> JobPaths:
        """What is where below `base_dir`."""
        return JobPaths(self.base_dir)
