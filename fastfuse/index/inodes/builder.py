"""From listed keys to an `InodeTable`: collect columns page by page, then lay out the tree once.

A listing may hold tens of millions of keys, so a key is a Python object only while its page is placed. The builder
keeps columns of numbers, the bytes of all keys, and the bytes of all names. The work per key is a handful of
operations. ETags, sizes, order and counts do not need the key's bytes: numpy processes them a page or the whole table
at a time.
"""

import hashlib
import heapq
import operator
import sys
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, islice, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from fastfuse.errors import ServiceError
from fastfuse.index.inodes.columns import MADE, OTHER_ETAG, Kind, are_objects, exact_sum
from fastfuse.index.inodes.table import InodeTable, TableMetadata
from fastfuse.index.inodes.tree import Reason, Refusals, Tree
from fastfuse.objects import MAX_KEY_BYTES, known_etag

_QUOTED_MD5_BYTES = 34
_MAX_PARTS = 0xFFFF
# The column is uint8; AWS has twelve classes.
_MAX_STORAGE_CLASSES = 256
# Between the keys of a page: no key that can be shown contains it.
_SEPARATOR = b"\0"
# The number of keys of pages that overlap that are placed at once.
_CHUNK_ROWS = 4096


@dataclass(frozen=True, slots=True)
class _Page:
    """The keys of one page in order, `packed` with separators between them, and the rows that they were added as.

    The rows are a range if the keys came in order, and each once.
    """

    first: bytes
    last: bytes
    rows: Sequence[int]
    packed: bytes

    def unpacked(self) -> list[bytes]:
        return self.packed.split(_SEPARATOR) if len(self.rows) > 1 else [self.packed]

    def entries(self) -> Iterator[tuple[bytes, int]]:
        """Yield each key with its row; unpack the page for the second one."""
        yield self.first, self.rows[0]
        yield from islice(zip(self.unpacked(), self.rows, strict=True), 1, None)


class TableBuilder:
    """Collects listed objects in any order; `build` makes the table. One builder makes one table."""

    def __init__(self, bucket: str, key_prefix: str) -> None:
        """Make a builder of keys that all begin with `key_prefix` (empty or ending in ``/``); a path is the rest."""
        self._bucket = bucket
        self._key_prefix = key_prefix
        self._pages: list[_Page] = []
        self._sizes = array("q")
        self._mtimes_ns = array("q")
        self._kinds = bytearray()
        self._etag_parts = array("H")
        self._etags = bytearray()
        self._other_etags = bytearray()
        self._storage_classes: dict[str, int] = {}
        self._class_rows = bytearray()
        self._source_order: Sequence[int] | None = None
        # The bytes of made files.
        self._contents = bytearray()

    def __len__(self) -> int:
        return len(self._sizes)

    def add(
        self,
        keys: Sequence[bytes],
        sizes: Sequence[int],
        mtimes_ns: Sequence[int],
        etags: Sequence[str],
        storage_classes: Sequence[str],
    ) -> None:
        """Add objects: whole keys as bytes, and the other columns in the same order and with the same length.

        Raises:
            ServiceError: more storage classes than any service has.
        """
        self._add_keys(keys)
        self._sizes.extend(sizes)
        self._mtimes_ns.extend(mtimes_ns)
        self._add_etags(etags)
        indexes = self._storage_classes
        rows = [indexes.setdefault(name, len(indexes)) for name in storage_classes]
        if len(indexes) > _MAX_STORAGE_CLASSES:
            raise ServiceError(f"the LIST replies name more than {_MAX_STORAGE_CLASSES} storage classes")
        self._class_rows += bytes(rows)

    def add_made(self, path: bytes, content: bytes, mtime_ns: int) -> None:
        """Add a file at `path` (below the root, without the key prefix) whose bytes the table itself carries.

        It is added after all objects. It is refused if an object has its name, or if the name cannot be shown (N2, N4).
        """
        key = self._key_prefix.encode() + path
        self._add_page(len(self), [key], key)
        digest = hashlib.blake2b(content, digest_size=8).digest()
        self._add_row(Kind.FILE_MADE, len(content), mtime_ns, MADE.pack(len(self._contents), digest))
        self._contents += content

    def _add_row(self, kind: Kind, size_bytes: int, mtime_ns: int, etag: bytes) -> None:
        self._sizes.append(size_bytes)
        self._mtimes_ns.append(mtime_ns)
        self._kinds.append(kind)
        self._etag_parts.append(0)
        self._etags += etag
        self._class_rows.append(0)

    def _add_keys(self, keys: Sequence[bytes]) -> None:
        packed = _SEPARATOR.join(keys)
        if packed.count(_SEPARATOR) >= len(keys):
            for row, key in enumerate(keys, len(self)):  # a key contains the separator; a page of one key needs none
                self._add_page(row, [key], key)
        else:
            self._add_page(len(self), keys, packed)

    def _add_page(self, first_row: int, keys: Sequence[bytes], packed: bytes) -> None:
        rows: Sequence[int] = range(first_row, first_row + len(keys))
        if not all(map(operator.lt, keys, islice(keys, 1, None))):
            order = sorted(range(len(keys)), key=keys.__getitem__)
            keys, rows = [keys[at] for at in order], array("q", [rows[at] for at in order])
            packed = _SEPARATOR.join(keys)
        self._pages.append(_Page(keys[0], keys[-1], rows, packed))

    def _add_etags(self, etags: Sequence[str]) -> None:
        joined = "".join(etags)
        if len(joined) == _QUOTED_MD5_BYTES * len(etags) and joined.isascii():
            # Nearly every page: quoted MD5s only. Checked and packed without a loop.
            letters = np.frombuffer(joined.encode(), "uint8").reshape(-1, _QUOTED_MD5_BYTES)
            digits = letters[:, 1:-1].tobytes()
            packed = _from_lowercase_hex(digits)
            if packed is not None and np.all(letters[:, [0, -1]] == ord('"')):
                self._etags += packed
                self._kinds += bytes([Kind.FILE_MD5]) * len(etags)
                self._etag_parts.extend([0] * len(etags))
                return
        for etag in etags:
            kind, parts, packed = self._pack_etag(etag)
            self._kinds.append(kind)
            self._etag_parts.append(parts)
            self._etags += packed

    def _pack_etag(self, etag: str) -> tuple[Kind, int, bytes]:
        digits, separator, suffix = etag[1:-1].partition("-")
        packed = _from_lowercase_hex(digits.encode()) if len(digits) == _QUOTED_MD5_BYTES - 2 else None
        if packed is not None and etag[0] == etag[-1] == '"':
            if not separator:
                return Kind.FILE_MD5, 0, packed
            # The length first: Python refuses to read a number of thousands of digits.
            parts = int(suffix) if len(suffix) <= len(str(_MAX_PARTS)) and suffix.isdecimal() else -1
            if str(parts) == suffix and parts <= _MAX_PARTS:
                return Kind.FILE_MULTIPART, parts, packed
        start = len(self._other_etags)
        self._other_etags += known_etag(etag).encode()
        return Kind.FILE_OTHER_ETAG, 0, OTHER_ETAG.pack(start, len(self._other_etags) - start)

    def set_source_order(self, added: Sequence[int]) -> None:
        """Set the order in which the source names the objects: their positions among all that were added.

        An object may be named more than once. The table leaves out of the order objects that cannot be shown.
        """
        self._source_order = added

    def build(self) -> tuple[InodeTable, Refusals]:
        """Return the table and the refused keys (clauses N2-N4); the builder cannot be used again."""
        refusals = Refusals()
        # Paths in several buckets are longer than keys. They come from manifests, which have no key that is too long.
        tree = Tree(self._key_prefix.encode(), refusals, most_bytes=MAX_KEY_BYTES if self._bucket else sys.maxsize)
        for keys, rows in self._pages_in_key_order(refusals):
            tree.place(keys, rows, self._sizes)
        self._add_row(Kind.DIRECTORY, 0, 0, bytes(16))  # the last row stands for every directory
        # Free the keys before the tree is laid out, and the tree before the table takes memory.
        self._pages.clear()
        listed_rows, columns = tree.lay_out()
        del tree
        return self._table(np.maximum(listed_rows, -1), columns), refusals

    def _pages_in_key_order(self, refusals: Refusals) -> Iterator[tuple[Sequence[bytes], Sequence[int]]]:
        """Yield keys and their listed rows, ascending from page to page; a key that was added twice is there once.

        S3 sorts the keys of a page, so sorting the pages of a parallel listing is enough. Pages of inventories and of
        other services may overlap: those are merged.
        """
        pages = sorted(self._pages, key=operator.attrgetter("first"))
        lasts = accumulate((page.last for page in pages), max)
        bounds = [0, *(at for at, last in enumerate(lasts, 1) if at == len(pages) or last < pages[at].first)]
        for start, end in pairwise(bounds):
            if end - start == 1 and isinstance(pages[start].rows, range):
                yield pages[start].unpacked(), pages[start].rows
            else:
                yield from self._merged(pages[start:end], refusals)

    def _merged(self, pages: Sequence[_Page], refusals: Refusals) -> Iterator[tuple[Sequence[bytes], Sequence[int]]]:
        keys: list[bytes] = []
        rows: list[int] = []
        last = None
        for key, row in heapq.merge(*(page.entries() for page in pages)):
            if key == last:
                if self._kinds[row] == Kind.FILE_MADE:
                    refusals.add(key, Reason.MADE_SHADOWED)
                continue
            if len(keys) == _CHUNK_ROWS:
                yield keys, rows
                keys, rows = [], []
            keys.append(key)
            rows.append(row)
            last = key
        yield keys, rows

    def _table(self, listed_rows: npt.NDArray[np.int64], columns: dict[str, npt.NDArray[Any]]) -> InodeTable:
        """Return the table with the columns of the tree, whose rows were listed as these."""
        columns |= {
            "kinds": np.frombuffer(self._kinds, "uint8")[listed_rows],
            "storage_classes": np.frombuffer(self._class_rows, "uint8")[listed_rows],
            "etag_parts": np.frombuffer(self._etag_parts, "uint16")[listed_rows],
            "sizes": np.frombuffer(self._sizes, "int64")[listed_rows],
            "mtimes_ns": np.frombuffer(self._mtimes_ns, "int64")[listed_rows],
            "etags": np.frombuffer(self._etags, "V16")[listed_rows],
        }
        if self._source_order is not None:
            columns["source_order"] = self._rows_in_source_order(listed_rows)
        if Kind.FILE_MADE in self._kinds:
            columns["made"] = np.frombuffer(self._contents, "uint8")
        if self._other_etags:
            columns["other_etags"] = np.frombuffer(self._other_etags, "uint8")
        metadata = TableMetadata(
            bucket=self._bucket,
            key_prefix=self._key_prefix,
            storage_classes=tuple(self._storage_classes) or ("STANDARD",),
        )
        return complete_table(metadata, columns)

    def _rows_in_source_order(self, listed_rows: npt.NDArray[np.int64]) -> npt.NDArray[np.uint32]:
        rows = np.full(len(self), -1, "int64")
        rows[listed_rows] = np.arange(len(listed_rows))
        ordered = rows[np.array(self._source_order, "int64")]
        shown: npt.NDArray[np.uint32] = ordered[ordered >= 0].astype("uint32")
        return shown


def _from_lowercase_hex(digits: bytes) -> bytes | None:
    """Return the bytes that `digits` spell, or None if their spelling is not exactly `digits`."""
    try:
        packed = bytes.fromhex(digits.decode("ascii"))
    except ValueError:
        return None
    return packed if packed.hex().encode() == digits else None


def complete_table(metadata: TableMetadata, columns: dict[str, npt.NDArray[Any]]) -> InodeTable:
    """Return the table of `columns`, once the directories have their children and times, and `metadata` the counts.

    The times of directories must be 0.
    """
    is_file = columns["kinds"] != Kind.DIRECTORY
    parents, mtimes_ns = columns["parents"], columns["mtimes_ns"]
    counts = np.bincount(parents[1:], minlength=len(parents))[~is_file]
    # Children follow those of the directory before; the root is the child of no directory.
    spans = np.stack([1 + np.cumsum(counts) - counts, counts], axis=1)
    columns["etags"].view("uint64").reshape(-1, 2)[~is_file] = spans
    # A directory has the newest time below it.
    for start, end in reversed(levels_of(columns)[1:]):
        np.maximum.at(mtimes_ns, parents[start:end], mtimes_ns[start:end])
    is_object = are_objects(columns["kinds"])
    metadata = replace(
        metadata,
        file_count=int(np.count_nonzero(is_object)),
        directory_count=int(np.count_nonzero(~is_file)),
        total_bytes=exact_sum(columns["sizes"][is_object]),
    )
    return InodeTable(metadata, columns)


def levels_of(columns: Mapping[str, npt.NDArray[Any]]) -> list[tuple[int, int]]:
    """Return the rows ``[start, end)`` of each depth, from the root down."""
    is_directory = columns["kinds"] == Kind.DIRECTORY
    spans = columns["etags"].view("uint64").reshape(-1, 2)[:, 1]
    levels = [(0, 1)]
    while True:
        start, end = levels[-1]
        children = int(spans[start:end][is_directory[start:end]].sum())
        if not children:
            return levels
        levels.append((end, end + children))
