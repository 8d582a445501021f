"""Holds the settings of a run, and of one of its channels."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fastfuse.cache.settings import CacheSettings
from fastfuse.index.origin import IndexOrigin
from fastfuse.index.sources.shard import Shard
from fastfuse.s3.base import ConnectionConfig
from fastfuse.sagemaker.description.channel import Channel, Cluster, TrainingJob
from fastfuse.sagemaker.files import JobPaths
from fastfuse.sagemaker.pipe.fifo import Guard


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """One run of a job on this host: its options, its job and its environment."""

    job: TrainingJob
    cluster: Cluster
    # Below ``/opt/ml`` on SageMaker.
    paths: JobPaths
    connection: ConnectionConfig
    # The origins of this host's indexes, by name of channel: of all of one that is dealt out anew in each epoch.
    origins: Mapping[str, IndexOrigin]
    # Bytes by name of channel (`divide_memory`).
    memory_target_bytes: Mapping[str, int]
    part_size_bytes: int
    # The local tier of the channels, or None.
    cache: CacheSettings | None = None
    shard_by_bytes: bool = False
    # The settings of mounted channels.
    uid: int
    gid: int
    allow_other: bool = False
    # IP addresses by name of host.
    addresses: Mapping[str, str] = field(default_factory=dict)
    # (host, port) of the Prometheus endpoint, or None.
    metrics_listen: tuple[str, int] | None = None
    # Begin with what an earlier run left below the base directory.
    keeps: bool = False
    # Beside the record of the job, the ETag of each object is written.
    records_etags: bool = False
    # Other runs of this job on this host use these channels, too, or have prepared them.
    is_shared: bool = False
    # A stopping mount lets open files be read for so long.
    grace_s: float = 30.0
    # Without a command the channels stay up until we are told to stop.
    command: tuple[str, ...] = ()
    # The command may take so long to end after it is told to.
    stop_timeout_s: float = 120.0
    # The command inherits these, before the job's own; left out of repr, for they may hold credentials.
    environment: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    # Phases go to the log, as records, and not to standard error, as lines.
    is_json: bool = False

    @property
    def channels(self) -> tuple[Channel, ...]:
        """The channels that this host's instance group gets."""
        return tuple(channel for channel in self.job.channels if self.cluster.gets(channel))

    @property
    def synced_places(self) -> list[Path]:
        """The directories of checkpoints and logs on this host."""
        return [self.paths.of(one.local_path) for one in self.job.synced]


@dataclass(frozen=True, slots=True)
class ChannelTask:
    """One channel of a run."""

    channel: Channel
    settings: RunSettings
    # Readable when all channels are ready: a Pipe channel must not slow down those that prepare.
    begin_fd: int
    # Keeps FIFOs open after the process dies.
    guard: Guard

    @property
    def place(self) -> Path:
        return self.settings.paths.channel(self.channel.name)

    @property
    def memory_target_bytes(self) -> int:
        return self.settings.memory_target_bytes[self.channel.name]

    @property
    def origin(self) -> IndexOrigin:
        return self.settings.origins[self.channel.name]

    @property
    def epoch_shard(self) -> Shard | None:
        """This host's part that is taken anew in each epoch; None: the index holds just what this host gets."""
        shard = self.settings.cluster.shard(self.channel, by_bytes=self.settings.shard_by_bytes)
        return shard if self.channel.is_dealt_anew else None
