import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfuse.errors import ConfigurationError
from fastfuse.index.inodes.table import InodeTable
from fastfuse.sagemaker.pipe.content import attributes_of, find_object, source_order
from tests.index.indexes import table_of


def test_made_files_are_no_objects() -> None:
    table = table_of(["a", "c"], made={b"b": b"text", b"folder/made": b"a\n"})
    assert [table.key(int(inode)) for inode in source_order(table)] == ["a", "c"]


def test_a_source_with_an_order_of_its_own_is_streamed_in_it_and_twice_where_it_says_so() -> None:
    table = table_of(["a", "b", "c"])
    rows = [table.row(inode) for inode in (find_object(table, "bucket", key) or 0 for key in ("c", "a", "c"))]
    ordered = InodeTable(table.metadata, {**table.columns, "source_order": np.array(rows, "uint32")})
    assert [ordered.key(int(inode)) for inode in source_order(ordered)] == ["c", "a", "c"]


def test_an_object_is_found_by_bucket_and_key() -> None:
    table = table_of(["a/b", "c"], prefix="data/")
    assert table.key(find_object(table, "bucket", "data/a/b") or 0) == "data/a/b"
    for bucket, key in (("bucket", "data/a"), ("bucket", "data/c/b"), ("bucket", "a/b"), ("other", "data/c")):
        assert find_object(table, bucket, key) is None


def test_in_a_table_of_several_buckets_each_is_a_folder() -> None:
    table = table_of(["one/a", "two/a"], bucket="")
    assert table.ref(find_object(table, "two", "a") or 0).bucket == "two"
    assert find_object(table, "three", "a") is None


def test_attributes_come_in_the_order_of_the_line_and_references_as_uris() -> None:
    line = b'{"name":"a \\"b\\"","source-ref":"s3://b/k","class":1,"half":"\\ud800"}\n'
    assert attributes_of(line) == [b'a "b"', "s3://b/k", b"1", b"\xed\xa0\x80"]


@pytest.mark.parametrize("number", ["1", "-0.10", "1e5", "1E+400", "1" * 5000, "1.0"])
def test_a_number_comes_digit_for_digit(number: str) -> None:
    assert attributes_of(f'{{"a":{number}}}'.encode()) == [number.encode()]


@given(st.dictionaries(st.text(), st.one_of(st.none(), st.booleans(), st.text(), st.lists(st.integers()))))
def test_any_object_is_taken_apart_as_json_does(members: dict[str, object]) -> None:
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in members.items()}
    is_uri = {name: name.endswith("-ref") and isinstance(value, str) for name, value in members.items()}
    expected = [text if is_uri[name] else text.encode() for name, text in texts.items()]
    assert attributes_of(json.dumps(members).encode()) == expected


@pytest.mark.parametrize("line", [b"", b"[1]", b'{"a":1', b'{"a" 1}', b'{"a":1 "b":2}', b"{1:2}"])
def test_a_line_that_makes_no_sense_is_an_error(line: bytes) -> None:
    with pytest.raises((ValueError, ConfigurationError), match=r".+"):
        attributes_of(line)
