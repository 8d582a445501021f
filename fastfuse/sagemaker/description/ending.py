"""The parts of a job beside its data: its command, its time limits, and the places of its outputs. Pure."""

import posixpath
from typing import Final

from fastfuse.errors import ConfigurationError
from fastfuse.index.sources.uri import S3Uri
from fastfuse.sagemaker.description.channel import Limits, OutputConfig, SyncedDirectory
from fastfuse.sagemaker.description.document import FieldError, FieldPath
from fastfuse.sagemaker.description.request import OutputCompression, Request

__all__ = ["command_of", "limits_of", "output_of", "synced_of"]

# Everything of a job lies in them.
_NOT_ALONE: Final = frozenset({"/", "/opt", "/opt/ml"})
_INPUT: Final = "/opt/ml/input"
# The defaults of the API.
_CHECKPOINTS: Final = "/opt/ml/checkpoints"
_TENSORBOARD: Final = "/opt/ml/output/tensorboard"


def output_of(request: Request) -> OutputConfig | None:
    """Return the place of the job's model and output, or None if the request names none.

    The answer about a job that SageMaker ran names the place of that job's model, which is not to be replaced.

    Raises:
        FieldError: it is no place in S3, or the job has no name, which is a part of it.
    """
    config = request.OutputDataConfig
    if config is None or request.TrainingJobArn is not None:
        return None
    folder = _folder(("OutputDataConfig", "S3OutputPath"), config.S3OutputPath)
    return OutputConfig(
        place=S3Uri(folder.bucket, f"{folder.path}{_job_name(request)}/output/"),
        kms_key_id=config.KmsKeyId or "",
        is_compressed=config.CompressionType is OutputCompression.GZIP,
    )


def synced_of(request: Request) -> tuple[SyncedDirectory, ...]:
    """Return the directories that go to S3 while the job runs; none of a job that SageMaker ran.

    Raises:
        FieldError: a place is none in S3, or a path is one where a job's data or everything of it lies.
    """
    checkpoints, logs = request.CheckpointConfig, request.TensorBoardOutputConfig
    found = []
    if request.TrainingJobArn is not None:
        return ()
    if checkpoints is not None:
        path = _local_path("CheckpointConfig", checkpoints.LocalPath or _CHECKPOINTS)
        place = _folder(("CheckpointConfig", "S3Uri"), checkpoints.S3Uri)
        found.append(SyncedDirectory(name="checkpoints", local_path=path, place=place, are_checkpoints=True))
    if logs is not None:
        path = _local_path("TensorBoardOutputConfig", logs.LocalPath or _TENSORBOARD)
        folder = _folder(("TensorBoardOutputConfig", "S3OutputPath"), logs.S3OutputPath)
        place = S3Uri(folder.bucket, f"{folder.path}{_job_name(request)}/tensorboard-output/")
        found.append(SyncedDirectory(name="tensorboard", local_path=path, place=place, are_checkpoints=False))
    return tuple(found)


def _local_path(config: str, text: str) -> str:
    path = posixpath.normpath(text)
    if ".." in text.split("/") or path in _NOT_ALONE or f"{path}/".startswith(f"{_INPUT}/"):
        raise FieldError(
            (config, "LocalPath"),
            f"{text!r} is no place for files that go to S3",
            hint=f"name a directory of their own, such as {_CHECKPOINTS}",
        )
    return path


def _folder(where: FieldPath, text: str) -> S3Uri:
    """Return the prefix that ends in "/", or that of the whole bucket."""
    try:
        place = S3Uri.parse(text)
    except ConfigurationError as error:
        raise FieldError(where, str(error), hint=error.hint) from error
    path = place.path.rstrip("/")
    return S3Uri(place.bucket, f"{path}/" if path else "")


def _job_name(request: Request) -> str:
    if not request.TrainingJobName:
        raise FieldError(
            ("TrainingJobName",),
            "is missing: it is a part of the keys of what the job makes",
            hint="name the job, or leave OutputDataConfig and TensorBoardOutputConfig out",
        )
    return request.TrainingJobName


def limits_of(request: Request) -> Limits:
    """Return the job's limits of time.

    Raises:
        FieldError: the whole is shorter than its part.
    """
    condition = request.StoppingCondition
    if condition is None:
        return Limits()
    runtime_s, wait_s = condition.MaxRuntimeInSeconds, condition.MaxWaitTimeInSeconds
    if runtime_s is not None and wait_s is not None and wait_s < runtime_s:
        raise FieldError(
            ("StoppingCondition", "MaxWaitTimeInSeconds"),
            f"is {wait_s}, and MaxRuntimeInSeconds, which it includes, is {runtime_s}",
            hint="wait at least as long as the job may run",
        )
    return Limits(runtime_s=runtime_s, wait_s=wait_s)


def command_of(request: Request) -> tuple[str, ...]:
    """Return the command that the job names; arguments alone are those of an image's own command, which is not here."""
    algorithm = request.AlgorithmSpecification
    entrypoint, arguments = algorithm.ContainerEntrypoint, algorithm.ContainerArguments
    return (*entrypoint, *(arguments or ())) if entrypoint else ()
