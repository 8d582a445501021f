"""The table: every field of Channel and DataSource, what it may be, where that ends, and what is refused."""

import re
from typing import NamedTuple

import pytest

from fastfuse.index.origin import SourceKind
from fastfuse.index.sources.uri import S3Uri
from fastfuse.sagemaker.description.channel import InputMode, LocalDirectory
from fastfuse.sagemaker.description.request import FieldPath
from fastfuse.version import VERSION
from tests.sagemaker.jobs import ABSENT, CHANNEL, S3, channel_of, job_of, refusal, request, source, with_field

BASE = request()
NAMELESS = with_field(BASE, ("TrainingJobName",), ABSENT)
PIPE = request(source(InputMode="Pipe"))
AUGMENTED = with_field(BASE, (*S3, "S3DataType"), "AugmentedManifestFile")
AUGMENTED = with_field(AUGMENTED, (*S3, "S3Uri"), "s3://bucket/all.manifest")
GROUPS = [{"InstanceGroupName": str(n) * 64, "InstanceType": "ml.c5.xlarge", "InstanceCount": 1} for n in range(5)]
GROUP_NAMES = [group["InstanceGroupName"] for group in GROUPS]
GROUPED = request(ResourceConfig={"InstanceGroups": GROUPS})
SHARE = {
    "FileSystemId": "fs-01234567",
    "FileSystemAccessMode": "ro",
    "FileSystemType": "EFS",
    "DirectoryPath": "/train",
}
FILES = with_field(BASE, (*CHANNEL, "DataSource"), {"FileSystemDataSource": SHARE})
EFS: FieldPath = (*CHANNEL, "DataSource", "FileSystemDataSource")
MANIFEST = with_field(BASE, (*S3, "S3Uri"), "s3://bucket/a.manifest")
ATTRIBUTES = [f"attribute-{number}" for number in range(16)]
LONGEST_URI = "s3://bucket/" + "x" * 1012
LOCAL = with_field(BASE, (*S3, "S3Uri"), "file:///train")
WRITABLE = LocalDirectory(path="/train", file_system="fs-01234567", is_writable=True)
DATASET = {"DatasetSource": {"DatasetArn": "arn:aws:sagemaker:us-east-1:aws:hub-content/hub/DataSet/d"}}
GROUPS_AT: FieldPath = ("ResourceConfig", "InstanceGroups")

# What is changed in, where, to what; and which attribute of the channel then has which value.
LEGAL = [
    (BASE, (*CHANNEL, "ChannelName"), "aZ09._-", "name", "aZ09._-"),
    (BASE, (*CHANNEL, "ChannelName"), "n" * 64, "name", "n" * 64),
    (BASE, (*CHANNEL, "ContentType"), None, "content_type", None),
    (BASE, (*CHANNEL, "ContentType"), "", "content_type", ""),
    (BASE, (*CHANNEL, "ContentType"), "\u00e9\n" * 128, "content_type", "\u00e9\n" * 128),
    (BASE, (*CHANNEL, "CompressionType"), "None", "is_gzip", False),
    (PIPE, (*CHANNEL, "CompressionType"), "Gzip", "is_gzip", True),
    (BASE, (*CHANNEL, "RecordWrapperType"), "None", "wraps_records", False),
    (PIPE, (*CHANNEL, "RecordWrapperType"), "RecordIO", "wraps_records", True),
    (BASE, (*CHANNEL, "InputMode"), "FastFile", "input_mode", InputMode.FAST_FILE),
    (BASE, (*CHANNEL, "InputMode"), ABSENT, "input_mode", InputMode.FILE),
    (BASE, ("AlgorithmSpecification", "TrainingInputMode"), "Pipe", "input_mode", InputMode.PIPE),
    (PIPE, ("AlgorithmSpecification", "TrainingInputMode"), "File", "input_mode", InputMode.PIPE),
    (BASE, (*CHANNEL, "ShuffleConfig"), {"Seed": 0}, "shuffle_seed", 0),
    (BASE, (*CHANNEL, "ShuffleConfig"), {"Seed": -(2**63)}, "shuffle_seed", -(2**63)),
    (BASE, (*CHANNEL, "ShuffleConfig"), {"Seed": 2**63 - 1}, "shuffle_seed", 2**63 - 1),
    (MANIFEST, (*S3, "S3DataType"), "ManifestFile", "source_kind", SourceKind.MANIFEST),
    (MANIFEST, (*S3, "S3DataType"), "AugmentedManifestFile", "source_kind", SourceKind.AUGMENTED_MANIFEST),
    (BASE, (*S3, "S3Uri"), "file:///a%20b/..c/", "source", LocalDirectory(path="/a%20b/..c/")),
    (LOCAL, (*S3, "S3DataType"), "ManifestFile", "source", LocalDirectory(path="/train")),
    (FILES, (*EFS, "DirectoryPath"), "/", "source", LocalDirectory(path="/", file_system="fs-01234567")),
    (FILES, (*EFS, "FileSystemAccessMode"), "rw", "source", WRITABLE),
    (BASE, (*S3, "S3Uri"), "s3://bucket", "source", S3Uri("bucket", "")),
    (BASE, (*S3, "S3Uri"), "s3://bucket/a%20b/,=\u00e9/", "source", S3Uri("bucket", "a%20b/,=\u00e9/")),
    (BASE, (*S3, "S3Uri"), LONGEST_URI, "source", S3Uri("bucket", "x" * 1012)),
    (BASE, (*S3, "S3Uri"), "https://s3.amazonaws.com/bucket/a/", "source", S3Uri("bucket", "a/")),
    (BASE, (*S3, "S3Uri"), "https://s3-us-west-2.amazonaws.com/bucket/a", "source", S3Uri("bucket", "a")),
    (BASE, (*S3, "S3Uri"), "https://my.bucket.s3.eu-west-1.amazonaws.com/", "source", S3Uri("my.bucket", "")),
    (BASE, (*S3, "S3Uri"), "https://b.s3.dualstack.eu-west-1.amazonaws.com/a", "source", S3Uri("b", "a")),
    (BASE, (*S3, "S3Uri"), "https://b.s3.cn-north-1.amazonaws.com.cn/a%20%C3%A9", "source", S3Uri("b", "a \u00e9")),
    (BASE, (*S3, "S3DataDistributionType"), "ShardedByS3Key", "is_sharded", True),
    (AUGMENTED, (*S3, "AttributeNames"), ABSENT, "attribute_names", ()),
    (AUGMENTED, (*S3, "AttributeNames"), ["b-ref", "a"], "attribute_names", ("b-ref", "a")),
    (AUGMENTED, (*S3, "AttributeNames"), ATTRIBUTES, "attribute_names", tuple(ATTRIBUTES)),
    (GROUPED, (*S3, "InstanceGroupNames"), GROUP_NAMES, "instance_group_names", tuple(GROUP_NAMES)),
    (BASE, (*S3, "ModelAccessConfig"), {"AcceptEula": True}, "name", "train"),
    (BASE, ("VpcConfig",), {"Subnets": 5}, "name", "train"),
    (BASE, ("ResourceConfig", "InstanceType"), "ml.of-tomorrow", "name", "train"),
]


class Refused(NamedTuple):
    """What is changed in, where, to what; how the refusal continues after the field's path, and which that is."""

    tree: dict[str, object]
    path: FieldPath
    value: object
    message: str
    # Another path than that of the change, or what follows it.
    at: FieldPath | None = None
    below: FieldPath = ()


REFUSED = [
    Refused(NAMELESS, ("InputDataConfig",), None, "is missing"),
    Refused(BASE, ("InputDataConfig",), {}, "is not a list"),
    Refused(BASE, ("InputDataConfig",), [], "is empty"),
    Refused(BASE, ("InputDataConfig",), [source(f"c{n}") for n in range(21)], "has more than the 20 items"),
    Refused(BASE, ("InputDataConfig",), ["train"], "is not an object", (*CHANNEL,)),
    Refused(BASE, (*CHANNEL, "Name"), "train", "is not a field of the API"),
    Refused(BASE, (*CHANNEL, "ChannelName"), ABSENT, "is missing"),
    Refused(BASE, (*CHANNEL, "ChannelName"), "", "is empty"),
    Refused(BASE, (*CHANNEL, "ChannelName"), "n" * 65, "has more than the 64 characters"),
    *(Refused(BASE, (*CHANNEL, "ChannelName"), name, "has characters that") for name in ("a/b", "train\n", "\u00e9")),
    *(Refused(BASE, (*CHANNEL, "ChannelName"), name, f"is {name!r}, which no directory") for name in (".", "..")),
    Refused(BASE, (*CHANNEL, "ChannelName"), 1, "is not text"),
    Refused(BASE, (*CHANNEL, "ContentType"), "x" * 257, "has more than the 256 characters"),
    Refused(BASE, (*CHANNEL, "ContentType"), "\ud800", "is not text that UTF-8 can hold"),
    Refused(PIPE, (*CHANNEL, "CompressionType"), "gzip", "is not one of 'None', 'Gzip'"),
    Refused(PIPE, (*CHANNEL, "CompressionType"), True, "is not one of 'None', 'Gzip'"),
    Refused(BASE, (*CHANNEL, "CompressionType"), "Gzip", "is Gzip, which is for Pipe mode, and the channel's mode is"),
    Refused(PIPE, (*CHANNEL, "RecordWrapperType"), "TFRecord", "is not one of 'None', 'RecordIO'"),
    Refused(BASE, (*CHANNEL, "RecordWrapperType"), "RecordIO", "is RecordIO, which is for Pipe mode"),
    Refused(BASE, (*CHANNEL, "InputMode"), "fastfile", "is not one of 'Pipe', 'File', 'FastFile'"),
    Refused(BASE, ("AlgorithmSpecification", "TrainingInputMode"), "Fast", "is not one of"),
    Refused(BASE, (*CHANNEL, "ShuffleConfig"), 7, "is not an object"),
    Refused(BASE, (*CHANNEL, "ShuffleConfig"), {}, "is missing", below=("Seed",)),
    Refused(BASE, (*CHANNEL, "ShuffleConfig", "Seed"), 2**63, "is out of the range"),
    Refused(BASE, (*CHANNEL, "ShuffleConfig", "Seed"), -(2**63) - 1, "is out of the range"),
    *(Refused(BASE, (*CHANNEL, "ShuffleConfig", "Seed"), seed, "is not a whole number") for seed in (1.0, "1", True)),
    Refused(BASE, (*CHANNEL, "ShuffleConfig", "seed"), 1, "is not a field of the API"),
    Refused(BASE, (*CHANNEL, "DataSource"), ABSENT, "is missing"),
    Refused(BASE, (*CHANNEL, "DataSource"), {}, "has no source"),
    Refused(BASE, S3, None, "has no source", (*CHANNEL, "DataSource")),
    Refused(FILES, (*EFS, "FileSystemId"), "fs-1", "has fewer than the 11 characters"),
    Refused(FILES, (*EFS, "FileSystemId"), "efs-01234567", "has characters that the API does not allow"),
    Refused(FILES, (*EFS, "FileSystemAccessMode"), "r", "is not one of 'rw', 'ro'"),
    Refused(FILES, (*EFS, "FileSystemType"), "NFS", "is not one of 'EFS', 'FSxLustre'"),
    *(Refused(FILES, (*EFS, name), ABSENT, "is missing") for name in SHARE),
    Refused(FILES, (*EFS, "DirectoryPath"), "/\0", "has characters that"),
    *(
        Refused(FILES, (*EFS, "DirectoryPath"), path, f"{path!r} is not the full path of a directory")
        for path in ("", "train", "/../train", "/train/..")
    ),
    Refused(BASE, (*S3, "S3Uri"), "file://host/train", "'host/train' is not the full path of a directory"),
    Refused(BASE, (*S3, "S3Uri"), "file:///train/../../etc", "'/train/../../etc' is not the full path"),
    Refused(BASE, (*S3, "S3Uri"), "file:///tra\0in", r"'/tra\x00in' is not the full path"),
    Refused(BASE, (*CHANNEL, "DataSource"), DATASET, "has DatasetSource"),
    Refused(BASE, EFS, SHARE, "has S3DataSource and FileSystemDataSource", (*CHANNEL, "DataSource")),
    Refused(BASE, (*S3, "S3DataType"), ABSENT, "is missing"),
    Refused(BASE, (*S3, "S3DataType"), "Prefix", "is not one of 'ManifestFile', 'S3Prefix', 'AugmentedManifestFile'"),
    Refused(BASE, (*S3, "S3DataType"), "Converse", "is Converse, which names conversations"),
    Refused(BASE, (*S3, "S3DataType"), "ManifestFile", "'s3://bucket/train/' names no file", (*S3, "S3Uri")),
    Refused(AUGMENTED, (*S3, "S3Uri"), "s3://bucket", "'s3://bucket/' names no file"),
    Refused(BASE, (*S3, "S3Uri"), "", "'' is not an S3 URI"),
    Refused(BASE, (*S3, "S3Uri"), "bucket/prefix", "'bucket/prefix' is not an S3 URI"),
    Refused(BASE, (*S3, "S3Uri"), "S3://bucket/", "'S3://bucket/' is not an S3 URI"),
    Refused(BASE, (*S3, "S3Uri"), "http://s3.amazonaws.com/b", "'http://s3.amazonaws.com/b' is not an S3 URI"),
    Refused(BASE, (*S3, "S3Uri"), "s3:///key", "'s3:///key' names no bucket"),
    Refused(BASE, (*S3, "S3Uri"), "s3://bucket/a\0b", "the S3 URI holds a NUL character"),
    Refused(BASE, (*S3, "S3Uri"), LONGEST_URI + "x", "has more than the 1024 characters"),
    Refused(BASE, (*S3, "S3Uri"), "https://minio.example.com/bucket/a", "is no HTTPS address of a bucket at AWS"),
    Refused(BASE, (*S3, "S3Uri"), "https://b.s3.amazonaws.com/a?X-Amz-Signature=secret", "is no HTTPS address"),
    Refused(BASE, (*S3, "S3Uri"), "https://secret@s3.amazonaws.com/b/a", "is no HTTPS address"),
    Refused(BASE, (*S3, "S3Uri"), "https://s3.amazonaws.com/", "'s3://' names no bucket"),
    Refused(BASE, (*S3, "S3Uri"), "https://[b/a", "is not an address"),
    Refused(BASE, (*S3, "S3Uri"), "https://s3.amazonaws.com/b/%FF", "'s3://b/\\udcff' is not UTF-8"),
    Refused(BASE, (*S3, "S3DataDistributionType"), "Sharded", "is not one of 'FullyReplicated', 'ShardedByS3Key'"),
    Refused(BASE, (*S3, "AttributeNames"), ["a"], "is for augmented manifests, and S3DataType is S3Prefix"),
    Refused(AUGMENTED, (*S3, "AttributeNames"), [*ATTRIBUTES, "b"], "has more than the 16 items"),
    Refused(AUGMENTED, (*S3, "AttributeNames"), ["a", ""], "is empty", below=(1,)),
    Refused(AUGMENTED, (*S3, "AttributeNames"), ["a" * 257], "has more than the 256 characters", below=(0,)),
    Refused(AUGMENTED, (*S3, "AttributeNames"), ["a", "b", "a"], "names 'a' a second time", below=(2,)),
    Refused(GROUPED, (*S3, "InstanceGroupNames"), [*GROUP_NAMES, "6"], "has more than the 5 items"),
    Refused(GROUPED, (*S3, "InstanceGroupNames"), ["other"], "'other' is no group of ResourceConfig", below=(0,)),
    Refused(BASE, (*S3, "InstanceGroupNames"), ["other"], "'other' is no group of ResourceConfig", below=(0,)),
    Refused(BASE, ("OutputDataConfig", "S3OutputPath"), "https://b/x", "'https://b/x' is not an S3 URI"),
    Refused(BASE, ("ResourceConfig", "InstanceCount"), -1, "is out of the range"),
    Refused(BASE, ("ResourceConfig", "InstancesCount"), 1, "is not a field of the API"),
    Refused(GROUPED, GROUPS_AT, [GROUPS[0]] * 2, f"{'0' * 64!r} is the name of", below=(1, "InstanceGroupName")),
    Refused(GROUPED, ("ResourceConfig", "InstanceCount"), 5, "is given beside InstanceType or", GROUPS_AT),
    Refused(BASE, ("TrainingJobName",), "a job", "has characters that"),
    Refused(BASE, ("HyperParameters",), {"epochs": 5}, "is not text", below=("epochs",)),
    Refused(BASE, ("HyperParameters",), {"the rate": None}, "is not text", below=("the rate",)),
    Refused(BASE, ("HyperParameters",), {str(n): "" for n in range(101)}, "has more than the 100 items"),
    Refused(BASE, ("HyperParameters",), {"n" * 257: ""}, "has more than the 256 characters", below=("n" * 257,)),
    Refused(BASE, ("Environment",), {"1A": ""}, "has characters that", below=("1A",)),
    Refused(BASE, ("Environment",), {"A": "\0"}, "has characters that", below=("A",)),
]


def spelled(path: FieldPath) -> str:
    """As the brackets and dots of ``InputDataConfig[2].DataSource``; a name with a space is quoted."""
    steps = (f"[{step!r}]" if isinstance(step, int) or " " in step else f".{step}" for step in path)
    return "".join(steps).removeprefix(".")


def shown(value: object) -> str:
    if isinstance(value, tuple):
        return spelled(value)
    return "absent" if value is ABSENT else repr(value)[:40] if not isinstance(value, dict) else "dict"


@pytest.mark.parametrize(("tree", "path", "value", "attribute", "expected"), LEGAL, ids=shown)
def test_a_legal_value_reaches_the_channel(
    tree: dict[str, object], path: FieldPath, value: object, attribute: str, expected: object
) -> None:
    assert getattr(channel_of(with_field(tree, path, value)), attribute) == expected


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: f"{spelled(case.path)}-{shown(case.value)}")
def test_another_value_is_refused_with_the_path_of_the_field(case: Refused) -> None:
    error = refusal(with_field(case.tree, case.path, case.value))
    field = spelled((case.at or case.path) + case.below)
    assert re.match(rf"job\.json: {re.escape(field)}: {re.escape(case.message)}", str(error)), error
    assert "secret" not in f"{error}{error.hint}"


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
        (
            ("Zzz",),
            f"fastfuse {VERSION} knows no such field there: leave it out if AWS has added it since",
        ),
    ],
)
def test_an_unknown_field_is_refused_with_the_one_that_may_be_meant(path: FieldPath, suggestion: str) -> None:
    error = refusal(with_field(request(), path, "x"))
    assert f": {spelled(path)}: is not a field of the API" in str(error)
    assert error.hint == suggestion


@pytest.mark.parametrize(
    ("tree", "hint"),
    [
        (source(), "put it between square brackets"),
        ({"train": "s3://b/train"}, "give a channel as --channel NAME=S3_URI"),
        ([], "the API wants one at least"),
        ([source(f"c{number}") for number in range(21)], "name several prefixes in the manifest of one channel"),
        (with_field(BASE, (*CHANNEL, "DataSource"), DATASET), "give the S3 prefix"),
    ],
    ids=["one channel", "by name", "none", "many", "dataset"],
)
def test_a_mistake_is_refused_with_what_is_to_be_done(tree: object, hint: str) -> None:
    assert hint in refusal(tree).hint


@pytest.mark.parametrize("value", ["hunter2" * 400, 5, ["hunter2"]])
def test_no_value_of_a_hyperparameter_or_variable_is_shown(value: object) -> None:
    for name in ("HyperParameters", "Environment"):
        error = refusal(request(**{name: {"TOKEN": value}}))
        assert f"{name}.TOKEN: " in str(error)
        assert "hunter2" not in f"{error}{error.hint}{error.__cause__}"
    job = job_of(request(HyperParameters={"TOKEN": "hunter2"}, Environment={"TOKEN": "hunter2"}))
    assert "hunter2" not in repr(job)
