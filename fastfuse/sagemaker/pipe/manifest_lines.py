"""What an augmented manifest's line means for Pipe mode. Pure.

The line is one of the filtered manifest that the index carries: checked, and with the attributes that were asked for.
"""

import json
from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["Attribute", "attributes_of"]

_REFERENCE_SUFFIX = "-ref"


class Attribute(NamedTuple):
    """An S3 URI whose object is streamed, or what is streamed itself."""

    uri: str | None
    text: bytes


def attributes_of(line: bytes, names: Sequence[str] = ()) -> list[Attribute]:
    """The attributes of `line` in the order of `names`; all of them, as they come, without.

    A string is streamed without its quotes; anything else as the line has it, numbers digit for digit.

    Raises:
        ValueError: it is no JSON object, or lacks an attribute.
    """
    members = _members(line.decode())
    try:
        chosen = [(name, *members[name]) for name in names] if names else [(n, *m) for n, m in members.items()]
    except KeyError as error:
        raise ValueError(f"no attribute {error}") from error
    return [_attribute(name, value, text) for name, value, text in chosen]


def _attribute(name: str, value: object, text: str) -> Attribute:
    if not isinstance(value, str):
        return Attribute(None, text.encode())
    return Attribute(value, b"") if name.endswith(_REFERENCE_SUFFIX) else Attribute(None, _encoded(value))


def _encoded(value: str) -> bytes:
    """JSON can spell halves of characters, which UTF-8 cannot."""
    return value.encode("utf-8", "surrogatepass")


# Nobody needs the value of a number, and Python refuses to make one of thousands of digits.
_DECODER = json.JSONDecoder(parse_int=lambda _: 0, parse_float=lambda _: 0.0)


def _members(text: str) -> dict[str, tuple[object, str]]:
    """By name: the value, and the text of it."""
    found: dict[str, tuple[object, str]] = {}
    at = _past_space(text, 0)
    if not text.startswith("{", at):
        raise ValueError("a line that is no JSON object")
    at = _past_space(text, at + 1)
    while not text.startswith("}", at):
        name, at = _DECODER.raw_decode(text, at)
        start = _past_space(text, _past(":", text, at))
        value, end = _DECODER.raw_decode(text, start)
        found[name] = value, text[start:end]
        at = _past_space(text, end)
        if not text.startswith("}", at):
            at = _past_space(text, _past(",", text, at))
    return found


def _past(mark: str, text: str, at: int) -> int:
    at = _past_space(text, at)
    if not text.startswith(mark, at):
        raise ValueError(f"a line without {mark!r} at column {at + 1}")
    return at + 1


def _past_space(text: str, at: int) -> int:
    while text[at : at + 1] in (" ", "\t", "\r", "\n"):
        at += 1
    return at
