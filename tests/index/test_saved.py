"""A saved index is read back for the source that it is of, and for no other."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from fastfuse.errors import ConfigurationError
from fastfuse.index.saved import load_index, store_index
from fastfuse.index.sources.uri import S3Uri
from fastfuse.s3.base import ConnectionConfig
from tests.index.indexes import index_bytes, index_of, memfd


@pytest.fixture
def fd() -> Iterator[int]:
    fd = memfd()
    yield fd
    os.close(fd)


def stored(path: Path, source: str) -> Path:
    fd = memfd(index_bytes(index_of({"a": 1}, source=source)))
    store_index(path, ConnectionConfig(), fd)
    os.close(fd)
    return path


@pytest.mark.parametrize("source", ["s3://bucket/", "s3://bucket/a"])
def test_an_index_of_a_bucket_or_of_one_object_is_read_back(tmp_path: Path, fd: int, source: str) -> None:
    path = stored(tmp_path / "x.index", source)
    snapshot = load_index(path, ConnectionConfig(), S3Uri.parse(source), fd)
    assert (snapshot.source, snapshot.table.key(2)) == (source, "a")


def test_an_index_that_holds_keys_of_another_bucket_is_refused(tmp_path: Path, fd: int) -> None:
    path = stored(tmp_path / "x.index", "s3://other/")
    with pytest.raises(
        ConfigurationError, match=r"x\.index: it says .* of s3://other/ and holds keys of s3://bucket/$"
    ):
        load_index(path, ConnectionConfig(), S3Uri("other", ""), fd)
