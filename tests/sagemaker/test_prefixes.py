"""``S3Prefix`` in every mode, against a model of the API's words, for any keys."""

import logging

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from fastfuse.errors import SourceError
from fastfuse.index.inodes.selection import take_part
from fastfuse.index.inodes.table import ROOT, InodeTable
from fastfuse.index.listing.lister import list_source
from fastfuse.index.origin import SourceKind
from fastfuse.index.sources.shard import Shard
from fastfuse.index.sources.uri import S3Uri
from fastfuse.sagemaker.description.channel import Channel, InputMode
from fastfuse.sagemaker.pipe.content import epoch_order, source_order
from tests.sagemaker.prefixes import in_fast_file_mode, matching, paths_of_key_names
from tests.store import MemoryStore
from tests.tables import check_table

# Few letters, so that keys begin with each other; '-' and '.' sort before '/', and '0' after it.
_NAMES = st.text("a-./0", min_size=1, max_size=6)
_SOURCES = st.dictionaries(_NAMES, st.integers(0, 1), max_size=8).flatmap(
    lambda objects: st.tuples(st.just(objects), st.text("a-./0", max_size=4) | _beginnings([*objects]))
)


def _beginnings(keys: list[str]) -> st.SearchStrategy[str]:
    return st.sampled_from(sorted({key[:end] for key in keys for end in range(len(key) + 1)}) or [""])


def listed(objects: dict[str, int], prefix: str, *, is_key_name_prefix: bool) -> InodeTable:
    store = MemoryStore({key: bytes(size) for key, size in objects.items()}, bucket="bucket")

    async def run() -> InodeTable:
        source = S3Uri("bucket", prefix)
        return (await list_source(store, source, is_key_name_prefix=is_key_name_prefix, allow_empty=True)).table

    table = trio.run(run)
    check_table(table)
    return table


def files(table: InodeTable) -> dict[str, str]:
    start = len(table.metadata.key_prefix)
    keys = [table.key(inode) for inode in range(ROOT, len(table) + 1) if not table.is_directory(inode)]
    return {key[start:]: key for key in keys}


@given(_SOURCES)
def test_file_and_pipe_mode_deliver_every_key_that_begins_with_the_prefix(source: tuple[dict[str, int], str]) -> None:
    objects, prefix = source
    table = listed(objects, prefix, is_key_name_prefix=True)
    expected = paths_of_key_names(objects, prefix)
    assert files(table) == expected
    in_order = matching(expected.values(), prefix)
    stream = source_order(table)
    assert [table.key(int(inode)) for inode in stream] == in_order
    assert sorted(epoch_order(stream, 7, 1).tolist()) == sorted(stream.tolist())
    shares = [take_part(table, Shard(index=at, count=3).positions) for at in range(3)]
    assert [files(share) for share in shares] == [
        {path: key for path, key in expected.items() if key in in_order[at::3]} for at in range(3)
    ]


@given(_SOURCES)
def test_fast_file_mode_takes_a_folder_or_an_object_and_says_others_differ(source: tuple[dict[str, int], str]) -> None:
    objects, prefix = source
    expected = in_fast_file_mode(objects, prefix)
    warnings: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: warnings.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("fastfuse.index.listing.lister")
    logger.addHandler(handler)
    try:
        if expected is None:
            with pytest.raises(SourceError, match="is only the beginning of a name") as raised:
                listed(objects, prefix, is_key_name_prefix=False)
            assert "File and Pipe channels take every key" in raised.value.hint
            return
        table = listed(objects, prefix, is_key_name_prefix=False)
    finally:
        logger.removeHandler(handler)
    assert set(files(table).values()) <= set(expected)
    is_different = expected != matching(objects, prefix)
    assert len(warnings) == is_different
    assert all("File and Pipe mode take every key that begins with it, also" in warning for warning in warnings)
    if not is_different:
        assert files(table) == files(listed(objects, prefix, is_key_name_prefix=True))


@pytest.mark.parametrize(
    ("mode", "kind", "path", "expected"),
    [
        (InputMode.FILE, SourceKind.PREFIX, "train", True),
        (InputMode.FILE, SourceKind.PREFIX, "train/", False),
        (InputMode.PIPE, SourceKind.PREFIX, "", False),
        (InputMode.FILE, SourceKind.MANIFEST, "train.json", False),
    ],
)
def test_a_kept_listing_of_a_folder_or_a_manifest_serves_every_mode(
    mode: InputMode, kind: SourceKind, path: str, expected: bool
) -> None:
    channel = Channel(name="train", input_mode=mode, source=S3Uri("b", path), source_kind=kind)
    assert channel.is_key_name_prefix is expected
