"""Files by somebody who means harm, or whose editor does."""

import json
import os
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfuse.errors import ConfigurationError
from fastfuse.sagemaker.description.job import (
    MAX_BYTES,
    MAX_DEPTH,
    MAX_VALUES,
    channels_job,
    parse_json_job,
    read_job,
    read_json,
)

ARRAY = b'[{"ChannelName": "a", "DataSource": {"S3DataSource": {"S3DataType": "S3Prefix", "S3Uri": "s3://b"}}}]'


@pytest.mark.parametrize(
    ("data", "place", "message"),
    [
        (b"", "1:1", "this is not JSON: Expecting value"),
        (b"[\n  1,\n  }", "3:3", "this is not JSON: Expecting value"),
        (b"{'a': 1}", "1:2", "a name in quotes and a ':' are missing here"),
        (b'{"a": 1} x', "1:10", "something follows the '}' that ends it all"),
        (b"1 x", "1:3", "something follows the value"),
        (b"[1,]", "1:3", "a ',' stands before the ']'"),
        (b'["a\nb"]', "1:4", "this is not JSON: Invalid control character at"),
        (b'{"a": 1,\n "b": 2,\n "a": 3}', "3:2", "the name 'a' stands in this object for the second time"),
        (b'[{"x": 1}, {"y": {"a": 1, "a": 1}}]', "1:27", "the name 'a' stands in this object"),
        (b"[1,\n-Infinity]", "2:1", "the value that begins here is not JSON: -Infinity is not JSON"),
        (b'{"a": ' + b"9" * 5000 + b"}", "1:7", "this number has too many digits"),
        (b"[" * (MAX_DEPTH + 2) + b"]" * (MAX_DEPTH + 2), "1:66", "nested too deeply"),
        (b"[" * 1_000_000, "1:2", "the value that begins here is nested too deeply"),
        (b'{"a":' * 100_000, "1:6", "the value that begins here is nested too deeply"),
        (b'{"caf\xe9": 1}', "1:6", "this is not UTF-8"),
    ],
)
def test_what_is_not_json_is_refused_at_its_line_and_column(data: bytes, place: str, message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        read_json(data, "job.json")
    assert str(caught.value).startswith(f"job.json:{place}: {message}")


def test_more_values_than_any_description_has_are_refused() -> None:
    data = b'{"a": [' + b"1," * (MAX_VALUES - 2) + b"1]}"
    assert len(read_json(data, "job.json").tree["a"]) == MAX_VALUES - 1
    for more in (data.replace(b"1]", b"1,1]"), data.replace(b"1]}", b'1], "b": 2}')):
        with pytest.raises(ConfigurationError, match=r"job\.json:1:\d+: more than 100000 values"):
            read_json(more, "job.json")


def test_a_name_that_fills_the_file_is_cut_in_the_error() -> None:
    for text in (
        b'{"' + b"x" * 1_000_000 + b'": 1}',
        b'{"y": {"' + b"x" * 100_000 + b'": 1, "' + b"x" * 100_000 + b'": 1}}',
    ):
        with pytest.raises(ConfigurationError) as caught:
            parse_json_job(text, "job.json")
        assert len(str(caught.value)) < 700


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=20,
)


@given(values, st.sampled_from([None, 0, 2]), st.data())
def test_every_value_has_its_place(tree: object, indent: int | None, data: st.DataObject) -> None:
    text = json.dumps(tree, indent=indent)
    document = read_json(b"\xef\xbb\xbf" + text.encode(), "j")
    assert document.tree == tree
    path: list[str | int] = []
    inner = tree
    while isinstance(inner, dict | list) and inner and data.draw(st.booleans()):
        step = data.draw(st.sampled_from(sorted(inner) if isinstance(inner, dict) else range(len(inner))))
        path.append(step)
        inner = inner[step]
    with pytest.raises(ConfigurationError) as caught:
        document.fail(tuple(path), "x", "")
    _, line, column, _ = str(caught.value).split(":")
    rest = text.split("\n")[int(line) - 1][int(column) - 1 :]
    assert rest.startswith(json.dumps(inner, indent=indent).split("\n")[0])


@given(st.binary(max_size=200))
def test_no_bytes_are_more_than_a_refusal(data: bytes) -> None:
    with suppress(ConfigurationError):
        assert read_json(data, "job").tree == json.loads(data.decode("utf-8-sig"))


def test_a_file_of_the_largest_size_is_read_and_a_larger_one_refused(tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    path.write_bytes(ARRAY.ljust(MAX_BYTES))
    assert read_job(path) == channels_job(["a=s3://b"])
    path.write_bytes(ARRAY.ljust(MAX_BYTES + 1))
    for larger in (path, Path("/dev/zero")):
        with pytest.raises(ConfigurationError, match=f"'{larger}' is larger than 4 MiB"):
            read_job(larger)


@pytest.mark.parametrize(("name", "reason"), [("missing", "No such file"), (".", "Is a directory"), ("a\0b", "null")])
def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path, name: str, reason: str) -> None:
    with pytest.raises(ConfigurationError, match=f"cannot be read: .*{reason}"):
        read_job(tmp_path / name)


def test_a_pipe_is_read_to_its_end(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    writer = threading.Thread(target=fifo.write_bytes, args=(ARRAY,))
    writer.start()
    assert read_job(fifo) == channels_job(["a=s3://b"])
    writer.join()
