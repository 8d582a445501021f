"""A training job as a user describes it: a file in AWS's names, or channels on the command line.

`spelling` turns channels of the command line into a request in AWS's names. `request` checks its fields one by one, and
`contradictions` together. Errors name the file, the line where one is known, and the field.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from fastfuse.errors import ConfigurationError
from fastfuse.sagemaker.description.channel import InputMode, TrainingJob
from fastfuse.sagemaker.description.contradictions import job_of
from fastfuse.sagemaker.description.document import FieldError, FieldPath, Tree, read_bytes, read_json
from fastfuse.sagemaker.description.fields import given_fields
from fastfuse.sagemaker.description.request import parse_request
from fastfuse.sagemaker.description.spelling import from_options, path_text

__all__ = ["channels_job", "parse_json_job", "read_job"]

# For channels alone: a whole job says its mode, as the API requires.
_DEFAULT_MODE: Final = InputMode.FAST_FILE


def read_job(path: Path) -> TrainingJob:
    """Read the job in a file.

    Raises:
        ConfigurationError: the file cannot be read, or is no job that can be run here; with its place.
    """
    data = read_bytes(path)
    name = str(path).encode(errors="backslashreplace").decode()
    return parse_json_job(data, name)


def parse_json_job(data: bytes, name: str) -> TrainingJob:
    """Parse a CreateTrainingJob request, a DescribeTrainingJob answer or an InputDataConfig array.

    Raises:
        ConfigurationError: as `read_job`.
    """
    document = read_json(data, name)
    if isinstance(document.tree, list):
        tree: Tree = {"InputDataConfig": document.tree}
        # The array has no name in the file, and is the whole of it.
        return _checked(tree, _DEFAULT_MODE, lambda path: f"{document.place(path[1:])}: {path_text(path)}")
    if not isinstance(document.tree, dict):
        raise ConfigurationError(
            f"{document.place(())}: not a job description",
            hint="give a CreateTrainingJob request, a DescribeTrainingJob answer or an InputDataConfig array",
        )
    if "ChannelName" in document.tree:
        raise ConfigurationError(
            f"{document.place(())}: one channel, where a job or a list of channels is wanted",
            hint="put it between square brackets",
        )
    if document.tree and all(isinstance(value, str) and value.startswith("s3://") for value in document.tree.values()):
        raise ConfigurationError(
            f"{document.place(())}: not a job description, but sources by name of channel",
            hint="give each as --channel NAME=S3_URI, or write the array that the API calls InputDataConfig",
        )
    default_mode = _DEFAULT_MODE if document.tree.keys() == {"InputDataConfig"} else None
    return _checked(document.tree, default_mode, lambda path: f"{document.place(path)}: {path_text(path)}")


def channels_job(options: Sequence[str]) -> TrainingJob:
    """Parse the values of ``--channel``, each ``name=s3://...[,option=value...]``.

    Raises:
        ConfigurationError: as `read_job`.
    """
    spelled = from_options(options)
    return spelled.weigh(_checked(spelled.tree, _DEFAULT_MODE, spelled.path_text))


def _checked(tree: Tree, default_mode: InputMode | None, place: Callable[[FieldPath], str]) -> TrainingJob:
    try:
        job = job_of(parse_request(tree), default_mode=default_mode)
    except FieldError as error:
        raise ConfigurationError(f"{place(error.path)}: {error}", hint=error.hint) from error
    return replace(job, fields=given_fields(tree))
