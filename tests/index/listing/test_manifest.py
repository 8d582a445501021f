"""What a manifest names is listed under its paths and in its order, whole or in parts, and what is missing is told."""

import json
from collections.abc import Mapping, Sequence
from contextlib import aclosing

import pytest
import trio

from bench.s3server import LoopbackServer, MemoryObjects, ServerConfig
from fastfuse.errors import (
    ConfigurationError,
    EmptySourceError,
    MissingObjectError,
    SourceError,
)
from fastfuse.index.inodes.table import ROOT, InodeTable
from fastfuse.index.listing.acceptance import Listing, ListingProgress
from fastfuse.index.listing.named import MAX_MANIFEST_BYTES, list_augmented_manifest, list_manifest
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


def manifest(*keys: str, sizes: Sequence[int] = (), prefix: str = "s3://data/set/") -> Objects:
    text = json.dumps([{"prefix": prefix}, *keys], indent=0)
    sizes = sizes or [len(key) for key in keys]
    found = {f"{prefix}{key}": bytes(size) for key, size in zip(keys, sizes, strict=True)}
    return Objects({str(SOURCE): text.encode(), **found})


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
