"""What the kernel is told to forget."""

import struct

from fastfuse.filesystem.notices import OUT_HEADER, pack_notices
from fastfuse.index.inodes.changes import Changes


def test_notices_of_directories_come_before_those_of_names_and_again_after_them() -> None:
    packed = pack_notices(Changes(stale_names=[(1, b"gone")], stale_directories=[1, 7]))
    inodes = [OUT_HEADER.pack(OUT_HEADER.size + 24, 2, 0) + struct.pack("=Qqq", inode, 0, 0) for inode in (1, 7)]
    name = OUT_HEADER.pack(OUT_HEADER.size + 16 + 5, 3, 0) + struct.pack("=QII", 1, 4, 0) + b"gone\0"
    assert packed == b"".join((*inodes, name, *inodes))
