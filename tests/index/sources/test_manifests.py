"""Manifests name what they say, and errors have the line and column that an editor shows."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfuse.errors import ConfigurationError
from fastfuse.index.sources.manifests import (
    JsonText,
    Reference,
    check_attribute_names,
    decoded,
    filtered_manifest,
    read_augmented_manifest,
    read_manifest,
)
from fastfuse.index.sources.uri import shown


@given(st.text(alphabet="ab\n\r\té", max_size=40), st.lists(st.integers(0, 40), max_size=10))
def test_a_position_is_the_line_and_the_column_of_the_character(text: str, asked: list[int]) -> None:
    located = JsonText(text, "name", 5)
    for at in asked:
        at = min(at, len(text))
        lines = text[:at].split("\n")
        assert located.position(at) == (4 + len(lines), len(lines[-1]) + 1)


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
    with pytest.raises(ConfigurationError, match=r"^m:1:3: this is not UTF-8$"):
        decoded(b"\xef\xbb\xbfab\xff", "m")  # editors do not count the mark at the beginning
    assert decoded(b"\xef\xbb\xbf[]", "m") == "[]"


def test_what_is_quoted_moves_no_terminal_and_is_short() -> None:
    assert shown("\x1b[2J") == "'\\x1b[2J'"
    assert len(shown("x" * 1000)) < 130


KEYS = st.text(alphabet=st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=10)


@given(KEYS, st.lists(KEYS, max_size=10), st.sampled_from([None, 0, 4]), st.booleans())
def test_each_name_is_the_prefix_and_the_element_as_they_stand(
    prefix: str, elements: list[str], indent: int | None, ascii_only: bool
) -> None:
    text = json.dumps([{"prefix": f"s3://b/{prefix}"}, *elements], indent=indent, ensure_ascii=ascii_only)
    found = read_manifest(text.encode(), "m")
    assert [(one.bucket, one.key) for one in found] == [("b", prefix + element) for element in elements]
    lines = text.split("\n")
    for one, element in zip(found, elements, strict=True):
        assert json.JSONDecoder().raw_decode(lines[one.line - 1], one.column - 1)[0] == element


def test_no_slash_comes_between() -> None:
    assert read_manifest(b'[{"prefix": "s3://b/a"}, "b", "/c"]', "m")[0].key == "ab"
    assert read_manifest(b'[{"prefix": "s3://b"}, "/c"]', "m")[0].key == "c"
    assert read_manifest(b'[{"prefix": "s3://b/a"}, ""]', "m")[0].key == "a"


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ("", "1:1", "not the beginning of a JSON array"),
        ("\n  {}", "2:3", "not the beginning of a JSON array"),
        ("[]", "1:1", "the array has no prefix"),
        ('["a"]', "1:2", "the first element is not an object with a prefix"),
        ("[{}]", "1:2", "the first element is not an object with a prefix"),
        ('[{"Prefix": "s3://b/"}]', "1:2", "the first element is not an object with a prefix"),
        ('[{"prefix": "s3://b/", "x": 1}]', "1:2", "the first element is not an object with a prefix"),
        ('[{"prefix": ""}]', "1:13", "the prefix is not a string, or empty"),
        ('[{"prefix": 1}]', "1:13", "the prefix is not a string, or empty"),
        ('[{"prefix": "b/x"}]', "1:13", "the prefix cannot be used: 'b/x' is not an S3 URI"),
        ('[{"prefix": "http://h/k?a=b"}]', "1:13", "the prefix cannot be used: 'http://h/k?...' is not an S3 URI"),
        ('[{"prefix": "s3://b/"},\n "a", 1]', "2:7", "this is not a string"),
        ('[{"prefix": "s3://b/"},\n {"a": "b"}]', "2:2", "this is not a string"),
        ('[{"prefix": "s3://b"}, "c/k"]', "1:24", "is not in the bucket 'b'"),
        ('[{"prefix": "s3://b/"}, "a"\n"b"]', "2:1", "a ',' or ']' is missing"),
        ('[{"prefix": "s3://b/"},\n"a",]', "2:4", "a ',' stands before the ']'"),
        ('[{"prefix": "s3://b/"}, "a"', "1:28", "a ',' or ']' is missing"),
        ('[{"prefix": "s3://b/"}]\n[]', "2:1", "something follows the ']'"),
        ('{"source-ref": "s3://b/k"}', "1:1", "not the beginning of a JSON array"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_with_its_place(text: str, place: str, message: str) -> None:
    with pytest.raises(
        ConfigurationError, match=re.escape(f"s3://m/x:{place}: ") + ".*" + re.escape(message)
    ) as raised:
        read_manifest(text.encode(), "s3://m/x")
    assert raised.value.hint


NAMES = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=5).filter(
    lambda name: not name.endswith("-ref")
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
VALUES = VALUES.filter(lambda value: "Infinity" not in json.dumps(value))
SPACES = st.sampled_from([(",", ":"), (", ", ": "), (" ,\t", "\t: ")])


@given(
    st.lists(st.dictionaries(NAMES, VALUES, max_size=4), max_size=4), SPACES, st.sampled_from(["\n", "\r\n", "\n \n"])
)
def test_without_names_every_line_is_the_same_value_as_before(
    lines: list[dict[str, object]], spaces: tuple[str, str], end: str
) -> None:
    data = "".join(json.dumps(line, separators=spaces) + end for line in lines).encode()
    found = filtered_manifest(read_augmented_manifest(data, "m")).decode().split("\n")
    assert found.pop() == ""
    assert [json.loads(line) for line in found] == lines
    assert found == [json.dumps(line, separators=(",", ":")) for line in lines]


@given(st.dictionaries(NAMES, VALUES, min_size=1, max_size=5), st.randoms(use_true_random=False))
def test_names_pick_and_order(line: dict[str, object], random: object) -> None:
    names = sorted(line)[: len(line) // 2 + 1]
    random.shuffle(names)  # type: ignore[attr-defined]
    (found,) = read_augmented_manifest(json.dumps(line).encode(), "m", names)
    assert list(json.loads(found.text).items()) == [(name, line[name]) for name in names]


def test_the_references_are_those_of_the_attributes_that_are_kept_and_in_their_order() -> None:
    data = b'\n{"a-ref": "s3://x/1", "label": 1, "b-ref": "s3://y/2"}\n{"b-ref": "s3://y/3", "a-ref": "s3://x/1"}'
    every = read_augmented_manifest(data, "m")
    assert [[(one.bucket, one.key, one.place) for one in line.references] for line in every] == [
        [("x", "1", "2:11"), ("y", "2", "2:44")],
        [("y", "3", "3:11"), ("x", "1", "3:32")],
    ]
    some = read_augmented_manifest(data, "m", ["b-ref", "a-ref"])
    assert [[one.key for one in line.references] for line in some] == [["2", "1"], ["3", "1"]]
    assert filtered_manifest(some) == (
        b'{"b-ref":"s3://y/2","a-ref":"s3://x/1"}\n{"b-ref":"s3://y/3","a-ref":"s3://x/1"}\n'
    )


def test_numbers_and_strings_stay_as_they_were_written() -> None:
    line = (
        '{"n": 1.000, "big": 123456789012345678901234567890e-7, "s": "\\u00e9 \\/ é \\" ] , x", "l": [1 , {"a" :2} ]}'
    )
    (found,) = read_augmented_manifest(line.encode(), "m")
    assert found.text == (
        '{"n":1.000,"big":123456789012345678901234567890e-7,"s":"\\u00e9 \\/ é \\" ] , x","l":[1,{"a":2}]}'
    )
    digits = "7" * 100_000
    (found,) = read_augmented_manifest(f'{{"n": {digits}}}'.encode(), "m")
    assert found.text == f'{{"n":{digits}}}'


@pytest.mark.parametrize(
    ("text", "place", "message", "hint"),
    [
        ('{"label": 1}\n[]', "2:1", "not the beginning of a JSON object", "a line is"),
        ('{"label": 1}\n\n  x', "3:3", "not the beginning of a JSON object", "a line is"),
        ('{"a": 1}', "1:1", "the line has no attribute 'label'", "every line needs each attribute"),
        (' {"Label": 1}', "1:2", "the line has no attribute 'label'", "there is 'Label': names are case-sensitive"),
        ('{"label": 1, "a-ref": 7}', "1:23", "the attribute 'a-ref' is not a string", "the S3 URI of an object"),
        ('{"label": 1, "a-ref": "s3://b/"}', "1:23", "names no object", "s3://BUCKET/KEY"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_line_is_told_with_its_place(text: str, place: str, message: str, hint: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(f"m:{place}: ") + ".*" + re.escape(message)) as raised:
        read_augmented_manifest(text.encode(), "m", ["label", "a-ref"] if "a-ref" in text else ["label"])
    assert hint in raised.value.hint


def test_an_endless_line_is_given_up() -> None:
    with pytest.raises(ConfigurationError, match=r"^m:2:1: the line has 67,108,865 bytes; it may have 67,108,864$"):
        read_augmented_manifest(b"{}\n" + b" " * ((64 << 20) + 1), "m")


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ([f"a{at}" for at in range(17)], "17 attribute names are given, more than 16"),
        (["a", "b", "a"], "the attribute name 'a' is given twice"),
        ([""], "'' is not the name of an attribute"),
        (["a" * 257], "is not the name of an attribute"),
        (["a\n"], "'a\\n' is not the name of an attribute"),
        (["\udcff"], "is not the name of an attribute"),
    ],
)
def test_names_that_are_none_are_refused(names: list[str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        check_attribute_names(names)


def test_names_that_are_some_are_taken() -> None:
    names = ["a", "A", "a" * 256, "a b", "é-ref", *map(str, range(11))]
    assert check_attribute_names(names) == tuple(names)
