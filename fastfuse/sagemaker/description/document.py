"""A job description as a file: JSON from anybody, with the place of each field for errors.

Size, nesting, encoding and numbers are checked here; the result holds plain dictionaries, lists, texts and numbers.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fastfuse.errors import ConfigurationError

__all__ = ["Document", "FieldError", "FieldPath", "Tree", "read_bytes", "read_json"]

# SageMaker's limits keep any request far smaller: 100 hyperparameters of 2500 characters, 20 channels.
MAX_BYTES: Final = 4 << 20
# The deepest field of the API lies ten levels down.
MAX_DEPTH: Final = 64
# A description of twenty channels has a few thousand.
MAX_VALUES: Final = 100_000
# More digits than any number of the API has; Python refuses to convert thousands of them.
_MAX_DIGITS: Final = 40

_SPACE: Final = re.compile(r"[ \t\r\n]*")

Tree = object
FieldPath = tuple[str | int, ...]


class FieldError(Exception):
    """One wrong field: its path in AWS's names, what is wrong, and what to do. `job` adds the place in the file."""

    def __init__(self, path: FieldPath, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.path = path
        self.hint = hint


@dataclass(frozen=True, slots=True)
class Document:
    """`name` is the file's, for errors."""

    name: str
    tree: Tree
    text: str

    def place(self, path: FieldPath) -> str:
        """Return ``FILE:LINE:COLUMN`` where the field is named."""
        return f"{self.name}:{_line_and_column(self.text, _offset(self.text, path))}"


@dataclass(frozen=True, slots=True)
class _Refused:
    """A placeholder in the tree for what JSON does not know."""

    message: str


class _Object(dict[str, object]):
    """An object, and the first name in it that comes twice."""

    repeated: str | None = None


def read_bytes(path: Path) -> bytes:
    """Read the file; a pipe (``--job <(...)``) is read to its end.

    Raises:
        ConfigurationError: it cannot be read, or is larger than any job description.
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
    return data


def read_json(data: bytes, name: str) -> Document:
    """Parse the JSON document in `data`.

    Raises:
        ConfigurationError: not UTF-8, not JSON, a name twice in one object, a number that is none, nested too deeply;
            with line and column.
    """
    text = _decoded(data, name)
    try:
        tree = json.loads(text, object_pairs_hook=_object, parse_constant=_not_json, parse_int=_integer)
    except json.JSONDecodeError as error:
        place = f"{name}:{error.lineno}:{error.colno}"
        raise ConfigurationError(f"{place}: not JSON: {error.msg}", hint=_JSON_HINT) from error
    except RecursionError as error:
        raise ConfigurationError(f"{name}: nested too deeply for a job description") from error
    document = Document(name, tree, text)
    for path, value in _walk(name, tree):
        if problem := _problem(path, value):
            where, message = problem
            raise ConfigurationError(f"{document.place(where)}: {message}", hint=_JSON_HINT)
    return document


_JSON_HINT: Final = "the file is a CreateTrainingJob request, a DescribeTrainingJob answer or an InputDataConfig array"


def _decoded(data: bytes, name: str) -> str:
    """Decode UTF-8, without the byte order mark that Windows' tools put first."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start].decode("utf-8-sig", "replace")
        place = f"{name}:{_line_and_column(before, len(before))}"
        raise ConfigurationError(f"{place}: not UTF-8", hint="save the file as UTF-8") from error


def _object(pairs: list[tuple[str, object]]) -> _Object:
    made = _Object()
    for name, value in pairs:
        if name in made and made.repeated is None:
            made.repeated = name
        made[name] = value
    return made


def _not_json(word: str) -> _Refused:
    return _Refused(f"{word} is not JSON")


def _integer(digits: str) -> int | _Refused:
    return int(digits) if len(digits) <= _MAX_DIGITS else _Refused("the number has too many digits")


def _problem(path: FieldPath, value: object) -> tuple[FieldPath, str] | None:
    if len(path) > MAX_DEPTH:
        return path, "nested too deeply for a job description"
    if isinstance(value, _Refused):
        return path, value.message
    if isinstance(value, _Object) and value.repeated is not None:
        return (*path, value.repeated), f"{value.repeated[:100]!r} is given twice in one object"
    return None


def _walk(name: str, tree: object) -> Iterator[tuple[FieldPath, object]]:
    """Yield every value with its path, parents first, down to one level too deep.

    Raises:
        ConfigurationError: more values than any job description has.
    """
    count = 0
    waiting: list[tuple[FieldPath, object]] = [((), tree)]
    while waiting:
        path, value = waiting.pop()
        yield path, value
        if len(path) > MAX_DEPTH or not isinstance(value, dict | list):
            continue
        count += len(value)
        if count > MAX_VALUES:
            raise ConfigurationError(f"{name}: has more than {MAX_VALUES} values", hint="is this the data?")
        items = value.items() if isinstance(value, dict) else enumerate(value)
        waiting += reversed([((*path, step), item) for step, item in items])


def _line_and_column(text: str, offset: int) -> str:
    return f"{text.count(chr(10), 0, offset) + 1}:{offset - text.rfind(chr(10), 0, offset)}"


def _offset(text: str, path: FieldPath) -> int:
    """Return where the last part of `path` is named in `text`, which is JSON; its parent's place if there is none."""
    place = value = _skip_space(text, 0)
    for step in path:
        # A name that comes twice counts where it is last, as it does for the parser.
        found = [(named_at, value_at) for name, named_at, value_at in _items(text, value) if name == step]
        if not found:
            break
        place, value = found[-1]
    return place


def _items(text: str, start: int) -> Iterator[tuple[str | int, int, int]]:
    """Yield name or index, its offset and the offset of the value for each item of the object or array at `start`."""
    decode = json.JSONDecoder(parse_int=_integer).raw_decode
    if text[start] not in "{[":
        return
    is_object = text[start] == "{"
    at = _skip_space(text, start + 1)
    index = 0
    while text[at] not in "}]":
        name: str | int = index
        named_at = at
        if is_object:
            name, at = decode(text, at)
            at = _skip_space(text, _skip_space(text, at) + 1)  # over the colon
        yield name, named_at, at
        at = _skip_space(text, decode(text, at)[1])
        if text[at] == ",":
            at = _skip_space(text, at + 1)
        index += 1


def _skip_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at
