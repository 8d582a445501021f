"""JSON that somebody else wrote, read so that whatever is wrong with it is told with file, line and column. Pure."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

from fastfuse.errors import ConfigurationError
from fastfuse.index.sources.uri import S3Uri
from fastfuse.objects import MAX_KEY_BYTES

__all__ = ["JsonText", "Member", "Reference", "decoded", "shown"]

# https://docs.aws.amazon.com/AmazonS3/latest/userguide/object-keys.html: in UTF-8.
# Of a word that is quoted in an error.
_SHOWN_LETTERS = 60
_CORRECT = "correct the manifest here"
_SPACE = re.compile(r"[ \t\n\r]*")


@dataclass(frozen=True, slots=True)
class Reference:
    """An object that a manifest names, and where it does."""

    bucket: str
    key: str
    line: int
    # In characters, from 1; 0 where a line holds nothing else.
    column: int = 0

    @property
    def place(self) -> str:
        """``line``, or ``line:column``."""
        return f"{self.line}:{self.column}" if self.column else str(self.line)


class Member(NamedTuple):
    """``"name": value`` in an object: where the name begins, and from where to where the value goes."""

    name: str
    name_at: int
    value: Any
    start: int
    end: int


def shown(value: object) -> str:
    """As Python writes it, which no terminal obeys, and not all of it if it is long."""
    text = repr(value)
    return text if len(text) <= _SHOWN_LETTERS else f"{text[:_SHOWN_LETTERS]}..."


def decoded(data: bytes, name: str, first_line: int = 1) -> str:
    """`data` as text.

    Raises:
        ConfigurationError: it is not UTF-8; with the first character that is not.
    """
    try:
        return data.decode("utf-8-sig" if first_line == 1 else "utf-8")
    except UnicodeDecodeError as error:
        before = JsonText(data[: error.start].decode("utf-8", "replace"), name, first_line)
        before.fail(len(before.text), "this is not UTF-8", hint="save the manifest as UTF-8")


def _no_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not JSON")


def _no_number(_: str) -> int:
    """Nothing here needs the value of a number, and Python refuses to make one of thousands of digits."""
    return 0


class JsonText:
    """A JSON text called `name` in errors, whose first line is its file's `first_line`-th."""

    _decoder = json.JSONDecoder(parse_float=_no_number, parse_int=_no_number, parse_constant=_no_constant)

    def __init__(self, text: str, name: str, first_line: int = 1) -> None:
        self.text = text
        self._name = name
        # Up to where lines were counted, which one that is in, and where that begins: positions mostly ascend.
        self._counted, self._line, self._line_start = 0, first_line, 0
        self._first_line = first_line

    def after_space(self, at: int) -> int:
        """The first position from `at` on that is no white space; the end if there is none."""
        match = _SPACE.match(self.text, at)
        assert match is not None  # it matches nothing, too
        return match.end()

    def value(self, at: int) -> tuple[Any, int]:
        """The JSON value at `at`, every number in it as 0, and the position behind it.

        Raises:
            ConfigurationError: there is none.
        """
        try:
            return self._decoder.raw_decode(self.text, at)
        except json.JSONDecodeError as error:
            self.fail(error.pos, f"this is not JSON: {error.msg}", hint=_CORRECT)
        except RecursionError:
            self.fail(at, "what begins here is nested too deeply", hint=_CORRECT)
        except ValueError as error:
            self.fail(at, f"what begins here is not JSON: {error}", hint=_CORRECT)

    def elements(self, at: int) -> Iterator[tuple[int, Any]]:
        """Where each element of the array that begins at `at` begins, and its value; nothing follows the array.

        Raises:
            ConfigurationError: it is no array.
        """
        at = self.after_space(at + 1)
        while self._is_within(at, "]", is_all=True):
            value, end = self.value(at)
            yield at, value
            at = self._after_comma(end, "]")

    def members(self, at: int, *, is_all: bool = True) -> Iterator[Member]:
        """The members of the object that begins at `at`; nothing follows the object if it `is_all` there is.

        Raises:
            ConfigurationError: it is no object, or has two members of the same name.
        """
        names = set()
        at = self.after_space(at + 1)
        while self._is_within(at, "}", is_all=is_all):
            name, end = self.value(at) if self.text.startswith('"', at) else (None, at)
            colon = self.after_space(end)
            if name is None or not self.text.startswith(":", colon):
                self.fail(colon, "a name in quotes and a ':' are missing here", _CORRECT)
            if name in names:
                self.fail(at, f"the name {shown(name)} stands in this object for the second time", _CORRECT)
            names.add(name)
            start = self.after_space(colon + 1)
            value, end = self.value(start)
            yield Member(name, at, value, start, end)
            at = self._after_comma(end, "}")

    def _is_within(self, at: int, closing: str, *, is_all: bool) -> bool:
        """False at the end of an array or object, behind which there must be nothing if it `is_all` there is."""
        if not self.text.startswith(closing, at):
            return True
        end = self.after_space(at + 1)
        if is_all and end < len(self.text):
            self.fail(end, f"something follows the '{closing}' that ends it all", _CORRECT)
        return False

    def _after_comma(self, at: int, closing: str) -> int:
        """Where the next element begins, or the end of all, behind an element that ends at `at`."""
        at = self.after_space(at)
        if self.text.startswith(closing, at):
            return at
        if not self.text.startswith(",", at):
            self.fail(at, f"a ',' or '{closing}' is missing here", _CORRECT)
        after = self.after_space(at + 1)
        if self.text.startswith(closing, after):
            self.fail(at, f"a ',' stands before the '{closing}'", "take it out")
        return after

    def position(self, at: int) -> tuple[int, int]:
        """Line and column of `at`, in characters, as editors count them."""
        if at < self._counted:
            self._counted, self._line, self._line_start = 0, self._first_line, 0
        newlines = self.text.count("\n", self._counted, at)
        if newlines:
            self._line += newlines
            self._line_start = self.text.rfind("\n", self._counted, at) + 1
        self._counted = at
        return self._line, at - self._line_start + 1

    def reference(self, at: int, uri: str, bucket: str = "") -> Reference:
        """The object that `uri` names, written at `at`; with `bucket`, one in that bucket.

        Raises:
            ConfigurationError: it names none.
        """
        try:
            parsed = S3Uri.parse(uri)
        except ConfigurationError as error:
            self.fail(at, str(error), error.hint)
        if bucket and parsed.bucket != bucket:
            self.fail(at, f"{shown(uri)} is not in the bucket {bucket!r}", "end the prefix with the bucket and a '/'")
        if not parsed.path:
            self.fail(at, f"{shown(uri)} names no object", "write it as s3://BUCKET/KEY")
        if len(parsed.path) > MAX_KEY_BYTES // 4 and len(parsed.path.encode()) > MAX_KEY_BYTES:
            self.fail(at, f"the key of {shown(uri)} is longer than the {MAX_KEY_BYTES} bytes that S3 takes")
        line, column = self.position(at)
        return Reference(parsed.bucket, parsed.path, line, column)

    def fail(self, at: int, message: str, hint: str = "") -> NoReturn:
        """Raise the `ConfigurationError` that says so of what stands at `at`."""
        line, column = self.position(at)
        raise ConfigurationError(f"{self._name}:{line}:{column}: {message}", hint=hint) from None
