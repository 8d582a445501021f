"""The table: every field of Channel and DataSource, what it may be, where that ends, and what is refused."""

import re

import pytest

from fastfuse.indexing.origin import SourceKind
from fastfuse.sagemaker.channel import InputMode
from fastfuse.sagemaker.document import FieldPath
from fastfuse.sources.uri import S3Uri
from tests.sagemaker.jobs import ABSENT, CHANNEL, S3, channel_of, job_of, refusal, request, source, with_field

PIPE = request(source(InputMode="Pipe"))
AUGMENTED = with_field(
    with_field(request(), (*S3, "S3DataType"), "AugmentedManifestFile"), (*S3, "S3Uri"), "s3://bucket/all.manifest"
)
GROUPS = [
    {"InstanceGroupName": f"{number}" * 64, "InstanceType": "ml.c5.xlarge", "InstanceCount": 1} for number in range(5)
]
GROUP_NAMES = [group["InstanceGroupName"] for group in GROUPS]
GROUPED = request(ResourceConfig={"InstanceGroups": GROUPS})
MANIFEST = with_field(request(), (*S3, "S3Uri"), "s3://bucket/a.manifest")
ATTRIBUTES = [f"attribute-{number}" for number in range(16)]
LONGEST_URI = "s3://bucket/" + "x" * 1012

# What is changed in, where, to what; and which attribute of the channel then has which value.
LEGAL = [
    (request(), (*CHANNEL, "ChannelName"), "t", "name", "t"),
    (request(), (*CHANNEL, "ChannelName"), "aZ09._-", "name", "aZ09._-"),
    (request(), (*CHANNEL, "ChannelName"), "...", "name", "..."),
    (request(), (*CHANNEL, "ChannelName"), "n" * 64, "name", "n" * 64),
    (request(), (*CHANNEL, "ContentType"), ABSENT, "content_type", None),
    (request(), (*CHANNEL, "ContentType"), None, "content_type", None),
    (request(), (*CHANNEL, "ContentType"), "", "content_type", ""),
    (request(), (*CHANNEL, "ContentType"), "é" * 256, "content_type", "é" * 256),
    (request(), (*CHANNEL, "CompressionType"), ABSENT, "is_gzip", False),
    (request(), (*CHANNEL, "CompressionType"), "None", "is_gzip", False),
    (PIPE, (*CHANNEL, "CompressionType"), "Gzip", "is_gzip", True),
    (request(), (*CHANNEL, "RecordWrapperType"), ABSENT, "wraps_records", False),
    (request(), (*CHANNEL, "RecordWrapperType"), "None", "wraps_records", False),
    (PIPE, (*CHANNEL, "RecordWrapperType"), "RecordIO", "wraps_records", True),
    (request(), (*CHANNEL, "InputMode"), "File", "input_mode", InputMode.FILE),
    (request(), (*CHANNEL, "InputMode"), "FastFile", "input_mode", InputMode.FAST_FILE),
    (request(), (*CHANNEL, "InputMode"), "Pipe", "input_mode", InputMode.PIPE),
    (request(), (*CHANNEL, "InputMode"), ABSENT, "input_mode", InputMode.FILE),
    (request(), ("AlgorithmSpecification", "TrainingInputMode"), "Pipe", "input_mode", InputMode.PIPE),
    (PIPE, ("AlgorithmSpecification", "TrainingInputMode"), "File", "input_mode", InputMode.PIPE),
    (request(), (*CHANNEL, "ShuffleConfig"), ABSENT, "shuffle_seed", None),
    (request(), (*CHANNEL, "ShuffleConfig"), {"Seed": 0}, "shuffle_seed", 0),
    (request(), (*CHANNEL, "ShuffleConfig"), {"Seed": -(2**63)}, "shuffle_seed", -(2**63)),
    (request(), (*CHANNEL, "ShuffleConfig"), {"Seed": 2**63 - 1}, "shuffle_seed", 2**63 - 1),
    (PIPE, (*CHANNEL, "ShuffleConfig"), {"Seed": 7}, "shuffle_seed", 7),
    (request(), (*S3, "S3DataType"), "S3Prefix", "source_kind", SourceKind.PREFIX),
    (MANIFEST, (*S3, "S3DataType"), "ManifestFile", "source_kind", SourceKind.MANIFEST),
    (MANIFEST, (*S3, "S3DataType"), "AugmentedManifestFile", "source_kind", SourceKind.AUGMENTED_MANIFEST),
    (request(), (*S3, "S3Uri"), "s3://bucket", "source", S3Uri("bucket", "")),
    (request(), (*S3, "S3Uri"), "s3://bucket/part", "source", S3Uri("bucket", "part")),
    (request(), (*S3, "S3Uri"), "s3://bucket/a%20b/,=é/", "source", S3Uri("bucket", "a%20b/,=é/")),
    (request(), (*S3, "S3Uri"), LONGEST_URI, "source", S3Uri("bucket", "x" * 1012)),
    (request(), (*S3, "S3Uri"), "https://s3.amazonaws.com/bucket/a/", "source", S3Uri("bucket", "a/")),
    (request(), (*S3, "S3Uri"), "https://s3.eu-west-1.amazonaws.com/bucket/a", "source", S3Uri("bucket", "a")),
    (request(), (*S3, "S3Uri"), "https://s3-us-west-2.amazonaws.com/bucket/a", "source", S3Uri("bucket", "a")),
    (request(), (*S3, "S3Uri"), "https://my.bucket.s3.eu-west-1.amazonaws.com/", "source", S3Uri("my.bucket", "")),
    (request(), (*S3, "S3Uri"), "https://b.s3.dualstack.eu-west-1.amazonaws.com/a", "source", S3Uri("b", "a")),
    (request(), (*S3, "S3Uri"), "https://b.s3.cn-north-1.amazonaws.com.cn/a%20%C3%A9", "source", S3Uri("b", "a é")),
    (request(), (*S3, "S3DataDistributionType"), ABSENT, "is_sharded", False),
    (request(), (*S3, "S3DataDistributionType"), "FullyReplicated", "is_sharded", False),
    (request(), (*S3, "S3DataDistributionType"), "ShardedByS3Key", "is_sharded", True),
    (request(), (*S3, "AttributeNames"), [], "attribute_names", ()),
    (AUGMENTED, (*S3, "AttributeNames"), ABSENT, "attribute_names", ()),
    (AUGMENTED, (*S3, "AttributeNames"), ["b-ref", "a"], "attribute_names", ("b-ref", "a")),
    (AUGMENTED, (*S3, "AttributeNames"), ATTRIBUTES, "attribute_names", tuple(ATTRIBUTES)),
    (AUGMENTED, (*S3, "AttributeNames"), ["a" * 256], "attribute_names", ("a" * 256,)),
    (request(), (*S3, "InstanceGroupNames"), [], "instance_group_names", ()),
    (GROUPED, (*S3, "InstanceGroupNames"), GROUP_NAMES, "instance_group_names", tuple(GROUP_NAMES)),
    (request(), (*S3, "ModelAccessConfig"), {"AcceptEula": True}, "name", "train"),
    (request(), (*S3, "HubAccessConfig"), {"HubContentArn": "arn"}, "name", "train"),
]

# What is changed in, where, to what; and how the refusal continues after the field's path, which is that of the change
# where none is given.
REFUSED: list[tuple[dict[str, object], FieldPath, object, str] | tuple[dict[str, object], FieldPath, object, str, str]] = [
    (request(), ("InputDataConfig",), ABSENT, "is missing"),
    (request(), ("InputDataConfig",), None, "is missing"),
    (request(), ("InputDataConfig",), {}, "is not a list"),
    (request(), ("InputDataConfig",), "train", "is not a list"),
    (request(), ("InputDataConfig",), [], "is empty"),
    (request(), ("InputDataConfig",), [source(f"c{n}") for n in range(21)], "has more than the 20 items"),
    (request(), ("InputDataConfig",), ["train"], "is not an object", "InputDataConfig[0]"),
    (request(), (*CHANNEL, "Name"), "train", "is not a field of the API"),
    (request(), (*CHANNEL, "inputMode"), "Pipe", "is not a field of the API"),
    (request(), (*CHANNEL, "ChannelName"), ABSENT, "is missing"),
    (request(), (*CHANNEL, "ChannelName"), "", "is empty"),
    (request(), (*CHANNEL, "ChannelName"), "n" * 65, "has more than the 64 characters"),
    (request(), (*CHANNEL, "ChannelName"), "a/b", "has characters that"),
    (request(), (*CHANNEL, "ChannelName"), "train\n", "has characters that"),
    (request(), (*CHANNEL, "ChannelName"), "é", "has characters that"),
    (request(), (*CHANNEL, "ChannelName"), ".", "is '.', which no directory can be called"),
    (request(), (*CHANNEL, "ChannelName"), "..", "is '..', which no directory can be called"),
    (request(), (*CHANNEL, "ChannelName"), 1, "is not text"),
    (request(), (*CHANNEL, "ContentType"), "x" * 257, "has more than the 256 characters"),
    (request(), (*CHANNEL, "ContentType"), ["text/csv"], "is not text"),
    (request(), (*CHANNEL, "ContentType"), "\ud800", "is not text that UTF-8 can hold"),
    (PIPE, (*CHANNEL, "CompressionType"), "gzip", "is not one of 'None' or 'Gzip'"),
    (PIPE, (*CHANNEL, "CompressionType"), True, "is not one of 'None' or 'Gzip'"),
    (request(), (*CHANNEL, "CompressionType"), "Gzip", "is Gzip, which is for Pipe mode, and the channel's mode is File"),
    (PIPE, (*CHANNEL, "RecordWrapperType"), "TFRecord", "is not one of 'None' or 'RecordIO'"),
    (request(), (*CHANNEL, "RecordWrapperType"), "RecordIO", "is RecordIO, which is for Pipe mode"),
    (request(), (*CHANNEL, "InputMode"), "fastfile", "is not one of 'File', 'FastFile' or 'Pipe'"),
    (request(), (*CHANNEL, "InputMode"), 1, "is not one of"),
    (request(), ("AlgorithmSpecification", "TrainingInputMode"), "Fast", "is not one of"),
    (request(), (*CHANNEL, "ShuffleConfig"), 7, "is not an object"),
    (request(), (*CHANNEL, "ShuffleConfig"), {}, "is missing", "InputDataConfig[0].ShuffleConfig.Seed"),
    (request(), (*CHANNEL, "ShuffleConfig", "Seed"), 2**63, "is out of the range"),
    (request(), (*CHANNEL, "ShuffleConfig", "Seed"), -(2**63) - 1, "is out of the range"),
    (request(), (*CHANNEL, "ShuffleConfig", "Seed"), 1.0, "is not a whole number"),
    (request(), (*CHANNEL, "ShuffleConfig", "Seed"), "1", "is not a whole number"),
    (request(), (*CHANNEL, "ShuffleConfig", "Seed"), True, "is not a whole number"),
    (request(), (*CHANNEL, "ShuffleConfig", "seed"), 1, "is not a field of the API"),
    (request(), (*CHANNEL, "DataSource"), ABSENT, "is missing"),
    (request(), (*CHANNEL, "DataSource"), "s3://bucket/", "is not an object"),
    (request(), (*CHANNEL, "DataSource"), {}, "names no source"),
    (request(), (*CHANNEL, "DataSource", "S3DataSource"), None, "names no source", "InputDataConfig[0].DataSource"),
    (request(), (*CHANNEL, "DataSource", "S3"), {}, "is not a field of the API"),
    (request(), (*CHANNEL, "DataSource"), {"FileSystemDataSource": {"FileSystemId": "fs-1"}}, "is a file system",
     "InputDataConfig[0].DataSource.FileSystemDataSource"),
    (request(), (*CHANNEL, "DataSource"), {"DatasetSource": {"DatasetArn": "arn"}}, "is a dataset of the SageMaker hub",
     "InputDataConfig[0].DataSource.DatasetSource"),
    (request(), (*CHANNEL, "DataSource", "FileSystemDataSource"), {}, "has S3DataSource and FileSystemDataSource",
     "InputDataConfig[0].DataSource"),
    (request(), (*CHANNEL, "DataSource", "DatasetSource"), {}, "has S3DataSource and DatasetSource",
     "InputDataConfig[0].DataSource"),
    (request(), S3, "s3://bucket/", "is not an object"),
    (request(), (*S3, "S3URI"), "s3://bucket/", "is not a field of the API"),
    (request(), (*S3, "S3DataType"), ABSENT, "is missing"),
    (request(), (*S3, "S3DataType"), "Prefix", "is not one of 'S3Prefix', 'ManifestFile' or 'AugmentedManifestFile'"),
    (request(), (*S3, "S3DataType"), "Converse", "is Converse, which names conversations"),
    (request(), (*S3, "S3DataType"), "ManifestFile", "'s3://bucket/train/' names no file", "InputDataConfig[0].DataSource."
     "S3DataSource.S3Uri"),
    (AUGMENTED, (*S3, "S3Uri"), "s3://bucket", "'s3://bucket/' names no file"),
    (request(), (*S3, "S3Uri"), ABSENT, "is missing"),
    (request(), (*S3, "S3Uri"), "", "'' is not an S3 URI"),
    (request(), (*S3, "S3Uri"), 5, "is not text"),
    (request(), (*S3, "S3Uri"), "bucket/prefix", "'bucket/prefix' is not an S3 URI"),
    (request(), (*S3, "S3Uri"), "S3://bucket/", "'S3://bucket/' is not an S3 URI"),
    (request(), (*S3, "S3Uri"), "http://s3.amazonaws.com/bucket", "'http://s3.amazonaws.com/bucket' is not an S3 URI"),
    (request(), (*S3, "S3Uri"), "s3:///key", "'s3:///key' names no bucket"),
    (request(), (*S3, "S3Uri"), "s3://bucket/a\0b", "the S3 URI holds a NUL character"),
    (request(), (*S3, "S3Uri"), LONGEST_URI + "x", "has more than the 1024 characters"),
    (request(), (*S3, "S3Uri"), "https://minio.example.com/bucket/a", "is no HTTPS address of an S3 bucket"),
    (request(), (*S3, "S3Uri"), "https://b.s3.amazonaws.com/a?X-Amz-Signature=secret", "is no HTTPS address"),
    (request(), (*S3, "S3Uri"), "https://secret@s3.amazonaws.com/b/a", "is no HTTPS address"),
    (request(), (*S3, "S3Uri"), "https://s3.amazonaws.com/", "'s3://' names no bucket"),
    (request(), (*S3, "S3Uri"), "https://[b/a", "is not an address"),
    (request(), (*S3, "S3Uri"), "https://s3.amazonaws.com/b/%FF", "'s3://b/\\udcff' is not UTF-8"),
    (request(), (*S3, "S3DataDistributionType"), "Sharded", "is not one of 'FullyReplicated' or 'ShardedByS3Key'"),
    (request(), (*S3, "AttributeNames"), ["a"], "is for augmented manifests, and S3DataType is S3Prefix"),
    (AUGMENTED, (*S3, "AttributeNames"), "a", "is not a list"),
    (AUGMENTED, (*S3, "AttributeNames"), [*ATTRIBUTES, "b"], "has more than the 16 items"),
    (AUGMENTED, (*S3, "AttributeNames"), ["a", ""], "is empty", "InputDataConfig[0].DataSource.S3DataSource."
     "AttributeNames[1]"),
    (AUGMENTED, (*S3, "AttributeNames"), ["a" * 257], "has more than the 256 characters", "InputDataConfig[0].DataSource."
     "S3DataSource.AttributeNames[0]"),
    (AUGMENTED, (*S3, "AttributeNames"), [1], "is not text", "InputDataConfig[0].DataSource.S3DataSource.AttributeNames[0]"),
    (AUGMENTED, (*S3, "AttributeNames"), ["a", "b", "a"], "names 'a' a second time", "InputDataConfig[0].DataSource."
     "S3DataSource.AttributeNames[2]"),
    (GROUPED, (*S3, "InstanceGroupNames"), [*GROUP_NAMES, "6"], "has more than the 5 items"),
    (GROUPED, (*S3, "InstanceGroupNames"), [""], "is empty", "InputDataConfig[0].DataSource.S3DataSource."
     "InstanceGroupNames[0]"),
    (GROUPED, (*S3, "InstanceGroupNames"), ["g" * 65], "has more than the 64 characters", "InputDataConfig[0].DataSource."
     "S3DataSource.InstanceGroupNames[0]"),
    (GROUPED, (*S3, "InstanceGroupNames"), ["other"], "'other' is no group of ResourceConfig.InstanceGroups",
     "InputDataConfig[0].DataSource.S3DataSource.InstanceGroupNames[0]"),
    (request(), (*S3, "InstanceGroupNames"), ["other"], "'other' is no group of ResourceConfig.InstanceGroups",
     "InputDataConfig[0].DataSource.S3DataSource.InstanceGroupNames[0]"),
    (request(), ("ResourceConfig", "InstanceCount"), -1, "is out of the range"),
    (request(), ("ResourceConfig", "InstancesCount"), 1, "is not a field of the API"),
    (GROUPED, ("ResourceConfig", "InstanceGroups"), [*GROUPS, GROUPS[0]], "has more than the 5 items"),
    (GROUPED, ("ResourceConfig", "InstanceGroups"), [GROUPS[0]] * 2, f"{'0' * 64!r} is the name of another group",
     "ResourceConfig.InstanceGroups[1].InstanceGroupName"),
    (GROUPED, ("ResourceConfig", "InstanceCount"), 5, "is given beside InstanceType or InstanceCount",
     "ResourceConfig.InstanceGroups"),
    (request(), ("TrainingJobName",), "a job", "has characters that"),
    (request(), ("TrainingJobName",), "j" * 64, "has more than the 63 characters"),
    (request(), ("HyperParameters",), {"epochs": 5}, "is not text", "HyperParameters.epochs"),
    (request(), ("HyperParameters",), {"the rate": None}, "is not text", "HyperParameters['the rate']"),
    (request(), ("HyperParameters",), {"a": "x" * 2501}, "has more than the 2500 characters", "HyperParameters.a"),
    (request(), ("HyperParameters",), {str(n): "" for n in range(101)}, "has more than the 100 items"),
    (request(), ("HyperParameters",), {"n" * 257: ""}, "has more than the 256 characters", "HyperParameters." + "n" * 257),
    (request(), ("Environment",), {"1A": ""}, "has characters that", "Environment.1A"),
    (request(), ("Environment",), {"A": "\0"}, "has characters that", "Environment.A"),
    (request(), ("Environment",), {"A": "x" * 513}, "has more than the 512 characters", "Environment.A"),
    (request(), ("Environment",), {"N" * 513: ""}, "has more than the 512 characters", "Environment." + "N" * 513),
    (request(), ("Environment",), {f"V{n}": "" for n in range(101)}, "has more than the 100 items"),
]  # fmt: skip


def spelled(path: FieldPath) -> str:
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).removeprefix(".")


def shown(value: object) -> str:
    if isinstance(value, tuple):
        return spelled(value)
    return "absent" if value is ABSENT else repr(value)[:40] if not isinstance(value, dict) else "dict"


@pytest.mark.parametrize(("tree", "path", "value", "attribute", "expected"), LEGAL, ids=shown)
def test_a_legal_value_reaches_the_channel(
    tree: dict[str, object], path: FieldPath, value: object, attribute: str, expected: object
) -> None:
    assert getattr(channel_of(with_field(tree, path, value)), attribute) == expected


@pytest.mark.parametrize("row", REFUSED, ids=lambda row: f"{spelled(row[1])}-{shown(row[2])}")
def test_another_value_is_refused_with_the_path_of_the_field(
    row: tuple[dict[str, object], FieldPath, object, str] | tuple[dict[str, object], FieldPath, object, str, str],
) -> None:
    tree, path, value, message, *named = row
    error = refusal(with_field(tree, path, value))
    field = named[0] if named else spelled(path)
    assert re.match(rf"job\.json:\d+:\d+: {re.escape(field)}: {re.escape(message)}", str(error)), error
    assert "secret" not in f"{error}{error.hint}"


def test_one_channel_and_twenty_are_taken() -> None:
    names = [f"c{number}" for number in range(20)]
    assert [channel.name for channel in job_of(request(*map(source, names))).channels] == names


@pytest.mark.parametrize(
    ("path", "suggestion"),
    [
        (("inputDataConfig",), "did you mean InputDataConfig?"),
        (("Rolearn",), "did you mean RoleArn?"),
        (("HyperParameter",), "did you mean HyperParameters?"),
        (("INPUTDATACONFIG",), "did you mean InputDataConfig?"),
        ((*CHANNEL, "InputMod"), "did you mean InputMode?"),
        ((*S3, "S3DistributionType"), "did you mean S3DataDistributionType?"),
        (("AlgorithmSpecification", "TrainingInputmode"), "did you mean TrainingInputMode?"),
        (("ResourceConfig", "InstancType"), "did you mean InstanceType?"),
        (("Zzz",), "the API has no such field there"),
    ],
)
def test_a_field_that_the_api_has_not_is_refused_with_the_one_that_may_be_meant(
    path: FieldPath, suggestion: str
) -> None:
    error = refusal(with_field(request(), path, "x"))
    assert f": {spelled(path)}: is not a field of the API" in str(error)
    assert error.hint == suggestion


@pytest.mark.parametrize("value", ["hunter2" * 400, 5, ["hunter2"]])
def test_no_value_of_a_hyperparameter_or_variable_is_shown(value: object) -> None:
    for name in ("HyperParameters", "Environment"):
        error = refusal(request(**{name: {"TOKEN": value}}))
        assert f"{name}.TOKEN: " in str(error)
        assert "hunter2" not in f"{error}{error.hint}{error.__cause__}"
    job = job_of(request(HyperParameters={"TOKEN": "hunter2"}, Environment={"TOKEN": "hunter2"}))
    assert "hunter2" not in repr(job)
