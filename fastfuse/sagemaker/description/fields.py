"""The treatment of each field of a job: one row for every member of CreateTrainingJob. Pure.

A row covers its field and everything below it, and no two rows overlap. A test compares the rows with botocore's model
of the API, and fails for a field that AWS adds. Paths leave out the indices of lists.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

__all__ = ["FIELDS", "Field", "Handling", "given_fields"]


class Handling(StrEnum):
    """The treatment of a field by `fastfuse run`, compared with SageMaker."""

    DONE = "done"
    DIFFERENTLY = "done differently"
    NOT_DONE = "not done here"


@dataclass(frozen=True, slots=True)
class Field:
    """A field of the API, and what becomes of it."""

    # The names that AWS gives, joined with dots.
    path: str
    handling: Handling
    # The difference; empty where there is none.
    note: str = ""

    def __str__(self) -> str:
        return f"{self.path}: {self.handling}" + (f" ({self.note})" if self.note else "")


def given_fields(tree: object) -> tuple[Field, ...]:
    """Return the row of each field that a job description in AWS's names gives, in the order of `FIELDS`.

    Null, false and what is empty ask for nothing. Fields of a DescribeTrainingJob answer only are one row, the last.
    """
    given = [field for field in FIELDS if _asks(tree, field.path.split("."))]
    roots = {field.path.partition(".")[0] for field in FIELDS}
    answers = [name for name, value in tree.items() if value and name not in roots] if isinstance(tree, dict) else []
    if answers:
        given.append(Field(", ".join(answers), Handling.NOT_DONE, "SageMaker's answer tells of a job that it ran"))
    return tuple(given)


def _asks(value: object, path: list[str]) -> bool:
    """Return whether anything at `path` below `value`, in any item of a list, asks for something."""
    if isinstance(value, list):
        return any(_asks(item, path) for item in value)
    if not path:
        return any(_asks(item, path) for item in value.values()) if isinstance(value, dict) else _is_set(value)
    return isinstance(value, dict) and path[0] in value and _asks(value[path[0]], path[1:])


def _is_set(value: object) -> bool:
    # A zero is a value, such as of a seed.
    return value is not None and value is not False and value != ""


def _rows(handling: Handling, note: str, names: str, below: str = "") -> Iterator[Field]:
    for name in names.split():
        yield Field(f"{below}.{name}" if below else name, handling, note)


_ALGORITHM: Final = "AlgorithmSpecification"
_CHANNEL: Final = "InputDataConfig"
_S3: Final = f"{_CHANNEL}.DataSource.S3DataSource"
_FILE_SYSTEM: Final = f"{_CHANNEL}.DataSource.FileSystemDataSource"
_RESOURCES: Final = "ResourceConfig"
_LIMITS: Final = "StoppingCondition"

_NO_INSTANCES: Final = "no instances are rented"
_NO_PROFILER: Final = "no profiler runs"

FIELDS: Final = (
    *_rows(Handling.DONE, "", "TrainingJobName TrainingJobArn HyperParameters Environment"),
    *_rows(Handling.DONE, "", "TrainingInputMode", _ALGORITHM),
    *_rows(
        Handling.DIFFERENTLY,
        "the command, if none is given after --; it runs on this host, in no image",
        "ContainerEntrypoint ContainerArguments",
        _ALGORITHM,
    ),
    *_rows(
        Handling.NOT_DONE,
        "no image is started: the command runs with the programs of this host",
        "TrainingImage AlgorithmName TrainingImageConfig",
        _ALGORITHM,
    ),
    *_rows(
        Handling.NOT_DONE,
        "no metrics are taken from the script's output",
        "MetricDefinitions EnableSageMakerMetricsTimeSeries",
        _ALGORITHM,
    ),
    *_rows(Handling.NOT_DONE, "credentials are those of this host, or of --profile", "RoleArn"),
    *_rows(Handling.DONE, "", "ChannelName ContentType CompressionType RecordWrapperType InputMode", _CHANNEL),
    *_rows(Handling.DIFFERENTLY, "Pipe shuffles by fastfuse's own rule, other modes not", "ShuffleConfig", _CHANNEL),
    *_rows(Handling.DONE, "", "S3DataType S3Uri AttributeNames InstanceGroupNames", _S3),
    *_rows(Handling.DONE, "which host gets what is fastfuse's own rule", "S3DataDistributionType", _S3),
    *_rows(Handling.NOT_DONE, "nothing is fetched from the hub", "ModelAccessConfig HubAccessConfig", _S3),
    *_rows(Handling.DIFFERENTLY, "you mount it, and --file-system tells where", "FileSystemId", _FILE_SYSTEM),
    *_rows(Handling.DONE, "", "DirectoryPath", _FILE_SYSTEM),
    *_rows(Handling.DIFFERENTLY, "ro takes the right to mount, or else warns", "FileSystemAccessMode", _FILE_SYSTEM),
    *_rows(Handling.NOT_DONE, "whatever is mounted there is read", "FileSystemType", _FILE_SYSTEM),
    *_rows(Handling.NOT_DONE, "the job is refused: give the S3 prefix", "DatasetSource", f"{_CHANNEL}.DataSource"),
    *_rows(Handling.DONE, "", "S3OutputPath KmsKeyId CompressionType", "OutputDataConfig"),
    *_rows(Handling.DONE, "", "CheckpointConfig TensorBoardOutputConfig"),
    *_rows(Handling.DONE, "", "MaxRuntimeInSeconds", _LIMITS),
    *_rows(Handling.NOT_DONE, "nobody waits for an instance", "MaxWaitTimeInSeconds MaxPendingTimeInSeconds", _LIMITS),
    *_rows(
        Handling.DIFFERENTLY,
        "the instance is this host; only the name reaches the script",
        "InstanceType InstanceGroups.InstanceType InstanceGroups.InstanceGroupName",
        _RESOURCES,
    ),
    *_rows(
        Handling.DIFFERENTLY,
        "you start each host; --host or a launcher's variables tell which one this is",
        "InstanceCount InstanceGroups.InstanceCount",
        _RESOURCES,
    ),
    *_rows(
        Handling.NOT_DONE,
        _NO_INSTANCES,
        "KeepAlivePeriodInSeconds TrainingPlanArn InstancePlacementConfig InstancePreferences SelectedInstanceType "
        "SelectedInstanceCount",
        _RESOURCES,
    ),
    *_rows(Handling.NOT_DONE, "the disk is that of --base-dir", "VolumeSizeInGB VolumeKmsKeyId", _RESOURCES),
    *_rows(Handling.NOT_DONE, "the network is that of this host", "VpcConfig EnableNetworkIsolation"),
    *_rows(Handling.NOT_DONE, "hosts talk to each other as they are", "EnableInterContainerTrafficEncryption"),
    *_rows(Handling.NOT_DONE, _NO_INSTANCES, "EnableManagedSpotTraining"),
    *_rows(Handling.NOT_DONE, "a run that fails is not repeated", "RetryStrategy"),
    *_rows(Handling.NOT_DONE, "nothing is written to SageMaker", "Tags ExperimentConfig ModelPackageConfig"),
    *_rows(Handling.NOT_DONE, "set MLflow's own variables in Environment", "MlflowConfig"),
    *_rows(Handling.NOT_DONE, "SageMaker Debugger is not run", "DebugHookConfig DebugRuleConfigurations"),
    *_rows(Handling.DONE, _NO_PROFILER, "DisableProfiler", "ProfilerConfig"),
    *_rows(
        Handling.NOT_DONE,
        _NO_PROFILER,
        "S3OutputPath ProfilingIntervalInMilliseconds ProfilingParameters",
        "ProfilerConfig",
    ),
    *_rows(Handling.NOT_DONE, _NO_PROFILER, "ProfilerRuleConfigurations"),
    *_rows(Handling.NOT_DONE, "log in to this host", "RemoteDebugConfig"),
    *_rows(Handling.NOT_DONE, "the hardware is not checked", "InfraCheckConfig"),
    *_rows(Handling.NOT_DONE, "no role is assumed", "SessionChainingConfig"),
    *_rows(Handling.NOT_DONE, "SageMaker's own recipes are not here", "ServerlessJobConfig"),
)
