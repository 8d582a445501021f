"""Whole descriptions, as they come from AWS's tools, from people and from the command line."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from fastfuse.errors import ConfigurationError
from fastfuse.index.sources.uri import S3Uri
from fastfuse.sagemaker.description.channel import Channel, InputMode, RequestedGroup, TrainingJob
from fastfuse.sagemaker.description.job import channels_job, read_job
from tests.sagemaker.jobs import ABSENT, job_of, refusal, request, source, with_field

# What `aws sagemaker describe-training-job` prints.
ANSWER = {
    "TrainingJobName": "a-job",
    "TrainingJobArn": "arn:aws:sagemaker:eu-west-1:123456789012:training-job/a-job",
    "ModelArtifacts": {"S3ModelArtifacts": "s3://bucket/output/a-job/output/model.tar.gz"},
    "TrainingJobStatus": "Completed",
    "SecondaryStatus": "Completed",
    "HyperParameters": {"epochs": "3", "sagemaker_program": '"train.py"'},
    "AlgorithmSpecification": {
        "TrainingImage": "763104351884.dkr.ecr.eu-west-1.amazonaws.com/pytorch-training:2.1",
        "TrainingInputMode": "FastFile",
        "MetricDefinitions": [{"Name": "loss", "Regex": "loss: ([0-9.]+)"}],
        "EnableSageMakerMetricsTimeSeries": False,
    },
    "RoleArn": "arn:aws:iam::123456789012:role/Training",
    "InputDataConfig": [
        {
            "ChannelName": "train",
            "DataSource": {
                "S3DataSource": {
                    "S3DataType": "S3Prefix",
                    "S3Uri": "s3://bucket/train/",
                    "S3DataDistributionType": "FullyReplicated",
                }
            },
            "ContentType": "application/x-image",
            "CompressionType": "None",
            "RecordWrapperType": "None",
        }
    ],
    "OutputDataConfig": {"KmsKeyId": "", "S3OutputPath": "s3://bucket/output/", "CompressionType": "GZIP"},
    "ResourceConfig": {
        "InstanceType": "ml.g5.xlarge", "InstanceCount": 2, "VolumeSizeInGB": 30, "KeepAlivePeriodInSeconds": 0,
    },
    "StoppingCondition": {"MaxRuntimeInSeconds": 86400},
    "CreationTime": "2024-03-08T09:03:09.270000+01:00",
    "TrainingStartTime": 1709885046.12,
    "SecondaryStatusTransitions": [{"Status": "Starting", "StartTime": "2024-03-08T09:03:09", "StatusMessage": "x"}],
    "FinalMetricDataList": [{"MetricName": "loss", "Value": 1e-7, "Timestamp": "2024-03-08T09:13:00+01:00"}],
    "EnableNetworkIsolation": False,
    "BillableTimeInSeconds": 411,
    "ProfilingStatus": "Disabled",
    "Environment": {"LOG_LEVEL": "debug"},
    "ResponseMetadata": {"RequestId": "x", "HTTPStatusCode": 200},
}  # fmt: skip

TRAIN = Channel(
    name="train",
    input_mode=InputMode.FAST_FILE,
    source=S3Uri("bucket", "train/"),
    content_type="application/x-image",
)


def test_an_answer_to_describe_is_a_job() -> None:
    assert job_of(ANSWER) == TrainingJob(
        channels=(TRAIN,),
        name="a-job",
        arn="arn:aws:sagemaker:eu-west-1:123456789012:training-job/a-job",
        groups=(RequestedGroup(name="homogeneousCluster", instance_type="ml.g5.xlarge", count=2),),
        hyperparameters={"epochs": "3", "sagemaker_program": '"train.py"'},
        environment={"LOG_LEVEL": "debug"},
        max_runtime_s=86400,
    )


def test_a_request_is_a_job() -> None:
    job = job_of(request(source("a", InputMode="Pipe"), source("b")))
    assert [(item.name, item.input_mode) for item in job.channels] == [("a", InputMode.PIPE), ("b", InputMode.FILE)]
    assert job.name == "a-job"
    assert job.arn == ""


def test_an_array_of_channels_is_a_job_and_its_errors_name_the_array() -> None:
    assert job_of(ANSWER["InputDataConfig"]) == TrainingJob(channels=(replace(TRAIN, is_mode_assumed=True),))
    error = refusal([source(), source("b", InputMode="x")])
    assert str(error).startswith("job.json:19:18: InputDataConfig[1].InputMode: is not one of")


def test_channels_alone_without_a_mode_are_mounted() -> None:
    for job in (
        job_of([source("a"), source("b", InputMode="Pipe")]),
        job_of({"InputDataConfig": [source("a"), source("b", InputMode="Pipe")]}),
        channels_job(["a=s3://bucket/a/", "b=s3://bucket/b/,mode=Pipe"]),
    ):
        found = [(item.input_mode, item.is_mode_assumed) for item in job.channels]
        assert found == [(InputMode.FAST_FILE, True), (InputMode.PIPE, False)]


@pytest.mark.parametrize(
    "specification",
    [ABSENT, {}, {"TrainingImage": "image"}, {"TrainingInputMode": None}],
    ids=["absent", "empty", "image only", "null"],
)
def test_a_job_without_a_mode_is_refused_with_the_place_for_it(specification: object) -> None:
    tree = with_field(request(source("a", InputMode="Pipe"), source("b")), ("AlgorithmSpecification",), specification)
    error = refusal(tree)
    message = "AlgorithmSpecification.TrainingInputMode: is missing, and InputDataConfig[1] ('b') has no InputMode"
    assert message in str(error)
    assert "File, FastFile or Pipe" in error.hint
    tree["InputDataConfig"] = [source("a", InputMode="Pipe"), source("b", InputMode="FastFile")]
    assert [item.input_mode for item in job_of(tree).channels] == [InputMode.PIPE, InputMode.FAST_FILE]


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        (5, "not a job description"),
        ({"train": "s3://b/train", "test": "s3://b/test"}, "not a job description, but sources by name of channel"),
        ("s3://bucket", "not a job description"),
        (None, "not a job description"),
        (source(), "one channel, where a job or a list of channels is wanted"),
        ({}, "InputDataConfig: is missing"),
        ([], "InputDataConfig: is empty"),
    ],
)
def test_what_is_no_job_is_refused(tree: object, message: str) -> None:
    assert str(refusal(tree)).startswith(f"job.json:1:1: {message}")


def test_an_error_is_at_the_line_of_its_field() -> None:
    tree = request(source("a"), source("b", CompressionType="Gzip"))
    text = json.dumps(tree, indent=1)
    line = next(number for number, line in enumerate(text.split("\n"), 1) if "Gzip" in line)
    assert str(refusal(tree)).startswith(f"job.json:{line}:")


def test_a_file_is_read_whatever_its_name(tmp_path: Path) -> None:
    for name in ("job.json", "job"):
        (tmp_path / name).write_text(json.dumps(ANSWER))
        assert read_job(tmp_path / name).channels == (TRAIN,)


def test_a_file_whose_name_is_not_utf8_can_be_named_in_an_error(tmp_path: Path) -> None:
    path = tmp_path / "j\udcff.json"
    path.write_text("{")
    with pytest.raises(ConfigurationError) as caught:
        read_job(path)
    assert "j\\udcff.json:1:2: " in str(caught.value)
    str(caught.value).encode()


def test_a_file_and_the_command_line_describe_one_job() -> None:
    place = {
        "S3DataType": "AugmentedManifestFile",
        "S3Uri": "s3://bucket/all.manifest",
        "S3DataDistributionType": "ShardedByS3Key",
        "AttributeNames": ["source-ref", "class"],
    }
    fields = {"ContentType": "x/y", "CompressionType": "Gzip", "RecordWrapperType": "RecordIO", "InputMode": "Pipe"}
    channel = {"ChannelName": "t", "DataSource": {"S3DataSource": place}, **fields, "ShuffleConfig": {"Seed": -7}}
    option = (
        "t=s3://bucket/all.manifest,type=augmented-manifest,distribution=sharded,attribute=source-ref,attribute=class,"
        "content-type=x/y,compression=gzip,record_wrapper=RecordIO,mode=pipe,shuffle-seed=-7"
    )
    assert job_of([channel]) == channels_job([option])


def test_options_of_the_command_line_reach_the_channels() -> None:
    job = channels_job(["a=s3://b/x=y", "b=s3://b,memory-weight=0.5"])
    assert [(item.name, str(item.source)) for item in job.channels] == [("a", "s3://b/x=y"), ("b", "s3://b/")]
    assert [item.memory_weight for item in job.channels] == [1.0, 0.5]


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("train", "--channel 'train' names no source"),
        ("train=", "--channel train: source: '' is not an S3 URI"),
        ("=s3://b", "--channel : name: is empty"),
        ("a/b=s3://b", "--channel a/b: name: has characters that"),
        ("a=b", "--channel a: source: 'b' is not an S3 URI"),
        ("a=s3://b/x,y", "--channel a: 'y' is not an option of a channel"),
        ("a=s3://b,mod=Pipe", "--channel a: 'mod=Pipe' is not an option of a channel"),
        ("a=s3://b,attributes=x", "--channel a: 'attributes=x' is not an option of a channel"),
        ("a=s3://b,source=s3://c", "--channel a: 'source=s3://c' is not an option of a channel"),
        ("a=s3://b,mode=File,mode=File", "--channel a: mode is given twice"),
        ("a=s3://b,mode=", "--channel a: mode: '' is not one of file, fastfile, pipe"),
        ("a=s3://b,shuffle-seed=x", "--channel a: shuffle_seed: 'x' is not a number"),
        ("a=s3://b,shuffle-seed=1.5", "--channel a: shuffle_seed: is not a whole number"),
        ("a=s3://b,memory-weight=-1", "--channel a: memory_weight: is not a number above 0"),
        ("a=s3://b,memory-weight=0", "--channel a: memory_weight: is not a number above 0"),
        ("a=s3://b,memory-weight=1001", "--channel a: memory_weight: is not a number above 0"),
        ("a=s3://b,memory-weight=nan", "--channel a: memory_weight: 'nan' is not a number"),
        (f"a=s3://b,shuffle-seed={2**63}", "--channel a: shuffle_seed: is out of the range"),
        ("a=s3://b,mode=quick", "--channel a: mode: 'quick' is not one of file, fastfile, pipe"),
        ("a=s3://b,compression=gzip", "--channel a: compression: is Gzip, which is for Pipe mode"),
    ],
)
def test_an_option_of_the_command_line_that_is_wrong_is_refused(option: str, message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        channels_job([option])
    assert str(caught.value).startswith(message)


def test_an_option_that_is_not_known_is_refused_with_the_one_that_may_be_meant() -> None:
    with pytest.raises(ConfigurationError) as caught:
        channels_job(["a=s3://b,mood=Pipe"])
    assert caught.value.hint == "did you mean mode?"


def test_a_name_that_comes_twice_is_refused_in_the_words_of_the_command_line() -> None:
    with pytest.raises(ConfigurationError, match=r"--channel a: name: 'a' is the name of"):
        channels_job(["a=s3://b", "a=s3://c"])
