"""Descriptions of jobs, as they come from AWS's tools, from people, and from who means harm."""

import json
import os
import re
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from fastfuse.errors import ConfigurationError
from fastfuse.index.sources.uri import S3Uri
from fastfuse.sagemaker.description.channel import Channel, InputMode, RequestedGroup, TrainingJob
from fastfuse.sagemaker.description.job import (
    MAX_BYTES,
    channels_job,
    parse_json_job,
    read_job,
)
from tests.sagemaker.jobs import ABSENT, job_of, refusal, request, source, with_field

ARRAY = b'[{"ChannelName": "a", "DataSource": {"S3DataSource": {"S3DataType": "S3Prefix", "S3Uri": "s3://b"}}}]'
SEED = b'[{"ShuffleConfig": {"Seed": %s}}]'


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"[\n  1,\n  }", "job.json:3:3: this is not JSON: Expecting value"),
        (b"1 x", "job.json:1:3: this is not JSON: Extra data"),
        (
            b'[{"ChannelName": "a", "InputMode": "File", "InputMode": "File"}]',
            "job.json: InputDataConfig[0].InputMode: is given twice",
        ),
        (b'{"Environment": {"A": "1", "A": "1"}}', "job.json: Environment.A: is given twice"),
        (SEED % (b"9" * 5000), "job.json: InputDataConfig[0].ShuffleConfig.Seed: is out of the range"),
        (SEED % (b"-" + b"9" * 5000), "job.json: InputDataConfig[0].ShuffleConfig.Seed: is out of the range"),
        (SEED % b"NaN", "job.json: InputDataConfig[0].ShuffleConfig.Seed: is not a whole number"),
        (b"[" * 100_000 + b"]" * 100_000, "job.json is nested too deeply"),
        (
            b'{"AlgorithmSpecification": {"TrainingInputMode": "File"}, "InputDataConfig": '
            + ARRAY
            + b', "Tags": '
            + b"[" * 900
            + b"1"
            + b"]" * 900
            + b"}",
            "job.json is nested",
        ),
        (b'{"caf\xe9": 1}', "job.json:1:6: this is not UTF-8"),
    ],
)
def test_what_is_not_json_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_json_job(data, "job.json")
    assert str(caught.value).startswith(message)


def test_a_name_that_fills_the_file_is_cut_in_the_error() -> None:
    for text in (
        b'{"' + b"x" * 1_000_000 + b'": 1}',
        b'{"Environment": {"' + b"x" * 100_000 + b'": 1, "' + b"x" * 100_000 + b'": 1}}',
    ):
        with pytest.raises(ConfigurationError) as caught:
            parse_json_job(text, "job.json")
        assert len(str(caught.value)) < 700


def test_a_file_of_the_largest_size_is_read_and_a_larger_one_refused(tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    path.write_bytes(ARRAY.ljust(MAX_BYTES))
    assert read_job(path) == channels_job(["a=s3://b"])
    path.write_bytes(ARRAY.ljust(MAX_BYTES + 1))
    for larger in (path, Path("/dev/zero")):
        with pytest.raises(ConfigurationError, match=f"'{larger}' is larger than 4 MiB"):
            read_job(larger)


@pytest.mark.parametrize(("name", "reason"), [("missing", "No such file"), (".", "Is a directory"), ("a\0b", "null")])
def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path, name: str, reason: str) -> None:
    with pytest.raises(ConfigurationError, match=f"cannot be read: .*{reason}"):
        read_job(tmp_path / name)


def test_a_pipe_is_read_to_its_end(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    writer = threading.Thread(target=fifo.write_bytes, args=(ARRAY,))
    writer.start()
    assert read_job(fifo) == channels_job(["a=s3://b"])
    writer.join()


FIT = json.loads((Path(__file__).parent / "running/estimator_fit.json").read_text())
# What `aws sagemaker describe-training-job` prints.
ANSWER = FIT | {
    "TrainingJobArn": "arn:aws:sagemaker:eu-west-1:123456789012:training-job/a-job",
    "ModelArtifacts": {"S3ModelArtifacts": "s3://bucket/output/a-job/output/model.tar.gz"},
    "TrainingJobStatus": "Completed",
    "SecondaryStatus": "Completed",
    "AlgorithmSpecification": FIT["AlgorithmSpecification"] | {"EnableSageMakerMetricsTimeSeries": False},
    "InputDataConfig": [FIT["InputDataConfig"][0] | {"CompressionType": "None", "RecordWrapperType": "None"}],
    "OutputDataConfig": FIT["OutputDataConfig"] | {"KmsKeyId": "", "CompressionType": "GZIP"},
    "ResourceConfig": FIT["ResourceConfig"] | {"KeepAlivePeriodInSeconds": 0},
    "CreationTime": "2024-03-08T09:03:09.270000+01:00",
    "TrainingStartTime": 1709885046.12,
    "SecondaryStatusTransitions": [{"Status": "Starting", "StartTime": "2024-03-08T09:03:09", "StatusMessage": "x"}],
    "FinalMetricDataList": [{"MetricName": "loss", "Value": 1e-7, "Timestamp": "2024-03-08T09:13:00+01:00"}],
    "EnableNetworkIsolation": False,
    "BillableTimeInSeconds": 411,
    "ProfilingStatus": "Disabled",
    "ResponseMetadata": {"RequestId": "x", "HTTPStatusCode": 200},
}

SOURCE = S3Uri("bucket", "train/")
TRAIN = Channel(name="train", input_mode=InputMode.FAST_FILE, source=SOURCE, content_type="text/csv")


def test_an_answer_to_describe_is_a_job() -> None:
    assert job_of(ANSWER) == TrainingJob(
        channels=(TRAIN,),
        name="fit-2026",
        arn="arn:aws:sagemaker:eu-west-1:123456789012:training-job/a-job",
        groups=(RequestedGroup(name="homogeneousCluster", instance_type="ml.m5.large", count=1),),
        hyperparameters={"epochs": "3", "rate": "0.001"},
        environment={"LEVEL": "1"},
        max_runtime_s=3600,
    )


def test_an_array_of_channels_is_a_job_and_its_errors_name_the_array() -> None:
    assert job_of(ANSWER["InputDataConfig"]) == TrainingJob(channels=(replace(TRAIN, is_mode_assumed=True),))
    error = refusal([source(), source("b", InputMode="x")])
    assert str(error).startswith("job.json: InputDataConfig[1].InputMode: is not one of")


@pytest.mark.parametrize("channels", [ABSENT, None], ids=["absent", "null"])
def test_a_job_with_a_name_may_have_no_channels(channels: object) -> None:
    assert job_of(with_field(request(), ("InputDataConfig",), channels)).channels == ()


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
        (5, "is not a job description"),
        ({"train": "s3://b/train", "test": "s3://b/test"}, "train: is not a field of the API"),
        ("s3://bucket", "is not a job description"),
        (None, "is not a job description"),
        (source(), "is one channel, where a job or a list of channels is wanted"),
    ],
)
def test_what_is_no_job_is_refused(tree: object, message: str) -> None:
    assert re.match(rf"job\.json:? {re.escape(message)}", str(refusal(tree)))


def test_a_file_whose_name_is_not_utf8_can_be_named_in_an_error(tmp_path: Path) -> None:
    path = tmp_path / "j\udcff.json"
    path.write_text("{")
    with pytest.raises(ConfigurationError) as caught:
        read_job(path)
    assert "j\\udcff.json:1:2: " in str(caught.value)
    str(caught.value).encode()


def test_a_file_and_the_command_line_describe_one_job() -> None:
    place: dict[str, object] = {"S3DataType": "AugmentedManifestFile", "S3Uri": "s3://bucket/all.manifest"}
    place |= {"S3DataDistributionType": "ShardedByS3Key", "AttributeNames": ["source-ref", "class"]}
    fields = {"ContentType": "x/y", "CompressionType": "Gzip", "RecordWrapperType": "RecordIO", "InputMode": "Pipe"}
    channel = {"ChannelName": "t", "DataSource": {"S3DataSource": place}, **fields, "ShuffleConfig": {"Seed": -7}}
    option = (
        "t=s3://bucket/all.manifest,type=augmented-manifest,distribution=sharded,attribute=source-ref,attribute=class,"
        "content-type=x/y,compression=gzip,record_wrapper=RecordIO,mode=pipe,shuffle-seed=-7"
    )
    assert job_of([channel]) == channels_job([option])


def test_the_bytes_of_a_channels_source_are_utf8_in_every_locale_and_those_of_a_directory_are_not_decoded() -> None:
    word = "caf\udcc3\udca9"  # as Python decodes it where the locale is ASCII
    assert channels_job([f"a=s3://b/{word}"]).channels[0].source == S3Uri("b", "café")
    for directory in (f"/{word}", f"file:///{word}"):
        with pytest.raises(ConfigurationError, match="UTF-8"):
            channels_job([f"a={directory}"])


def test_options_of_the_command_line_reach_the_channels() -> None:
    job = channels_job(["a=s3://b/x=y", "b=s3://b"])
    assert [(item.name, str(item.source)) for item in job.channels] == [("a", "s3://b/x=y"), ("b", "s3://b/")]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("train", "--channel 'train' names no source"),
        ("=s3://b", "--channel : name: is empty"),
        ("a/b=s3://b", "--channel a/b: name: has characters that"),
        ("a=b", "--channel a: source: 'b' is not an S3 URI"),
        ("a=s3://b/x,y", "--channel a: 'y' is not an option of a channel"),
        ("a=s3://b,source=s3://c", "--channel a: 'source=s3://c' is not an option of a channel"),
        ("a=s3://b,mode=File,mode=File", "--channel a: mode is given twice"),
        ("a=s3://b,shuffle-seed=x", "--channel a: shuffle_seed: 'x' is not a whole number"),
        ("a=s3://b,shuffle-seed=1.5", "--channel a: shuffle_seed: '1.5' is not a whole number"),
        ("a=s3://b,shuffle-seed=1_0", "--channel a: shuffle_seed: '1_0' is not a whole number"),
        (f"a=s3://b,shuffle-seed={'9' * 5000}", "--channel a: shuffle_seed: '999"),
        ("a=s3://b/m,type=augmented-manifest,attribute=b,attribute=b", "--channel a: attribute[1]: names 'b' a second"),
        (f"a=s3://b,shuffle-seed={2**63}", "--channel a: shuffle_seed: is out of the range"),
        ("a=s3://b,mode=quick", "--channel a: mode: 'quick' is not one of file, fastfile, pipe"),
        ("a=s3://b,compression=gzip", "--channel a: compression: is Gzip, which is for Pipe mode"),
        (" ".join(f"a{number}=s3://b" for number in range(21)), "InputDataConfig: has more than the 20 items"),
    ],
)
def test_an_option_of_the_command_line_that_is_wrong_is_refused(options: str, message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        channels_job(options.split())
    assert str(caught.value).startswith(message)


def test_an_option_that_is_not_known_is_refused_with_the_one_that_may_be_meant() -> None:
    with pytest.raises(ConfigurationError) as caught:
        channels_job(["a=s3://b,mood=Pipe"])
    assert caught.value.hint == "did you mean mode?"
