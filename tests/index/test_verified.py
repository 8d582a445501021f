"""An index is taken for the folder or the object that it is of (N1), and for nothing else."""

import os

import pytest

from fastfuse.errors import ConfigurationError
from fastfuse.index.inodes.builder import TableBuilder
from fastfuse.index.inodes.names import Refusals
from fastfuse.index.origin import KEY_NAME_PREFIX
from fastfuse.index.snapshot import Snapshot
from fastfuse.index.sources.uri import S3Uri
from fastfuse.index.verified import verify_index
from tests.index.indexes import MD5, index_bytes, memfd


def index(source: str, bucket: str, prefix: str, *names: str, view: str = "") -> Snapshot:
    builder = TableBuilder(bucket, prefix)
    keys = [f"{prefix}{name}".encode() for name in names]
    builder.add(keys, [1] * len(keys), [10**18] * len(keys), [MD5] * len(keys), ["STANDARD"] * len(keys))
    return Snapshot(source=source, listed_at_ns=17, table=builder.build()[0], refusals=Refusals(), view=view)


def verified(snapshot: Snapshot, asked: str, view: str = "") -> None:
    fd = memfd(index_bytes(snapshot))
    try:
        verify_index(fd, S3Uri.parse(asked), {view})
    finally:
        os.close(fd)


@pytest.mark.parametrize(
    ("snapshot", "asked"),
    [
        (index("s3://b/", "b", "", "x", "y/z"), "s3://b"),
        (index("s3://b/a", "b", "a/", "x", "y/z"), "s3://b/a"),
        (index("s3://b/a", "b", "a/", "x"), "s3://b/a/"),
        (index("s3://b/a/", "b", "a/", "x"), "s3://b/a"),
        (index("s3://b/a", "b", "", "a"), "s3://b/a"),
        (index("s3://b/a/x", "b", "a/", "x"), "s3://b/a/x"),
        (index("s3://b/a/x", "b", "a/x/"), "s3://b/a/x"),
        (index("s3://b/a//", "b", "a//", "x"), "s3://b/a//"),
        (index("s3://b/a//", "b", "a/", "x"), "s3://b/a//"),  # an inventory's
        (index("s3://b//", "b", "/", "x"), "s3://b//"),
    ],
)
def test_an_index_of_the_folder_or_the_object_is_one_of_the_source(snapshot: Snapshot, asked: str) -> None:
    verified(snapshot, asked)


@pytest.mark.parametrize(
    ("snapshot", "asked", "message"),
    [
        (index("s3://b/a", "b", "a/", "x"), "s3://b/c", "it is an index of s3://b/a, not of s3://b/c"),
        (index("s3://b/a", "other", "a/", "x"), "s3://b/a", "holds keys of s3://other/a/"),
        (index("s3://b/a", "b", "c/", "x"), "s3://b/a", "holds keys of s3://b/c/"),
        (index("s3://b/a", "b", "", "a", "c"), "s3://b/a", "holds keys of s3://b/"),
        (index("s3://b/a/x", "b", "a/", "y"), "s3://b/a/x", "holds keys of s3://b/a/"),
        (index("s3://b/a", "b", "", "a"), "s3://b/a/", "holds keys of s3://b/"),
        (index("s3://b/", "b", "/", "a"), "s3://b/", "holds keys of s3://b//"),
        (index("s3://b/", "b", "a/", "x"), "s3://b/", "holds keys of s3://b/a/"),
    ],
)
def test_an_index_of_anything_else_is_refused(snapshot: Snapshot, asked: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{message}$"):
        verified(snapshot, asked)


@pytest.mark.parametrize(
    ("prefix", "names"), [("p/", ["a", "a.b", "a-1/x"]), ("p/", ["a/x", "a-1"]), ("p/a/", ["x", "y/z"])]
)
def test_an_index_of_a_key_name_prefix_holds_every_key_that_begins_with_it(prefix: str, names: list[str]) -> None:
    snapshot = index("s3://b/p/a", "b", prefix, *names, view=KEY_NAME_PREFIX)
    verified(snapshot, "s3://b/p/a", KEY_NAME_PREFIX)
    with pytest.raises(ConfigurationError, match="as key name prefix, not as a whole prefix"):
        verified(snapshot, "s3://b/p/a")


@pytest.mark.parametrize(("prefix", "names"), [("p/", ["a", "b"]), ("", ["p/a"]), ("q/", ["a"])])
def test_an_index_with_a_key_that_does_not_begin_with_the_prefix_is_refused(prefix: str, names: list[str]) -> None:
    snapshot = index("s3://b/p/a", "b", prefix, *names, view=KEY_NAME_PREFIX)
    with pytest.raises(ConfigurationError, match="holds keys of"):
        verified(snapshot, "s3://b/p/a", KEY_NAME_PREFIX)
