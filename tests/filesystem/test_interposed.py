"""LOOKUP and GETATTR from the mapped columns: as the table answers in Python, and nothing where columns are odd."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfuse.errors import StaleInodeError
from fastfuse.filesystem.fuse import interposed
from fastfuse.index.inodes.changes import take_over
from fastfuse.index.inodes.table import InodeTable
from tests.index.inodes.test_changes import Version, table_of

_NAMES = ["a", "ab", "abc", "b", "ä", "a b", "zz", "n" * 255, "0"]
_versions = st.builds(Version, size_bytes=st.integers(0, 2**62), mtime_ns=st.integers(0, 2**62))
_objects = st.dictionaries(st.builds("/".join, st.lists(st.sampled_from(_NAMES), min_size=1, max_size=3)), _versions)
_ASKED = [*_NAMES, "", "a/b", "zzz", "n" * 254, "n" * 256]
_DIRECTORY_MODE, _FILE_MODE = 0o40555, 0o100444


@pytest.fixture(autouse=True)
def _stopped() -> Iterator[None]:
    yield
    interposed.stop_answering()


def answer_from(columns: Mapping[str, npt.NDArray[Any]]) -> None:
    interposed.answer_from(
        columns,
        uid=1,
        gid=2,
        directory_mode=_DIRECTORY_MODE,
        file_mode=_FILE_MODE,
        block_bytes=1 << 17,
        timeout_s=1.0,
        answered=memoryview(bytearray(8)).cast("q"),
    )


def expected(table: InodeTable, parent: int, name: bytes) -> int | None:
    """What LOOKUP is answered with; None where the handler raises or answers."""
    try:
        return table.lookup(parent, name) or 0
    except (StaleInodeError, ValueError):
        return None


@given(_objects, _objects)
def test_names_and_attributes_are_those_of_the_table(before: dict[str, Version], after: dict[str, Version]) -> None:
    old = table_of(before)
    for table in (old, take_over(old, table_of(after))[0]):
        answer_from(table.columns)
        inodes = range(table.next_inode + 2)
        for parent in inodes:
            for name in map(str.encode, _ASKED):
                assert interposed.found(parent, name) == expected(table, parent, name)
        for inode in inodes:
            if inode in table:
                _, is_directory, size_bytes, mtime_ns = table.attributes(inode)
                mode = _DIRECTORY_MODE if is_directory else _FILE_MODE
                assert interposed.attributes(inode) == (mode, size_bytes, mtime_ns)
            else:
                assert interposed.attributes(inode) is None


@given(_objects, st.sampled_from(["name_ends", "etags", "kinds", "inodes", "inode_rows"]), st.binary(min_size=16))
def test_odd_columns_lead_nowhere_outside_them(objects: dict[str, Version], name: str, noise: bytes) -> None:
    table = take_over(table_of({}), table_of(objects))[0]
    column = table.columns[name]
    odd = np.frombuffer((noise * (column.nbytes // len(noise) + 1))[: column.nbytes], column.dtype)
    answer_from({**table.columns, name: odd})
    for inode in (0, 1, 2, 3, len(table), 2**63, 2**64 - 1):
        interposed.attributes(inode)
        for asked in map(str.encode, _ASKED):
            interposed.found(inode, asked)


@pytest.mark.parametrize("name", ["name_ends", "kinds", "sizes", "mtimes_ns", "etags", "inodes", "inode_rows"])
def test_columns_of_different_lengths_are_refused(name: str) -> None:
    columns = take_over(table_of({}), table_of({"a": Version()}))[0].columns
    with pytest.raises(ValueError, match="different lengths"):
        answer_from({**columns, name: columns[name][:-1]})


def test_nothing_is_answered_before_and_after() -> None:
    assert interposed.attributes(1) is None
    answer_from(table_of({"a": Version()}).columns)
    assert interposed.attributes(1) is not None
    interposed.stop_answering()
    assert (interposed.attributes(1), interposed.found(1, b"a")) == (None, None)
