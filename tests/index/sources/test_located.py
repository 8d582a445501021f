"""Positions in JSON are those that an editor shows, and whatever is wrong is told with one."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfuse.errors import ConfigurationError
from fastfuse.index.sources.manifests import JsonText, Reference, decoded, shown

VALUES = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=10,
)
INDENTS = st.sampled_from([None, 0, 1, "\t"])


def without_numbers(value: object) -> object:
    if isinstance(value, float):
        return 0
    if isinstance(value, list):
        return [without_numbers(one) for one in value]
    if isinstance(value, dict):
        return {name: without_numbers(one) for name, one in value.items()}
    return value


@given(st.text(alphabet="ab\n\r\té", max_size=40), st.lists(st.integers(0, 40), max_size=10))
def test_a_position_is_the_line_and_the_column_of_the_character(text: str, asked: list[int]) -> None:
    located = JsonText(text, "name", 5)
    for at in asked:
        at = min(at, len(text))
        lines = text[:at].split("\n")
        assert located.position(at) == (4 + len(lines), len(lines[-1]) + 1)


@given(st.lists(VALUES, max_size=5), INDENTS, st.sampled_from(["", " ", "\r\n\t"]))
def test_the_elements_of_an_array_are_those_that_it_was_made_of(
    values: list[object], indent: int | str | None, space: str
) -> None:
    text = json.dumps(values, indent=indent) + space
    found = list(JsonText(text, "name").elements(0))
    assert [value for _, value in found] == [without_numbers(value) for value in values]
    for (at, _), value in zip(found, values, strict=True):
        assert json.JSONDecoder().raw_decode(text, at)[0] == value


@given(st.dictionaries(st.text(max_size=5), VALUES, max_size=5), INDENTS, st.sampled_from(["", " ", "\r\n\t"]))
def test_the_members_of_an_object_are_those_that_it_was_made_of(
    members: dict[str, object], indent: int | str | None, space: str
) -> None:
    text = json.dumps(members, indent=indent) + space
    found = list(JsonText(text, "name").members(0))
    assert {one.name: json.loads(text[one.start : one.end]) for one in found} == members
    assert [text[one.name_at] for one in found] == ['"'] * len(members)


@given(st.text(alphabet='[]{},: "a1\\\n', max_size=12))
def test_text_that_is_no_json_is_an_error_with_a_place_and_json_is_none(text: str) -> None:
    try:
        value = json.loads(f"[{text}")
    except ValueError:
        value = None
    located = JsonText(f"[{text}", "m")
    if isinstance(value, list):
        assert [value for _, value in located.elements(0)] == [without_numbers(one) for one in value] or "1" in text
    else:
        with pytest.raises(ConfigurationError, match=r"^m:\d+:\d+: "):
            list(located.elements(0))


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ("{", "1:2", "a name in quotes"),
        ('{"a"', "1:5", "a name in quotes and a ':' are missing"),
        ('{"a" 1}', "1:6", "a ':' are missing"),
        ("{1: 2}", "1:2", "a name in quotes"),
        ('{"a": }', "1:7", "not JSON: Expecting value"),
        ('{"a": 1 "b": 2}', "1:9", "a ',' or '}' is missing"),
        ('{"a": 1,\n}', "1:8", "a ',' stands before the '}'"),
        ('{"a": 1}\n\n x', "3:2", "something follows the '}'"),
        ('{"a": 1,\n "a": 2}', "2:2", "the name 'a' stands in this object for the second time"),
        ('{"a": 1, "\\u0061": 2}', "1:10", "the name 'a' stands in this object for the second time"),
        ('{"a": [' + "[" * 100_000, "1:7", "nested too deeply"),
        ('{"a": NaN}', "1:7", "NaN is not JSON"),
        ('{"a": -Infinity}', "1:7", "-Infinity is not JSON"),
        ('{"a": "x', "1:7", "Unterminated string"),
        ('{"a": "\0"}', "1:8", "Invalid control character"),
        ('{"a": "\\x"}', "1:8", "Invalid \\escape"),
    ],
)
def test_what_is_wrong_with_an_object_is_told_with_its_place(text: str, place: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(f"m:{place}: ") + ".*" + re.escape(message)):
        list(JsonText(text, "m").members(0))


def test_a_number_of_a_million_digits_is_a_number() -> None:
    text = f"[{'9' * 10**6}, -1.5e{'9' * 10**6}]"
    assert [value for _, value in JsonText(text, "m").elements(0)] == [0, 0]


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("bucket/key", "'bucket/key' is not an S3 URI"),
        ("https://bucket/key", "is not an S3 URI"),
        ("s3://", "names no bucket"),
        ("s3://b", "names no object"),
        ("s3://b/", "names no object"),
        ("s3://b/\0", "NUL"),
        ("s3://b/\ud800", "is not UTF-8"),
        ("s3://other/k", "'s3://other/k' is not in the bucket 'b'"),
        ("s3://b/" + "k" * 1025, "is longer than the 1024 bytes"),
        ("s3://b/" + "é" * 513, "is longer than the 1024 bytes"),
        ("x" * 10**6, "is not an S3 URI"),
    ],
)
def test_a_uri_that_names_no_object_is_told_with_its_place(uri: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(message)) as raised:
        JsonText("[\n  0", "m", 7).reference(4, uri, "b")
    assert str(raised.value).startswith("m:8:3: ")
    assert len(str(raised.value)) < 200


def test_the_longest_key_is_none_too_long() -> None:
    assert JsonText("x", "m").reference(0, "s3://b/" + "é" * 512) == Reference("b", "é" * 512, 1, 1)


def test_bytes_that_are_no_text_are_told_with_their_place() -> None:
    with pytest.raises(ConfigurationError, match=r"^m:4:3: this is not UTF-8$"):
        decoded("é\néé\xff".encode("latin-1").replace(b"\xe9", "é".encode()), "m", 3)
    assert decoded(b"\xef\xbb\xbf[]", "m") == "[]"


def test_what_is_quoted_moves_no_terminal_and_is_short() -> None:
    assert shown("\x1b[2J") == "'\\x1b[2J'"
    assert len(shown("x" * 1000)) < 70
