"""A training job as a user describes it: a file in AWS's names, or channels on the command line.

`request` checks the fields of either one by one, and `contradictions` together. Errors name the file, the line where
one is known, and the field.

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
memory_weight      of the memory target, relative to the other channels; 1 if left out
=================  ======================================================================
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, NoReturn

from fastfuse.errors import ConfigurationError
from fastfuse.index.sources.manifests import JsonText, decoded
from fastfuse.index.sources.uri import as_utf8
from fastfuse.sagemaker.description.channel import Channel, InputMode, LocalDirectory, TrainingJob
from fastfuse.sagemaker.description.contradictions import job_of
from fastfuse.sagemaker.description.request import FieldError, FieldPath, given_fields, parse_request

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
_WEIGHT: Final = "memory_weight"
_OPTIONS: Final = sorted((_FIELDS.keys() | {_WEIGHT}) - {"name", "source"})
# A larger ratio leaves a channel less memory than one part.
_MAX_WEIGHT: Final = 1000

# Words that may be written in any case.
_WORDS: Final[dict[str, dict[str, str]]] = {
    "type": {"prefix": "S3Prefix", "manifest": "ManifestFile", "augmented-manifest": "AugmentedManifestFile"},
    "distribution": {"replicated": "FullyReplicated", "sharded": "ShardedByS3Key"},
    "compression": {"none": "None", "gzip": "Gzip"},
    "record_wrapper": {"none": "None", "recordio": "RecordIO"},
    "mode": {"file": "File", "fastfile": "FastFile", "pipe": "Pipe"},
}

# A plain name is shown as it is. Others are quoted, and cut: the longest of the API has 512 characters.
_MAX_SHOWN: Final = 520
_PLAIN: Final = re.compile(rf"[\w.-]{{1,{_MAX_SHOWN}}}")


def _path_text(path: FieldPath) -> str:
    """Return the path as ``InputDataConfig[2].DataSource``, or "the job" for the whole."""
    return _steps(path).removeprefix(".") or "the job"


def _steps(path: FieldPath) -> str:
    return "".join(
        f"[{step}]" if isinstance(step, int) else f".{step}" if _PLAIN.fullmatch(step) else f"[{step[:_MAX_SHOWN]!r}]"
        for step in path
    )


def channels_job(options: Sequence[str]) -> TrainingJob:
    """Parse the values of ``--channel``, each ``name=s3://...[,option=value...]``.

    Raises:
        ConfigurationError: as `read_job`.
    """
    channels: list[object] = []
    # The words that the user wrote for a field, and for those that are missing.
    names: dict[FieldPath, str] = {}
    weights = []
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
        values: dict[str, Any] = {"name": name, "source": uri}
        for setting in settings:
            _take(word, values, setting)
        weights.append(values.pop(_WEIGHT, 1))
        if not 0 < weights[-1] <= _MAX_WEIGHT:
            _refuse(f"{word}: {_WEIGHT}: is not a number above 0 and up to {_MAX_WEIGHT}", "1 is the default")
        channels.append(_request({"type": "S3Prefix"} | values))
        names[_CHANNELS, index] = word
        names |= {(_CHANNELS, index, *theirs): f"{word}: {ours}" for ours, theirs in _FIELDS.items()}

    def fail(path: FieldPath, message: str, hint: str) -> NoReturn:
        named = next((path[:length] for length in range(len(path), 0, -1) if path[:length] in names), ())
        place = names[named] + _steps(path[len(named) :]) if named else _path_text(path)
        _refuse(f"{place}: {message}", hint)

    job = _checked({_CHANNELS: channels}, _DEFAULT_MODE, fail)
    weighed = zip(job.channels, weights, strict=True)
    return replace(job, channels=tuple(replace(channel, memory_weight=float(weight)) for channel, weight in weighed))


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
    elif name in ("shuffle_seed", _WEIGHT):
        values[name] = _number(f"{word}: {name}", text)
    else:
        values[name] = _chosen(f"{word}: {name}", text, _WORDS[name]) if name in _WORDS else text


def _number(word: str, text: str) -> int | float:
    if re.fullmatch(r"-?\d{1,19}", text, re.ASCII):
        return int(text)
    if not re.fullmatch(r"\d{1,9}\.\d{1,9}", text, re.ASCII):
        _refuse(f"{word}: {text!r} is not a number", "write it in digits")
    return float(text)


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
# The deepest field of the API lies ten levels down.
MAX_DEPTH: Final = 64
# A description of twenty channels has a few thousand.
MAX_VALUES: Final = 100_000


@dataclass(frozen=True, slots=True)
class Document:
    """A JSON document; `offsets` has the place of each value in `text`."""

    tree: Any
    text: JsonText
    offsets: dict[FieldPath, int]

    def fail(self, path: FieldPath, message: str, hint: str) -> NoReturn:
        """Raise with the place of the value at `path`, or of what would hold it if there is none."""
        while path not in self.offsets:
            path = path[:-1]
        self.text.fail(self.offsets[path], message, hint)


def read_job(path: Path) -> TrainingJob:
    """Read the job in a file; a pipe (``--job <(...)``) is read to its end.

    Raises:
        ConfigurationError: the file cannot be read, or is no job that can be run here; with its place.
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
    document = read_json(data, name)
    tree = document.tree

    def fail(path: FieldPath, message: str, hint: str) -> NoReturn:
        # An array alone has no name in the file, and is the whole of it.
        document.fail(path[1:] if isinstance(tree, list) else path, f"{_path_text(path)}: {message}", hint)

    if isinstance(tree, list):
        return _checked({_CHANNELS: tree}, _DEFAULT_MODE, fail)
    if not isinstance(tree, dict):
        document.fail((), "not a job description", f"give {_KINDS}")
    if "ChannelName" in tree:
        document.fail((), "one channel, where a job or a list of channels is wanted", "put it between square brackets")
    if tree and all(isinstance(value, str) and value.startswith("s3://") for value in tree.values()):
        document.fail(
            (),
            "not a job description, but sources by name of channel",
            "give each as --channel NAME=S3_URI, or write the array that the API calls InputDataConfig",
        )
    return _checked(tree, _DEFAULT_MODE if tree.keys() == {_CHANNELS} else None, fail)


def _checked(
    tree: object, default_mode: InputMode | None, fail: Callable[[FieldPath, str, str], NoReturn]
) -> TrainingJob:
    try:
        job = job_of(parse_request(tree), default_mode=default_mode)
    except FieldError as error:
        fail(error.path, str(error), error.hint)
    return replace(job, fields=given_fields(tree))


def read_json(data: bytes, name: str) -> Document:
    """Parse the JSON document in `data` into plain dictionaries, lists, texts and numbers.

    Raises:
        ConfigurationError: not UTF-8, not JSON, a name twice in one object, a number that is none, nested too deeply;
            with line and column.
    """
    text = JsonText(decoded(data, name), name)
    offsets: dict[FieldPath, int] = {}
    tree = _value(text, text.after_space(0), (), offsets)
    return Document(tree, text, offsets)


def _value(text: JsonText, at: int, path: FieldPath, offsets: dict[FieldPath, int]) -> Any:  # noqa: ANN401 - JSON
    """Return the value at `at`, and note the places of all that it holds."""
    offsets[path] = at
    if len(path) > MAX_DEPTH:
        text.fail(at, "nested too deeply for a job description")
    if len(offsets) > MAX_VALUES + 1:  # and the whole
        text.fail(at, f"more than {MAX_VALUES} values", "is this the data?")
    if text.text.startswith("{", at):
        members = text.members(at, is_all=not path)
        return {one.name: _value(text, one.start, (*path, one.name), offsets) for one in members}
    if text.text.startswith("[", at):
        elements = enumerate(text.elements(at, is_all=not path))
        return [_value(text, start, (*path, index), offsets) for index, (start, _) in elements]
    _, end = text.value(at)
    if not path and (after := text.after_space(end)) < len(text.text):
        text.fail(after, "something follows the value")
    try:
        return json.loads(text.text[at:end])
    except ValueError:
        text.fail(at, "this number has too many digits")


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
