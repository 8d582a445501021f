"""A job description as a file: JSON from anybody, with the place of each field for errors.

Size, nesting, encoding and numbers are checked here; the result holds plain dictionaries, lists, texts and numbers.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

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
    """`name` is the file's, for errors; `offsets` has each value's place in `text`, or that of its name."""

    name: str
    tree: Tree
    text: str
    offsets: dict[FieldPath, int]

    def place(self, path: FieldPath) -> str:
        """Return ``FILE:LINE:COLUMN`` where the field is named, or what would hold it if there is none."""
        while path not in self.offsets:
            path = path[:-1]
        return f"{self.name}:{_line_and_column(self.text, self.offsets[path])}"


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
        # The syntax only: `_value` checks numbers and names, whose places it knows.
        json.loads(text, parse_int=len)
    except json.JSONDecodeError as error:
        place = f"{name}:{error.lineno}:{error.colno}"
        raise ConfigurationError(f"{place}: not JSON: {error.msg}", hint=_JSON_HINT) from error
    except RecursionError as error:
        raise ConfigurationError(f"{name}: nested too deeply for a job description") from error
    offsets: dict[FieldPath, int] = {}
    start = _skip_space(text, 0)
    try:
        tree, _ = _value(text, start, (), start, offsets)
    except _RefusedError as error:
        place = f"{name}:{_line_and_column(text, error.at)}"
        raise ConfigurationError(f"{place}: {error}", hint=_JSON_HINT) from error
    except OverflowError as error:
        raise ConfigurationError(f"{name}: {error}", hint="is this the data?") from error
    return Document(name, tree, text, offsets)


_JSON_HINT: Final = "the file is a CreateTrainingJob request, a DescribeTrainingJob answer or an InputDataConfig array"


def _decoded(data: bytes, name: str) -> str:
    """Decode UTF-8, without the byte order mark that Windows' tools put first."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start].decode("utf-8-sig", "replace")
        place = f"{name}:{_line_and_column(before, len(before))}"
        raise ConfigurationError(f"{place}: not UTF-8", hint="save the file as UTF-8") from error


def _line_and_column(text: str, offset: int) -> str:
    return f"{text.count(chr(10), 0, offset) + 1}:{offset - text.rfind(chr(10), 0, offset)}"


class _RefusedError(Exception):
    """JSON that no job description has, at a place in the text."""

    def __init__(self, at: int, message: str) -> None:
        super().__init__(message)
        self.at = at


def _integer(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:
        raise ValueError("the number has too many digits")
    return int(digits)


def _constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not JSON")


_DECODER: Final = json.JSONDecoder(parse_int=_integer, parse_constant=_constant)


def _value(text: str, at: int, path: FieldPath, named_at: int, offsets: dict[FieldPath, int]) -> tuple[Tree, int]:
    """Return the value at `at` and the offset behind it, and note the places of all that it holds.

    The text is JSON.
    """
    offsets[path] = named_at
    if len(offsets) > MAX_VALUES + 1:  # and the whole
        raise OverflowError(f"has more than {MAX_VALUES} values")
    if len(path) > MAX_DEPTH:
        raise _RefusedError(named_at, "nested too deeply for a job description")
    if text[at] not in "{[":
        try:
            return _DECODER.raw_decode(text, at)
        except ValueError as error:
            raise _RefusedError(named_at, str(error)) from error
    made: dict[str | int, Tree] = {}
    is_object = text[at] == "{"
    at = _skip_space(text, at + 1)
    while text[at] not in "}]":
        step: str | int = len(made)
        item_at = at
        if is_object:
            step, at = _DECODER.raw_decode(text, at)
            at = _skip_space(text, _skip_space(text, at) + 1)  # over the colon
        if step in made:
            raise _RefusedError(item_at, f"{str(step)[:100]!r} is given twice in one object")
        made[step], at = _value(text, at, (*path, step), item_at, offsets)
        at = _skip_space(text, at)
        if text[at] == ",":
            at = _skip_space(text, at + 1)
    return (made if is_object else [*made.values()]), at + 1


def _skip_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at
