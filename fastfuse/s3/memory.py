"""S3 in memory, for tests of what is above the seam. It passes the contract test of the real client."""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import quote

import trio

from fastfuse.errors import ObjectChangedError
from fastfuse.objects import Buffer, ObjectRef
from fastfuse.s3.checks import check_range_arguments, check_version, if_match_value

__all__ = ["MemoryStore"]

# Every object looks equally old, 2024-01-01T00:00:00Z, and a second younger each time that it is replaced.
_MODIFIED_S = 1_704_067_200


@dataclass(frozen=True, slots=True)
class _Object:
    data: bytes
    etag: str
    modified_s: int

    @property
    def modified(self) -> datetime:
        return datetime.fromtimestamp(self.modified_s, UTC)


class MemoryStore:
    """One bucket, in two roles: a `RangeReader` and a `PageSource`."""

    def __init__(self, objects: Mapping[str, bytes] | None = None, *, bucket: str = "bucket") -> None:
        self.bucket = bucket
        self._objects: dict[str, _Object] = {}
        for key, data in (objects or {}).items():
            self.put(key, data)

    def put(self, key: str, data: bytes) -> ObjectRef:
        """Create or replace the object, and return it as a listing would describe it now."""
        modified_s = self._objects[key].modified_s + 1 if key in self._objects else _MODIFIED_S
        self._objects[key] = _Object(data, f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"', modified_s)
        return self.ref(key)

    def delete(self, key: str) -> None:
        del self._objects[key]

    def ref(self, key: str) -> ObjectRef:
        found = self._objects[key]
        return ObjectRef(self.bucket, key, len(found.data), found.etag, found.modified_s * 10**9)

    async def get(self, ref: ObjectRef, start: int, end: int) -> Buffer:
        """Implement `RangeReader.get`."""
        check_range_arguments(ref, start, end)
        await trio.lowlevel.checkpoint()
        if_match_value(ref)  # refuses an ETag that the real client could not send
        found = self._objects.get(ref.key) if ref.bucket == self.bucket else None
        if found is None:
            raise ObjectChangedError(f"{ref.key!r} was deleted since it was listed.")
        check_version(ref, etag=found.etag, modified=found.modified, total_bytes=len(found.data))
        return memoryview(found.data)[start:end]

    async def list(
        self,
        bucket: str,
        *,
        prefix: str,
        start_after: str = "",
        continuation_token: str = "",
        delimiter: str = "",
        max_keys: int = 1000,
    ) -> bytes:
        """Implement `PageSource.list`. A continuation token is the last name of the page before."""
        await trio.lowlevel.checkpoint()
        after = continuation_token or start_after
        names = list(self._names_after(prefix, after, delimiter))
        page, truncated = names[:max_keys], len(names) > max_keys
        rows = [self._content(name) for name, is_prefix in page if not is_prefix]
        rows += [f"<CommonPrefixes><Prefix>{_quoted(name)}</Prefix></CommonPrefixes>" for name, both in page if both]
        token = f"<NextContinuationToken>{_quoted(page[-1][0])}</NextContinuationToken>" if truncated else ""
        return (
            '<?xml version="1.0" encoding="UTF-8"?>\n'
            '<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
            f"<Name>{self.bucket}</Name><Prefix>{_quoted(prefix)}</Prefix><KeyCount>{len(page)}</KeyCount>"
            f"<MaxKeys>{max_keys}</MaxKeys><EncodingType>url</EncodingType>"
            f"<IsTruncated>{str(truncated).lower()}</IsTruncated>{token}{''.join(rows)}</ListBucketResult>"
        ).encode()

    def _names_after(self, prefix: str, after: str, delimiter: str) -> Iterator[tuple[str, bool]]:
        """Yield ``(name, is_common_prefix)`` in order, each name greater than `after`."""
        last = after
        for key in sorted(self._objects):
            if not key.startswith(prefix):
                continue
            cut = key.find(delimiter, len(prefix)) if delimiter else -1
            name = key if cut < 0 else key[: cut + len(delimiter)]
            if name > last:
                last = name
                yield name, cut >= 0

    def _content(self, key: str) -> str:
        found = self._objects[key]
        return (
            f"<Contents><Key>{_quoted(key)}</Key><LastModified>{found.modified:%Y-%m-%dT%H:%M:%S.000Z}</LastModified>"
            f"<ETag>{found.etag.replace(chr(34), '&quot;')}</ETag><Size>{len(found.data)}</Size>"
            "<StorageClass>STANDARD</StorageClass></Contents>"
        )

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


def _quoted(name: str) -> str:
    # As S3 does: a space becomes "+", the slash stays.
    return quote(name, safe="/").replace("%20", "+")
