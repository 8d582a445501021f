"""What streams have: objects in order, attributes, gzip, and a reader of RecordIO of its own."""

import gzip
import json
import struct
import zlib
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfuse.errors import ConfigurationError
from fastfuse.index.inodes.table import InodeTable
from fastfuse.index.sources.uri import S3Uri
from fastfuse.sagemaker.description.channel import Channel, InputMode
from fastfuse.sagemaker.pipe.content import Gunzip, attributes_of, find_object, sequence_of, source_order
from tests.index.indexes import table_of

MAGIC = struct.pack("<I", 0xCED7230A)


def records_of(stream: bytes) -> list[bytes]:
    """Return the records of a stream, as a reader that goes by length finds them."""
    records, at = [], 0
    while at < len(stream):
        magic, size_bytes = stream[at : at + 4], struct.unpack_from("<I", stream, at + 4)[0]
        assert magic == MAGIC
        records.append(stream[at + 8 : at + 8 + size_bytes])
        at += 8 + size_bytes
        assert stream[at : at + -size_bytes % 4] == bytes(-size_bytes % 4)
        at += -size_bytes % 4
    assert at == len(stream)
    return records


def decompressed(*chunks: bytes) -> bytes:
    gunzip = Gunzip()
    pieces = [piece for chunk in chunks for piece in gunzip.feed(chunk)]
    gunzip.finish()
    assert all(pieces)  # `EpochWriter` takes an empty one for the end of the chunk
    return b"".join(pieces)


@given(st.lists(st.binary(max_size=60)), st.integers(1, 40), st.integers(0, 9))
def test_members_follow_one_another_in_chunks_of_any_size(members: list[bytes], step: int, zeros: int) -> None:
    packed = b"".join(map(gzip.compress, members)) + b"\0" * (zeros if members else 0)
    assert decompressed(*(packed[at : at + step] for at in range(0, len(packed), step))) == b"".join(members)


def test_what_becomes_a_thousand_times_as_much_comes_a_mebibyte_at_a_time() -> None:
    data = bytes(20 << 20)
    pieces = list(Gunzip().feed(gzip.compress(data)))
    assert max(map(len, pieces)) <= 1 << 20
    assert b"".join(pieces) == data


@given(st.integers(1, 60))
def test_data_that_is_cut_short_anywhere_is_an_error(missing_bytes: int) -> None:
    packed = gzip.compress(bytes(range(64)))
    with pytest.raises(ValueError, match="cut short"):
        decompressed(packed[:-missing_bytes])


# The time in them would differ between the processes of one test run, and so would the names of tests.
PACKED, ONE, TWO = (gzip.compress(data, mtime=0) for data in (b"some data", b"one", b"two"))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (ONE + TWO[:-1], "cut short"),
        (PACKED[:-8] + bytes([PACKED[-8] ^ 1]) + PACKED[-7:], "the gzip data is damaged"),  # the checksum is
        (b"plain text", "it is not gzip data"),
        (zlib.compress(b"no gzip header"), "it is not gzip data"),
        (ONE + b"garbage and more", "something that is not gzip data follows"),
    ],
)
def test_data_that_is_not_all_gzip_is_an_error(data: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        decompressed(data)


def test_made_files_are_no_objects() -> None:
    table = table_of(["a", "c"], made={b"b": b"text", b"folder/made": b"a\n"})
    assert [table.key(int(inode)) for inode in source_order(table)] == ["a", "c"]


def test_a_source_with_an_order_of_its_own_is_streamed_in_it_and_twice_where_it_says_so() -> None:
    table = table_of(["a", "b", "c"])
    rows = [table.row(inode) for inode in (find_object(table, "bucket", key) or 0 for key in ("c", "a", "c"))]
    ordered = InodeTable(table.metadata, {**table.columns, "source_order": np.array(rows, "uint32")})
    assert [ordered.key(int(inode)) for inode in source_order(ordered)] == ["c", "a", "c"]


def test_an_object_that_is_too_long_for_a_record_is_refused_unless_its_length_is_another_one() -> None:
    table = table_of({"a": (3, 0, "", ""), "long": (1 << 29, 0, "", "")})
    channel = Channel(name="a", input_mode=InputMode.PIPE, source=S3Uri("bucket", ""), wraps_records=True)
    with pytest.raises(ConfigurationError, match="'s3://bucket/long' has 536,870,912 bytes; a RecordIO record holds"):
        sequence_of(table, channel)
    assert len(list(sequence_of(table, replace(channel, is_gzip=True)).items(0))) == 2


def test_an_object_is_found_by_bucket_and_key() -> None:
    table = table_of(["a/b", "c"], prefix="data/")
    assert table.key(find_object(table, "bucket", "data/a/b") or 0) == "data/a/b"
    for key in ("data/a", "data/c/b", "a/b", "data/a//b", "data/./c"):
        assert find_object(table, "bucket", key) is None
    assert find_object(table, "other", "data/c") is None


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
