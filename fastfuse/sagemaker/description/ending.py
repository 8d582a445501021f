"""What a job asks for beside its data: its command, its time limits, and the place of what it makes. Pure."""

from fastfuse.errors import ConfigurationError
from fastfuse.index.sources.uri import S3Uri
from fastfuse.sagemaker.description.channel import Limits, OutputConfig
from fastfuse.sagemaker.description.document import FieldError
from fastfuse.sagemaker.description.request import OutputCompression, Request

__all__ = ["command_of", "limits_of", "output_of"]


def output_of(request: Request) -> OutputConfig | None:
    """Return the place of the job's model and output, or None if the request names none.

    The answer about a job that SageMaker ran names the place of that job's model, which is not to be replaced.

    Raises:
        FieldError: it is no place in S3, or the job has no name, which is a part of it.
    """
    config = request.OutputDataConfig
    if config is None or request.TrainingJobArn is not None:
        return None
    where = ("OutputDataConfig", "S3OutputPath")
    try:
        place = S3Uri.parse(config.S3OutputPath)
    except ConfigurationError as error:
        raise FieldError(where, str(error), hint=error.hint) from error
    if not request.TrainingJobName:
        raise FieldError(
            ("TrainingJobName",),
            "is missing: what the job makes goes to S3OutputPath/TrainingJobName/output",
            hint="name the job, or leave OutputDataConfig out",
        )
    parents = place.path.rstrip("/")
    path = f"{parents}/{request.TrainingJobName}/output/" if parents else f"{request.TrainingJobName}/output/"
    return OutputConfig(
        place=S3Uri(place.bucket, path),
        kms_key_id=config.KmsKeyId or "",
        is_compressed=config.CompressionType is OutputCompression.GZIP,
    )


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
