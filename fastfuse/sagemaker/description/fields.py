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


# Below the path of a structure, a line for each of its fields: mark, names, and the note behind the bar.
_MARKS: Final = {"+": Handling.DONE, "~": Handling.DIFFERENTLY, "-": Handling.NOT_DONE}
_TABLE: Final = """
+ TrainingJobName TrainingJobArn HyperParameters Environment
AlgorithmSpecification
+ TrainingInputMode
~ ContainerEntrypoint | the command, if none is given after --; it runs on this host, in no image
~ ContainerArguments | they follow ContainerEntrypoint, and without one they are not used
- TrainingImage AlgorithmName TrainingImageConfig | no image is started: the command runs with the programs of this host
- MetricDefinitions EnableSageMakerMetricsTimeSeries | no metrics are taken from the script's output
.
- RoleArn | credentials are those of this host, or of --profile
InputDataConfig
+ ChannelName ContentType CompressionType RecordWrapperType InputMode
~ ShuffleConfig | Pipe shuffles by fastfuse's own rule, other modes not
InputDataConfig.DataSource.S3DataSource
+ S3DataType S3Uri AttributeNames InstanceGroupNames
+ S3DataDistributionType | which host gets what is fastfuse's own rule
- ModelAccessConfig HubAccessConfig | nothing is fetched from the hub
InputDataConfig.DataSource.FileSystemDataSource
~ FileSystemId | you mount it, and --file-system tells where
+ DirectoryPath
~ FileSystemAccessMode | ro takes the right to mount, or else warns
- FileSystemType | whatever is mounted there is read
InputDataConfig.DataSource
- DatasetSource | the job is refused: give the S3 prefix
OutputDataConfig
+ S3OutputPath KmsKeyId CompressionType
.
+ CheckpointConfig TensorBoardOutputConfig
StoppingCondition
+ MaxRuntimeInSeconds
- MaxWaitTimeInSeconds MaxPendingTimeInSeconds | nobody waits for an instance
ResourceConfig
~ InstanceType InstanceGroups.InstanceType | the instance is this host; only the name reaches the script
~ InstanceGroups.InstanceGroupName | the instance is this host; only the name reaches the script
~ InstanceCount | you start each host; --host or a launcher's variables tell which one this is
~ InstanceGroups.InstanceCount | you start each host; --host or a launcher's variables tell which one this is
- KeepAlivePeriodInSeconds TrainingPlanArn InstancePlacementConfig InstancePreferences | no instances are rented
- SelectedInstanceType SelectedInstanceCount | no instances are rented
- VolumeSizeInGB VolumeKmsKeyId | the disk is that of --base-dir
.
- VpcConfig EnableNetworkIsolation | the network is that of this host
- EnableInterContainerTrafficEncryption | hosts talk to each other as they are
- EnableManagedSpotTraining | no instances are rented
- RetryStrategy | a run that fails is not repeated
- Tags ExperimentConfig ModelPackageConfig | nothing is written to SageMaker
- MlflowConfig | set MLflow's own variables in Environment
- DebugHookConfig DebugRuleConfigurations | SageMaker Debugger is not run
ProfilerConfig
+ DisableProfiler | no profiler runs
- S3OutputPath ProfilingIntervalInMilliseconds ProfilingParameters | no profiler runs
.
- ProfilerRuleConfigurations | no profiler runs
- RemoteDebugConfig | log in to this host
- InfraCheckConfig | the hardware is not checked
- SessionChainingConfig | no role is assumed
- ServerlessJobConfig | SageMaker's own recipes are not here
"""


def _rows(table: str) -> Iterator[Field]:
    structure = ""
    for line in table.strip().splitlines():
        mark, _, rest = line.partition(" ")
        if not rest:
            structure = f"{line}.".lstrip(".")
            continue
        names, _, note = rest.partition(" | ")
        yield from (Field(structure + name, _MARKS[mark], note) for name in names.split())


FIELDS: Final = tuple(_rows(_TABLE))
