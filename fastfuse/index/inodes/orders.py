"""The orders of epochs (``ShuffleConfig``) as files of a table: ``.fastfuse/order-<epoch>.txt``. Pure.

Each holds the paths of all objects below the root, one to a line, in the order that `index.sources.shuffle` gives them:
shuffled from the order of the source, or of the keys where the source has none. As permutations of the same lines they
all have the same size. So a table holds of each what it is made of, and not its bytes: those are made when they are
read (`order_text`).

A path with a line feed or a carriage return is no line, and so it is in no order.
"""

import hashlib
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from fastfuse.index.inodes.builder import child_spans
from fastfuse.index.inodes.columns import MADE, ORDER_RECIPE, Kind, are_objects
from fastfuse.index.inodes.selection import keep_rows, key_order, levels_of
from fastfuse.index.inodes.table import InodeTable

__all__ = ["EPOCHS", "ORDERS_DIRECTORY", "order_name", "path_lengths", "rows_to_order", "with_orders"]

_Numbers = npt.NDArray[np.int64]

ORDERS_DIRECTORY = b".fastfuse"
# Epochs that are shown. More than most jobs train, and few enough for `ls` and for who reads all files there are.
EPOCHS = 100
_LINE_ENDS = (ord("\n"), ord("\r"))


def order_name(epoch: int) -> bytes:
    """The name of the file with the order of `epoch`."""
    return b"order-%d.txt" % epoch


def with_orders(table: InodeTable, seed: int) -> tuple[InodeTable, int]:
    """`table` with the orders of the first epochs, and how many objects are in none because of their names.

    Takes a table without inode numbers of its own: those belong to a mount. What has the name of the directory of the
    orders is hidden by it.
    """
    table = _without(table, ORDERS_DIRECTORY)
    rows = rows_to_order(table)
    size_bytes = int(path_lengths(table)[rows].sum()) + len(rows)
    left_out = int(np.count_nonzero(are_objects(table.columns["kinds"]) & _has_line_end(table)))
    return _with_files(table, _recipes(table, seed), size_bytes), left_out


def rows_to_order(table: InodeTable) -> _Numbers:
    """The rows of what the orders hold, as they come before they are shuffled; one that is named twice comes twice."""
    given = table.source_order()
    rows = key_order(table) if given is None else given.astype("int64")
    is_line = are_objects(table.columns["kinds"]) & ~_has_line_end(table)
    return rows[is_line[rows]]


def path_lengths(table: InodeTable) -> _Numbers:
    """How many bytes the path of each row has, below the root and without a ``/`` at either end."""
    lengths = np.diff(table.columns["name_ends"].astype("int64"), prepend=0)
    parents = table.columns["parents"]
    for start, end in levels_of(table)[2:]:
        lengths[start:end] += lengths[parents[start:end]] + 1
    return lengths


def _has_line_end(table: InodeTable) -> npt.NDArray[np.bool_]:
    """Which rows have a path that is no line."""
    found = np.zeros(len(table), "bool")
    at = np.flatnonzero(np.isin(table.columns["names"], _LINE_ENDS))
    if len(at):
        found[np.searchsorted(table.columns["name_ends"], at, side="right")] = True
        for start, end in levels_of(table)[1:]:
            found[start:end] |= found[table.columns["parents"][start:end]]
    return found


def _recipes(table: InodeTable, seed: int) -> list[tuple[bytes, bytes, bytes]]:
    """The name of each order, what it is made of, and a digest of what comes out; in the order of names."""
    named = hashlib.blake2b()
    for name in ("names", "name_ends", "parents", "kinds", "source_order"):
        if name in table.columns:
            named.update(np.ascontiguousarray(table.columns[name]).view("uint8").data)
    recipes = []
    for epoch in range(EPOCHS):
        recipe = ORDER_RECIPE.pack(seed, epoch)
        digest = hashlib.blake2b(named.digest() + recipe, digest_size=8).digest()
        recipes.append((order_name(epoch), recipe, digest))
    return sorted(recipes)


def _without(table: InodeTable, name: bytes) -> InodeTable:
    """`table` without the child of its root that has this name."""
    first, count = table.span(0)
    names = [table.name_at(row) for row in range(first, first + count)]
    if name not in names:
        return table
    is_kept = np.ones(len(table), "bool")
    is_kept[first + names.index(name)] = False
    for start, end in levels_of(table)[2:]:
        is_kept[start:end] &= is_kept[table.columns["parents"][start:end]]
    return keep_rows(table, is_kept)


def _with_files(table: InodeTable, recipes: Sequence[tuple[bytes, bytes, bytes]], size_bytes: int) -> InodeTable:
    """`table` with the directory of the orders and the files in it: two pieces of rows, each between its neighbours."""
    old = table.columns
    first, count = table.span(0)
    here = bisect_left(range(first + count), ORDERS_DIRECTORY, lo=first, key=table.name_at)
    # Its children come after those of the directories before it.
    children_from = 1 + sum(table.span(row)[1] for row in range(here) if old["kinds"][row] == Kind.DIRECTORY)
    orders = slice(children_from + 1, children_from + 1 + len(recipes))
    moved = np.arange(len(table))
    moved += (moved >= here) + len(recipes) * (moved >= children_from)

    columns = {}
    for name in ("parents", "kinds", "storage_classes", "etag_parts", "sizes", "mtimes_ns", "etags"):
        columns[name] = np.zeros(len(table) + 1 + len(recipes), old[name].dtype)
        columns[name][moved] = old[name]
    columns["parents"][moved] = moved[old["parents"].astype("int64")]
    columns["parents"][orders] = here
    columns["kinds"][orders] = Kind.FILE_ORDER
    columns["sizes"][orders] = size_bytes
    # As old as what they order.
    columns["mtimes_ns"][orders] = columns["mtimes_ns"][here] = old["mtimes_ns"][0]
    made = old.get("made", np.zeros(0, "uint8"))
    columns["made"] = np.concatenate([made, _bytes(recipe for _, recipe, _ in recipes)])
    places = range(len(made), len(columns["made"]), ORDER_RECIPE.size)
    packed = (MADE.pack(place, digest) for place, (_, _, digest) in zip(places, recipes, strict=True))
    columns["etags"][orders] = _bytes(packed).view("V16")
    is_file = columns["kinds"] != Kind.DIRECTORY
    columns["etags"].view("uint64").reshape(-1, 2)[~is_file] = child_spans(columns["parents"], is_file)
    names = [name for name, _, _ in recipes]
    columns |= _spliced_names(old, ((here, [ORDERS_DIRECTORY]), (children_from, names)))
    if "source_order" in old:
        columns["source_order"] = moved[old["source_order"].astype("int64")].astype("uint32")
    metadata = replace(table.metadata, directory_count=table.metadata.directory_count + 1)
    return InodeTable(metadata, columns)


def _spliced_names(
    old: Mapping[str, npt.NDArray[np.generic]], added: Iterable[tuple[int, Sequence[bytes]]]
) -> dict[str, npt.NDArray[np.generic]]:
    """The names of all rows; those of `added` come before the old rows given with them."""
    ends = old["name_ends"].astype("int64")
    lengths = np.diff(ends, prepend=0)
    blobs, pieces, row = [], [], 0
    for before, names in added:
        blobs += [old["names"][ends[row - 1] if row else 0 : ends[before - 1]], _bytes(names)]
        pieces += [lengths[row:before], np.array([len(name) for name in names], "int64")]
        row = before
    blobs.append(old["names"][ends[row - 1] :])
    pieces.append(lengths[row:])
    return {"names": np.concatenate(blobs), "name_ends": np.cumsum(np.concatenate(pieces), dtype="uint64")}


def _bytes(pieces: Iterable[bytes]) -> npt.NDArray[np.uint8]:
    return np.frombuffer(b"".join(pieces), "uint8")
