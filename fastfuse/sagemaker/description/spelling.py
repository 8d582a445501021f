"""The values of ``--channel``, made into a request in AWS's names.

A channel is its name, its source and options after commas, hyphens as good as underscores. A source that begins with
``/`` or ``file:///`` is a directory of this host::

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
instance_group     can be repeated
memory_weight      of the memory target, relative to the other channels; 1 if left out
=================  ======================================================================
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Final, NoReturn

from fastfuse.errors import ConfigurationError
from fastfuse.sagemaker.description.channel import TrainingJob
from fastfuse.sagemaker.description.document import FieldPath

__all__ = ["Spelled", "from_options", "path_text"]

_CHANNELS: Final = "InputDataConfig"
_S3: Final = ("DataSource", "S3DataSource")

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
    "instance_group": (*_S3, "InstanceGroupNames"),
}
_LISTS: Final = ("attribute", "instance_group")
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


@dataclass(frozen=True, slots=True)
class Spelled:
    """A request in AWS's names, with the words that the user wrote for its fields."""

    tree: dict[str, object]
    names: Mapping[FieldPath, str]
    # One for each channel.
    weights: tuple[float, ...]

    def path_text(self, path: FieldPath) -> str:
        """Return what the user calls the field at `path`."""
        for length in range(len(path), 0, -1):
            if path[:length] in self.names:
                return self.names[path[:length]] + _steps(path[length:])
        return path_text(path)

    def weigh(self, job: TrainingJob) -> TrainingJob:
        """Add the memory weights, for which AWS has no field, to `job`, which was made of `tree`."""
        channels = (
            replace(item, memory_weight=weight) for item, weight in zip(job.channels, self.weights, strict=True)
        )
        return replace(job, channels=tuple(channels))


def path_text(path: FieldPath) -> str:
    """Return the path as ``InputDataConfig[2].DataSource``, or "the job" for the whole."""
    return _steps(path).removeprefix(".") or "the job"


def _steps(path: FieldPath) -> str:
    return "".join(
        f"[{step}]" if isinstance(step, int) else f".{step}" if _PLAIN.fullmatch(step) else f"[{step[:_MAX_SHOWN]!r}]"
        for step in path
    )


def from_options(options: Sequence[str]) -> Spelled:
    """Return the request that the values of ``--channel`` describe.

    Raises:
        ConfigurationError: a value is not ``name=s3://...``, or names an unknown option.
    """
    channels: list[object] = []
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
        values: dict[str, object] = {"name": name, "source": uri}
        for setting in settings:
            _take(word, values, setting)
        weights.append(_weight(word, values.pop(_WEIGHT, 1)))
        channels.append(_request({"type": "S3Prefix"} | values))
        names[_CHANNELS, index] = word
        for ours, theirs in _FIELDS.items():  # missing ones, too, have a name
            names[_CHANNELS, index, *theirs] = f"{word}: {ours}"
    return Spelled({_CHANNELS: channels}, names, tuple(weights))


def _take(word: str, values: dict[str, object], setting: str) -> None:
    """Put the option ``name=value`` into `values`."""
    name, separator, text = setting.partition("=")
    name = name.strip().replace("-", "_")
    if not separator or name not in _OPTIONS:
        close = get_close_matches(name, _OPTIONS, n=1)
        hint = f"did you mean {close[0]}?" if close else f"the options are {', '.join(_OPTIONS)}"
        hint += "" if separator else "; a source with a comma in it goes into a job file"
        _refuse(f"{word}: {setting!r} is not an option of a channel", hint)
    if name in _LISTS:
        items = values.setdefault(name, [])
        assert isinstance(items, list)
        items.append(text)
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


def _weight(word: str, weight: object) -> float:
    assert isinstance(weight, int | float)
    if not 0 < weight <= _MAX_WEIGHT:
        _refuse(f"{word}: {_WEIGHT}: is not a number above 0 and up to {_MAX_WEIGHT}", "1 is the default")
    return float(weight)


def _request(values: Mapping[str, object]) -> dict[str, object]:
    """Return the channel with AWS's names for its fields."""
    channel: dict[str, object] = {}
    for name, value in values.items():
        *outer, last = _FIELDS[name]
        inner = channel
        for step in outer:
            found = inner.setdefault(step, {})
            assert isinstance(found, dict)
            inner = found
        inner[last] = value
    return channel


def _refuse(message: str, hint: str) -> NoReturn:
    raise ConfigurationError(message, hint=hint)
