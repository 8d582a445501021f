"""What the fields of a job mean together: its channels beside each other, and the parts of a job beside its data."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfuse.errors import ConfigurationError
from fastfuse.filesystem.mounting.mount_settings import MINIMUM_MEMORY_BYTES
from fastfuse.index.origin import SourceKind
from fastfuse.index.sources.uri import S3Uri
from fastfuse.sagemaker.description.channel import (
    HOMOGENEOUS,
    Channel,
    InputMode,
    OutputConfig,
    RequestedGroup,
    SyncedDirectory,
    divide_memory,
    minimum_job_bytes,
)
from fastfuse.sagemaker.files import JobPaths
from fastfuse.sizes import GIB, MIB
from tests.sagemaker.jobs import ABSENT, S3, job_of, refusal, request, source, with_field


@pytest.mark.parametrize(
    ("first", "second", "at", "message"),
    [
        (source("a"), source("a"), 1, "'a' and InputDataConfig[0] would both be SM_CHANNEL_A"),
        (source("train"), source("Train"), 1, "'Train' and InputDataConfig[0] would both be"),
        (source("a", InputMode="Pipe"), source("a_0"), 1, "'a_0' is also the name of a FIFO of the Pipe channel 'a'"),
        (source("a_17"), source("a", InputMode="Pipe"), 0, "'a_17' is also the name of a FIFO of the Pipe channel 'a'"),
    ],
)
def test_two_channels_in_one_place_are_refused(
    first: dict[str, object], second: dict[str, object], at: int, message: str
) -> None:
    assert f": InputDataConfig[{at}].ChannelName: {message}" in str(refusal(request(first, second)))


@pytest.mark.parametrize(
    ("pipe", "other"),
    [
        ("a", source("a_00")),
        ("a", source("a_")),
        ("a", source("a_b")),
        ("a", source("a_0", InputMode="Pipe")),
        ("A", source("a_0")),
    ],
)
def test_channels_whose_names_only_look_alike_are_taken(pipe: str, other: dict[str, object]) -> None:
    assert len(job_of(request(source(pipe, InputMode="Pipe"), other)).channels) == 2
    assert len(job_of(request(source("a"), source("a_0"))).channels) == 2


def test_a_pipe_of_an_augmented_manifest_needs_attribute_names() -> None:
    tree = with_field(request(source(InputMode="Pipe")), (*S3, "S3DataType"), "AugmentedManifestFile")
    error = refusal(with_field(tree, (*S3, "S3Uri"), "s3://bucket/manifest"))
    assert "InputDataConfig[0].DataSource.S3DataSource.AttributeNames: is missing" in str(error)


@pytest.mark.parametrize(
    ("mode", "kind", "path", "expected"),
    [
        (InputMode.FILE, SourceKind.PREFIX, "train", True),
        (InputMode.FILE, SourceKind.PREFIX, "train/", False),
        (InputMode.PIPE, SourceKind.PREFIX, "", False),
        (InputMode.FILE, SourceKind.MANIFEST, "train.json", False),
    ],
)
def test_a_kept_listing_of_a_folder_or_a_manifest_serves_every_mode(
    mode: InputMode, kind: SourceKind, path: str, expected: bool
) -> None:
    channel = Channel(name="train", input_mode=mode, source=S3Uri("b", path), source_kind=kind)
    assert channel.is_key_name_prefix is expected


@pytest.mark.parametrize(
    ("resources", "groups"),
    [
        (None, ()),
        ({}, (RequestedGroup(name=HOMOGENEOUS, instance_type="local", count=1),)),
        (
            {"InstanceType": "ml.m5.large", "InstanceCount": 3},
            (RequestedGroup(name=HOMOGENEOUS, instance_type="ml.m5.large", count=3),),
        ),
        (
            {"InstanceGroups": [{"InstanceGroupName": "g", "InstanceType": "ml.m5.large", "InstanceCount": 0}]},
            (RequestedGroup(name="g", instance_type="ml.m5.large", count=0),),
        ),
    ],
)
def test_a_job_has_its_groups(resources: dict[str, object] | None, groups: tuple[RequestedGroup, ...]) -> None:
    assert job_of(request(ResourceConfig=resources)).groups == groups


@pytest.mark.parametrize(
    ("path", "prefix"), [("s3://b", ""), ("s3://b/", ""), ("s3://b/models", "models/"), ("s3://b/models/", "models/")]
)
def test_outputs_go_below_a_prefix_of_the_jobs_own(path: str, prefix: str) -> None:
    job = job_of(request(OutputDataConfig={"S3OutputPath": path}))
    assert job.output == OutputConfig(place=S3Uri("b", f"{prefix}a-job/output/"))


def test_encryption_and_compression_are_those_of_the_request() -> None:
    config = {"S3OutputPath": "s3://b/p", "KmsKeyId": "alias/k", "CompressionType": "NONE"}
    output = job_of(request(OutputDataConfig=config)).output
    assert output == OutputConfig(place=S3Uri("b", "p/a-job/output/"), kms_key_id="alias/k", is_compressed=False)
    assert job_of(with_field(request(), ("OutputDataConfig",), ABSENT)).output is None


def test_checkpoints_and_logs_have_the_places_of_the_api() -> None:
    job = job_of(request(CheckpointConfig={"S3Uri": "s3://b/c"}, TensorBoardOutputConfig={"S3OutputPath": "s3://b"}))
    places = {"checkpoints": "/opt/ml/checkpoints", "tensorboard": "/opt/ml/output/tensorboard"}
    in_s3 = {"checkpoints": S3Uri("b", "c/"), "tensorboard": S3Uri("b", "a-job/tensorboard-output/")}
    assert job.synced == tuple(
        SyncedDirectory(name=name, local_path=path, place=in_s3[name], are_checkpoints=name == "checkpoints")
        for name, path in places.items()
    )
    assert JobPaths(Path("/base")).of(places["tensorboard"]) == Path("/base/output/tensorboard")


def test_checkpoints_may_lie_anywhere_but_where_a_job_has_its_data() -> None:
    [synced] = job_of(request(CheckpointConfig={"S3Uri": "s3://b", "LocalPath": "//tmp//c/"})).synced
    assert (synced.local_path, synced.place) == ("/tmp/c", S3Uri("b", ""))
    assert JobPaths(Path("/base")).of(synced.local_path) == Path("/tmp/c")


def test_nothing_of_a_job_that_sagemaker_ran_is_sent_or_replaced() -> None:
    arn = "arn:aws:sagemaker:us-east-1:123456789012:training-job/a-job"
    job = job_of(request(TrainingJobArn=arn, CheckpointConfig={"S3Uri": "s3://b/c"}))
    assert (job.output, job.synced) == (None, ())


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("CheckpointConfig",), {"LocalPath": "/opt/ml/checkpoints"}, "CheckpointConfig.S3Uri: is missing"),
        (("CheckpointConfig",), {"S3Uri": "s3://b", "LocalPath": "/opt/ml/"}, "is no place for files that go to S3"),
        (("CheckpointConfig",), {"S3Uri": "s3://b", "LocalPath": "/opt/ml/input/x"}, "is no place for files"),
        (("CheckpointConfig",), {"S3Uri": "s3://b", "LocalPath": "/opt/ml/runs"}, "is no place for files"),
        (("CheckpointConfig",), {"S3Uri": "s3://b", "LocalPath": "/tmp/../opt"}, "is no place for files"),
        (("CheckpointConfig",), {"S3Uri": "s3://b", "LocalPath": "//"}, "is no place for files that go to S3"),
        (("CheckpointConfig",), {"S3Uri": "s3://b", "LocalPath": "//opt/ml"}, "is no place for files that go to S3"),
        (("CheckpointConfig",), {"S3Uri": "s3://b", "LocalPath": "//opt/ml/input/x"}, "is no place for files"),
        (("CheckpointConfig",), {"S3Uri": "s3://b", "LocalPath": "relative"}, "'relative' is no place for files"),
        (("TensorBoardOutputConfig",), {"S3OutputPath": "b"}, "is not an S3 URI"),
        (("OutputDataConfig", "S3OutputPath"), "/models", "is not an S3 URI"),
        (("OutputDataConfig", "S3OutputPath"), ABSENT, "OutputDataConfig.S3OutputPath: is missing"),
        (("OutputDataConfig", "CompressionType"), "Gzip", "OutputDataConfig.CompressionType: is not one of"),
        (("OutputDataConfig", "KmsKeyId"), "a key", "OutputDataConfig.KmsKeyId: has characters"),
        (("OutputDataConfig", "KmsKey"), "k", "OutputDataConfig.KmsKey: is not a field of the API"),
        (("TrainingJobName",), ABSENT, "TrainingJobName: is missing"),
        (("StoppingCondition", "MaxRuntimeInSeconds"), 0, "is out of the range"),
        (("AlgorithmSpecification", "ContainerEntrypoint"), [], "is empty"),
        (("AlgorithmSpecification", "ContainerEntrypoint"), ["a\0b"], "has characters"),
    ],
)
def test_what_the_api_would_refuse_is_refused(path: tuple[str, ...], value: object, message: str) -> None:
    assert message in str(refusal(with_field(request(), path, value)))


def test_limits_are_those_of_the_stopping_condition() -> None:
    condition = {"MaxRuntimeInSeconds": 5, "MaxWaitTimeInSeconds": 5, "MaxPendingTimeInSeconds": 7200}
    assert job_of(request(StoppingCondition=condition)).max_runtime_s == 5
    assert job_of(with_field(request(), ("StoppingCondition",), ABSENT)).max_runtime_s is None


def test_the_command_is_entrypoint_and_arguments() -> None:
    tree = with_field(request(), ("AlgorithmSpecification", "ContainerArguments"), ["--epochs", "3"])
    assert job_of(tree).command == ()
    tree = with_field(tree, ("AlgorithmSpecification", "ContainerEntrypoint"), ["python", "train.py"])
    assert job_of(tree).command == ("python", "train.py", "--epochs", "3")


def channels(*modes: InputMode) -> list[Channel]:
    return [
        Channel(name=f"c{number}", input_mode=mode, source=S3Uri("bucket", "")) for number, mode in enumerate(modes)
    ]


FAST, FILE, PIPE = InputMode.FAST_FILE, InputMode.FILE, InputMode.PIPE


@pytest.mark.parametrize(
    ("modes", "shares"),
    [
        ([FAST, FAST], [2 * GIB, 2 * GIB]),
        # A download has what mounts do not need before the command starts, and a stream its part beside both.
        ([FAST, FILE], [4 * GIB, 4 * GIB]),
        ([FAST, FILE, FILE, FILE, PIPE], [2 * GIB, 1 * GIB, 1 * GIB, 1 * GIB, 1 * GIB]),
    ],
)
def test_channels_share_equally(modes: list[InputMode], shares: list[int]) -> None:
    assert divide_memory(4 * GIB, channels(*modes)) == {f"c{number}": share for number, share in enumerate(shares)}


def test_too_little_is_refused_with_what_would_do() -> None:
    with pytest.raises(ConfigurationError, match=r"255 MiB is too little for 2 channels") as caught:
        divide_memory(255 * MIB, channels(FAST, FAST))
    assert "--memory-target 256MiB or more" in caught.value.hint


@given(st.lists(st.sampled_from(InputMode), min_size=1, max_size=20), st.integers(0, 64 * GIB))
def test_channels_that_work_at_the_same_time_never_have_more_than_the_total(
    modes: list[InputMode], extra_bytes: int
) -> None:
    made = channels(*modes)
    total_bytes = minimum_job_bytes(made) + extra_bytes
    shares = divide_memory(total_bytes, made)
    assert shares.keys() == {channel.name for channel in made}
    assert min(shares.values()) >= MINIMUM_MEMORY_BYTES
    for idle in (FAST, FILE):
        assert sum(shares[channel.name] for channel in made if channel.input_mode is not idle) <= total_bytes
