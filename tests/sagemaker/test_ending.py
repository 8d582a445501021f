"""The parts of a job beside its data: the place of its model, its limits and its command."""

from pathlib import Path

import pytest

from fastfuse.index.sources.uri import S3Uri
from fastfuse.sagemaker.description.channel import OutputConfig, SyncedDirectory
from fastfuse.sagemaker.files import JobPaths
from tests.sagemaker.jobs import ABSENT, job_of, refusal, request, with_field


@pytest.mark.parametrize(
    ("path", "prefix"), [("s3://b", ""), ("s3://b/", ""), ("s3://b/models", "models/"), ("s3://b/models/", "models/")]
)
def test_outputs_go_below_a_prefix_of_the_jobs_own(path: str, prefix: str) -> None:
    job = job_of(request(OutputDataConfig={"S3OutputPath": path}))
    assert job.output == OutputConfig(place=S3Uri("b", f"{prefix}a-job/output/"))


def test_encryption_and_compression_are_those_of_the_request() -> None:
    config = {"S3OutputPath": "s3://b/p", "KmsKeyId": "alias/k", "CompressionType": "NONE"}
    job = job_of(request(OutputDataConfig=config))
    assert job.output is not None
    assert (job.output.kms_key_id, job.output.is_compressed) == ("alias/k", False)


def test_a_job_without_output_data_config_uploads_nothing() -> None:
    assert job_of(with_field(request(), ("OutputDataConfig",), ABSENT)).output is None


def test_the_model_of_a_job_that_sagemaker_ran_is_not_replaced() -> None:
    answer = request(TrainingJobArn="arn:aws:sagemaker:us-east-1:123456789012:training-job/a-job")
    assert job_of(answer).output is None


def test_checkpoints_and_logs_have_the_places_of_the_api() -> None:
    job = job_of(request(CheckpointConfig={"S3Uri": "s3://b/c"}, TensorBoardOutputConfig={"S3OutputPath": "s3://b"}))
    logs = SyncedDirectory(
        name="tensorboard",
        local_path="/opt/ml/output/tensorboard",
        place=S3Uri("b", "a-job/tensorboard-output/"),
        are_checkpoints=False,
    )
    checkpoints = SyncedDirectory(
        name="checkpoints", local_path="/opt/ml/checkpoints", place=S3Uri("b", "c/"), are_checkpoints=True
    )
    assert job.synced == (checkpoints, logs)
    assert JobPaths(Path("/base")).of(logs.local_path) == Path("/base/output/tensorboard")


def test_checkpoints_may_lie_anywhere_but_where_a_job_has_its_data() -> None:
    [synced] = job_of(request(CheckpointConfig={"S3Uri": "s3://b", "LocalPath": "/tmp//c/"})).synced
    assert (synced.local_path, synced.place) == ("/tmp/c", S3Uri("b", ""))
    assert JobPaths(Path("/base")).of(synced.local_path) == Path("/tmp/c")


def test_nothing_of_a_job_that_sagemaker_ran_is_sent() -> None:
    arn = "arn:aws:sagemaker:us-east-1:123456789012:training-job/a-job"
    assert job_of(request(TrainingJobArn=arn, CheckpointConfig={"S3Uri": "s3://b/c"})).synced == ()


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("CheckpointConfig",), {"LocalPath": "/opt/ml/checkpoints"}, "CheckpointConfig.S3Uri: is missing"),
        (("CheckpointConfig",), {"S3Uri": "s3://b", "LocalPath": "/opt/ml/"}, "is no place for files that go to S3"),
        (("CheckpointConfig",), {"S3Uri": "s3://b", "LocalPath": "/opt/ml/input/x"}, "is no place for files"),
        (("CheckpointConfig",), {"S3Uri": "s3://b", "LocalPath": "/tmp/../opt"}, "is no place for files"),
        (("CheckpointConfig",), {"S3Uri": "s3://b", "LocalPath": "relative"}, "LocalPath: has characters"),
        (("TensorBoardOutputConfig",), {"S3OutputPath": "b"}, "is not an S3 URI"),
        (("OutputDataConfig", "S3OutputPath"), "/models", "is not an S3 URI"),
        (("OutputDataConfig", "S3OutputPath"), ABSENT, "OutputDataConfig.S3OutputPath: is missing"),
        (("OutputDataConfig", "CompressionType"), "Gzip", "OutputDataConfig.CompressionType: is not one of"),
        (("OutputDataConfig", "KmsKeyId"), "a key", "OutputDataConfig.KmsKeyId: has characters"),
        (("OutputDataConfig", "KmsKey"), "k", "OutputDataConfig.KmsKey: is not a field of the API"),
        (("TrainingJobName",), ABSENT, "TrainingJobName: is missing"),
        (("StoppingCondition", "MaxRuntimeInSeconds"), 0, "is out of the range"),
        (("StoppingCondition", "MaxWaitTimeInSeconds"), 86399, "which it includes, is 86400"),
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
