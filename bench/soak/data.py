"""The objects of a soak: their names, versions, sizes and bytes are functions of a number, so nothing is stored.

The server's listing has a generation. Objects below ``moving/`` change, vanish and come back with it; the others are
the same in all generations. An object's time is its version, so a reader knows from `fstat` which bytes to expect.
"""

import zlib
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import google_crc32c

from bench.s3server.buckets import DEFAULT_MODIFIED_S, ObjectTable, ObjectView, StoredObject, key_bytes
from bench.s3server.synthetic import SyntheticContent, synthetic_bytes

MOVING = "moving/"
# One part in so many of the moving objects changes in a generation; as many vanish.
_CHANGES_ONE_IN = 8


@dataclass(frozen=True, slots=True)
class Kind:
    """`count` objects below ``prefix`` with sizes from `least_bytes` up to `most_bytes`."""

    prefix: str
    count: int
    least_bytes: int
    most_bytes: int

    def keys(self) -> list[str]:
        return [f"{self.prefix}{number // 500:02d}/{number:05d}" for number in range(self.count)]


def _number(*parts: object) -> int:
    """Return a number that looks random and depends on `parts` alone."""
    return zlib.crc32("/".join(map(str, parts)).encode())


def version_of(modified_s: float) -> int:
    return int(modified_s) - DEFAULT_MODIFIED_S


def _size_bytes(kind: Kind, key: str, version: int) -> int:
    return kind.least_bytes + _number("size", key, version) % (kind.most_bytes - kind.least_bytes + 1)


def is_size_right(kinds: list[Kind], key: str, version: int, size_bytes: int) -> bool:
    kind = next(kind for kind in kinds if key.startswith(kind.prefix))
    return _size_bytes(kind, key, version) == size_bytes


def expected_bytes(key: str, version: int, start: int, end: int) -> bytes:
    """Return the bytes ``[start, end)`` of a version of an object, which must have as many."""
    return synthetic_bytes(f"{key}#{version}", start, end)


def _version(key: str, generation: int) -> int | None:
    """Return the version of a moving object in a generation; None where it is not there."""
    if _number("gone", key, generation) % _CHANGES_ONE_IN == 0:
        return None
    changes = (then for then in range(generation, 0, -1) if _number("change", key, then) % _CHANGES_ONE_IN == 0)
    return next(changes, 0)


@cache
def _checksums(key: str, version: int, size_bytes: int) -> dict[str, str]:
    crc = google_crc32c.value(expected_bytes(key, version, 0, size_bytes))
    return {"x-amz-checksum-crc32c": b64encode(crc.to_bytes(4, "big")).decode()}


def _stored(kinds: list[Kind], generation: int, has_checksums: bool) -> Iterator[StoredObject]:
    """Yield the objects of one generation."""
    for kind in kinds:
        for key in kind.keys():  # noqa: SIM118 - a method of ours
            version = _version(key, generation) if key.startswith(MOVING) else 0
            if version is not None:
                yield StoredObject(
                    key=key.encode(),
                    size_bytes=_size_bytes(kind, key, version),
                    etag=f'"{_number("etag", key):08x}{version:024x}"',
                    content=SyntheticContent(key_bytes(f"{key}#{version}")),
                    modified_s=DEFAULT_MODIFIED_S + version,
                    checksums=_checksums(key, version, _size_bytes(kind, key, version)) if has_checksums else {},
                )


class Objects:
    """The objects of a bucket, in the generation that `generation` says."""

    def __init__(self, kinds: list[Kind], generation: int = 0, *, has_checksums: bool = False) -> None:
        self.generation = generation
        self._view_of = cache(lambda generation: ObjectTable(_stored(kinds, generation, has_checksums)))

    def view(self) -> ObjectView:
        return self._view_of(self.generation)
