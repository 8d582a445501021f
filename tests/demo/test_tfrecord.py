"""The framing, against the format's definition computed bit by bit."""

import struct

from hypothesis import given
from hypothesis import strategies as st

from fastfuse.demo.dataset import FRAMING_BYTES, frame


def masked_crc32c(data: bytes) -> int:
    register = 0xFFFFFFFF
    for byte in data:
        register ^= byte
        for _ in range(8):
            register = (register >> 1) ^ (0x82F63B78 if register & 1 else 0)
    checksum = register ^ 0xFFFFFFFF
    return ((checksum >> 15 | checksum << 17) + 0xA282EAD8) % 2**32


@given(st.binary(max_size=300))
def test_a_record_is_its_length_and_payload_each_with_a_masked_checksum(payload: bytes) -> None:
    record = frame(payload)
    assert len(record) == len(payload) + FRAMING_BYTES
    length, length_checksum = struct.unpack_from("<QI", record)
    assert length == len(payload)
    assert length_checksum == masked_crc32c(record[:8])
    assert record[12:-4] == payload
    assert struct.unpack("<I", record[-4:]) == (masked_crc32c(payload),)
