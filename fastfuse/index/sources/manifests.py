"""SageMaker's manifests: JSON whose errors are reported with file, line and column. Pure.

A manifest is a JSON array of keys below a common prefix,
https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_S3DataSource.html::

    [ {"prefix": "s3://bucket/some/prefix/"}, "relative/path/data-1", "relative/path/data-2" ]

An augmented manifest is JSON Lines whose ``*-ref`` attributes name objects,
https://docs.aws.amazon.com/sagemaker/latest/dg/augmented-manifest.html::

    {"source-ref": "s3://bucket/image1.jpg", "class": 0}
    {"source-ref": "s3://bucket/image2.jpg", "class": 1, "class-metadata": {"job-name": "..."}}
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn, TypeAlias

from fastfuse.errors import ConfigurationError
from fastfuse.index.sources.uri import S3Uri, shown
from fastfuse.objects import MAX_KEY_BYTES

_CORRECT = "correct the file here"
_SPACE = re.compile(r"[ \t\n\r]*")
_MANIFEST_FORM = 'a manifest is [{"prefix": "s3://BUCKET/PREFIX/"}, "KEY", "KEY", ...]'
# https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_S3DataSource.html, AttributeNames.
_MAX_ATTRIBUTES = 16
_MAX_NAME_LETTERS = 256
# A line may be long: the labels of an image may be masks, those of a text whole documents.
_MAX_LINE_BYTES = 64 << 20
REFERENCE_SUFFIX = "-ref"
_LINE_FORM = 'a line is {"source-ref": "s3://BUCKET/KEY", "label": ...}'
# A string, or white space outside of one. Possessive quantifiers prevent backtracking.
_STRING_OR_SPACE = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[ \t\r\n]+')
_HAS_SPACE = re.compile(r"[ \t\r]")

_Parse: TypeAlias = Callable[[str], S3Uri]


@dataclass(frozen=True, slots=True)
class Reference:
    """An object that a file names, and its place in the file."""

    bucket: str
    key: str
    line: int
    # The place in characters, from 1; 0 if the line holds nothing else.
    column: int = 0

    @property
    def place(self) -> str:
        """``line``, or ``line:column``."""
        return f"{self.line}:{self.column}" if self.column else str(self.line)


class Member(NamedTuple):
    """``"name": value`` in an object, with the positions of the value's two ends."""

    name: str
    value: Any
    start: int
    end: int


def decoded(data: bytes, name: str, first_line: int = 1) -> str:
    """Return `data` as text.

    Raises:
        ConfigurationError: `data` is not UTF-8; with the place of the first character that is not.
    """
    try:
        return data.decode("utf-8-sig" if first_line == 1 else "utf-8")
    except UnicodeDecodeError as error:
        before = JsonText(error.object[: error.start].decode(), name, first_line)
        before.fail(len(before.text), "this is not UTF-8", hint="save the file as UTF-8")


def _no_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not JSON")


def _no_number(_: str) -> int:
    """Return 0: no number is needed here, and Python refuses to parse one of thousands of digits."""
    return 0


class JsonText:
    """A JSON text whose errors call it `name`, and whose first line is the file's `first_line`-th."""

    _decoder = json.JSONDecoder(parse_float=_no_number, parse_int=_no_number, parse_constant=_no_constant)

    def __init__(self, text: str, name: str, first_line: int = 1, parse: _Parse = S3Uri.parse) -> None:
        self.text = text
        self._name = name
        self.parse = parse
        # The position up to which lines were counted, its line, and the line's beginning: positions mostly ascend.
        self._counted, self._line, self._line_start = 0, first_line, 0
        self._first_line = first_line

    def after_space(self, at: int) -> int:
        """Return the first position from `at` on that is no white space, or the end of the text."""
        match = _SPACE.match(self.text, at)
        assert match is not None  # the expression matches an empty string
        return match.end()

    def value(self, at: int) -> tuple[Any, int]:
        """Return the JSON value at `at`, with every number as 0, and the position behind it.

        Raises:
            ConfigurationError: no JSON value begins at `at`.
        """
        try:
            return self._decoder.raw_decode(self.text, at)
        except json.JSONDecodeError as error:
            self.fail(error.pos, f"this is not JSON: {error.msg}", hint=_CORRECT)
        except RecursionError:
            self.fail(at, "the value that begins here is nested too deeply", hint=_CORRECT)
        except ValueError as error:
            self.fail(at, f"the value that begins here is not JSON: {error}", hint=_CORRECT)

    def elements(self, start: int) -> Iterator[tuple[int, Any]]:
        """Yield the position and the value of each element of the array at `start`.

        Raises:
            ConfigurationError: the array is not complete JSON.
        """
        at = self.after_space(start + 1)
        while self._is_within(at, "]", start):
            value, end = self.value(at)
            yield at, value
            at = self._after_comma(end, "]")

    def members(self, start: int) -> Iterator[Member]:
        """Yield the members of the object at `start`.

        Raises:
            ConfigurationError: the object is not complete JSON, or has two members of the same name.
        """
        names = set()
        at = self.after_space(start + 1)
        while self._is_within(at, "}", start):
            name, end = self.value(at) if self.text.startswith('"', at) else (None, at)
            colon = self.after_space(end)
            if name is None or not self.text.startswith(":", colon):
                self.fail(colon, "a name in quotes and a ':' are missing here", _CORRECT)
            if name in names:
                self.fail(at, f"the name {shown(name)} stands in this object for the second time", _CORRECT)
            names.add(name)
            begin = self.after_space(colon + 1)
            value, end = self.value(begin)
            yield Member(name, value, begin, end)
            at = self._after_comma(end, "}")

    def _is_within(self, at: int, closing: str, start: int) -> bool:
        """Return False at the end of the array or object at `start`. Nothing may follow one that begins the text."""
        if not self.text.startswith(closing, at):
            return True
        end = self.after_space(at + 1)
        if end < len(self.text) and start == self.after_space(0):
            self.fail(end, f"something follows the '{closing}' that ends it all", _CORRECT)
        return False

    def _after_comma(self, at: int, closing: str) -> int:
        """Return the position of the next element, or of the closing bracket, after an element that ends at `at`."""
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
        """Return line and column of `at`, in characters, as editors count them."""
        if at < self._counted:
            self._counted, self._line, self._line_start = 0, self._first_line, 0
        newlines = self.text.count("\n", self._counted, at)
        if newlines:
            self._line += newlines
            self._line_start = self.text.rfind("\n", self._counted, at) + 1
        self._counted = at
        return self._line, at - self._line_start + 1

    def reference(self, at: int, uri: str, bucket: str = "") -> Reference:
        """Return the object that the `uri` at `at` names.

        Raises:
            ConfigurationError: `uri` names no object, or one outside `bucket`.
        """
        try:
            parsed = self.parse(uri)
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
        """Raise a `ConfigurationError` with `message` and the line and column of `at`."""
        line, column = self.position(at)
        raise ConfigurationError(f"{self._name}:{line}:{column}: {message}", hint=hint) from None


def read_manifest(data: bytes, name: str, parse: _Parse = S3Uri.parse) -> list[Reference]:
    """Return the objects of the manifest called `name`, in its order; an object named twice is there twice.

    A key is the prefix and the element, joined without a ``/`` in between. `parse` takes the prefix apart first.

    Raises:
        ConfigurationError: `data` is no manifest; with line and column.
    """
    text = JsonText(decoded(data, name), name, parse=parse)
    start = text.after_space(0)
    if not text.text.startswith("[", start):
        text.fail(start, "this is not the beginning of a JSON array", _MANIFEST_FORM)
    elements = text.elements(start)
    first = next(elements, None)
    if first is None:
        text.fail(start, "the array has no prefix", _MANIFEST_FORM)
    prefix, bucket = _prefix(text, first[0])
    found = []
    for at, value in elements:
        if not isinstance(value, str):
            text.fail(at, "this is not a string", "behind the prefix, every element is the rest of a key")
        found.append(text.reference(at, prefix + value, bucket))
    return found


def _prefix(text: JsonText, at: int) -> tuple[str, str]:
    """Return the prefix in the object at `at`, and its bucket."""
    members = list(text.members(at)) if text.text.startswith("{", at) else []
    if [member.name for member in members] != ["prefix"]:
        text.fail(at, "the first element is not an object with a prefix and nothing else", _MANIFEST_FORM)
    prefix, at = members[0].value, members[0].start
    if not isinstance(prefix, str) or not prefix:
        text.fail(at, "the prefix is not a string, or empty", _MANIFEST_FORM)
    try:
        return prefix, text.parse(prefix).bucket
    except ConfigurationError as error:
        text.fail(at, f"the prefix cannot be used: {error}", error.hint or _MANIFEST_FORM)


@dataclass(frozen=True, slots=True)
class AugmentedLine:
    """One line: the attributes that are kept, as compact JSON, and the objects that they name."""

    text: str
    references: tuple[Reference, ...]


def check_attribute_names(names: Sequence[str]) -> tuple[str, ...]:
    """Return `names` if all of them can be attributes to keep.

    Raises:
        ConfigurationError: there are too many names, or one is given twice or is no name.
    """
    if len(names) > _MAX_ATTRIBUTES:
        raise ConfigurationError(
            f"{len(names)} attribute names are given, more than {_MAX_ATTRIBUTES}", hint="name none to keep them all"
        )
    for at, name in enumerate(names):
        if name in names[:at]:
            raise ConfigurationError(f"the attribute name {shown(name)} is given twice", hint="give it once")
        if not 0 < len(name) <= _MAX_NAME_LETTERS or not name.isprintable():
            raise ConfigurationError(
                f"{shown(name)} is not the name of an attribute",
                hint=f"it has 1 to {_MAX_NAME_LETTERS} characters, all of which can be printed",
            )
    return tuple(names)


def read_augmented_manifest(
    data: bytes, name: str, attribute_names: Sequence[str] = (), parse: _Parse = S3Uri.parse
) -> list[AugmentedLine]:
    """Return the lines of the manifest called `name` with `attribute_names` in this order (empty: all attributes).

    Numbers and strings stay as they were written. Empty lines are skipped. `parse` takes each URI apart.

    Raises:
        ConfigurationError: `data` is no augmented manifest, or a line lacks an attribute; with line and column.
    """
    found = []
    start, number = 0, 0
    while start < len(data):
        end = data.find(b"\n", start)
        end = len(data) if end < 0 else end
        number += 1
        if end - start > _MAX_LINE_BYTES:
            raise ConfigurationError(
                f"{name}:{number}:1: the line has {end - start:,} bytes; it may have {_MAX_LINE_BYTES:,}",
                hint=f"is it JSON Lines? {_LINE_FORM}",
            )
        text = JsonText(decoded(data[start:end], name, number), name, number, parse)
        if text.after_space(0) < len(text.text):
            found.append(_line(text, attribute_names))
        start = end + 1
    return found


def filtered_manifest(lines: Sequence[AugmentedLine]) -> bytes:
    """Return the manifest that consists of `lines`."""
    return "".join(f"{line.text}\n" for line in lines).encode()


def _line(text: JsonText, attribute_names: Sequence[str]) -> AugmentedLine:
    begin = text.after_space(0)
    if not text.text.startswith("{", begin):
        text.fail(begin, "this is not the beginning of a JSON object", _LINE_FORM)
    members = {member.name: member for member in text.members(begin)}
    for name in attribute_names:
        if name not in members:
            text.fail(begin, f"the line has no attribute {shown(name)}", _hint(name, members))
    chosen = [members[name] for name in attribute_names] if attribute_names else list(members.values())
    return AugmentedLine(
        text=f"{{{','.join(f'{json.dumps(one.name)}:{_compact(text.text[one.start : one.end])}' for one in chosen)}}}",
        references=tuple(_reference(text, one) for one in chosen if one.name.endswith(REFERENCE_SUFFIX)),
    )


def _reference(text: JsonText, member: Member) -> Reference:
    if not isinstance(member.value, str):
        text.fail(
            member.start,
            f"the attribute {shown(member.name)} is not a string",
            f"an attribute whose name ends in {REFERENCE_SUFFIX!r} is the S3 URI of an object",
        )
    return text.reference(member.start, member.value)


def _hint(name: str, members: dict[str, Member]) -> str:
    for other in members:
        if other.lower() == name.lower():
            return f"there is {shown(other)}: names are case-sensitive"
    return "every line needs each attribute that is named"


def _compact(text: str) -> str:
    """Return JSON without the white space between its tokens."""
    if not _HAS_SPACE.search(text):
        return text
    return _STRING_OR_SPACE.sub(lambda found: found[0] if found[0].startswith('"') else "", text)
