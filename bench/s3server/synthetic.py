"""Makes objects from their number: a million keys or a terabyte cost no memory and no preparation.

Keys ascend with the index, so a position is a bisection. A page of a listing is one numpy array: the same record
a thousand times, with the digits filled in by column (about 0.1 ms for 1000 keys).
Content is one shared block of random bytes, read from a place that depends on the key, so that it can be sent with
``sendfile``.
"""

import hashlib
import os
import zlib
from bisect import bisect_left
from collections.abc import Generator
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Literal, cast, get_args

import numpy as np
from numpy.typing import NDArray

from bench.s3server.buckets import DEFAULT_MODIFIED_S, FileSpan, ObjectView, StoredObject, key_bytes
from bench.s3server.xml import contents_element
from fastfuse.errors import ConfigurationError
from fastfuse.sizes import parse_size

# The first prime above 16 MiB: offsets that are multiples of any part size fall on different places of the block
# until prime × part size (128 TiB for 8 MiB); small enough to stay in the processor's cache.
_BLOCK_BYTES = 16_777_259

_MASK = (1 << 64) - 1
# Columns of digits are filled four at a time from these tables.
_DIGITS = 4
_DECIMAL = np.array([list(b"%04d" % value) for value in range(10**_DIGITS)], dtype=np.uint8)
_HEX = np.array([list(b"%04x" % value) for value in range(16**_DIGITS)], dtype=np.uint8)

Layout = Literal["flat", "dirs", "hex"]


@cache
def _block_fd() -> int:
    """Return the shared block, in a file of this process (and of its forks) that exists in memory only."""
    fd = os.memfd_create("fastfuse-synthetic", os.MFD_CLOEXEC)
    os.write(fd, hashlib.shake_128(b"fastfuse").digest(_BLOCK_BYTES))
    return fd


@dataclass(frozen=True, slots=True)
class SyntheticContent:
    """Bytes that depend on `key` and on their place alone."""

    key: bytes

    def spans(self, start: int, end: int) -> Generator[FileSpan | memoryview, None, None]:
        fd = _block_fd()
        while start < end:
            offset = (zlib.crc32(self.key) + start) % _BLOCK_BYTES
            length = min(end - start, _BLOCK_BYTES - offset)
            yield FileSpan(fd, offset, length)
            start += length


def synthetic_bytes(key: str | bytes, start: int, end: int) -> bytes:
    """Return what a server of synthetic objects sends for ``[start, end)`` of `key`; `end` is not checked."""
    return b"".join(
        os.pread(span.fd, span.length_bytes, span.offset_bytes)
        for span in SyntheticContent(key_bytes(key)).spans(start, end)
        if isinstance(span, FileSpan)
    )


def _mix(value: int) -> int:
    # The finaliser of splitmix64 (Steele, Lea, Flood 2014); `_mix_all` is the same over an array.
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def _mix_all(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


@dataclass(frozen=True)
class _Field:
    """Digits inside the record of one object: their start, their number and their table."""

    column: int
    width: int
    table: NDArray[np.uint8]

    def fill(self, records: NDArray[np.uint8], values: NDArray[np.uint64]) -> None:
        base = np.uint64(len(self.table))
        for column in range(self.column + self.width - _DIGITS, self.column - 1, -_DIGITS):
            records[:, column : column + _DIGITS] = self.table[values % base]
            values = values // base


@dataclass(frozen=True, kw_only=True)
class SyntheticObjects:
    """`count` objects of `size_bytes` each.

    Layouts: ``flat`` is ``00000042``, ``dirs`` is ``0007/00000042`` over `directories` folders of equal size,
    ``hex`` is 16 hexadecimal digits that look random and ascend. `suffix` stands behind each.
    """

    count: int
    size_bytes: int
    layout: Layout = "flat"
    directories: int = 1
    suffix: str = ""

    def __post_init__(self) -> None:
        if self.count < 1 or self.size_bytes < 0 or not 1 <= self.directories <= self.count:
            raise ConfigurationError(
                "synthetic objects need count >= 1, size >= 0 and between 1 and count directories",
                hint="for example count=1000000,size=128KiB,layout=dirs,dirs=1000",
            )

    def view(self) -> ObjectView:
        return self

    def __len__(self) -> int:
        return self.count

    @cached_property
    def _number_width(self) -> int:
        return -(-len(str(self.count - 1)) // _DIGITS) * _DIGITS

    @cached_property
    def _folder_width(self) -> int:
        return -(-len(str(self.directories - 1)) // _DIGITS) * _DIGITS

    @cached_property
    def _objects_per_folder(self) -> int:
        return -(-self.count // self.directories)

    @cached_property
    def _hex_step(self) -> int:
        return _MASK // self.count

    def key_at(self, index: int) -> bytes:
        suffix = self.suffix.encode()
        if self.layout == "hex":
            return b"%016x%b" % (index * self._hex_step + _mix(index) % self._hex_step, suffix)
        folder = b""
        if self.layout == "dirs":
            folder = b"%0*d/" % (self._folder_width, index // self._objects_per_folder)
        return b"%b%0*d%b" % (folder, self._number_width, index, suffix)

    def position(self, key: bytes) -> int:
        return bisect_left(range(self.count), key, key=self.key_at)

    def lookup(self, key: bytes) -> StoredObject | None:
        index = self.position(key)
        if index == self.count or self.key_at(index) != key:
            return None
        return StoredObject(key=key, size_bytes=self.size_bytes, etag=self._etag(index), content=SyntheticContent(key))

    def _etag(self, index: int) -> str:
        return f'"{self.size_bytes & _MASK:016x}{_mix(index):016x}"'

    def contents_xml(self, start: int, end: int, *, url_encoded: bool) -> bytes:
        template = np.frombuffer(self._record(0, url_encoded), dtype=np.uint8)
        records = np.tile(template, (end - start, 1))
        indices = np.arange(start, end, dtype=np.uint64)
        mixed = _mix_all(indices)
        etag_end = template.tobytes().index(b"&quot;</ETag>")
        _Field(etag_end - 16, 16, _HEX).fill(records, mixed)
        column = len(b"<Contents><Key>")
        if self.layout == "hex":
            step = np.uint64(self._hex_step)
            _Field(column, 16, _HEX).fill(records, indices * step + mixed % step)
        else:
            if self.layout == "dirs":
                _Field(column, self._folder_width, _DECIMAL).fill(
                    records, indices // np.uint64(self._objects_per_folder)
                )
                column += self._folder_width + 1
            _Field(column, self._number_width, _DECIMAL).fill(records, indices)
        return records.tobytes()

    def _record(self, index: int, url_encoded: bool) -> bytes:
        return contents_element(
            self.key_at(index), self.size_bytes, self._etag(index), DEFAULT_MODIFIED_S, "STANDARD", url_encoded
        )


def _parse_layout(value: str) -> Layout:
    if value not in get_args(Layout):
        raise ConfigurationError(f"synthetic objects: no layout {value!r}", hint="use flat, dirs or hex")
    return cast(Layout, value)


def parse_synthetic(spec: str) -> SyntheticObjects:
    """Parse ``count=1000000,size=128KiB,layout=dirs,dirs=1000,suffix=.bin`` (first two needed)."""
    values = dict(part.partition("=")[::2] for part in spec.split(","))
    unknown = values.keys() - {"count", "size", "layout", "dirs", "suffix"}
    if unknown or not {"count", "size"} <= values.keys():
        raise ConfigurationError(
            f"synthetic objects: cannot use {spec!r}",
            hint="give count= and size=, and if you like layout=, dirs=, suffix=",
        )
    return SyntheticObjects(
        count=parse_size(values["count"], "synthetic objects: count"),
        size_bytes=parse_size(values["size"], "synthetic objects: size"),
        layout=_parse_layout(values.get("layout", "flat")),
        directories=parse_size(values.get("dirs", "1"), "synthetic objects: dirs"),
        suffix=values.get("suffix", ""),
    )
