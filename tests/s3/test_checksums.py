"""Checksums as S3 tells them, and CRCs joined from pieces."""

import hashlib
import zlib
from base64 import b64encode

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfuse.s3.checksums import (
    Checksum,
    CrcPieces,
    digest_of,
    given_checksum,
    is_composite,
    md5_checksum,
    md5_of_etag,
)

CRC = "x-amz-checksum-crc32"
FOUR = b64encode(b"1234").decode()


@pytest.mark.parametrize(
    ("algorithm", "digest"),
    [
        # https://reveng.sourceforge.io/crc-catalogue/all.htm
        ("crc64nvme", bytes.fromhex("ae8b14860a799888")),
        ("crc32c", google_crc32c.value(b"123456789").to_bytes(4)),
        ("crc32", zlib.crc32(b"123456789").to_bytes(4)),
        ("sha1", hashlib.sha1(b"123456789").digest()),
        ("sha256", hashlib.sha256(b"123456789").digest()),
        ("md5", hashlib.md5(b"123456789").digest()),
    ],
)
def test_a_digest_is_that_of_other_implementations(algorithm: str, digest: bytes) -> None:
    assert digest_of(algorithm, b"123456789") == digest
    assert digest_of(algorithm, memoryview(bytearray(b"0123456789"))[1:]) == digest


@pytest.mark.parametrize(
    ("headers", "whole", "part"),
    [
        ({}, None, None),
        ({CRC: FOUR}, b"1234", b"1234"),
        ({CRC: FOUR, "x-amz-checksum-type": "FULL_OBJECT"}, b"1234", b"1234"),
        ({CRC: FOUR, "x-amz-checksum-type": "COMPOSITE"}, None, b"1234"),
        ({CRC: f"{FOUR}-2"}, None, None),
        ({CRC: ""}, None, None),
        ({CRC: "no base 64"}, None, None),
        ({CRC: "ü"}, None, None),
        ({CRC: b64encode(b"12345").decode()}, None, None),
        ({CRC: "ü", "x-amz-checksum-sha1": b64encode(b"s" * 20).decode()}, b"s" * 20, b"s" * 20),
    ],
)
def test_only_a_checksum_is_taken_for_one(headers: dict[str, str], whole: bytes | None, part: bytes | None) -> None:
    for is_part, digest in ((False, whole), (True, part)):
        found = given_checksum(headers, is_part=is_part)
        assert (found.digest if found else None) == digest


def test_a_checksum_of_checksums_is_known_by_its_type_or_its_number_of_parts() -> None:
    assert is_composite({CRC: f"{FOUR}-2"})
    assert is_composite({CRC: FOUR, "x-amz-checksum-type": "COMPOSITE"})
    assert not is_composite({CRC: FOUR, "x-amz-checksum-type": "FULL_OBJECT"})
    assert not is_composite({"etag": '"abc-2"'})


@pytest.mark.parametrize(
    ("etag", "md5"),
    [
        ('"' + "0f" * 16 + '"', "0f" * 16),
        ("0f" * 16, "0f" * 16),
        ('"' + "0f" * 16 + '-2"', None),
        ('"' + "0F" * 16 + '"', None),
        ("", None),
    ],
)
def test_only_an_etag_of_32_hexadecimal_digits_may_be_an_md5(etag: str, md5: str | None) -> None:
    assert md5_of_etag(etag) == md5
    expected = None if md5 is None else Checksum("md5", bytes.fromhex(md5))
    assert md5_checksum({"etag": etag}) == expected
    assert md5_checksum({"etag": etag, "x-amz-server-side-encryption": "AES256"}) == expected
    assert md5_checksum({"etag": etag, "x-amz-server-side-encryption": "aws:kms"}) is None
    assert md5_checksum({"etag": etag, "x-amz-server-side-encryption-customer-algorithm": "AES256"}) is None


@given(
    algorithm=st.sampled_from(["crc64nvme", "crc32c", "crc32"]),
    data=st.binary(min_size=1, max_size=40),
    start=st.integers(0, 100),
    pieces=st.lists(st.tuples(st.integers(0, 40), st.integers(1, 40), st.booleans()), max_size=30),
)
def test_crcs_of_pieces_join(algorithm: str, data: bytes, start: int, pieces: list[tuple[int, int, bool]]) -> None:
    """Against the naive model: the bytes of the pieces themselves, of which a later one drops those it touches."""
    joined = CrcPieces(algorithm, start, start + len(data))
    model: dict[int, bytes] = {}
    for at, size, is_wrong in [*pieces, (0, len(data), False)]:
        piece = data[at : at + size]
        if not piece:
            continue
        if is_wrong:
            piece = bytes([piece[0] ^ 1]) + piece[1:]
        model = {a: p for a, p in model.items() if a + len(p) <= at or at + len(piece) <= a} | {at: piece}
        whole = b"".join(model[a] for a in sorted(model))
        expected = digest_of(algorithm, whole) if len(whole) == len(data) else None
        assert joined.put(start + at, start + at + len(piece), digest_of(algorithm, piece)) == expected
    assert expected == digest_of(algorithm, data)
