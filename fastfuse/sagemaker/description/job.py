"""A training job as a user describes it: a file in AWS's names, or channels on the command line.

`request` checks the fields of either one by one, and `contradictions` together. Errors name the file and the field.

A value of ``--channel`` is a name, a source and options after commas, hyphens as good as underscores. A source that
begins with ``/`` or ``file:///`` is a directory of this host::

    train=s3://bucket/train/,mode=Pipe,shuffle-seed=7
    train=/data/train,distribution=sharded

=================  ======================================================================
option             value
=================  ======================================================================
mode               File, FastFile, Pipe
type               prefix, manifest, augmented-manifest
distribution       replicated, sharded
content_type       as AWS's
compression        none, gzip
record_wrapper     none, recordio
shuffle_seed       a whole number
attribute          of an augmented manifest; can be repeated
=================  ======================================================================
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, NoReturn

from fastfuse.errors import ConfigurationError
from fastfuse.index.sources.manifests import decoded
from fastfuse.index.sources.uri import as_utf8, shown
from fastfuse.sagemaker.description.channel import Channel, InputMode, LocalDirectory, TrainingJob
from fastfuse.sagemaker.description.contradictions import job_of
from fastfuse.sagemaker.description.request import GIVEN_TWICE, FieldError, FieldPath, given_fields, parse_request

_CHANNELS: Final = "InputDataConfig"
_S3: Final = ("DataSource", "S3DataSource")

_KINDS: Final = "a CreateTrainingJob request, a DescribeTrainingJob answer or an InputDataConfig array"

# For channels alone: a whole job says its mode, as the API requires.
_DEFAULT_MODE: Final = InputMode.FAST_FILE

# Ours: AWS's.
_FIELDS: Final[dict[str, tuple[str, ...]]] = {
    "name": ("ChannelName",),
    "source": (*_S3, "S3Uri"),
    "type": (*_S3, "S3DataType"),
    "mode": ("InputMode",),
    "distribution": (*_S3, "S3DataDistributionType"),
    "content_type": ("ContentType",),
    "compression": ("CompressionType",),
    "record_wrapper": ("RecordWrapperType",),
    "shuffle_seed": ("ShuffleConfig", "Seed"),
    "attribute": (*_S3, "AttributeNames"),
}
_OPTIONS: Final = sorted(_FIELDS.keys() - {"name", "source"})

# Words that may be written in any case.
_WORDS: Final[dict[str, dict[str, str]]] = {
    "type": {"prefix": "S3Prefix", "manifest": "ManifestFile", "augmented-manifest": "AugmentedManifestFile"},
    "distribution": {"replicated": "FullyReplicated", "sharded": "ShardedByS3Key"},
    "compression": {"none": "None", "gzip": "Gzip"},
    "record_wrapper": {"none": "None", "recordio": "RecordIO"},
    "mode": {"file": "File", "fastfile": "FastFile", "pipe": "Pipe"},
}

# A plain name is shown as it is, and others quoted.
_PLAIN: Final = re.compile(r"[\w.-]{1,520}")  # the longest of the API has 512 characters


def _path_text(path: FieldPath) -> str:
    """Return the path as ``InputDataConfig[2].DataSource``, or "the job" for the whole."""
    steps = (
        f"[{step}]" if isinstance(step, int) else f".{step}" if _PLAIN.fullmatch(step) else f"[{shown(step)}]"
        for step in path
    )
    return "".join(steps).removeprefix(".") or "the job"


def channels_job(options: Sequence[str]) -> TrainingJob:
    """Parse the values of ``--channel``, each ``name=s3://...[,option=value...]``.

    Raises:
        ConfigurationError: as `read_job`.
    """
    channels = []
    words: dict[FieldPath, str] = {}
    for index, option in enumerate(options):
        name, separator, rest = option.partition("=")
        word = f"--channel {name}" if separator else f"--channel {option!r}"
        if not separator:
            _refuse(
                f"{word} names no source", "write it as NAME=s3://BUCKET/PREFIX[,OPTION=VALUE...] or NAME=/DIRECTORY"
            )
        source, *settings = rest.split(",")
        uri = f"file://{source}" if source.startswith("/") else source
        if not uri.startswith("file://"):
            uri = as_utf8(uri)
        values: dict[str, Any] = {"type": "S3Prefix", "name": name, "source": uri}
        given: dict[str, Any] = {}
        for setting in settings:
            _take(word, given, setting)
        channels.append(_request(values | given))
        words[_CHANNELS, index] = word

    def place(path: FieldPath) -> str:
        for ours, theirs in _FIELDS.items():
            if path[2:][: len(theirs)] == theirs:
                return f"{words[path[:2]]}: {ours}" + "".join(f"[{step}]" for step in path[2 + len(theirs) :])
        return _path_text(path)

    return _checked({_CHANNELS: channels}, _DEFAULT_MODE, place)


def _take(word: str, values: dict[str, Any], setting: str) -> None:
    """Put the option ``name=value`` into `values`."""
    name, separator, text = setting.partition("=")
    name = name.strip().replace("-", "_")
    if not separator or name not in _OPTIONS:
        close = get_close_matches(name, _OPTIONS, n=1)
        hint = f"did you mean {close[0]}?" if close else f"the options are {', '.join(_OPTIONS)}"
        hint += "" if separator else "; a source with a comma in it goes into a job file"
        _refuse(f"{word}: {setting!r} is not an option of a channel", hint)
    if name == "attribute":
        values.setdefault(name, []).append(text)
    elif name in values:
        _refuse(f"{word}: {name} is given twice", "give it once")
    elif name == "shuffle_seed":
        if not re.fullmatch(r"-?\d{1,19}", text, re.ASCII):
            _refuse(f"{word}: {name}: {shown(text)} is not a whole number", "write it in 1 to 19 digits")
        values[name] = int(text)
    else:
        values[name] = _chosen(f"{word}: {name}", text, _WORDS[name]) if name in _WORDS else text


def _chosen(word: str, text: str, words: Mapping[str, str]) -> str:
    """Return AWS's word for `text`, which may be that already."""
    found = [theirs for ours, theirs in words.items() if text.lower() in (ours, theirs.lower())]
    if not found:
        _refuse(f"{word}: {text!r} is not one of {', '.join(words)}", "case does not matter")
    return found[0]


def _request(values: Mapping[str, object]) -> dict[str, Any]:
    """Return the channel with AWS's names for its fields."""
    channel: dict[str, Any] = {}
    for name, value in values.items():
        *outer, last = _FIELDS[name]
        inner = channel
        for step in outer:
            inner = inner.setdefault(step, {})
        inner[last] = value
    return channel


def _refuse(message: str, hint: str) -> NoReturn:
    raise ConfigurationError(message, hint=hint)


# SageMaker's limits keep any request far smaller: 100 hyperparameters of 2500 characters, 20 channels.
MAX_BYTES: Final = 4 << 20


def read_job(path: Path) -> TrainingJob:
    """Read the job in a file; a pipe (``--job <(...)``) is read to its end.

    Raises:
        ConfigurationError: the file cannot be read, or is no job that can be run here; with file and field.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigurationError(f"the job file {str(path)!r} cannot be read: {reason}") from error
    if len(data) > MAX_BYTES:
        raise ConfigurationError(
            f"the job file {str(path)!r} is larger than {MAX_BYTES >> 20} MiB",
            hint="a job description is a few kilobytes; is this the data?",
        )
    return parse_json_job(data, str(path).encode(errors="backslashreplace").decode())


def parse_json_job(data: bytes, name: str) -> TrainingJob:
    """Parse a CreateTrainingJob request, a DescribeTrainingJob answer or an InputDataConfig array.

    Raises:
        ConfigurationError: as `read_job`.
    """
    try:
        tree = _json_in(data, name)
        if not isinstance(tree, list | dict):
            _refuse(f"{name} is not a job description", f"give {_KINDS}")
        if isinstance(tree, list):
            tree = {_CHANNELS: tree}
        if "ChannelName" in tree:
            what = f"{name} is one channel, where a job or a list of channels is wanted"
            _refuse(what, "put it between square brackets")
        default_mode = _DEFAULT_MODE if tree.keys() == {_CHANNELS} else None
        return _checked(tree, default_mode, lambda path: f"{name}: {_path_text(path)}")
    except RecursionError:
        raise ConfigurationError(f"{name} is nested too deeply for a job description", hint=f"give {_KINDS}") from None


def _checked(tree: Mapping[str, Any], default_mode: InputMode | None, place: Callable[[FieldPath], str]) -> TrainingJob:
    try:
        job = job_of(parse_request(tree), default_mode=default_mode)
    except FieldError as error:
        _refuse(f"{place(error.path)}: {error}", error.hint)
    return replace(job, fields=given_fields(tree))


def _json_in(data: bytes, name: str) -> object:
    text = decoded(data, name)
    try:
        # The API has no number of more digits than 19: the rest of them is left out, and the field refused.
        return json.loads(text, object_pairs_hook=_object, parse_int=lambda digits: int(digits[:21]))
    except json.JSONDecodeError as error:
        _refuse(f"{name}:{error.lineno}:{error.colno}: this is not JSON: {error.msg}", "correct the file there")


def _object(members: Sequence[tuple[str, object]]) -> dict[str, object]:
    made: dict[str, object] = {}
    for name, value in members:
        made[name] = GIVEN_TWICE if name in made else value
    return made


def located(job: TrainingJob, options: Sequence[str]) -> TrainingJob:
    """Return `job` with the place of each file system; `options` are ``ID=/DIRECTORY``.

    Raises:
        ConfigurationError: an option has another form, or a channel's file system is in none of them.
    """
    places: dict[str, str] = {}
    for option in options:
        name, _, place = option.partition("=")
        if not name or not place.startswith("/"):
            _refuse(
                f"--file-system {option!r} does not say where a file system is mounted",
                "write it as in --file-system fs-0123456789abcdef0=/mnt/efs",
            )
        if places.setdefault(name, place) != place:
            _refuse(f"--file-system {name} is given with {places[name]} and with {place}", "name one place")
    return replace(job, channels=tuple(_located(channel, places) for channel in job.channels))


def _located(channel: Channel, places: dict[str, str]) -> Channel:
    source = channel.source
    if not isinstance(source, LocalDirectory) or not source.file_system:
        return channel
    place = places.get(source.file_system)
    if place is None:
        _refuse(
            f"channel {channel.name} lies in the file system {source.file_system}, and nothing says where that is "
            "mounted",
            f"mount it, and add --file-system {source.file_system}=/DIRECTORY",
        )
    return replace(channel, source=replace(source, mounted_at=place))
