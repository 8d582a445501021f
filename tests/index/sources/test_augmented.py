"""An augmented manifest: which attributes are kept, what they refer to, and what is wrong with a line."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfuse.errors import ConfigurationError
from fastfuse.index.sources.manifests import check_attribute_names, filtered_manifest, read_augmented_manifest

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
        ('{"label": 1, "a-ref": "x.jpg"}', "1:23", "'x.jpg' is not an S3 URI", "s3://BUCKET/PREFIX"),
        ('{"label": 1, "a-ref": "s3://b/"}', "1:23", "names no object", "s3://BUCKET/KEY"),
        ('{"label": 1, "a-ref": "s3://b/\\ud800"}', "1:23", "is not UTF-8", "every S3 key"),
        ('{"label": 1, "a-ref": "s3://b/x\\u0000"}', "1:23", "NUL", "no path"),
        ('{"label": 1, "label": 2}', "1:14", "'label' stands in this object for the second time", "correct"),
        ('{"label": 1}{"label": 1}', "1:13", "something follows the '}'", "correct"),
        ('{"label":\n1}', "1:10", "Expecting value", "correct"),
        ('{"label": 1}\n{"label": ' + "[" * 100_000, "2:11", "nested too deeply", "correct"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_line_is_told_with_its_place(text: str, place: str, message: str, hint: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(f"m:{place}: ") + ".*" + re.escape(message)) as raised:
        read_augmented_manifest(text.encode(), "m", ["label", "a-ref"] if "a-ref" in text else ["label"])
    assert hint in raised.value.hint


def test_an_attribute_that_is_not_kept_need_be_no_reference() -> None:
    assert read_augmented_manifest(b'{"a-ref": 7, "b": 1}', "m", ["b"])[0].references == ()


def test_an_endless_line_is_given_up() -> None:
    with pytest.raises(ConfigurationError, match=r"^m:2:1: the line has 67,108,865 bytes; it may have 67,108,864$"):
        read_augmented_manifest(b"{}\n" + b" " * ((64 << 20) + 1), "m")


def test_bytes_that_are_no_text_are_told_with_their_place() -> None:
    with pytest.raises(ConfigurationError, match=r"^m:2:8: this is not UTF-8$"):
        read_augmented_manifest(b'{}\n{"a": "\xff"}', "m")


@given(st.binary(max_size=40))
def test_any_bytes_are_a_line_or_an_error_with_a_place(data: bytes) -> None:
    for text in (data, b'{"a-ref": ' + data, b'{"a-ref": "s3://b/' + data + b'"}'):
        message = "m:1:1: "
        try:
            read_augmented_manifest(text, "m")
        except ConfigurationError as error:
            message = str(error)
        assert re.match(r"m:\d+:\d+: ", message)


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
