"""The checked values of a training job, its channels and its hosts, in the words of SageMaker's API. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from fastfuse.errors import ConfigurationError
from fastfuse.filesystem.mounting.mount_settings import MINIMUM_MEMORY_BYTES
from fastfuse.index.origin import SourceKind
from fastfuse.index.sources.shard import Shard
from fastfuse.index.sources.uri import S3Uri
from fastfuse.sizes import format_size

# SageMaker's name for the only group of a job without groups.
HOMOGENEOUS: Final = "homogeneousCluster"


class InputMode(StrEnum):
    """The API's ``InputMode``, and ``TrainingInputMode`` of ``inputdataconfig.json``."""

    FILE = "File"
    FAST_FILE = "FastFile"
    PIPE = "Pipe"


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalDirectory:
    """A directory of this host, or a manifest that names files of one: a source in the place of objects in S3."""

    # Absolute; with a `file_system`, below the place where it is mounted.
    path: str
    # ``FileSystemId``; empty for a directory that has a path on the host.
    file_system: str = ""
    # The place where the file system is mounted on this host; empty until `located` has told.
    mounted_at: str = ""
    # ``FileSystemAccessMode`` ``rw``.
    is_writable: bool = False

    def __str__(self) -> str:
        return f"{self.file_system}:{self.path}" if self.file_system else f"file://{self.path}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Channel:
    """One channel, checked, with the job's defaults filled in."""

    name: str
    input_mode: InputMode
    # Nothing in the description says the mode.
    is_mode_assumed: bool = False
    # The prefix, the manifest itself, or a directory or manifest of this host.
    source: S3Uri | LocalDirectory
    source_kind: SourceKind = SourceKind.PREFIX
    # ``ShardedByS3Key``: each host gets its own part of the objects.
    is_sharded: bool = False
    # None where the request has none; ``inputdataconfig.json`` then omits it.
    content_type: str | None = None
    is_gzip: bool = False
    # ``RecordWrapperType`` ``RecordIO``.
    wraps_records: bool = False
    shuffle_seed: int | None = None
    attribute_names: tuple[str, ...] = ()
    # Empty: every group gets the channel.
    instance_group_names: tuple[str, ...] = ()

    @property
    def bucket(self) -> str:
        """The bucket of the source; empty for one of this host."""
        return "" if isinstance(self.source, LocalDirectory) else self.source.bucket

    @property
    def is_dealt_anew(self) -> bool:
        """Return whether every host gets another part of the channel in each epoch.

        "In a multi-node training job when ShuffleConfig is combined with S3DataDistributionType of ShardedByS3Key, the
        data is shuffled across nodes so that the content sent to a particular node on the first epoch might be sent to
        a different node on the second epoch"
        (https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_ShuffleConfig.html).
        """
        return self.is_sharded and self.shuffle_seed is not None and self.input_mode is InputMode.PIPE

    @property
    def is_key_name_prefix(self) -> bool:
        """Return whether the channel gets every key that begins with the prefix, not only one folder or object.

        That is the rule of File and Pipe mode. FastFile mode takes the prefix as a folder. The two agree on a prefix
        that is empty or ends in ``/``, so one saved index of it serves all modes.
        """
        if isinstance(self.source, LocalDirectory):
            return False
        path = self.source.path
        may_end_within_name = bool(path) and not path.endswith("/")
        is_prefix = self.source_kind is SourceKind.PREFIX
        return is_prefix and self.input_mode is not InputMode.FAST_FILE and may_end_within_name

    @property
    def is_put_in_place(self) -> bool:
        """Return whether the channel is a directory of this host that the script itself reads."""
        return isinstance(self.source, LocalDirectory) and self.input_mode is not InputMode.PIPE


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceGroup:
    """One of ``instance_groups`` in ``resourceconfig.json``."""

    name: str
    instance_type: str
    hosts: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """The hosts of a job as one of them sees them, as in ``resourceconfig.json``."""

    current_host: str
    # In lexicographic order, as SageMaker writes them ("algo-10" before "algo-2").
    hosts: tuple[str, ...]
    network_interface: str = "eth0"
    current_instance_type: str = "local"
    current_group: str = HOMOGENEOUS
    instance_groups: tuple[InstanceGroup, ...] = ()
    # The machine's own name where a job is elastic and each host is ``algo-1`` of one; empty elsewhere.
    elastic_host: str = ""

    @property
    def is_alone(self) -> bool:
        """Return whether the job has no other host, which could write to the same place in S3."""
        return len(self.hosts) == 1 and not self.elastic_host

    def shard(self, channel: Channel, *, by_bytes: bool = False) -> Shard | None:
        """Return this host's shard of a sharded channel, or None where it gets everything."""
        if not channel.is_sharded:
            return None
        sharing = self._hosts_of(channel)
        return Shard(index=sharing.index(self.current_host), count=len(sharing), by_bytes=by_bytes)

    def reads_all(self, channel: Channel) -> bool:
        """Return whether this host probably reads all that it gets of `channel` once in each epoch.

        Hosts that share a whole channel each read their own part of it (``DistributedSampler``).
        """
        return channel.is_sharded or (len(self._hosts_of(channel)) == 1 and not self.elastic_host)

    def gets(self, channel: Channel) -> bool:
        """Return whether the channel is for this host's instance group."""
        return not channel.instance_group_names or self.current_group in channel.instance_group_names

    def _hosts_of(self, channel: Channel) -> list[str]:
        hosts = [
            host
            for group in self.instance_groups
            if not channel.instance_group_names or group.name in channel.instance_group_names
            for host in group.hosts
        ]
        return sorted(hosts or self.hosts)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedGroup:
    """One of ``ResourceConfig``'s ``InstanceGroups``; a job without groups has one, `HOMOGENEOUS`."""

    name: str
    instance_type: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputConfig:
    """``OutputDataConfig``: where model and output of the job go, and how."""

    # The prefix of the job's own, which ends in ``output/``.
    place: S3Uri
    # Empty: the bucket's default encryption.
    kms_key_id: str = ""
    # ``GZIP``: one archive for each directory; else every file is an object.
    is_compressed: bool = True

    def model(self, cluster: Cluster) -> S3Uri:
        """Return the place of the model: an archive of each host, or one prefix for the files of all hosts."""
        return self._below(f"model{_suffix(cluster)}.tar.gz" if self.is_compressed else "model/")

    def output(self, cluster: Cluster) -> S3Uri:
        """Return the place of ``output/data``, which is an archive whatever the model is."""
        return self._below(f"output{_suffix(cluster)}.tar.gz")

    def record(self, cluster: Cluster) -> S3Uri:
        return self._below(f"job-record{_suffix(cluster)}.json")

    def etags(self, cluster: Cluster) -> S3Uri:
        return self._below(f"job-etags{_suffix(cluster)}/")

    def _below(self, name: str) -> S3Uri:
        return S3Uri(self.place.bucket, self.place.path + name)


def _suffix(cluster: Cluster) -> str:
    """Return what tells the host's objects from those of the first host: hosts do not replace each other's model.

    No host of an elastic job is the first.
    """
    name = cluster.elastic_host or cluster.current_host
    return "" if name == cluster.hosts[0] else f"-{name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncedDirectory:
    """``CheckpointConfig`` or ``TensorBoardOutputConfig``: a directory whose files go to S3 while the job runs."""

    # The name in messages.
    name: str
    # The path in SageMaker's container; ``/opt/ml`` is the base directory here.
    local_path: str
    # The prefix, which ends in "/" unless it is the whole bucket.
    place: S3Uri
    # Checkpoints come back before the command starts, and go to S3 once they are complete. Logs go as they grow.
    are_checkpoints: bool

    @property
    def field(self) -> str:
        return "CheckpointConfig" if self.are_checkpoints else "TensorBoardOutputConfig"


class Handling(StrEnum):
    """The treatment of a field by `fastfuse run`, compared with SageMaker."""

    DONE = "done"
    DIFFERENTLY = "done differently"
    NOT_DONE = "not done here"


@dataclass(frozen=True, slots=True)
class FieldRow:
    """A field of the API, and what becomes of it."""

    # The names that AWS gives, joined with dots.
    path: str
    handling: Handling
    # The difference; empty where there is none.
    note: str = ""

    def __str__(self) -> str:
        return f"{self.path}: {self.handling}" + (f" ({self.note})" if self.note else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingJob:
    """A job description, checked."""

    channels: tuple[Channel, ...]
    # "" where the description is channels alone.
    name: str = ""
    # "" where the description is not SageMaker's answer.
    arn: str = ""
    # Empty where the description says nothing of instances.
    groups: tuple[RequestedGroup, ...] = ()
    # Left out of repr: people put tokens there.
    hyperparameters: dict[str, str] = field(default_factory=dict, repr=False)
    environment: dict[str, str] = field(default_factory=dict, repr=False)
    # None: what the job makes stays on this host.
    output: OutputConfig | None = None
    synced: tuple[SyncedDirectory, ...] = ()
    # ``MaxRuntimeInSeconds``; None: no limit.
    max_runtime_s: int | None = None
    # ``ContainerEntrypoint`` and ``ContainerArguments``; left out of repr, for people put tokens there.
    command: tuple[str, ...] = field(default=(), repr=False)
    # The row of each field that the description gives.
    fields: tuple[FieldRow, ...] = field(default=(), compare=False)

    @property
    def instance_count(self) -> int:
        """The instances of all groups; 0 where the description says nothing of them."""
        return sum(group.count for group in self.groups)

    @property
    def fetches_code(self) -> bool:
        """Return whether SageMaker's toolkit fetches the script from S3."""
        return "s3://" in self.hyperparameters.get("sagemaker_submit_directory", "")


# Modes that need memory at the same time: downloads end before the command reads mounts; streams begin at once.
_AT_ONCE = (frozenset({InputMode.FILE, InputMode.PIPE}), frozenset({InputMode.FAST_FILE, InputMode.PIPE}))


def minimum_job_bytes(channels: Sequence[Channel]) -> int:
    """Return the least memory target that these channels can work with."""
    return MINIMUM_MEMORY_BYTES * max(len(_sharing(channels, modes)) for modes in _AT_ONCE)


def divide_memory(total_bytes: int, channels: Sequence[Channel]) -> dict[str, int]:
    """Divide the memory target equally among the channels that work at the same time; return bytes by channel name.

    Raises:
        ConfigurationError: it is less than `minimum_job_bytes`.
    """
    if total_bytes < minimum_job_bytes(channels):
        raise ConfigurationError(
            f"a memory target of {format_size(total_bytes)} is too little for {len(channels)} channels, each of which "
            f"needs {format_size(MINIMUM_MEMORY_BYTES)}",
            hint=f"give --memory-target {format_size(minimum_job_bytes(channels)).replace(' ', '')} or more, or fewer "
            "channels; channels of mode File need none while others are read",
        )
    shares: dict[str, int] = {}
    for modes in _AT_ONCE:
        sharing = _sharing(channels, modes)
        for channel in sharing:
            shares[channel.name] = min(total_bytes // len(sharing), shares.get(channel.name, total_bytes))
    return shares


def _sharing(channels: Sequence[Channel], modes: frozenset[InputMode]) -> list[Channel]:
    return [channel for channel in channels if channel.input_mode in modes and not channel.is_put_in_place]
