"""What the kernel is told to forget, byte by byte."""

import os
import struct

import pytest

from fastfuse.filesystem.replies import pack_notices, send_notices
from fastfuse.index.inodes.changes import Changes


def test_each_notice_is_a_message_of_the_protocol() -> None:
    notices = pack_notices(Changes(stale_names=[(7, "ü".encode()), (1, b"a")], stale_directories=[9]))
    names = struct.pack("=IiQ", 35, 3, 0) + struct.pack("=QII", 7, 2, 0) + "ü".encode() + b"\0"
    names += struct.pack("=IiQ", 34, 3, 0) + struct.pack("=QII", 1, 1, 0) + b"a\0"
    # Offset 0: the kernel drops the listing, too.
    directories = struct.pack("=IiQ", 40, 2, 0) + struct.pack("=Qqq", 9, 0, 0)
    assert notices == directories + names + directories


def test_each_is_written_by_itself() -> None:
    notices = pack_notices(Changes(stale_names=[(7, b"x" * 255), (1, b"a")], stale_directories=[9]))
    reading, writing = os.pipe2(os.O_DIRECT)  # keeps what was written at once apart
    send_notices(writing, notices)
    os.close(writing)
    got = []
    while piece := os.read(reading, 4096):
        got.append(piece)
    os.close(reading)
    assert b"".join(got) == notices
    assert len(got) == 4


def test_a_connection_that_is_gone_is_an_error() -> None:
    fd = os.open("/dev/null", os.O_RDONLY)
    with pytest.raises(OSError, match="Bad file descriptor"):
        send_notices(fd, pack_notices(Changes(stale_directories=[9])))
    os.close(fd)
