"""Views of objects in key order, over memory or over a directory. The server serves them.

A view never changes; a set that changes hands out a new one. One request therefore sees one state, without a lock.
Keys are bytes throughout: S3 orders them as UTF-8 bytes, and a hostile server may list keys that are not UTF-8.
"""

import hashlib
import os
import threading
from bisect import bisect_left
from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from bench.s3server.xml import contents_element

# 2024-01-01T00:00:00Z: objects made in memory have a fixed time, so that replies are the same in every run.
DEFAULT_MODIFIED_S = 1_704_067_200


@dataclass(frozen=True, slots=True)
class FileSpan:
    """Bytes of an open file. `fd` belongs to the maker of the span and stays open until the next one is asked for."""

    fd: int
    offset_bytes: int
    length_bytes: int


class Content(Protocol):
    """The bytes of one object, without a copy where that is possible."""

    def spans(self, start: int, end: int) -> Generator[FileSpan | memoryview, None, None]:
        """Yield the range ``[start, end)``, in order. Close the generator: it may hold a file open."""
        ...


@dataclass(frozen=True, slots=True)
class MemoryContent:
    """Bytes in memory."""

    data: bytes

    def spans(self, start: int, end: int) -> Generator[FileSpan | memoryview, None, None]:
        yield memoryview(self.data)[start:end]


@dataclass(frozen=True, slots=True)
class _FileContent:
    path: bytes

    def spans(self, start: int, end: int) -> Generator[FileSpan | memoryview, None, None]:
        fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            yield FileSpan(fd, start, end - start)
        finally:
            os.close(fd)


@dataclass(frozen=True, slots=True)
class UploadedPart:
    """A part of an object's upload, and the headers of its own checksum."""

    size_bytes: int
    checksums: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredObject:
    """One object as the server knows it; `etag` has its quotes."""

    key: bytes
    size_bytes: int
    etag: str
    content: Content
    modified_s: int = DEFAULT_MODIFIED_S
    storage_class: str = "STANDARD"
    # What a request with ``x-amz-checksum-mode`` is told: of the object, and of each part of its upload.
    checksums: Mapping[str, str] = field(default_factory=dict)
    parts: tuple["UploadedPart", ...] = ()


class ObjectView(Protocol):
    """An immutable sequence of objects, ascending by key."""

    def __len__(self) -> int: ...

    def key_at(self, index: int) -> bytes:
        """Return the key at `index`, ``0 <= index < len(self)``."""
        ...

    def position(self, key: bytes) -> int:
        """Return the index of the first key that is not less than `key`; ``len(self)`` if there is none."""
        ...

    def lookup(self, key: bytes) -> StoredObject | None:
        """Return the object of exactly this key."""
        ...

    def contents_xml(self, start: int, end: int, *, url_encoded: bool) -> bytes:
        """Return the ``<Contents>`` elements of the objects at ``[start, end)``."""
        ...


class ObjectSet(Protocol):
    """The objects of a bucket."""

    def view(self) -> ObjectView:
        """Return the objects as they are now."""
        ...


def key_bytes(key: str | bytes) -> bytes:
    """Return the key as it is ordered and sent."""
    return key.encode() if isinstance(key, str) else key


class ObjectTable:
    """A view over objects in any order."""

    def __init__(self, objects: Iterable[StoredObject]) -> None:
        self._objects = sorted(objects, key=lambda stored: stored.key)
        self._keys = [stored.key for stored in self._objects]

    def __len__(self) -> int:
        return len(self._keys)

    def key_at(self, index: int) -> bytes:
        return self._keys[index]

    def position(self, key: bytes) -> int:
        return bisect_left(self._keys, key)

    def lookup(self, key: bytes) -> StoredObject | None:
        index = self.position(key)
        return self._objects[index] if index < len(self._keys) and self._keys[index] == key else None

    def contents_xml(self, start: int, end: int, *, url_encoded: bool) -> bytes:
        return b"".join(
            contents_element(
                stored.key, stored.size_bytes, stored.etag, stored.modified_s, stored.storage_class, url_encoded
            )
            for stored in self._objects[start:end]
        )


class MemoryObjects:
    """Objects in memory, by any key at all; `put` and `delete` work while the server runs, from any thread."""

    def __init__(self, objects: Mapping[str, bytes] | Mapping[bytes, bytes] | None = None) -> None:
        self._lock = threading.Lock()
        self._objects: dict[bytes, StoredObject] = {}
        self._view: ObjectView | None = None
        for key, data in (objects or {}).items():
            self.put(key, data)

    def put(
        self,
        key: str | bytes,
        data: bytes,
        *,
        etag: str = "",
        modified_s: int = DEFAULT_MODIFIED_S,
        storage_class: str = "STANDARD",
        checksums: Mapping[str, str] | None = None,
        parts: tuple[UploadedPart, ...] = (),
    ) -> StoredObject:
        """Make or replace an object; without `etag` it gets the MD5 of `data`, as on S3."""
        stored = StoredObject(
            key=key_bytes(key),
            size_bytes=len(data),
            etag=etag or f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"',
            content=MemoryContent(data),
            modified_s=modified_s,
            storage_class=storage_class,
            checksums=checksums or {},
            parts=parts,
        )
        with self._lock:
            self._objects[stored.key] = stored
            self._view = None
        return stored

    def delete(self, key: str | bytes) -> None:
        """Remove an object; `KeyError` if it is not there."""
        with self._lock:
            del self._objects[key_bytes(key)]
            self._view = None

    def view(self) -> ObjectView:
        with self._lock:
            if self._view is None:
                self._view = ObjectTable(self._objects.values())
            return self._view


def _stat_object(root: bytes, key: bytes) -> StoredObject | None:
    path = os.path.join(root, key)
    try:
        status = os.stat(path)
    except OSError:
        return None
    # Inode, size and time change when a file is replaced or written; hashing the bytes would cost a read of all.
    identity = f"{status.st_ino}:{status.st_size}:{status.st_mtime_ns}".encode()
    return StoredObject(
        key=key,
        size_bytes=status.st_size,
        etag=f'"{hashlib.md5(identity, usedforsecurity=False).hexdigest()}"',
        content=_FileContent(path),
        modified_s=int(status.st_mtime),
    )


class _DirectoryTable(ObjectTable):
    """Lists the files of the scan, but looks at a file again before serving it: it may have been replaced."""

    def __init__(self, root: bytes, objects: Iterable[StoredObject]) -> None:
        super().__init__(objects)
        self._root = root

    def lookup(self, key: bytes) -> StoredObject | None:
        # Only keys that the scan found are served, so `..` in a request leads nowhere.
        return _stat_object(self._root, key) if super().lookup(key) else None


class DirectoryObjects:
    """The files below a directory; a key is the path below it.

    Listings show the files as they were at first; a GET sees a file as it is now, so one that was changed has another
    ETag than its listing, and one that was removed is gone.
    """

    def __init__(self, root: Path) -> None:
        self._root = os.fsencode(root.absolute())
        keys = (
            os.path.relpath(os.path.join(folder, name), self._root)
            for folder, _, names in os.walk(self._root)
            for name in names
        )
        found = (_stat_object(self._root, key) for key in keys)
        self._view = _DirectoryTable(self._root, filter(None, found))

    def view(self) -> ObjectView:
        return self._view
