"""A manifest names what it says, and what is wrong with it is told with line and column."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfuse.errors import ConfigurationError
from fastfuse.index.sources.manifests import read_manifest

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


def test_the_documented_example() -> None:
    text = b"""[ {"prefix": "s3://customer_bucket/some/prefix/"},
"relative/path/to/custdata-1",
"relative/path/custdata-2",
"relative/path/custdata-2"
]"""
    found = read_manifest(text, "m")
    assert [f"s3://{one.bucket}/{one.key} {one.place}" for one in found] == [
        "s3://customer_bucket/some/prefix/relative/path/to/custdata-1 2:1",
        "s3://customer_bucket/some/prefix/relative/path/custdata-2 3:1",
        "s3://customer_bucket/some/prefix/relative/path/custdata-2 4:1",
    ]


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
        ('[{"prefix": "s3://b/",\n "prefix": "s3://c/"}, "k"]', "2:2", "for the second time"),
        ('[{"prefix": ""}]', "1:13", "the prefix is not a string, or empty"),
        ('[{"prefix": 1}]', "1:13", "the prefix is not a string, or empty"),
        ('[{"prefix": "b/x"}]', "1:13", "the prefix cannot be used: 'b/x' is not an S3 URI"),
        ('[{"prefix": "http://h/k?a=b"}]', "1:13", "the prefix cannot be used: 'http://h/k?...' is not an S3 URI"),
        ('[{"prefix": "s3://b/"},\n "a", 1]', "2:7", "this is not a string"),
        ('[{"prefix": "s3://b/"},\n {"a": "b"}]', "2:2", "this is not a string"),
        ('[{"prefix": "s3://b"}, "c/k"]', "1:24", "is not in the bucket 'b'"),
        ('[{"prefix": "s3://b/"}, ""]', "1:25", "names no object"),
        ('[{"prefix": "s3://b/"}, "\\ud800"]', "1:25", "is not UTF-8"),
        ('[{"prefix": "s3://b/"}, "\\u0000"]', "1:25", "NUL"),
        ('[{"prefix": "s3://b/"}, "a"\n"b"]', "2:1", "a ',' or ']' is missing"),
        ('[{"prefix": "s3://b/"},\n"a",]', "2:4", "a ',' stands before the ']'"),
        ('[{"prefix": "s3://b/"}, "a"', "1:28", "a ',' or ']' is missing"),
        ('[{"prefix": "s3://b/"}, "a', "1:25", "Unterminated string"),
        ('[{"prefix": "s3://b/"}]\n[]', "2:1", "something follows the ']'"),
        ("[" * 100_000, "1:2", "nested too deeply"),
        ('{"source-ref": "s3://b/k"}', "1:1", "not the beginning of a JSON array"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_with_its_place(text: str, place: str, message: str) -> None:
    with pytest.raises(
        ConfigurationError, match=re.escape(f"s3://m/x:{place}: ") + ".*" + re.escape(message)
    ) as raised:
        read_manifest(text.encode(), "s3://m/x")
    assert raised.value.hint


@given(st.binary(max_size=40))
def test_any_bytes_are_a_manifest_or_an_error_with_a_place(data: bytes) -> None:
    for text in (data, b'[{"prefix": "s3://b/k"}, ' + data):
        message = "m:1:1: "
        try:
            read_manifest(text, "m")
        except ConfigurationError as error:
            message = str(error)
        assert re.match(r"m:\d+:\d+: ", message)
