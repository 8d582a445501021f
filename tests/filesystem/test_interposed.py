"""LOOKUP and GETATTR from the mapped columns: as the table answers in Python, and nothing where columns are odd."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfuse.errors import StaleInodeError
from fastfuse.filesystem.kernel.fuse import interposed
from fastfuse.filesystem.serving.operations import unread_classes
from fastfuse.index.inodes.changes import take_over
from fastfuse.index.inodes.table import InodeTable
from fastfuse.s3.checks import condition_line
from tests.index.inodes.test_changes import Version, table_of

_NAMES = ["a", "ab", "abc", "b", "ä", "a b", "zz", "n" * 255, "0"]
_versions = st.builds(Version, size_bytes=st.integers(0, 2**62), mtime_ns=st.integers(0, 2**62))
_objects = st.dictionaries(st.builds("/".join, st.lists(st.sampled_from(_NAMES), min_size=1, max_size=3)), _versions)
_ASKED = [*_NAMES, "", "a/b", "zzz", "n" * 254, "n" * 256]
_DIRECTORY_MODE, _FILE_MODE = 0o40555, 0o100444


def answer_from(columns: Mapping[str, npt.NDArray[Any]], *, unread_classes: bytes = bytes(256)) -> None:
    interposed.answer_from(
        columns, uid=1, gid=2, directory_mode=_DIRECTORY_MODE, file_mode=_FILE_MODE, block_bytes=1 << 17,
        timeout_s=1.0, answered=memoryview(bytearray(8)).cast("q"), unread_classes=unread_classes,
    )  # fmt: skip


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


_MD5 = "0123456789abcdef" * 2
# Each ETag, and what is sent of it: "" where the handler has to decide.
_ETAGS = {
    **{etag: etag for etag in (f'"{_MD5}"', f'"{_MD5}-12"', f'"{_MD5}-10000"', f'"{_MD5.upper()}"', 'W/"x"', '"a b"')},
    **dict.fromkeys(("", "unquoted", '"ä"', '"a\x7f"', '"a\r\nhost: x"', f'"{"x" * 300}"'), ""),
}
_etags = st.builds(
    Version,
    size_bytes=st.integers(0, 2**62),
    etag=st.sampled_from([*_ETAGS]),
    storage_class=st.sampled_from(["STANDARD", "GLACIER"]),
)


@given(st.dictionaries(st.builds("/".join, st.lists(st.sampled_from(_NAMES), min_size=1, max_size=4)), _etags))
def test_an_object_is_asked_for_as_the_client_does_or_left_to_it(objects: dict[str, Version]) -> None:
    table = take_over(table_of({}), table_of(objects))[0]
    answer_from(table.columns, unread_classes=unread_classes(table))
    for inode in range(table.next_inode + 2):
        if inode not in table or table.is_directory(inode):
            assert interposed.object_at(inode) is None
            continue
        ref = table.ref(inode)
        if ref.storage_class == "GLACIER" or not _ETAGS[ref.etag]:
            assert interposed.object_at(inode) is None
            continue
        assert interposed.object_at(inode) == (quote(ref.key, safe="/~").encode(), ref.etag.encode(), ref.size_bytes)
        assert condition_line(ref) == f"if-match: {ref.etag}\r\n"


_COLUMNS = ["name_ends", "etags", "kinds", "inodes", "inode_rows", "parents", "storage_classes", "etag_parts"]
_places = st.tuples(*[st.sampled_from([*range(7), 1 << 63, (1 << 64) - 5, (1 << 64) - 1])] * 2)


@given(_objects, st.sampled_from(_COLUMNS), st.binary(min_size=16))
def test_odd_columns_lead_nowhere_outside_them(objects: dict[str, Version], name: str, noise: bytes) -> None:
    table = take_over(table_of({}), table_of(objects))[0]
    column = table.columns[name]
    odd = np.frombuffer((noise * (column.nbytes // len(noise) + 1))[: column.nbytes], column.dtype)
    answer_from({**table.columns, name: odd})
    for inode in (0, 1, 2, 3, len(table), 2**63, 2**64 - 1):
        interposed.attributes(inode)
        interposed.object_at(inode)
        for asked in map(str.encode, _ASKED):
            interposed.found(inode, asked)


@given(_places)
def test_an_etag_that_lies_outside_of_its_column_is_left_to_the_handler(place: tuple[int, int]) -> None:
    columns = take_over(table_of({}), table_of({"a": Version(etag='"odd"')}))[0].columns
    etags = np.array([1, 1, *place], "uint64").view("V16")
    answer_from({**columns, "etags": etags})
    path, etag, size_bytes = interposed.object_at(2) or (b"", b"", 0)
    start, length = place
    is_whole = start + length == 5 and length > 2
    assert (path, etag, size_bytes) == ((b"a", b'"odd"'[start:], 1) if is_whole else (b"", b"", 0))


@pytest.mark.parametrize(
    "name", ["name_ends", "kinds", "sizes", "mtimes_ns", "etags", "inodes", "inode_rows", "parents"]
)
def test_columns_of_different_lengths_are_refused(name: str) -> None:
    columns = take_over(table_of({}), table_of({"a": Version()}))[0].columns
    with pytest.raises(ValueError, match="different lengths"):
        answer_from({**columns, name: columns[name][:-1]})
