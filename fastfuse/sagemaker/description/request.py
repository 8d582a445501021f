"""CreateTrainingJob requests and DescribeTrainingJob answers, field by field, as SageMaker's API defines them.

Each structure of the API is a class here: its attributes are the fields that fastfuse reads. The others of the API are
known by their rows in `FIELDS`. A new field of a job begins here; `contradictions` decides what fields mean together.
Lengths, patterns and words are those of botocore's ``sagemaker/2017-07-24/service-2.json``.
"""

from collections.abc import Iterator
from difflib import get_close_matches
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails

from fastfuse.index.origin import SourceKind
from fastfuse.sagemaker.description.channel import FieldRow, Handling, InputMode

__all__ = [
    *("FIELDS", "ChannelRequest", "FieldError", "FieldPath", "FileSystemSource", "Request", "ResourceRequest"),
    *("S3Source", "given_fields", "parse_request"),
]

FieldPath = tuple[str | int, ...]


class FieldError(Exception):
    """One wrong field: its path in AWS's names, what is wrong, and what to do. `job` adds the place in the file."""

    def __init__(self, path: FieldPath, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.path = path
        self.hint = hint


# The treatment of each field of a job: one row for every member of CreateTrainingJob. A row covers its field and
# everything below it, and no two overlap. A test compares them with botocore's model, and fails for a field that AWS
# adds. Paths leave out the indices of lists.
#
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


def _rows(table: str) -> Iterator[FieldRow]:
    structure = ""
    for line in table.strip().splitlines():
        mark, _, rest = line.partition(" ")
        if not rest:
            structure = f"{line}.".lstrip(".")
            continue
        names, _, note = rest.partition(" | ")
        yield from (FieldRow(structure + name, _MARKS[mark], note) for name in names.split())


FIELDS: Final = tuple(_rows(_TABLE))


# Text becomes an enum, which strict mode would refuse.
_Mode = Annotated[InputMode, Field(strict=False)]
_Kind = Annotated[SourceKind, Field(strict=False)]

_Name = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9._-]+$")]
_AttributeName = Annotated[str, Field(min_length=1, max_length=256)]
_GroupName = Annotated[str, Field(min_length=1, max_length=64)]
_ParameterName = Annotated[str, Field(max_length=256)]
_ParameterValue = Annotated[str, Field(max_length=2500)]
_VariableName = Annotated[str, Field(max_length=512, pattern=r"^[a-zA-Z_][a-zA-Z0-9_]*$")]
_VariableValue = Annotated[str, Field(max_length=512, pattern=r"^[^\x00]*$")]
_Long = Annotated[int, Field(ge=-(2**63), lt=2**63)]
_Count = Annotated[int, Field(ge=0, lt=2**31)]
_Seconds = Annotated[int, Field(ge=1, lt=2**31)]
_LocalPath = Annotated[str, Field(max_length=4096, pattern=r"^/[^\x00]*$")]
# A word of a command; no NUL can stand in one.
_Word = Annotated[str, Field(max_length=256, pattern=r"^[^\x00]*$")]


# Fields of a DescribeTrainingJob answer only.
_ANSWERED: Final = """
    AutoMLJobArn BillableTimeInSeconds BillableTokenCount CreationTime DebugRuleEvaluationStatuses FailureReason
    FinalMetricDataList LabelingJobArn LastModifiedTime MlflowDetails ModelArtifacts OutputModelPackageArn
    ProfilerRuleEvaluationStatuses ProfilingStatus ProgressInfo ResponseMetadata SecondaryStatus
    SecondaryStatusTransitions TrainingEndTime TrainingJobStatus TrainingStartTime TrainingTimeInSeconds TuningJobArn
    WarmPoolStatus
"""


def _fields_below(structure: str) -> frozenset[str]:
    """Return the fields of the API in a structure, by its path in `FIELDS`."""
    below = (row.path.removeprefix(structure) for row in FIELDS if row.path.startswith(structure))
    return frozenset(path.partition(".")[0] for path in below)


class _Shape(BaseModel):
    """A structure of the API, without fields of any other name; null counts as not set, as AWS's tools print it."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    # Fields of the API; those without an attribute say nothing about the data.
    known: ClassVar[frozenset[str]] = frozenset()

    @model_validator(mode="before")
    @classmethod
    def _leave_out(cls, value: object) -> object:
        if not isinstance(value, dict):
            return value
        ignored = cls.known - cls.model_fields.keys()
        return {name: item for name, item in value.items() if item is not None and name not in ignored}


class ShuffleRequest(_Shape):
    Seed: _Long


class S3Source(_Shape):
    known = _fields_below("InputDataConfig.DataSource.S3DataSource.")

    S3DataType: _Kind
    S3Uri: Annotated[str, Field(max_length=1024)]
    S3DataDistributionType: Literal["FullyReplicated", "ShardedByS3Key"] = "FullyReplicated"
    AttributeNames: Annotated[tuple[_AttributeName, ...], Field(max_length=16, strict=False)] = ()
    InstanceGroupNames: Annotated[tuple[_GroupName, ...], Field(max_length=5, strict=False)] = ()


class FileSystemSource(_Shape):
    FileSystemId: Annotated[str, Field(min_length=11, max_length=21, pattern=r"^fs-[0-9a-f]{8,}$")]
    FileSystemAccessMode: Literal["ro", "rw"]
    FileSystemType: Literal["EFS", "FSxLustre"]
    DirectoryPath: Annotated[str, Field(max_length=4096)]


class SourceRequest(_Shape):
    S3DataSource: S3Source | None = None
    FileSystemDataSource: FileSystemSource | None = None
    # `contradictions` refuses it by name.
    DatasetSource: dict[str, Any] | None = None


class ChannelRequest(_Shape):
    ChannelName: _Name
    DataSource: SourceRequest
    ContentType: Annotated[str, Field(max_length=256)] | None = None
    CompressionType: Literal["None", "Gzip"] = "None"
    RecordWrapperType: Literal["None", "RecordIO"] = "None"
    InputMode: _Mode | None = None
    ShuffleConfig: ShuffleRequest | None = None


class AlgorithmRequest(_Shape):
    known = _fields_below("AlgorithmSpecification.")

    TrainingInputMode: _Mode | None = None
    ContainerEntrypoint: Annotated[tuple[_Word, ...], Field(min_length=1, max_length=100, strict=False)] | None = None
    ContainerArguments: Annotated[tuple[_Word, ...], Field(min_length=1, max_length=100, strict=False)] | None = None


class GroupRequest(_Shape):
    InstanceGroupName: _GroupName
    InstanceType: str
    InstanceCount: _Count


class ResourceRequest(_Shape):
    known = _fields_below("ResourceConfig.")

    InstanceType: str | None = None
    InstanceCount: _Count | None = None
    InstanceGroups: Annotated[tuple[GroupRequest, ...], Field(max_length=5, strict=False)] = ()


class OutputRequest(_Shape):
    S3OutputPath: Annotated[str, Field(max_length=1024)]
    KmsKeyId: Annotated[str, Field(max_length=2048, pattern=r"^[a-zA-Z0-9:/_-]*$")] | None = None
    CompressionType: Literal["GZIP", "NONE"] = "GZIP"


class CheckpointRequest(_Shape):
    S3Uri: Annotated[str, Field(max_length=1024)]
    LocalPath: _LocalPath | None = None


class TensorBoardRequest(_Shape):
    S3OutputPath: Annotated[str, Field(max_length=1024)]
    LocalPath: _LocalPath | None = None


class StoppingRequest(_Shape):
    known = _fields_below("StoppingCondition.")

    MaxRuntimeInSeconds: _Seconds | None = None
    MaxWaitTimeInSeconds: _Seconds | None = None


class Request(_Shape):
    known = _fields_below("") | {*_ANSWERED.split()}

    InputDataConfig: Annotated[tuple[ChannelRequest, ...], Field(min_length=1, max_length=20, strict=False)]
    TrainingJobName: Annotated[str, Field(max_length=63, pattern=r"^[a-zA-Z0-9](-*[a-zA-Z0-9])*$")] | None = None
    TrainingJobArn: str | None = None
    AlgorithmSpecification: AlgorithmRequest = AlgorithmRequest()
    ResourceConfig: ResourceRequest | None = None
    OutputDataConfig: OutputRequest | None = None
    CheckpointConfig: CheckpointRequest | None = None
    TensorBoardOutputConfig: TensorBoardRequest | None = None
    StoppingCondition: StoppingRequest | None = None
    HyperParameters: Annotated[dict[_ParameterName, _ParameterValue], Field(max_length=100)] = {}
    Environment: Annotated[dict[_VariableName, _VariableValue], Field(max_length=100)] = {}


def parse_request(tree: object) -> Request:
    """Check each field of `tree` by itself and return the request.

    Raises:
        FieldError: the first field that the API would refuse.
    """
    try:
        return Request.model_validate(tree)
    except ValidationError as error:
        found = error.errors(include_url=False)
    # A misspelt field is the cause of a missing one.
    details = next((item for item in found if item["type"] == "extra_forbidden"), found[0])
    path = tuple(part for part in details["loc"] if part != "[key]")
    message, hint = _explained(details, path)
    raise FieldError(path, message, hint=hint)


def _explained(details: ErrorDetails, path: FieldPath) -> tuple[str, str]:
    """Return what is wrong and what to do, without the value, which may be a secret of the job."""
    kind = details["type"]
    if kind == "missing":
        return "is missing", _REQUIRED.get(str(path[-1]), "the API requires it")
    if kind == "extra_forbidden":
        return _unknown(path)
    if kind == "enum" and details["input"] == "Converse":
        return "is Converse, which names conversations and no objects", "give the prefix of the files as an S3Prefix"
    if kind == "too_long" and path == ("InputDataConfig",):
        return (
            "has more than the 20 channels that the API allows",
            "name several prefixes in the manifest of one channel",
        )
    message, hint = _SENTENCES.get(kind, ("is not an object", "put it between braces"))
    limits = details.get("ctx", {})
    return message.format_map(limits), hint.format_map(limits)


# By the type of pydantic's error; other types mean a value that is no object.
_NO_WORD: Final = ("is not one of {expected}", "words of the API are written exactly so")
_EMPTY: Final = ("is empty", "the API wants one at least")
_OUT_OF_RANGE: Final = ("is out of the range that the API allows", "")
_SENTENCES: Final = {
    "enum": _NO_WORD,
    "literal_error": _NO_WORD,
    "string_too_short": _EMPTY,
    "too_short": _EMPTY,
    "string_too_long": ("has more than the {max_length} characters that the API allows", ""),
    "too_long": ("has more than the {max_length} items that the API allows", ""),
    "string_pattern_mismatch": ("has characters that the API does not allow there", "it must match {pattern}"),
    "string_type": ("is not text", "put it between quotes: numbers are text there, too"),
    "string_unicode": ("is not text that UTF-8 can hold", "half a surrogate pair is no character"),
    "int_type": ("is not a whole number", "write it without quotes and without a decimal point"),
    "greater_than_equal": _OUT_OF_RANGE,
    "less_than": _OUT_OF_RANGE,
    "tuple_type": ("is not a list", "put it between square brackets"),
}

_REQUIRED: Final = {
    "InputDataConfig": "it is the list of the job's channels; a job without channels needs no fastfuse",
    "S3DataType": "one of S3Prefix, ManifestFile and AugmentedManifestFile",
    "S3Uri": "write it as s3://BUCKET/PREFIX",
    "S3OutputPath": "write it as s3://BUCKET/PREFIX",
    "DataSource": "it says where the data of the channel is: an S3DataSource or a FileSystemDataSource",
}


def _unknown(path: FieldPath) -> tuple[str, str]:
    known = _fields_at(path[:-1])
    close = get_close_matches(str(path[-1]), known, n=1) or [
        name for name in known if name.lower() == str(path[-1]).lower()
    ]
    hint = f"did you mean {close[0]}?" if close else "the API has no such field there"
    return "is not a field of the API", hint


def _fields_at(path: FieldPath) -> list[str]:
    shape: type[_Shape] = Request
    for part in path:
        shape = _SHAPES.get(str(part), shape)
    return sorted(shape.known | shape.model_fields.keys())


_SHAPES: Final[dict[str, type[_Shape]]] = {
    "InputDataConfig": ChannelRequest,
    "DataSource": SourceRequest,
    "S3DataSource": S3Source,
    "FileSystemDataSource": FileSystemSource,
    "ShuffleConfig": ShuffleRequest,
    "AlgorithmSpecification": AlgorithmRequest,
    "ResourceConfig": ResourceRequest,
    "InstanceGroups": GroupRequest,
    "OutputDataConfig": OutputRequest,
    "CheckpointConfig": CheckpointRequest,
    "TensorBoardOutputConfig": TensorBoardRequest,
    "StoppingCondition": StoppingRequest,
}


def given_fields(tree: object) -> tuple[FieldRow, ...]:
    """Return the row of each field that a job description in AWS's names gives, in the order of `FIELDS`.

    Null, false and what is empty ask for nothing. Fields of a DescribeTrainingJob answer only are one row, the last.
    """
    given = [field for field in FIELDS if _asks(tree, field.path.split("."))]
    roots = {field.path.partition(".")[0] for field in FIELDS}
    answers = [name for name, value in tree.items() if value and name not in roots] if isinstance(tree, dict) else []
    if answers:
        given.append(FieldRow(", ".join(answers), Handling.NOT_DONE, "SageMaker's answer tells of a job that it ran"))
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
