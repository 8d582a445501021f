"""From listed keys to an `InodeTable`: collect columns page by page, then lay out the tree once.

The work per object is a handful of operations on the key; everything that does not need the key's bytes (ETags, sizes,
order, counts) is done a page or the whole table at a time in numpy.
"""

import operator
import struct
from array import array
from collections.abc import Sequence
from itertools import chain, islice, pairwise

import numpy as np
import numpy.typing as npt

from fastfuse.inodes.names import MAX_NAME_BYTES, Reason, Refusals, reason_to_refuse
from fastfuse.inodes.table import InodeTable, Kind, TableMetadata

__all__ = ["TableBuilder"]

_Rows = npt.NDArray[np.int64]

_QUOTED_MD5_BYTES = 34
_MAX_PARTS = 0xFFFF
_ETAG_INDEX = struct.Struct("<Q8x")


class TableBuilder:
    """Collects listed objects in any order; `build` makes the table. One builder makes one table."""

    def __init__(self, bucket: str, key_prefix: str) -> None:
        """`key_prefix` (empty or ending in ``/``) is what stands before every path; every key added starts with it."""
        self._bucket = bucket
        self._key_prefix = key_prefix
        self._keys: list[bytes] = []
        self._sizes = array("q")
        self._mtimes_ns = array("q")
        self._kinds = bytearray()
        self._etag_parts = array("H")
        self._etags = bytearray()
        self._other_etags: dict[str, int] = {}
        self._storage_classes: dict[str, int] = {}
        self._class_rows = bytearray()
        # (first key, first row) of each page
        self._pages: list[tuple[bytes, int]] = []

    def __len__(self) -> int:
        return len(self._keys)

    def add(
        self,
        keys: Sequence[bytes],
        sizes: Sequence[int],
        mtimes_ns: Sequence[int],
        etags: Sequence[str],
        storage_classes: Sequence[str],
    ) -> None:
        """Add objects: whole keys as bytes, and the other columns in the same order and of the same length."""
        if keys:
            self._pages.append((keys[0], len(self._keys)))
        self._keys += keys
        self._sizes.extend(sizes)
        self._mtimes_ns.extend(mtimes_ns)
        self._add_etags(etags)
        indexes = self._storage_classes
        self._class_rows += bytes(indexes.setdefault(name, len(indexes)) for name in storage_classes)

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
            if suffix.isdecimal() and str(int(suffix)) == suffix and int(suffix) <= _MAX_PARTS:
                return Kind.FILE_MULTIPART, int(suffix), packed
        index = self._other_etags.setdefault(etag, len(self._other_etags))
        return Kind.FILE_OTHER_ETAG, 0, _ETAG_INDEX.pack(index)

    def build(self) -> tuple[InodeTable, Refusals]:
        """The table and what was left out of it (clauses N2-N4). The builder is spent afterwards."""
        refusals = Refusals()
        tree = _Tree(self._keys, len(self._key_prefix.encode()), refusals)
        for row in self._rows_in_key_order():
            tree.place(row, self._sizes[row])
        order, names, parents = tree.lay_out()
        return self._table(order, names, parents, tree), refusals

    def _rows_in_key_order(self) -> Sequence[int]:
        """Rows sorted by key, a key listed twice once.

        S3 lists pages in this order, so it is enough to order the pages that a parallel listing brings; directory
        buckets have no order.
        """
        keys = self._keys
        starts = [*(start for _, start in self._pages), len(keys)]
        pages = sorted((key, *span) for (key, _), span in zip(self._pages, pairwise(starts), strict=True))
        rows = list(chain.from_iterable(range(start, end) for _, start, end in pages))
        if all(map(operator.lt, map(keys.__getitem__, rows), map(keys.__getitem__, islice(rows, 1, None)))):
            return rows
        rows.sort(key=keys.__getitem__)
        return [row for previous, row in zip([None, *rows], rows, strict=False) if _differs(keys, previous, row)]

    def _table(self, order: _Rows, names: list[bytes], parents: _Rows, tree: "_Tree") -> InodeTable:
        """`order` tells for each row of the table which source it has: a listed row, or ``-1 - directory``."""
        count = len(order)
        is_file = order >= 0
        files = order[is_file]
        columns = {
            "names": np.frombuffer(b"".join(names), "uint8"),
            "name_ends": np.cumsum(np.fromiter(map(len, names), "uint64", count), dtype="uint64"),
            "parents": parents.astype("uint32"),
            "kinds": _scatter(is_file, np.frombuffer(self._kinds, "uint8")[files]),
            "storage_classes": _scatter(is_file, np.frombuffer(self._class_rows, "uint8")[files]),
            "etag_parts": _scatter(is_file, np.frombuffer(self._etag_parts, "uint16")[files]),
            "sizes": _scatter(is_file, np.frombuffer(self._sizes, "int64")[files]),
            "mtimes_ns": _scatter(is_file, np.frombuffer(self._mtimes_ns, "int64")[files]),
        }
        etags = np.zeros((count, 2), "uint64")
        etags[is_file] = np.frombuffer(self._etags, "uint64").reshape(-1, 2)[files]
        etags[~is_file] = tree.spans
        columns["etags"] = etags.view("V16").reshape(count)
        _raise_directory_mtimes(columns["mtimes_ns"], parents, tree.level_starts)
        metadata = TableMetadata(
            bucket=self._bucket,
            key_prefix=self._key_prefix,
            file_count=len(files),
            directory_count=count - len(files),
            total_bytes=int(columns["sizes"].sum()),
            storage_classes=tuple(self._storage_classes) or ("STANDARD",),
            other_etags=tuple(self._other_etags),
        )
        return InodeTable(metadata, columns)


class _Tree:
    """Directories found so far, and where each file belongs.

    Keys come in byte order, so all keys below a directory are consecutive: a stack of the open directories is enough
    to find a key's directory, and a directory that has left the stack never comes back. As *full keys* they are not in
    the order of names, though (``a!b`` < ``a/c`` while ``a`` < ``a!b``), so directories with subdirectories are sorted
    again when they are laid out, and only there can a file have the name of a directory (N4).
    """

    def __init__(self, keys: list[bytes], prefix_bytes: int, refusals: Refusals) -> None:
        self._keys = keys
        self._prefix_bytes = prefix_bytes
        self._refusals = refusals
        self._here = b""  # path of the directory of the last key, with its "/"
        self._stack: list[tuple[bytes, int]] = [(b"", 0)]  # (path, number) from the root to `_here`
        self._directory_names: list[bytes] = [b""]
        self._subdirectories: dict[int, list[int]] = {}
        self._file_directories = array("q")
        self._file_rows = array("q")
        self._file_names: list[bytes] = []
        self.spans: npt.NDArray[np.uint64] = np.zeros((0, 2), "uint64")
        self.level_starts: list[int] = []

    def place(self, row: int, size_bytes: int) -> None:
        """Find the directory of the next key in order, or refuse the key."""
        key = self._keys[row]
        path = key[self._prefix_bytes :]
        slash = path.rfind(b"/") + 1
        name = path[slash:]
        if path[:slash] != self._here or not name or not _is_plain(name):
            if not path and not size_bytes:
                return  # the marker of the mounted prefix itself
            reason = reason_to_refuse(path)
            if reason is None and not name and size_bytes:
                reason = Reason.MARKER_WITH_DATA
            if reason is not None:
                self._refusals.add(key, reason)
                return
            self._enter(path[:slash])
            if not name:
                return  # a marker: the directory exists now, that is all it says (N3)
        self._file_directories.append(self._stack[-1][1])
        self._file_rows.append(row)
        self._file_names.append(name)

    def _enter(self, path: bytes) -> None:
        """Make `path` the current directory, with every directory on the way to it."""
        stack = self._stack
        while not path.startswith(stack[-1][0]):
            stack.pop()
        opened = len(stack[-1][0])
        while opened < len(path):
            end = path.index(b"/", opened) + 1
            number = len(self._directory_names)
            self._directory_names.append(path[opened : end - 1])
            self._subdirectories.setdefault(stack[-1][1], []).append(number)
            stack.append((path[:end], number))
            opened = end
        self._here = path

    def lay_out(self) -> tuple[_Rows, list[bytes], _Rows]:
        """Breadth-first rows: ``(order, names, parents)``; `order` holds listed rows and ``-1 - directory``.

        Sets `spans` (first child's row, number of children; a line for each directory, in row order) and
        `level_starts` (first row of each depth, and at last the number of rows).
        """
        directories = np.frombuffer(self._file_directories, "int64")
        by_directory = np.argsort(directories, kind="stable")
        bounds = np.searchsorted(directories[by_directory], np.arange(len(self._directory_names) + 1)).tolist()
        order: list[npt.NDArray[np.int64]] = [np.array([-1], "int64")]
        names = [b""]
        parent_runs: list[tuple[int, int]] = [(0, 1)]
        spans: list[tuple[int, int]] = []
        file_rows = np.frombuffer(self._file_rows, "int64")
        level = [(0, 0)]  # (directory, its row)
        self.level_starts = [0]
        while level:
            self.level_starts.append(len(names))
            next_level: list[tuple[int, int]] = []
            for directory, row in level:
                files = by_directory[bounds[directory] : bounds[directory + 1]]
                first = len(names)
                if directory in self._subdirectories:
                    entries = self._merge(files.tolist(), directory)
                    names += [name for name, _ in entries]
                    order.append(np.array([source for _, source in entries], "int64"))
                    next_level += [(-1 - s, first + i) for i, (_, s) in enumerate(entries) if s < 0]
                elif len(files):
                    names += map(self._file_names.__getitem__, files.tolist())
                    order.append(file_rows[files])
                count = len(names) - first
                spans.append((first, count))
                parent_runs.append((row, count))
            level = next_level
        self.spans = np.array(spans, "uint64")
        self.level_starts.append(len(names))
        runs = np.array(parent_runs, "int64")
        return np.concatenate(order), names, np.repeat(runs[:, 0], runs[:, 1])

    def _merge(self, files: list[int], directory: int) -> list[tuple[bytes, int]]:
        """Files and subdirectories of one directory by name; a file with a directory's name is refused (N4)."""
        subdirectories = {self._directory_names[number]: -1 - number for number in self._subdirectories[directory]}
        entries = list(subdirectories.items())
        for file in files:
            name = self._file_names[file]
            if name in subdirectories:
                self._refusals.add(self._keys[self._file_rows[file]], Reason.SHADOWED)
            else:
                entries.append((name, self._file_rows[file]))
        return sorted(entries)


def _is_plain(name: bytes) -> bool:
    """Whether `name` needs no closer look: true for nearly every name of nearly every bucket."""
    return len(name) <= MAX_NAME_BYTES and name.isascii() and b"\0" not in name and name not in {b".", b".."}


def _from_lowercase_hex(digits: bytes) -> bytes | None:
    """The bytes that `digits` spell, or None where spelling them again would not give `digits`."""
    try:
        packed = bytes.fromhex(digits.decode("ascii"))
    except ValueError:
        return None
    return packed if packed.hex().encode() == digits else None


def _differs(keys: list[bytes], previous: int | None, row: int) -> bool:
    return previous is None or keys[previous] != keys[row]


def _scatter(is_file: npt.NDArray[np.bool_], values: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
    """`values` on the rows of files, zero on the rows of directories."""
    column = np.zeros(len(is_file), values.dtype)
    column[is_file] = values
    return column


def _raise_directory_mtimes(mtimes_ns: npt.NDArray[np.generic], parents: _Rows, level_starts: list[int]) -> None:
    """Give each directory the newest time below it, from the deepest level up."""
    for start, end in zip(level_starts[-2::-1], level_starts[:0:-1], strict=True):
        np.maximum.at(mtimes_ns, parents[start:end], mtimes_ns[start:end])
