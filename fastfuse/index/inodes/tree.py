"""The tree that keys in byte order spell, with the row of each entry, and the keys that have no place in it.

The tree holds no object per key: the names are one run of bytes, and each name takes a few more numbers. A key that
cannot be shown as a path is refused with a reason (clauses N2-N4).
"""

from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import groupby, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from fastfuse.objects import MAX_KEY_BYTES

MAX_NAME_BYTES = 255  # NAME_MAX of Linux

# `--strict` and the log name this many: enough to see the pattern, and the log cannot fill up with hostile keys.
_EXAMPLES = 10
_Integers = npt.NDArray[np.int64]
_NO_NAMES = frozenset({b"", b".", b".."})
_NUL = b"\0"


class Reason(StrEnum):
    """The reason why a key is left out, in the words of the log line."""

    EMPTY_SEGMENT = "an empty path segment"
    DOT_SEGMENT = "a '.' or '..' path segment"
    NUL = "a NUL character"
    TOO_LONG = "a path segment over 255 bytes"
    KEY_TOO_LONG = "more than 1,024 bytes, of which these are the first"
    NOT_UTF8 = "bytes that are not UTF-8"
    MARKER_WITH_DATA = "a directory marker that is not empty"
    SHADOWED = "a file with the same name as a directory"
    MADE_SHADOWED = "the name of an object, and is none itself"


@dataclass(slots=True)
class Refusals:
    """The keys left out: their number for each reason, and the first few with their exact bytes.

    Of a key that is too long, these are as many bytes as a key may have.
    """

    counts: Counter[Reason] = field(default_factory=Counter)
    examples: list[tuple[bytes, Reason]] = field(default_factory=list)

    def add(self, key: bytes, reason: Reason) -> None:
        self.counts[reason] += 1
        if len(self.examples) < _EXAMPLES:
            self.examples.append((key[:MAX_KEY_BYTES] if reason is Reason.KEY_TOO_LONG else key, reason))

    @property
    def total(self) -> int:
        return self.counts.total()


def _reason_to_refuse(path: bytes) -> Reason | None:
    """Return why `path`, a key without its prefix, cannot be a path of the mount, or None if it can.

    A trailing ``/`` is no empty segment: it may mark a directory (N3), which depends on the object's size.
    """
    if b"\0" in path:
        return Reason.NUL
    segments = path.removesuffix(b"/").split(b"/")
    if b"" in segments:
        return Reason.EMPTY_SEGMENT
    if b"." in segments or b".." in segments:
        return Reason.DOT_SEGMENT
    if max(map(len, segments)) > MAX_NAME_BYTES:
        return Reason.TOO_LONG
    return None if _is_utf8(path) else Reason.NOT_UTF8


@dataclass(slots=True)
class _OpenDirectory:
    """`path` is the whole key, with its ``/``; `last_name` is the name of the last child so far."""

    path: bytes
    number: int
    depth: int
    last_name: bytes = b""


class Tree:
    """Directories and files found so far: *entries*, in columns, in the order in which they were found.

    Keys come in byte order, so all keys below a directory are consecutive: a stack of the open directories is enough
    to find a key's directory, and a directory that has left the stack never comes back.

    For the same reason the children of a directory are found in the order of their names, but for one case: as keys,
    subdirectories end in ``/``, so ``a``, ``a!b`` and ``a-c/d`` come before ``a/e``. Only then are the children of a
    directory sorted again, and only then can a file have the name of a directory (N4).
    """

    def __init__(self, prefix: bytes, refusals: Refusals, *, most_bytes: int = MAX_KEY_BYTES) -> None:
        """Make a tree of keys of at most `most_bytes`, whose root has the key `prefix` (empty or ending in ``/``)."""
        self._prefix = prefix
        self._refusals = refusals
        self._most_bytes = most_bytes
        self._stack = [_OpenDirectory(prefix, 0, 0)]  # from the root to the directory of the last key
        # One item for each entry; the root is the first.
        self._names = bytearray()
        self._name_lengths = bytearray(1)
        self._parents = array("I", [0])  # numbers of directories
        self._listed_rows = array("q", [-1])  # -1 - number for a directory
        # One item for each directory, by its number.
        self._depths = array("I", [0])
        # The directories whose children were not found by name, by the depth of these.
        self._unsorted: dict[int, list[int]] = {}

    def place(self, keys: Sequence[bytes], rows: Sequence[int], sizes: Sequence[int]) -> None:
        """Find the directories of the next keys in order, or refuse keys.

        `rows` are the listed rows of these keys; `sizes` are those of the whole listing.
        """
        end = 0
        for folder, run in groupby([key[: key.rfind(b"/") + 1] for key in keys]):
            start, end = end, end + len(list(run))
            names = [key[len(folder) :] for key in keys[start:end]]
            is_known = folder in (self._stack[-1].path, self._prefix)
            most_bytes = min(MAX_NAME_BYTES, self._most_bytes - len(folder))
            if (is_known or _reason_to_refuse(folder[len(self._prefix) :]) is None) and _are_plain(names, most_bytes):
                self._add_files(folder, names, rows[start:end])
            else:
                for key, name, row in zip(keys[start:end], names, rows[start:end], strict=True):
                    self._place_one(key, folder, name, row, sizes[row])

    def _place_one(self, key: bytes, folder: bytes, name: bytes, row: int, size_bytes: int) -> None:
        if key == self._prefix and not size_bytes:
            return  # the marker of the mounted prefix itself
        is_too_long = len(key) > self._most_bytes
        reason = Reason.KEY_TOO_LONG if is_too_long else _reason_to_refuse(key[len(self._prefix) :])
        if reason is None and not name and size_bytes:
            reason = Reason.MARKER_WITH_DATA
        if reason is not None:
            self._refusals.add(key, reason)
        elif name:
            self._add_files(folder, [name], [row])
        else:
            self._enter(folder)  # a marker: the directory exists now, that is all it says (N3)

    def _add_files(self, folder: bytes, names: list[bytes], rows: Sequence[int]) -> None:
        here = self._enter(folder)
        here.last_name = names[-1]
        self._names += b"".join(names)
        self._name_lengths += bytes(map(len, names))
        self._parents += array("I", [here.number]) * len(names)
        self._listed_rows.extend(rows)

    def _enter(self, path: bytes) -> _OpenDirectory:
        """Make `path` the current directory, with every directory on the way to it."""
        stack = self._stack
        while not path.startswith(stack[-1].path):
            stack.pop()
        while (opened := len(stack[-1].path)) < len(path):
            end = path.index(b"/", opened)
            stack.append(self._add_directory(stack[-1], path[opened:end], path[: end + 1]))
        return stack[-1]

    def _add_directory(self, parent: _OpenDirectory, name: bytes, path: bytes) -> _OpenDirectory:
        here = _OpenDirectory(path, len(self._depths), parent.depth + 1)
        if name <= parent.last_name:
            unsorted = self._unsorted.setdefault(here.depth, [])
            if parent.number not in unsorted[-1:]:
                unsorted.append(parent.number)
        parent.last_name = name
        self._depths.append(here.depth)
        self._names += name
        self._name_lengths.append(len(name))
        self._parents.append(parent.number)
        self._listed_rows.append(-1 - here.number)
        return here

    def lay_out(self) -> tuple[_Integers, dict[str, npt.NDArray[Any]]]:
        """Return the listed row of each row of the table, negative for a directory, and the columns of the tree.

        The rows are breadth first, the children of a directory side by side and by name. Files that have the name of
        a directory are refused (N4).
        """
        entries = _Entries(self._names, self._name_lengths, self._parents, self._listed_rows)
        order, directory_rows = self._breadth_first(entries)
        names, name_ends = entries.gather_names(order)
        columns = {"names": names, "name_ends": name_ends, "parents": directory_rows[entries.parents[order]]}
        return entries.listed_rows[order], columns

    def _breadth_first(self, entries: "_Entries") -> tuple[_Integers, npt.NDArray[np.uint32]]:
        """Return the entry of each row, and the row of each directory."""
        depths = np.frombuffer(self._depths, "uint32")[entries.parents] + 1
        depths[0] = 0
        by_depth = np.argsort(depths, kind="stable")
        bounds = np.searchsorted(depths[by_depth], np.arange(1, int(depths.max()) + 2)).tolist()
        directory_rows = np.zeros(len(self._depths), "uint32")
        levels = [by_depth[:1]]
        row_count = 1
        for depth, (start, end) in enumerate(pairwise(bounds), 1):
            level = by_depth[start:end]
            above = directory_rows[entries.parents[level]]
            # Entries move only below directories that were sorted themselves.
            position = np.argsort(above, kind="stable")
            level, above = level[position], above[position]
            for directory in self._unsorted.get(depth, ()):
                first, after = np.searchsorted(above, directory_rows[directory] + np.arange(2))
                level[first:after] = self._sorted_by_name(entries, level[first:after].tolist())
            level = level[level > 0]  # without the files that are hidden
            listed_rows = entries.listed_rows[level]
            is_directory = listed_rows < 0
            directory_rows[-1 - listed_rows[is_directory]] = row_count + np.flatnonzero(is_directory)
            levels.append(level)
            row_count += len(level)
        return np.concatenate(levels), directory_rows

    def _sorted_by_name(self, entries: "_Entries", siblings: list[int]) -> list[int]:
        """Return the entries sorted by name; entry 0, the root, stands for each file that a directory hides."""
        named = sorted((entries.name(entry), entries.listed_rows[entry] >= 0, entry) for entry in siblings)
        ordered = [entry for _, _, entry in named]
        for place, ((name, *_), (following, _, entry)) in enumerate(pairwise(named), 1):
            if name == following:
                self._refusals.add(self._prefix + entries.path(entry), Reason.SHADOWED)
                ordered[place] = 0
        return ordered


class _Entries:
    """The columns of a complete tree."""

    def __init__(
        self, names: bytearray, name_lengths: bytearray, parents: "array[int]", listed_rows: "array[int]"
    ) -> None:
        self.parents = np.frombuffer(parents, "uint32")
        self.listed_rows = np.frombuffer(listed_rows, "int64")
        # The entry of each directory, by its number.
        self._directories = np.flatnonzero(self.listed_rows < 0)
        self._names = names
        self._name_lengths = np.frombuffer(name_lengths, "uint8")
        # The beginning of each name, and at the end the end of the last one.
        self._name_bounds = np.zeros(len(name_lengths) + 1, "int64")
        np.cumsum(self._name_lengths, out=self._name_bounds[1:])

    def name(self, entry: int) -> bytes:
        return bytes(self._names[self._name_bounds[entry] : self._name_bounds[entry + 1]])

    def path(self, entry: int) -> bytes:
        """Return the path below the root, which is the first entry."""
        names = []
        while entry:
            names.append(self.name(entry))
            entry = int(self._directories[self.parents[entry]])
        return b"/".join(reversed(names))

    def gather_names(self, order: _Integers) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint64]]:
        """Return the names of the entries in this order, one after the other, and the end of each."""
        # Files that were found one after another are neighbours here too, so a directory of files is one copy.
        run_starts = np.flatnonzero(np.diff(order, prepend=-2) != 1)
        run_lasts = np.append(run_starts[1:], len(order)) - 1
        begins, ends = self._name_bounds[order[run_starts]], self._name_bounds[order[run_lasts] + 1]
        names = bytearray()
        with memoryview(self._names) as found:
            for begin, end in zip(begins.data, ends.data, strict=True):
                names += found[begin:end]
        return np.frombuffer(names, "uint8"), np.cumsum(self._name_lengths[order], dtype="uint64")


def _are_plain(names: list[bytes], most_bytes: int) -> bool:
    """Return whether each of `names` is certainly the name of a file, and has at most `most_bytes`."""
    joined = _NUL.join(names)  # no UTF-8 sequence runs across a NUL
    return (
        joined.count(_NUL) == len(names) - 1
        and _NO_NAMES.isdisjoint(names)
        and max(map(len, names)) <= most_bytes
        and _is_utf8(joined)
    )


def _is_utf8(text: bytes) -> bool:
    if text.isascii():
        return True
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True
