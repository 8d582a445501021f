import gzip
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfuse.sagemaker.pipe.content import Gunzip


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


def test_an_empty_object_is_empty() -> None:
    assert decompressed() == b""


@given(st.integers(1, 60))
def test_data_that_is_cut_short_anywhere_is_an_error(missing_bytes: int) -> None:
    packed = gzip.compress(bytes(range(64)))
    with pytest.raises(ValueError, match="cut short"):
        decompressed(packed[:-missing_bytes])


def test_a_second_member_that_is_cut_short_is_an_error() -> None:
    with pytest.raises(ValueError, match="cut short"):
        decompressed(gzip.compress(b"one") + gzip.compress(b"two")[:-1])


def test_a_wrong_checksum_is_an_error() -> None:
    packed = bytearray(gzip.compress(b"some data"))
    packed[-8] ^= 1
    with pytest.raises(ValueError, match="the gzip data is damaged"):
        decompressed(bytes(packed))


@pytest.mark.parametrize("data", [b"plain text", zlib.compress(b"no gzip header")])
def test_data_that_is_no_gzip_is_an_error(data: bytes) -> None:
    with pytest.raises(ValueError, match="it is not gzip data"):
        decompressed(data)


def test_garbage_behind_a_member_is_an_error() -> None:
    with pytest.raises(ValueError, match="something that is not gzip data follows"):
        decompressed(gzip.compress(b"one") + b"garbage and more")
