"""gzip, and a reader of RecordIO that shares nothing with our writer."""

import gzip
import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfuse.sagemaker.pipe.content import Gunzip

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
    data = b"".join(piece for chunk in chunks for piece in gunzip.feed(chunk))
    gunzip.finish()
    return data


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
