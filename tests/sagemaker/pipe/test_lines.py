import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfuse.errors import ConfigurationError
from fastfuse.sagemaker.pipe.content import attributes_of


def test_attributes_come_in_the_order_asked_for_and_references_as_uris() -> None:
    line = b'{"source-ref":"s3://b/k","class":1,"name":"a \\"b\\"","other":null}\n'
    found = attributes_of(line, ("name", "source-ref", "class"))
    assert found == [b'a "b"', "s3://b/k", b"1"]


def test_without_names_all_attributes_come_as_the_line_has_them() -> None:
    assert attributes_of(b' { "b" : true , "a" : [1, 2] } ') == [b"true", b"[1, 2]"]


@pytest.mark.parametrize("number", ["1", "-0.10", "1e5", "1E+400", "1" * 5000, "1.0"])
def test_a_number_comes_digit_for_digit(number: str) -> None:
    assert attributes_of(f'{{"a":{number}}}'.encode(), ("a",)) == [number.encode()]


def test_half_a_character_is_no_failure() -> None:
    assert attributes_of(b'{"a":"\\ud800"}') == [b"\xed\xa0\x80"]


@given(st.dictionaries(st.text(), st.one_of(st.none(), st.booleans(), st.text(), st.lists(st.integers()))))
def test_any_object_is_taken_apart_as_json_does(members: dict[str, object]) -> None:
    expected: list[str | bytes] = []
    for name, value in members.items():
        if isinstance(value, str):
            expected.append(value if name.endswith("-ref") else value.encode())
        else:
            expected.append(json.dumps(value).encode())
    assert attributes_of(json.dumps(members).encode()) == expected


@pytest.mark.parametrize("line", [b"", b"[1]", b'{"a":1', b'{"a" 1}', b'{"a":1 "b":2}', b"{1:2}", b'{"b":1}'])
def test_a_line_that_makes_no_sense_is_an_error(line: bytes) -> None:
    with pytest.raises((ValueError, ConfigurationError), match=r".+"):
        attributes_of(line, ("a",))
