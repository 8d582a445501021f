"""S3 in memory, for tests of what is above the seam. It passes the contract test of the real client."""

from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime

import trio

from bench.s3server.buckets import DEFAULT_MODIFIED_S, MemoryContent, MemoryObjects, StoredObject
from bench.s3server.pages import ListQuery, render_page, select_page
from fastfuse.errors import ObjectChangedError
from fastfuse.objects import Buffer, ObjectRef
from fastfuse.s3.checks import check_range_arguments, check_version, condition_line


class MemoryStore:
    """A bucket of the loopback server without the server, in two roles: a `RangeReader` and a `PageSource`."""

    def __init__(self, objects: Mapping[str, bytes] | None = None, *, bucket: str = "bucket") -> None:
        self.bucket = bucket
        self._objects = MemoryObjects(objects)
        # An object gets a second younger each time that it is replaced.
        self._puts = Counter[str]()

    def put(self, key: str, data: bytes) -> ObjectRef:
        """Create or replace the object, and return it as a listing would describe it now."""
        self._puts[key] += 1
        return self._ref(self._objects.put(key, data, modified_s=DEFAULT_MODIFIED_S + self._puts[key]))

    def delete(self, key: str) -> None:
        self._objects.delete(key)

    def ref(self, key: str) -> ObjectRef:
        return self._ref(self._stored(key))

    async def get(self, ref: ObjectRef, start: int, end: int) -> Buffer:
        """Implement `RangeReader.get`."""
        check_range_arguments(ref, start, end)
        await trio.lowlevel.checkpoint()
        condition_line(ref)  # refuses an ETag that the real client could not send
        try:
            found = self._stored(ref.key)
        except KeyError as error:
            raise ObjectChangedError(f"{ref.key!r} was deleted since it was listed.") from error
        modified = datetime.fromtimestamp(found.modified_s, UTC)
        check_version(ref, etag=found.etag, modified=modified, total_bytes=found.size_bytes)
        assert isinstance(found.content, MemoryContent)
        return memoryview(found.content.data)[start:end]

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
        """Implement `PageSource.list`."""
        await trio.lowlevel.checkpoint()
        query = ListQuery(
            prefix=prefix.encode(),
            delimiter=delimiter.encode(),
            start_after=start_after.encode(),
            token=continuation_token or None,
            max_keys=max_keys,
            url_encoded=True,
        )
        view = self._objects.view()
        return render_page(self.bucket, view, query, select_page(view, query, max_keys))

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()

    def _stored(self, key: str) -> StoredObject:
        found = self._objects.view().lookup(key.encode())
        if found is None:
            raise KeyError(key)
        return found

    def _ref(self, stored: StoredObject) -> ObjectRef:
        key = stored.key.decode()
        return ObjectRef(self.bucket, key, stored.size_bytes, stored.etag, stored.modified_s * 10**9)
