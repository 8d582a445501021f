"""SageMaker's augmented manifest: JSON Lines whose ``*-ref`` attributes name objects. Pure.

https://docs.aws.amazon.com/sagemaker/latest/dg/augmented-manifest.html::

    {"source-ref": "s3://bucket/image1.jpg", "class": 0}
    {"source-ref": "s3://bucket/image2.jpg", "class": 1, "class-metadata": {"job-name": "..."}}
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fastfuse.errors import ConfigurationError
from fastfuse.index.sources.located import JsonText, Member, Reference, decoded, shown

__all__ = ["AugmentedLine", "check_attribute_names", "filtered_manifest", "read_augmented_manifest"]

# https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_S3DataSource.html, AttributeNames.
_MAX_ATTRIBUTES = 16
_MAX_NAME_LETTERS = 256
# Of one line: the labels of an image may be masks, of a text whole documents.
_MAX_LINE_BYTES = 64 << 20
_REFERENCE_SUFFIX = "-ref"
_FORM = 'a line is {"source-ref": "s3://BUCKET/KEY", "label": ...}'
# A string, or white space outside of one. Possessive: there is nothing to try again.
_STRING_OR_SPACE = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[ \t\r\n]+')
_HAS_SPACE = re.compile(r"[ \t\r]")


@dataclass(frozen=True, slots=True)
class AugmentedLine:
    """One line: what is kept of it, as compact JSON, and the objects that it names."""

    text: str
    references: tuple[Reference, ...]


def check_attribute_names(names: Sequence[str]) -> tuple[str, ...]:
    """`names`, which may all be attributes to pick.

    Raises:
        ConfigurationError: there are too many, one is given twice, or is no name.
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


def read_augmented_manifest(data: bytes, name: str, attribute_names: Sequence[str] = ()) -> list[AugmentedLine]:
    """The lines of the manifest called `name` with the attributes `attribute_names` in this order (empty: with all).

    Numbers and strings stay as they were written. Empty lines are skipped.

    Raises:
        ConfigurationError: it is no augmented manifest, or a line lacks an attribute; with line and column.
    """
    return list(_lines(data, name, attribute_names))


def filtered_manifest(lines: Sequence[AugmentedLine]) -> bytes:
    """The manifest that consists of `lines`."""
    return "".join(f"{line.text}\n" for line in lines).encode()


def _lines(data: bytes, name: str, attribute_names: Sequence[str]) -> Iterator[AugmentedLine]:
    start, number = 0, 0
    while start < len(data):
        end = data.find(b"\n", start)
        end = len(data) if end < 0 else end
        number += 1
        if end - start > _MAX_LINE_BYTES:
            raise ConfigurationError(
                f"{name}:{number}:1: the line has {end - start:,} bytes; it may have {_MAX_LINE_BYTES:,}",
                hint=f"is it JSON Lines? {_FORM}",
            )
        text = JsonText(decoded(data[start:end], name, number), name, number)
        if text.after_space(0) < len(text.text):
            yield _line(text, attribute_names)
        start = end + 1


def _line(text: JsonText, attribute_names: Sequence[str]) -> AugmentedLine:
    begin = text.after_space(0)
    if not text.text.startswith("{", begin):
        text.fail(begin, "this is not the beginning of a JSON object", _FORM)
    members = {member.name: member for member in text.members(begin)}
    for name in attribute_names:
        if name not in members:
            text.fail(begin, f"the line has no attribute {shown(name)}", _hint(name, members))
    chosen = [members[name] for name in attribute_names] if attribute_names else list(members.values())
    return AugmentedLine(
        text=f"{{{','.join(f'{json.dumps(one.name)}:{_compact(text.text[one.start : one.end])}' for one in chosen)}}}",
        references=tuple(_reference(text, one) for one in chosen if one.name.endswith(_REFERENCE_SUFFIX)),
    )


def _reference(text: JsonText, member: Member) -> Reference:
    if not isinstance(member.value, str):
        text.fail(
            member.start,
            f"the attribute {shown(member.name)} is not a string",
            f"an attribute whose name ends in {_REFERENCE_SUFFIX!r} is the S3 URI of an object",
        )
    return text.reference(member.start, member.value)


def _hint(name: str, members: dict[str, Member]) -> str:
    for other in members:
        if other.lower() == name.lower():
            return f"there is {shown(other)}: names are case-sensitive"
    return "every line needs each attribute that is named"


def _compact(text: str) -> str:
    """JSON without the white space between its words."""
    if not _HAS_SPACE.search(text):
        return text
    return _STRING_OR_SPACE.sub(lambda found: found[0] if found[0].startswith('"') else "", text)
