"""The checksums that S3 keeps of objects: reads them in replies, and computes the same of bytes that came. Pure.

https://docs.aws.amazon.com/AmazonS3/latest/userguide/checking-object-integrity.html

A CRC of a whole can be joined from the CRCs of its pieces, so `CrcPieces` takes them in any order and as often as they
are fetched. A hash cannot: it takes them in their order.
"""

import hashlib
import re
from base64 import b64decode
from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from fastfuse.objects import Buffer

_MD5 = re.compile(r'"?([0-9a-f]{32})"?')
_CRC_MODELS = {"crc64nvme": "CRC64-NVME", "crc32c": "CRC32C", "crc32": "CRC32"}
# By cost, the cheapest first; the length of each in bytes. CRCs take 4 µs for 39 KB, SHAs 22, MD5 52.
_DIGEST_BYTES = {"crc64nvme": 8, "crc32c": 4, "crc32": 4, "sha1": 20, "sha256": 32}
_HEADERS = {f"x-amz-checksum-{algorithm}": algorithm for algorithm in _DIGEST_BYTES}


@dataclass(frozen=True, slots=True)
class Checksum:
    """The digest of some bytes; `algorithm` is named as in S3's headers, or ``md5``."""

    algorithm: str
    digest: bytes

    def __str__(self) -> str:
        return f"{self.algorithm} {self.digest.hex()}"

    @property
    def is_crc(self) -> bool:
        return self.algorithm in _CRC_MODELS


def given_checksum(headers: Mapping[str, str], *, is_part: bool = False) -> Checksum | None:
    """Return the checksum of the object, or of the part of its upload that was asked for; None where there is none."""
    if not is_part and is_composite(headers):
        return None
    for header, algorithm in _HEADERS.items():
        text = headers.get(header)
        if text is not None:
            try:
                digest = b64decode(text, validate=True)
            except ValueError:  # such as that of all parts, in reply to a request for one
                continue
            if len(digest) == _DIGEST_BYTES[algorithm]:
                return Checksum(algorithm, digest)
    return None


def is_composite(headers: Mapping[str, str]) -> bool:
    """Return whether the checksum in a reply's head is one of the checksums of the upload's parts, as ``…==-3`` is."""
    if headers.get("x-amz-checksum-type", "") == "COMPOSITE":
        return True
    return any("-" in headers[header] for header in _HEADERS if header in headers)


def etag_of(digests: Sequence[bytes]) -> str:
    """Return the ETag of the object that is uploaded in parts with these MD5s, unless KMS encrypts it."""
    return f'"{hashlib.md5(b"".join(digests), usedforsecurity=False).hexdigest()}-{len(digests)}"'


def md5_of_etag(etag: str) -> str | None:
    """Return the hexadecimal MD5 in `etag` if it looks like one; encrypted by KMS, it is none all the same."""
    match = _MD5.fullmatch(etag)
    return match[1] if match else None


def md5_checksum(headers: Mapping[str, str]) -> Checksum | None:
    """Return the MD5 that the ETag in a reply's head is; None where it is none, as of parts or encrypted objects."""
    is_other = (
        headers.get("x-amz-server-side-encryption", "AES256") != "AES256"
        or "x-amz-server-side-encryption-customer-algorithm" in headers
    )
    md5 = None if is_other else md5_of_etag(headers.get("etag", ""))
    return None if md5 is None else Checksum("md5", bytes.fromhex(md5))


def digest_of(algorithm: str, data: Buffer) -> bytes:
    """Return the digest of `data`."""
    if algorithm in _CRC_MODELS:
        crc: int = _model(algorithm).calc(data)
        return crc.to_bytes(_DIGEST_BYTES[algorithm])
    return hashlib.new(algorithm, data, usedforsecurity=False).digest()


def load_models() -> None:
    """Load all that `digest_of` may need, for a process that may load nothing later."""
    for algorithm in _CRC_MODELS:
        _model(algorithm)


@cache
def _model(algorithm: str) -> Any:  # noqa: ANN401 - anycrc has no types
    # Loaded where a service gives a CRC: 12 ms, and 1.5 MB of memory.
    from anycrc import Model

    return Model(_CRC_MODELS[algorithm])


class CrcPieces:
    """The CRCs of the pieces of ``[start, end)`` that were fetched last. Invariant: they do not overlap."""

    def __init__(self, algorithm: str, start: int, end: int) -> None:
        self._algorithm = algorithm
        self._missing_bytes = end - start
        self._starts: list[int] = []
        # The end and the CRC of each piece by its start.
        self._pieces: dict[int, tuple[int, int]] = {}

    def put(self, start: int, end: int, digest: bytes) -> bytes | None:
        """Take the piece ``[start, end)`` in place of what was there; return the digest of all once it is there."""
        at = bisect_left(self._starts, start)
        if at and self._pieces[self._starts[at - 1]][0] > start:
            at -= 1
        while at < len(self._starts) and self._starts[at] < end:
            old = self._starts.pop(at)
            self._missing_bytes += self._pieces.pop(old)[0] - old
        insort(self._starts, start)
        self._pieces[start] = end, int.from_bytes(digest)
        self._missing_bytes -= end - start
        return None if self._missing_bytes else self._digest()

    def _digest(self) -> bytes:
        combine = _model(self._algorithm).combine
        crc = 0  # that of nothing
        for start in self._starts:
            end, piece = self._pieces[start]
            crc = combine(crc, piece, end - start)
        return crc.to_bytes(_DIGEST_BYTES[self._algorithm])
