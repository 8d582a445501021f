"""A list of keys, line by line, and the listing of what it names: attributes as LIST has them, missing keys named."""

from pathlib import Path

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from fastfuse.errors import (
    AccessError,
    ConfigurationError,
    ForbiddenObjectError,
    MissingObjectError,
    ServiceError,
    SourceError,
)
from fastfuse.index.inodes.table import ROOT, InodeTable
from fastfuse.index.listing.acceptance import Listing, ListingProgress, ProgressCallback
from fastfuse.index.listing.named import list_keys, parse_keys, read_keys
from fastfuse.index.sources.manifests import Reference
from fastfuse.index.sources.uri import S3Uri
from fastfuse.objects import ObjectRef
from tests.tables import check_table

SOURCE = S3Uri("bucket", "train")


class Heads:
    """Answers for every key but those that are missing or denied; counts how many are asked for at once."""

    max_connections = 7

    def __init__(self, *, missing: set[str] = frozenset(), denied: set[str] = frozenset()) -> None:  # type: ignore[assignment]
        self.missing = missing
        self.denied = denied
        self.error: Exception | None = None
        self.at_once = self.most_at_once = 0

    async def head(self, bucket: str, key: str) -> ObjectRef:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await trio.sleep(len(key) % 3)
        self.at_once -= 1
        if self.error is not None:
            raise self.error
        if key in self.missing:
            raise MissingObjectError(key)
        if key in self.denied:
            raise ForbiddenObjectError(key)
        return ObjectRef(bucket, key, len(key), f'"{key}"', 10**18, "STANDARD")

    async def get(self, ref: ObjectRef, start: int, end: int) -> bytes:
        raise AssertionError("nothing is read")

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


def written(tmp_path: Path, keys: list[str]) -> Path:
    path = tmp_path / "keys.txt"
    path.write_text("".join(f"{key}\n" for key in keys))
    return path


def names(table: InodeTable) -> list[bytes]:
    check_table(table)
    return [name for name, _ in table.children(ROOT)]


async def list_file(heads: Heads, path: Path, source: S3Uri, progress: ProgressCallback = lambda _: None) -> Listing:
    return await list_keys(heads, read_keys(path, source), source, name=str(path), progress=progress)


async def test_every_key_is_asked_for_once_and_many_at_a_time(tmp_path: Path, autojump_clock: object) -> None:
    keys = [f"train/{'x' * (number % 5)}{number}" for number in range(50)]
    heads, seen = Heads(), list[ListingProgress]()
    listing = await list_file(heads, written(tmp_path, [*reversed(keys), *keys]), SOURCE, progress=seen.append)
    assert listing.request_count == 50
    assert heads.most_at_once == 7
    assert names(listing.table) == sorted(key.removeprefix("train/").encode() for key in keys)
    for key in keys:
        inode = listing.table.lookup(ROOT, key.removeprefix("train/").encode())
        assert inode is not None
        assert listing.table.ref(inode) == ObjectRef("bucket", key, len(key), f'"{key}"', 10**18, "STANDARD")
    assert (seen[-1].objects, seen[-1].share) == (50, 1)


@pytest.mark.parametrize("keys", [["a/train"], []])
async def test_the_list_may_be_the_one_object_of_a_source_or_empty(
    tmp_path: Path, autojump_clock: object, keys: list[str]
) -> None:
    listing = await list_file(Heads(), written(tmp_path, keys), S3Uri("bucket", "a/train"))
    assert names(listing.table) == [key.removeprefix("a/").encode() for key in keys]


@pytest.mark.parametrize(("kind", "error"), [("missing", SourceError), ("denied", AccessError)])
async def test_keys_that_are_not_to_be_had_are_named_with_their_lines(
    tmp_path: Path, autojump_clock: object, kind: str, error: type[Exception]
) -> None:
    keys = [f"train/{number:02}" for number in range(30)]
    told = r"15 of the 30 keys in .*keys.txt .*\(keys.txt:1: 's3://bucket/train/00'; .*; and 5 more\)"
    with pytest.raises(error, match=told):
        await list_file(Heads(**{kind: set(keys[::2])}), written(tmp_path, keys), SOURCE)


@pytest.mark.parametrize("error", [ServiceError("no"), SourceError("no such bucket"), AccessError("bad credentials")])
async def test_what_is_wrong_with_every_key_ends_it(tmp_path: Path, autojump_clock: object, error: Exception) -> None:
    heads = Heads()
    heads.error = error
    with pytest.raises(type(error), match=f"^{error}"):
        await list_file(heads, written(tmp_path, ["train/a", "train/b"]), SOURCE)


async def test_a_list_that_cannot_be_read_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read: No such file or directory"):
        await list_file(Heads(), tmp_path / "absent", SOURCE)


_names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n\r"), min_size=1, max_size=8)


def parse(text: bytes, source: S3Uri = SOURCE) -> list[Reference]:
    return parse_keys(text.splitlines(keepends=True), source, "keys.txt")


@given(st.lists(_names, max_size=20), st.booleans(), st.sampled_from(["\n", "\r\n"]), st.booleans())
def test_every_key_comes_back_once_in_order_with_its_first_line(
    names: list[str], as_uris: bool, end: str, is_ended: bool
) -> None:
    keys = [f"train/{name}" for name in names]
    lines = [(f"s3://bucket/{key}" if as_uris else key) + end for key in keys]
    if lines and not is_ended:
        lines[-1] = lines[-1].removesuffix(end)
    found = parse_keys([line.encode() for line in lines], SOURCE, "keys.txt")
    assert [listed.key for listed in found] == sorted(set(keys))
    assert all(keys.index(listed.key) == listed.line - 1 for listed in found)


def test_empty_lines_are_skipped_and_nothing_else_is_special() -> None:
    found = parse(b"\n# not a comment\n\n train\n", S3Uri("bucket", ""))
    assert [listed.key for listed in found] == [" train", "# not a comment"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"train/a\ntest/b\n", r"keys.txt:2: 'test/b' is no key in s3://bucket/train"),
        (b"train-2/a\n", r"keys.txt:1: 'train-2/a' is no key in"),
        (b"train/a\ns3://bucket/\n", r"keys.txt:2: 's3://bucket/' is no key in"),
        (b"train/a\ntrain/\xff\n", r"keys.txt:2: the key is not UTF-8"),
        (b"s3://other/train/a\n", r"keys.txt:1: 's3://other/train/a' is no key in"),
        (b"train/" + b"x" * 1019, r"keys.txt:1: 'train/x{113}\.\.\. is no key in"),
        (("train/" + "ä" * 510).encode(), r"keys.txt:1: 'train/ä{113}\.\.\. is no key in"),
        (b"train/a\ntrain\n", r"keys.txt:2: 'train' is an object beside the folder of the same name"),
    ],
)
def test_a_line_that_is_no_key_of_the_source_is_named(text: bytes, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        parse(text)


def test_a_carriage_return_is_part_of_a_key_where_lines_do_not_end_in_one() -> None:
    assert [listed.key for listed in parse_keys([b"train/a\n", b"train/b\r\n"], SOURCE, "")] == ["train/a", "train/b\r"]
