"""A job in our own spelling, made into a request in AWS's: the TOML file and the values of ``--channel``.

A TOML file says what a request says, with fewer words; all but `name` and `source` of a channel may be left out::

    name = "my-job"                # TrainingJobName
    mode = "FastFile"              # TrainingInputMode: of the channels that name none
    instance_type = "ml.g5.xlarge"
    instance_count = 2

    [hyperparameters]              # what is not text is written as JSON
    epochs = 3

    [environment]
    LOG_LEVEL = "debug"

    [[channel]]
    name = "train"
    source = "s3://bucket/train/"
    mode = "Pipe"                  # File, FastFile, Pipe
    type = "augmented-manifest"    # prefix, manifest
    distribution = "sharded"       # replicated
    content_type = "application/x-recordio"
    compression = "gzip"           # none
    record_wrapper = "recordio"    # none
    shuffle_seed = 7
    attributes = ["source-ref", "class"]
    instance_groups = ["workers"]
    memory_weight = 2.0            # of the memory target, relative to the other channels; 1

    [[instance_group]]             # instead of instance_type and instance_count
    name = "workers"
    type = "ml.g5.xlarge"
    count = 2

A channel on the command line has the same options after its source, hyphens as good as underscores, and says
``attribute=`` and ``instance-group=`` once for each: ``train=s3://bucket/train/,mode=Pipe,shuffle-seed=7``.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Final, NoReturn

from fastfuse.errors import ConfigurationError
from fastfuse.sagemaker.channel import TrainingJob
from fastfuse.sagemaker.document import FieldPath

__all__ = ["Spelled", "from_options", "from_toml", "path_text"]

_S3: Final = ("DataSource", "S3DataSource")

# Ours: AWS's.
_JOB: Final[dict[str, FieldPath]] = {
    "name": ("TrainingJobName",),
    "mode": ("AlgorithmSpecification", "TrainingInputMode"),
    "instance_type": ("ResourceConfig", "InstanceType"),
    "instance_count": ("ResourceConfig", "InstanceCount"),
    "instance_group": ("ResourceConfig", "InstanceGroups"),
    "hyperparameters": ("HyperParameters",),
    "environment": ("Environment",),
    "channel": ("InputDataConfig",),
}
_GROUP: Final[dict[str, FieldPath]] = {
    "name": ("InstanceGroupName",),
    "type": ("InstanceType",),
    "count": ("InstanceCount",),
}
_CHANNEL: Final[dict[str, FieldPath]] = {
    "name": ("ChannelName",),
    "source": (*_S3, "S3Uri"),
    "type": (*_S3, "S3DataType"),
    "mode": ("InputMode",),
    "distribution": (*_S3, "S3DataDistributionType"),
    "content_type": ("ContentType",),
    "compression": ("CompressionType",),
    "record_wrapper": ("RecordWrapperType",),
    "shuffle_seed": ("ShuffleConfig", "Seed"),
    "attributes": (*_S3, "AttributeNames"),
    "instance_groups": (*_S3, "InstanceGroupNames"),
}
_WEIGHT: Final = "memory_weight"
# Beyond this ratio a share of any memory target is no part of one object.
_MAX_WEIGHT: Final = 1000.0

# Words that may be written in any case, by AWS's name of their field.
_WORDS: Final[dict[str, dict[str, str]]] = {
    "S3DataType": {
        "prefix": "S3Prefix",
        "manifest": "ManifestFile",
        "augmented-manifest": "AugmentedManifestFile",
    },
    "S3DataDistributionType": {"replicated": "FullyReplicated", "sharded": "ShardedByS3Key"},
    "CompressionType": {"none": "None", "gzip": "Gzip"},
    "RecordWrapperType": {"none": "None", "recordio": "RecordIO"},
    "InputMode": {"file": "File", "fastfile": "FastFile", "pipe": "Pipe"},
    "TrainingInputMode": {"file": "File", "fastfile": "FastFile", "pipe": "Pipe"},
}

# A name that is shown as it is; others are quoted, and long ones cut: the longest of the API has 512 characters.
_MAX_SHOWN: Final = 520
_PLAIN: Final = re.compile(rf"[\w.-]{{1,{_MAX_SHOWN}}}")

# Options of --channel that may come more than once, and the list that they fill.
_LISTS: Final = {"attribute": "attributes", "instance_group": "instance_groups"}


@dataclass(frozen=True, slots=True)
class Spelled:
    """A request in AWS's names, and what whoever wrote it called the fields."""

    tree: dict[str, object]
    names: Mapping[FieldPath, str]
    # One for each channel.
    weights: tuple[float, ...]

    def path_text(self, path: FieldPath) -> str:
        """What the user calls the field at `path`."""
        for length in range(len(path), 0, -1):
            if path[:length] in self.names:
                return self.names[path[:length]] + _steps(path[length:])
        return path_text(path)

    def weigh(self, job: TrainingJob) -> TrainingJob:
        """`job`, made of `tree`, with the weights, for which AWS has no field."""
        channels = (
            replace(item, memory_weight=weight) for item, weight in zip(job.channels, self.weights, strict=True)
        )
        return replace(job, channels=tuple(channels))


def path_text(path: FieldPath) -> str:
    """``InputDataConfig[2].DataSource.S3DataSource.S3Uri``; "the job" for what is no field."""
    return _steps(path).removeprefix(".") or "the job"


def _steps(path: FieldPath) -> str:
    return "".join(
        f"[{step}]" if isinstance(step, int) else f".{step}" if _PLAIN.fullmatch(step) else f"[{step[:_MAX_SHOWN]!r}]"
        for step in path
    )


def from_toml(tree: Mapping[str, object], file: str) -> Spelled:
    """The request that a TOML file is in other words; `file` is its name, for errors.

    Raises:
        ConfigurationError: a name or a word that is not in the list of this module's description.
    """
    writer = _Writer(f"{file}: ")
    for name, value in tree.items():
        writer.check(name, _JOB, name)
        if name == "channel":
            for index, table in enumerate(_tables(writer, name, value)):
                writer.channel(index, f"channel[{index}]", table)
        elif name == "instance_group":
            for index, table in enumerate(_tables(writer, name, value)):
                writer.fields((*_JOB[name], index), f"{name}[{index}]", table, _GROUP)
        elif name in ("hyperparameters", "environment"):
            writer.texts(_JOB[name], name, value)
        else:
            writer.put(_JOB[name], name, value)
    return writer.spelled()


def from_options(options: Sequence[str]) -> Spelled:
    """The request that the values of ``--channel`` are.

    Raises:
        ConfigurationError: no ``name=s3://...``, or an option after it that there is not.
    """
    writer = _Writer("")
    for index, option in enumerate(options):
        name, separator, rest = option.partition("=")
        word = f"--channel {name}" if separator else f"--channel {option!r}"
        if not separator:
            writer.refuse(f"{word} names no source", "write it as NAME=s3://BUCKET/PREFIX[,OPTION=VALUE...]")
        source, *settings = rest.split(",")
        table: dict[str, object] = {"name": name, "source": source}
        for setting in settings:
            _set_option(writer, word, table, setting)
        writer.channel(index, word, table)
    return writer.spelled()


def _set_option(writer: "_Writer", word: str, table: dict[str, object], setting: str) -> None:
    name, separator, value = setting.partition("=")
    name = name.strip().replace("-", "_")
    known = sorted((_CHANNEL.keys() | _LISTS.keys() | {_WEIGHT}) - {"name", "source", *_LISTS.values()})
    if not separator or name not in known:
        close = get_close_matches(name, known, n=1)
        hint = f"did you mean {close[0]}?" if close else f"the options are {', '.join(known)}"
        hint += "" if separator else "; a source with a comma in it goes into a job file"
        writer.refuse(f"{word}: {setting!r} is not an option of a channel", hint)
    if name in _LISTS:
        items = table.setdefault(_LISTS[name], [])
        assert isinstance(items, list)
        items.append(value)
    elif name in table:
        writer.refuse(f"{word}: {name} is given twice", "give it once")
    else:
        table[name] = _number(writer, f"{word}: {name}", value) if name in ("shuffle_seed", _WEIGHT) else value


def _number(writer: "_Writer", word: str, text: str) -> int | float:
    if re.fullmatch(r"-?\d{1,19}", text, re.ASCII):
        return int(text)
    if not re.fullmatch(r"\d{1,9}\.\d{1,9}", text, re.ASCII):
        writer.refuse(f"{word}: {text!r} is not a number", "write it in digits")
    return float(text)


def _tables(writer: "_Writer", name: str, value: object) -> list[Mapping[str, object]]:
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        writer.refuse(f"{name}: is not a list of tables", f"begin each one with [[{name}]]")
    return value


class _Writer:
    """Writes fields in AWS's names, and remembers what they were called."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._tree: dict[str, object] = {}
        self._names: dict[FieldPath, str] = {_JOB[name]: name for name in ("channel", "instance_group")}
        self._weights: list[float] = []

    def spelled(self) -> Spelled:
        for name in (_JOB["channel"], _JOB["instance_group"]):
            _close_list(self._tree, name)
        return Spelled(self._tree, self._names, tuple(self._weights))

    def refuse(self, message: str, hint: str) -> NoReturn:
        raise ConfigurationError(f"{self._prefix}{message}", hint=hint)

    def check(self, name: str, known: Mapping[str, FieldPath] | Sequence[str], word: str) -> None:
        """Refuse a `name` that is not `known`."""
        if name not in known:
            close = get_close_matches(name, list(known), n=1)
            hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}"
            self.refuse(f"{word}: is not a field of a job file", hint)

    def channel(self, index: int, word: str, table: Mapping[str, object]) -> None:
        fields = {name.replace("-", "_"): value for name, value in table.items()}
        weight = fields.pop(_WEIGHT, 1.0)
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight <= _MAX_WEIGHT:
            self.refuse(f"{word}: {_WEIGHT}: is not a number above 0 and up to {_MAX_WEIGHT:.0f}", "1 is the default")
        self._weights.append(float(weight))
        self.fields((*_JOB["channel"], index), word, {"type": "prefix"} | fields, _CHANNEL)

    def fields(self, path: FieldPath, word: str, table: Mapping[str, object], known: Mapping[str, FieldPath]) -> None:
        self._names[path] = word
        separator = ": " if word.startswith("--") else "."
        for name, target in known.items():  # missing ones, too, have a name
            self._names[(*path, *target)] = f"{word}{separator}{name}"
        for name, value in table.items():
            self.check(name, [*known, _WEIGHT] if known is _CHANNEL else known, f"{word}{separator}{name}")
            self.put((*path, *known[name]), f"{word}{separator}{name}", value)

    def texts(self, path: FieldPath, word: str, value: object) -> None:
        """A table whose values become text: as they are, or as JSON."""
        if not isinstance(value, dict):
            self.refuse(f"{word}: is not a table", f"begin it with [{word}]")
        self._names[path] = word
        for name, item in value.items():
            try:
                text = item if isinstance(item, str) else json.dumps(item, allow_nan=False)
            except (TypeError, ValueError):
                self.refuse(f"{word}{_steps((name,))}: is nothing that JSON has", "write it as text, between quotes")
            self._put((*path, name), text)

    def put(self, path: FieldPath, word: str, value: object) -> None:
        self._names[path] = word
        words = _WORDS.get(str(path[-1]))
        if words and isinstance(value, str):
            value = self._chosen(word, value, words)
        self._put(path, value)

    def _chosen(self, word: str, value: str, words: Mapping[str, str]) -> str:
        """AWS's word for `value`, which may be that already."""
        found = [theirs for ours, theirs in words.items() if value.lower() in (ours, theirs.lower())]
        if not found:
            self.refuse(f"{word}: {value!r} is not one of {', '.join(words)}", "case does not matter")
        return found[0]

    def _put(self, path: FieldPath, value: object) -> None:
        """Into dictionaries all the way; indices are keys until `spelled` makes lists of them."""
        inner: dict[object, object] = self._tree  # type: ignore[assignment]
        for step in path[:-1]:
            made = inner.setdefault(step, {})
            assert isinstance(made, dict)
            inner = made
        inner[path[-1]] = value


def _close_list(tree: dict[str, object], path: FieldPath) -> None:
    """Make a list of the dictionary at `path`, whose keys are indices, if there is one."""
    outer: object = tree
    for step in path[:-1]:
        outer = outer.get(step) if isinstance(outer, dict) else None
    if isinstance(outer, dict) and isinstance(found := outer.get(path[-1]), dict):
        outer[path[-1]] = list(found.values())
