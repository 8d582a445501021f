"""What a manifest or a list of keys names is listed under its paths, whole or in parts, and what is missing is told."""

import json
from collections.abc import Mapping
from contextlib import aclosing
from pathlib import Path

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from bench.s3server import LoopbackServer, MemoryObjects, ServerConfig
from fastfuse.errors import (
    AccessError,
    ConfigurationError,
    EmptySourceError,
    ForbiddenObjectError,
    MissingObjectError,
    ServiceError,
    SourceError,
)
from fastfuse.index.inodes.table import ROOT, InodeTable
from fastfuse.index.listing.acceptance import Listing, ListingProgress, ProgressCallback
from fastfuse.index.listing.named import (
    MAX_MANIFEST_BYTES,
    list_augmented_manifest,
    list_keys,
    list_manifest,
    parse_keys,
    read_keys,
)
from fastfuse.index.sources.manifests import Reference
from fastfuse.index.sources.shard import Shard
from fastfuse.index.sources.uri import S3Uri
from fastfuse.objects import ObjectRef
from fastfuse.s3.aws import S3Session
from fastfuse.s3.base import ConnectionConfig
from fastfuse.s3.client import S3Client
from tests.tables import check_table, files_of

SOURCE = S3Uri("lists", "folder/train.manifest")


class Objects:
    """Objects of several buckets in memory, by their URIs."""

    max_connections = 7

    def __init__(self, objects: Mapping[str, bytes]) -> None:
        self.objects = dict(objects)
        self.heads: list[str] = []

    async def head(self, bucket: str, key: str) -> ObjectRef:
        uri = f"s3://{bucket}/{key}"
        self.heads.append(uri)
        await trio.lowlevel.checkpoint()
        if uri not in self.objects:
            raise MissingObjectError(uri)
        return ObjectRef(bucket, key, len(self.objects[uri]), f'"{uri}"', 10**18, "STANDARD")

    async def get(self, ref: ObjectRef, start: int, end: int) -> bytes:
        await trio.lowlevel.checkpoint()
        return self.objects[f"s3://{ref.bucket}/{ref.key}"][start:end]

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


def manifest(*keys: str) -> Objects:
    text = json.dumps([{"prefix": "s3://data/set/"}, *keys], indent=0)
    return Objects({str(SOURCE): text.encode(), **{f"s3://data/set/{key}": bytes(len(key)) for key in keys}})


def augmented(*lines: Mapping[str, object]) -> Objects:
    uris = [value for line in lines for name, value in line.items() if name.endswith("-ref")]
    text = "\n".join(map(json.dumps, lines))
    return Objects({str(SOURCE): text.encode(), **{str(uri): str(uri).encode() for uri in uris}})


def paths(table: InodeTable) -> dict[str, str]:
    """The URI of each file by its path, "" for a made one."""
    check_table(table)
    refs = {path: table.ref(inode) for path, inode in files_of(table).items()}
    return {path: f"s3://{ref.bucket}/{ref.key}" if ref.bucket else "" for path, ref in refs.items()}


def order(table: InodeTable) -> list[str]:
    rows = table.source_order()
    assert rows is not None
    return [table.key(table.inode(row)) for row in rows.tolist()]


def lines(listing: Listing) -> list[str]:
    inode = listing.table.lookup(ROOT, b"train.manifest")
    assert inode is not None
    return bytes(listing.table.made(inode)).decode().splitlines()


async def test_the_objects_of_a_manifest_have_their_whole_keys_as_paths_and_the_manifests_order() -> None:
    objects, seen = manifest("z", "a/b", "c", "a/b", "z"), list[ListingProgress]()
    listing = await list_manifest(objects, SOURCE, progress=seen.append)
    assert paths(listing.table) == {f"set/{key}": f"s3://data/set/{key}" for key in ("z", "a/b", "c")}
    assert order(listing.table) == ["set/z", "set/a/b", "set/c", "set/a/b", "set/z"]
    assert sorted(objects.heads) == sorted({*objects.objects})
    assert (listing.request_count, seen[-1].objects, seen[-1].share) == (5, 3, 1)
    assert listing.table.buckets() == ["data"]


@pytest.mark.parametrize("by_bytes", [False, True])
async def test_the_parts_of_a_manifest_are_its_objects(by_bytes: bool) -> None:
    keys = ["é", "z", "a/b", "a-b", "a0", "z", "é", "b"]
    parts = [
        await list_manifest(manifest(*keys), SOURCE, shard=Shard(index=at, count=3, by_bytes=by_bytes))
        for at in range(3)
    ]
    named = [order(part.table) for part in parts]
    shown = [set(paths(part.table).values()) for part in parts]
    every = sorted({f"s3://data/set/{key}" for key in keys}, key=str.encode)
    assert sorted((uri for part in shown for uri in part), key=str.encode) == every
    if not by_bytes:
        assert shown == [set(every[at::3]) for at in range(3)]
    for part, inside in zip(named, shown, strict=True):
        assert part == [f"set/{key}" for key in keys if f"s3://data/set/{key}" in inside]


async def test_a_part_by_count_asks_for_its_own_objects_only() -> None:
    objects = manifest(*map(str, range(9)))
    await list_manifest(objects, SOURCE, shard=Shard(index=1, count=3))
    assert sorted(objects.heads) == [f"s3://data/set/{at}" for at in (1, 4, 7)] + [str(SOURCE)]


async def test_a_part_may_be_empty_and_a_manifest_may_not() -> None:
    listing = await list_manifest(manifest("a"), SOURCE, shard=Shard(index=4, count=5))
    assert (paths(listing.table), order(listing.table)) == ({}, [])
    with pytest.raises(EmptySourceError, match=rf"the manifest {SOURCE} names no object"):
        await list_manifest(manifest(), SOURCE, shard=Shard(index=0, count=5))
    assert paths((await list_manifest(manifest(), SOURCE, allow_empty=True)).table) == {}


async def test_an_augmented_manifest_is_a_file_beside_what_it_refers_to() -> None:
    objects = augmented(
        {"source-ref": "s3://data/z", "label": 1, "more": [1, {"a": 2}]},
        {"source-ref": "s3://data/a/b", "label": 2, "more": None},
        {"source-ref": "s3://data/z", "label": 3, "more": None},
    )
    listing = await list_augmented_manifest(objects, SOURCE, attribute_names=["label", "source-ref"])
    assert paths(listing.table) == {"z": "s3://data/z", "a/b": "s3://data/a/b", "train.manifest": ""}
    assert order(listing.table) == ["z", "a/b", "z"]
    assert lines(listing) == [
        '{"label":1,"source-ref":"s3://data/z"}',
        '{"label":2,"source-ref":"s3://data/a/b"}',
        '{"label":3,"source-ref":"s3://data/z"}',
    ]
    assert listing.table.metadata.bucket == "data"
    every = await list_augmented_manifest(objects, SOURCE)
    assert lines(every)[0] == '{"source-ref":"s3://data/z","label":1,"more":[1,{"a":2}]}'


async def test_paths_begin_with_the_bucket_where_there_are_several_in_whichever_part() -> None:
    objects = augmented({"a-ref": "s3://one/l"}, {"a-ref": "s3://one/k", "b-ref": "s3://two/d/k"}, {"c": 1})
    whole = await list_augmented_manifest(objects, SOURCE)
    assert paths(whole.table) == {path: f"s3://{path}" for path in ("one/k", "one/l", "two/d/k")} | {
        "train.manifest": ""
    }
    assert whole.table.buckets() == ["one", "two"]
    inside = whole.table.lookup(ROOT, b"two")
    assert inside is not None
    assert (whole.table.bucket_and_key(inside), whole.table.bucket_and_key(ROOT)) == (("two", ""), ("", ""))
    parts = [
        await list_augmented_manifest(objects, SOURCE, shard=Shard(index=at, count=4, by_bytes=by_bytes))
        for by_bytes in (False, True)
        for at in range(4)
    ]
    assert [sorted(paths(part.table)) for part in parts[:4]] == [
        ["one/l", "train.manifest"],
        ["one/k", "train.manifest", "two/d/k"],
        ["train.manifest"],
        ["train.manifest"],
    ]
    for four in (parts[:4], parts[4:]):
        assert sorted(line for part in four for line in lines(part)) == sorted(lines(whole))


async def test_the_arn_of_an_access_point_is_one_part_of_a_path() -> None:
    points = "arn:aws:s3:us-east-1:123456789012:accesspoint"
    objects = augmented({"a-ref": f"s3://{points}/one/x/k", "b-ref": "s3://two/k"})
    listing = await list_augmented_manifest(objects, SOURCE)
    assert listing.table.buckets() == [f"{points}:one", "two"]
    assert paths(listing.table)[f"{points}:one/x/k"] == f"s3://{points}:one/x/k"


async def test_a_manifest_of_labels_alone_is_a_file_alone() -> None:
    listing = await list_augmented_manifest(augmented({"label": 1}, {"label": 2}), SOURCE)
    assert (paths(listing.table), order(listing.table)) == ({"train.manifest": ""}, [])
    with pytest.raises(EmptySourceError, match="has no lines"):
        await list_augmented_manifest(augmented(), SOURCE)


@pytest.mark.parametrize("uri", ["s3://data/train.manifest", "s3://data/train.manifest/below"])
async def test_an_object_in_the_place_of_the_manifest_itself_is_refused(uri: str) -> None:
    objects = augmented({"label": 1, "a-ref": "s3://data/other"}, {"a-ref": uri})
    told = r"^s3://lists/folder/train.manifest:2:11: the path of s3://data/train"
    with pytest.raises(ConfigurationError, match=told):
        await list_augmented_manifest(objects, SOURCE)


@pytest.mark.parametrize("uri", ["s3://lists", "s3://lists/folder/"])
async def test_a_folder_is_no_manifest(uri: str) -> None:
    with pytest.raises(ConfigurationError, match="names no manifest"):
        await list_manifest(Objects({}), S3Uri.parse(uri))


async def test_a_manifest_that_is_not_there_or_too_large_is_one_sentence() -> None:
    with pytest.raises(MissingObjectError):
        await list_manifest(Objects({}), SOURCE)

    class Large(Objects):
        async def head(self, bucket: str, key: str) -> ObjectRef:
            await trio.lowlevel.checkpoint()
            return ObjectRef(bucket, key, MAX_MANIFEST_BYTES + 1, '""')

    with pytest.raises(SourceError, match="has 1,073,741,825 bytes, more than the 1,073,741,824"):
        await list_manifest(Large({}), SOURCE)


async def test_buckets_of_two_regions_are_listed_and_read_unless_a_region_is_given(aws_environment: object) -> None:
    stored = {
        "lists": MemoryObjects({"m": b'{"a-ref": "s3://one/k", "b-ref": "s3://two/k"}'}),
        "one": MemoryObjects({"k": b"first"}),
        "two": MemoryObjects({"k": b"second"}),
    }
    config = ServerConfig(regions={"lists": "us-east-1", "one": "eu-west-1", "two": "ap-south-1"})
    with LoopbackServer(stored, config) as server:
        # The service corrects a region that is named wrongly.
        for region in (None, "us-east-1"):
            connection = ConnectionConfig(endpoint_url=server.endpoint_url, force_path_style=True, region=region)
            async with aclosing(S3Client(S3Session(connection))) as objects:
                listing = await list_augmented_manifest(objects, S3Uri("lists", "m"))
                rows = listing.table.source_order()
                assert rows is not None
                refs = [listing.table.ref(listing.table.inode(row)) for row in rows.tolist()]
                assert [bytes(await objects.get(ref, 0, ref.size_bytes)) for ref in refs] == [b"first", b"second"]


FOLDER = S3Uri("bucket", "train")


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
    listing = await list_file(heads, written(tmp_path, [*reversed(keys), *keys]), FOLDER, progress=seen.append)
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
        await list_file(Heads(**{kind: set(keys[::2])}), written(tmp_path, keys), FOLDER)


@pytest.mark.parametrize("error", [ServiceError("no"), SourceError("no such bucket"), AccessError("bad credentials")])
async def test_what_is_wrong_with_every_key_ends_it(tmp_path: Path, autojump_clock: object, error: Exception) -> None:
    heads = Heads()
    heads.error = error
    with pytest.raises(type(error), match=f"^{error}"):
        await list_file(heads, written(tmp_path, ["train/a", "train/b"]), FOLDER)


async def test_a_list_that_cannot_be_read_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read: No such file or directory"):
        await list_file(Heads(), tmp_path / "absent", FOLDER)


_names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n\r"), min_size=1, max_size=8)


def parse(text: bytes, source: S3Uri = FOLDER) -> list[Reference]:
    return parse_keys(text.splitlines(keepends=True), source, "keys.txt")


@given(st.lists(_names, max_size=20), st.booleans(), st.sampled_from(["\n", "\r\n"]), st.booleans())
def test_every_key_comes_back_once_in_order_with_its_first_line(
    names: list[str], as_uris: bool, end: str, is_ended: bool
) -> None:
    keys = [f"train/{name}" for name in names]
    lines = [(f"s3://bucket/{key}" if as_uris else key) + end for key in keys]
    if lines and not is_ended:
        lines[-1] = lines[-1].removesuffix(end)
    found = parse_keys([line.encode() for line in lines], FOLDER, "keys.txt")
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
    assert [listed.key for listed in parse_keys([b"train/a\n", b"train/b\r\n"], FOLDER, "")] == ["train/a", "train/b\r"]
