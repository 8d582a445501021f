"""A training job as somebody describes it: a file in AWS's spelling or in ours, or channels on the command line.

Whatever the spelling, the description becomes a request in AWS's names (`spelling`), whose fields are checked one by
one (`request`) and together (`contradictions`). Errors name the file, the line where one is known, and the field.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from fastfuse.errors import ConfigurationError
from fastfuse.sagemaker.channel import InputMode, TrainingJob
from fastfuse.sagemaker.contradictions import job_of
from fastfuse.sagemaker.document import FieldError, FieldPath, Tree, read_bytes, read_json, read_toml
from fastfuse.sagemaker.request import parse_request
from fastfuse.sagemaker.spelling import Spelled, from_options, from_toml, path_text

__all__ = ["DEFAULT_MODE", "channels_job", "parse_json_job", "parse_toml_job", "read_job"]

# Of a description that names no mode at all, which a request to SageMaker must: what this program is for.
DEFAULT_MODE = InputMode.FAST_FILE


def read_job(path: Path, *, default_mode: InputMode = DEFAULT_MODE) -> TrainingJob:
    """The job in a file: TOML if it is called ``*.toml``, else JSON.

    Raises:
        ConfigurationError: the file cannot be read, or is no job that can be run here; with its place.
    """
    data = read_bytes(path)
    name = str(path).encode(errors="backslashreplace").decode()
    parse = parse_toml_job if path.suffix.lower() == ".toml" else parse_json_job
    return parse(data, name, default_mode=default_mode)


def parse_json_job(data: bytes, name: str, *, default_mode: InputMode = DEFAULT_MODE) -> TrainingJob:
    """The job in AWS's spelling: a CreateTrainingJob request, a DescribeTrainingJob answer, an InputDataConfig array.

    Raises:
        ConfigurationError: as `read_job`.
    """
    document = read_json(data, name)
    if isinstance(document.tree, list):
        tree: Tree = {"InputDataConfig": document.tree}
        # The array has no name in the file, and is the whole of it.
        return _checked(tree, default_mode, lambda path: f"{document.place(path[1:])}: {path_text(path)}")
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
    return _checked(document.tree, default_mode, lambda path: f"{document.place(path)}: {path_text(path)}")


def parse_toml_job(data: bytes, name: str, *, default_mode: InputMode = DEFAULT_MODE) -> TrainingJob:
    """The job in our own spelling (see `spelling`).

    Raises:
        ConfigurationError: as `read_job`.
    """
    document = read_toml(data, name)
    assert isinstance(document.tree, dict)  # TOML has nothing else at the top
    return _spelled(from_toml(document.tree, name), default_mode, f"{name}: ")


def channels_job(options: Sequence[str], *, default_mode: InputMode = DEFAULT_MODE) -> TrainingJob:
    """The job of the values of ``--channel``: ``name=s3://...[,option=value...]`` each.

    Raises:
        ConfigurationError: as `read_job`.
    """
    return _spelled(from_options(options), default_mode, "")


def _spelled(spelled: Spelled, default_mode: InputMode, prefix: str) -> TrainingJob:
    return spelled.weigh(_checked(spelled.tree, default_mode, lambda path: f"{prefix}{spelled.path_text(path)}"))


def _checked(tree: Tree, default_mode: InputMode, place: Callable[[FieldPath], str]) -> TrainingJob:
    try:
        return job_of(parse_request(tree), default_mode=default_mode)
    except FieldError as error:
        raise ConfigurationError(f"{place(error.path)}: {error}", hint=error.hint) from error
