"""Which version of which object a file is, and when that is to be believed. Pure."""

import hashlib
import re
from dataclasses import dataclass
from typing import Self

from fastfuse.objects import ObjectRef

__all__ = ["STAMP_BYTES", "Stamp", "Trust", "md5_of_etag", "version_of"]

_DIGEST_BYTES = 16
# With its name no longer than what an inode of 256 bytes has room for: another block for each file is what more costs.
STAMP_BYTES = 2 * _DIGEST_BYTES
_MD5 = re.compile(r'"?([0-9a-f]{32})"?')


def version_of(ref: ObjectRef) -> bytes:
    """Equal for equal versions of the same object, and for nothing else: 16 bytes."""
    fields = (ref.bucket, ref.key, ref.etag, str(ref.size_bytes), str(ref.modified_ns))
    # Separated by what no key that has a path contains (clause N2).
    return hashlib.blake2b("\0".join(fields).encode(), digest_size=_DIGEST_BYTES).digest()


def md5_of_etag(etag: str) -> str | None:
    """The MD5 that `etag` tells in hexadecimal, if it looks like one; encrypted by KMS, it is none all the same."""
    match = _MD5.fullmatch(etag)
    return match[1] if match else None


@dataclass(frozen=True, slots=True)
class Stamp:
    """`boot` is the boot of the host that wrote the file: 16 bytes, as `version` is."""

    version: bytes
    boot: bytes

    def __bytes__(self) -> bytes:
        return self.version + self.boot

    @classmethod
    def parse(cls, data: bytes) -> Self | None:
        """None for what is no stamp."""
        return cls(data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]) if len(data) == STAMP_BYTES else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Trust:
    """What was written in this boot is in the page cache if not on the disk; what changed before `settled_ns` is on it.

    `settled_ns` is 0 where nobody ever waited for the disk.
    """

    boot: bytes
    settled_ns: int = 0

    def covers(self, stamp: Stamp, changed_ns: int) -> bool:
        """Whether a file with `stamp`, whose inode changed last at `changed_ns`, holds what was written to it."""
        return stamp.boot == self.boot or changed_ns <= self.settled_ns
