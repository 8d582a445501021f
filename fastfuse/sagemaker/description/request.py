"""CreateTrainingJob requests and DescribeTrainingJob answers, field by field, checked with botocore's model of the API.

`FIELDS` says what becomes of each field. What fastfuse reads is checked: names, types, words, lengths and patterns. A
new field of a job begins here; `contradictions` decides what fields mean together.
"""

import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from functools import cache
from typing import Any, Final

from botocore.loaders import Loader
from botocore.model import ServiceModel, Shape

from fastfuse.sagemaker.description.channel import FieldRow, Handling
from fastfuse.version import VERSION

FieldPath = tuple[str | int, ...]
# The value of a field that one object of a file has twice.
GIVEN_TWICE: Final = object()


class FieldError(Exception):
    """One wrong field: its path in AWS's names, what is wrong, and what to do. `job` adds the file's name."""

    def __init__(self, path: FieldPath, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.path = path
        self.hint = hint


# The treatment of each field of a job: one row for every member of CreateTrainingJob. A row covers its field and
# everything below it, and no two overlap. A test compares them with botocore's model, and fails for a field that AWS
# adds. Paths leave out the indices of lists.
#
# Below the path of a structure, a line for each of its fields: mark, names, and the note behind the bar. A line with
# `.` returns to the job itself.
_MARKS: Final = {"+": Handling.DONE, "~": Handling.DIFFERENTLY, "-": Handling.NOT_DONE}
_TABLE: Final = """
+ TrainingJobName TrainingJobArn Environment
~ HyperParameters | in hyperparameters.json, SM_HPS and SM_USER_ARGS; as arguments only by the toolkit (-- train)
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
~ S3OutputPath | one archive for each host; model.tar.gz is the first host's
+ KmsKeyId CompressionType
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


# Fields outside of the channels that nobody reads: whatever they hold is no reason to refuse a job.
_UNREAD: Final = frozenset(
    row.path for row in FIELDS if row.handling is Handling.NOT_DONE and not row.path.startswith("InputDataConfig.")
)
# The API requires more, such as an output and a role. A job with a name may do without channels, as it may there.
_REQUIRED: Final = frozenset({"InputDataConfig"})
_NOT_REQUIRED: Final = frozenset({"TrainingInputMode"})
# `contradictions` parses URIs, which may be of directories here; new types of instances come faster than models; and
# hyperparameters may hold anything.
_FREE: Final = frozenset({"S3Uri", "TrainingInstanceType", "HyperParameterKey", "HyperParameterValue"})

# AWS may have added the field after this version.
_UNKNOWN: Final = f"fastfuse {VERSION} knows no such field there: leave it out if AWS has added it since"
_HINTS: Final = {
    "InputDataConfig": "it is the list of the job's channels; a job that has none has a TrainingJobName",
    "S3OutputPath": "write it as s3://BUCKET/PREFIX",
    "DataSource": "it says where the data of the channel is: an S3DataSource or a FileSystemDataSource",
}


def parse_request(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Check each field of `tree` by itself and return the fields that are read and set.

    Null counts as not set, as AWS's tools print it. Errors do not show values, which may be secrets of the job.

    Raises:
        FieldError: the first field that the API would refuse.
    """
    return _structure(_members(), frozenset() if "TrainingJobName" in tree else _REQUIRED, tree, ())


@cache
def _members() -> dict[str, Shape]:
    """Return the fields of a whole job: those of a request, and of SageMaker's answer."""
    model = ServiceModel(Loader().load_service_model("sagemaker", "service-2"), "sagemaker")
    answer, request = map(model.shape_for, ("DescribeTrainingJobResponse", "CreateTrainingJobRequest"))
    return {**answer.members, **request.members}


def _structure(members: Mapping[str, Shape], required: frozenset[str], value: Any, path: FieldPath) -> dict[str, Any]:  # noqa: ANN401 - JSON
    _check_kind(value, dict, path)
    above = "".join(f"{step}." for step in path if isinstance(step, str))
    rows = {row.path.removeprefix(above).partition(".")[0] for row in FIELDS if row.path.startswith(above)}
    # A field without a row would be ignored silently. Those that only answers have share one row. A row may be ahead of
    # the model.
    known = rows | members.keys() | {"ResponseMetadata"} if not path else rows or members.keys()
    made = {}
    for name, item in value.items():
        if name not in known:
            close = get_close_matches(name, sorted(known), n=1) or [one for one in known if one.lower() == name.lower()]
            is_source = not path and str(item).startswith("s3://")
            other = "give a channel as --channel NAME=S3_URI" if is_source else _UNKNOWN
            hint = f"did you mean {close[0]}?" if close and not is_source else other
            raise FieldError((*path, name), "is not a field of the API", hint=hint)
        is_read = (path or name in rows) and above + name not in _UNREAD
        if item is not None and name in members and is_read:
            made[name] = _checked(members[name], item, (*path, name))
    for name in sorted(required - made.keys()):
        raise FieldError((*path, name), "is missing", hint=_HINTS.get(name, "the API requires it"))
    return made


def _checked(shape: Shape, value: Any, path: FieldPath) -> Any:  # noqa: ANN401 - JSON
    if value is GIVEN_TWICE:
        raise FieldError(path, "is given twice", hint="give it once")
    match shape.type_name:
        case "structure":
            required = frozenset(shape.required_members) - _NOT_REQUIRED
            return _structure(shape.members, required, value, path)
        case "list":
            _check_kind(value, list, path)
            _check_length(shape, value, path, "items")
            return [_checked(shape.member, item, (*path, index)) for index, item in enumerate(value)]
        case "map":
            _check_kind(value, dict, path)
            _check_length(shape, value, path, "items")
            for name, item in value.items():
                _check_text(shape.key, name, (*path, name))
                _checked(shape.value, item, (*path, name))
        case "string":
            _check_text(shape, value, path)
        case "integer" | "long":
            _check_kind(value, int, path)
            bound = 1 << (31 if shape.type_name == "integer" else 63)
            if not shape.metadata.get("min", -bound) <= value <= shape.metadata.get("max", bound - 1):
                raise FieldError(path, "is out of the range that the API allows")
    return value


_KINDS: Final = {
    dict: ("an object", "put it between braces"),
    list: ("a list", "put it between square brackets"),
    int: ("a whole number", "write it without quotes and without a decimal point"),
    str: ("text", "put it between quotes: numbers are text there, too"),
}


def _check_kind(value: object, kind: type, path: FieldPath) -> None:
    if type(value) is not kind:  # a bool is an int
        what, hint = _KINDS[kind]
        raise FieldError(path, f"is not {what}", hint=hint)


def _check_text(shape: Shape, value: Any, path: FieldPath) -> None:  # noqa: ANN401 - JSON
    words = [] if shape.name in _FREE else shape.enum
    if words and value not in words:
        hint = "words of the API are written exactly so"
        raise FieldError(path, f"is not one of {', '.join(map(repr, words))}", hint=hint)
    _check_kind(value, str, path)
    if any("\ud800" <= letter <= "\udfff" for letter in value):
        raise FieldError(path, "is not text that UTF-8 can hold", hint="half a surrogate pair is no character")
    _check_length(shape, value, path, "characters")
    pattern = shape.metadata.get("pattern", ".*")
    if shape.name not in _FREE and ("\0" in value or not re.fullmatch(pattern, value, re.DOTALL | re.ASCII)):
        hint = f"it must match {pattern}"
        raise FieldError(path, "has characters that the API does not allow there", hint=hint)


def _check_length(shape: Shape, value: Any, path: FieldPath, what: str) -> None:  # noqa: ANN401 - with a length
    least, most = shape.metadata.get("min", 0), shape.metadata.get("max")
    if len(value) < least:
        wrong = f"has fewer than the {least} {what} that the API wants" if value else "is empty"
        raise FieldError(path, wrong, hint="the API wants one at least" if least == 1 else "")
    if most is not None and len(value) > most:
        hint = "name several prefixes in the manifest of one channel" if path == ("InputDataConfig",) else ""
        raise FieldError(path, f"has more than the {most} {what} that the API allows", hint=hint)


def given_fields(tree: Mapping[str, Any]) -> tuple[FieldRow, ...]:
    """Return the row of each field that a job description in AWS's names gives, in the order of `FIELDS`.

    Null, false and what is empty ask for nothing. Fields of a DescribeTrainingJob answer only are one row, the last.
    """
    given = [field for field in FIELDS if _asks(tree, field.path.split("."))]
    if tree.get("TrainingJobArn"):
        note = "SageMaker has run the job, and what it made is not replaced"
        given = [FieldRow(one.path, Handling.NOT_DONE, note) if one.path.startswith(_PLACES) else one for one in given]
    roots = {field.path.partition(".")[0] for field in FIELDS}
    answers = [name for name, value in tree.items() if value and name not in roots]
    if answers:
        given.append(FieldRow(", ".join(answers), Handling.NOT_DONE, "SageMaker's answer tells of a job that it ran"))
    return tuple(given)


# The places in S3 of the job that SageMaker ran, in an answer.
_PLACES: Final = ("OutputDataConfig.", "CheckpointConfig", "TensorBoardOutputConfig")


def _asks(value: object, path: list[str]) -> bool:
    """Return whether anything at `path` below `value`, in any item of a list, asks for something."""
    if isinstance(value, list):
        return any(_asks(item, path) for item in value)
    if not path:
        # A zero is a value, such as of a seed.
        is_set = value is not None and value is not False and value != ""
        return any(_asks(item, path) for item in value.values()) if isinstance(value, dict) else is_set
    return isinstance(value, dict) and path[0] in value and _asks(value[path[0]], path[1:])
