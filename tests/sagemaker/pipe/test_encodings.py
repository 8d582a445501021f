"""gzip, and RecordIO frames against a writer and a reader of dmlc-core's description, which share nothing with ours."""

import gzip
import struct
import zlib

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fastfuse.sagemaker.pipe.content import Framer, Gunzip, Scan

MAGIC = struct.pack("<I", 0xCED7230A)
# Words, many of which are the magic or begin like it, at any alignment.
DATA = st.lists(st.sampled_from([MAGIC, MAGIC[:1], MAGIC[:3], MAGIC[1:], b"\0", b"abcd", b"xy"])).map(b"".join)


def framed(chunks: list[bytes]) -> bytes:
    scan = Scan()
    for chunk in chunks:
        scan.feed(chunk)
    framer = Framer(scan)
    return b"".join([*(bytes(piece) for chunk in chunks for piece in framer.feed(chunk)), framer.finish()])


def model_written(data: bytes) -> bytes:
    """``RecordIOWriter::WriteRecord``."""
    parts, start = [], 0
    for at in range(0, len(data) // 4 * 4, 4):
        if data[at : at + 4] == MAGIC:
            parts.append(data[start:at])
            start = at + 4
    flags = [0] if not parts else [1, *[2] * (len(parts) - 1), 3]
    parts.append(data[start:])
    frames = [MAGIC + struct.pack("<I", flag << 29 | len(part)) + part for flag, part in zip(flags, parts, strict=True)]
    return b"".join(frames) + b"\0" * (-len(data) % 4)


def model_read(stream: bytes) -> list[bytes]:
    """``RecordIOReader::NextRecord``, until the end."""
    records, record, at = [], b"", 0
    while at < len(stream):
        magic, word = stream[at : at + 4], struct.unpack_from("<I", stream, at + 4)[0]
        assert magic == MAGIC
        flag, length = word >> 29, word & ((1 << 29) - 1)
        at += 8
        record += stream[at : at + length]
        padded = (length + 3) // 4 * 4
        assert not any(stream[at + length : at + padded])
        assert at + padded <= len(stream)
        at += padded
        if flag in (0, 3):
            records.append(record)
            record = b""
        else:
            record += MAGIC
    assert not record
    return records


def cut(data: bytes, places: list[int]) -> list[bytes]:
    ends = sorted(place % (len(data) + 1) for place in places)
    return [data[start:end] for start, end in zip([0, *ends], [*ends, len(data)], strict=True)]


@given(DATA, st.lists(st.integers(0, 1 << 20), max_size=8))
@example(MAGIC, [1])
@example(MAGIC + MAGIC, [3, 5])
@example(b"x" + MAGIC + b"yz", [2])
def test_in_whatever_chunks_it_comes_a_record_is_framed_as_dmlc_frames_it(data: bytes, places: list[int]) -> None:
    assert framed(cut(data, places)) == model_written(data)


def test_every_word_at_a_multiple_of_four_is_found_in_megabytes() -> None:
    data = bytearray(1 << 20)
    for at in (0, 4096, 5000, 5001, (1 << 20) - 4):
        data[at : at + 4] = MAGIC
    data[5001:5005] = MAGIC  # at no multiple of four, over the one before
    scan = Scan()
    scan.feed(bytes(data))
    assert scan.magics == [0, 4096, (1 << 20) - 4]


@pytest.mark.parametrize("given_bytes", [3, 5, 9])
def test_data_of_another_length_than_was_scanned_is_an_error(given_bytes: int) -> None:
    scan = Scan()
    scan.feed(b"1234")
    framer = Framer(scan)
    with pytest.raises(ValueError, match="a record of 4 bytes became"):
        [*framer.feed(bytes(given_bytes)), framer.finish()]


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
