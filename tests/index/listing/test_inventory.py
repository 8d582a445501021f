"""A listing from an S3 Inventory report is the listing that LIST gives."""

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

import pytest

from bench.s3server import LoopbackServer, MemoryObjects
from fastfuse.errors import ConfigurationError, SourceError
from fastfuse.index.inodes.table import InodeTable
from fastfuse.index.listing.acceptance import Listing
from fastfuse.index.listing.inventory import list_inventory
from fastfuse.index.listing.lister import list_source
from fastfuse.index.sources.uri import S3Uri
from fastfuse.s3.aws import S3Session
from fastfuse.s3.base import ConnectionConfig
from fastfuse.s3.client import S3Client
from tests.index.indexes import columns
from tests.index.sources.reports import Row, csv_file, manifest, parquet_file

MANIFEST = S3Uri("bucket", "inventory/manifest.json")
DATA = "inventory/data/0"
KEYS = [*(f"train/{folder}/{number:03} +%ü" for folder in "abc" for number in range(40)), "train-2/x", "one.bin"]


def held(file_format: str, **changes: object) -> MemoryObjects:
    """Objects, and a report of them in three files that are not in order."""
    objects = MemoryObjects({key: key.encode() for key in KEYS})
    view = objects.view()
    stored = [found for found in map(view.lookup, map(str.encode, KEYS)) if found is not None]
    rows = [Row(e.key.decode(), e.size_bytes, e.modified_s * 1000, e.etag.strip('"')) for e in stored]
    write = csv_file if file_format == "CSV" else parquet_file
    files = {f"inventory/data/{part}": write(rows[part::3]) for part in (2, 0, 1)}
    for key, data in files.items():
        objects.put(key, data)
    objects.put(MANIFEST.path, manifest(files, file_format, **changes))
    return objects


@asynccontextmanager
async def client_of(objects: MemoryObjects) -> AsyncIterator[S3Client]:
    with LoopbackServer({"bucket": objects}) as server:
        session = S3Session(ConnectionConfig(endpoint_url=server.endpoint_url, region="us-east-1"))
        async with aclosing(S3Client(session)) as client:
            yield client


async def tables(objects: MemoryObjects, source: S3Uri) -> tuple[InodeTable, InodeTable]:
    """By inventory, and by LIST."""
    async with client_of(objects) as client:
        return (await list_inventory(client, MANIFEST, source)).table, (await list_source(client, source)).table


async def listed(objects: MemoryObjects, source: S3Uri) -> Listing:
    async with client_of(objects) as client:
        return await list_inventory(client, MANIFEST, source)


@pytest.mark.parametrize("file_format", ["CSV", "Parquet"])
@pytest.mark.parametrize("path", ["train", "train/", "train/b", "one.bin"])
async def test_the_table_is_that_of_a_listing(aws_environment: object, file_format: str, path: str) -> None:
    by_inventory, by_list = await tables(held(file_format), S3Uri("bucket", path))
    assert columns(by_inventory) == columns(by_list)
    assert by_inventory.metadata == by_list.metadata


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sourceBucket": "other"}, "is an inventory of the bucket 'other', not of 'bucket'"),
        ({"files": [{"key": DATA, "size": 1, "MD5checksum": "0" * 32}]}, r"that its manifest names \(size"),
        ({"files": [{"key": KEYS[-1], "size": 7, "MD5checksum": "0" * 32}]}, r"that its manifest names \(MD5\)"),
    ],
)
async def test_a_report_of_something_else_is_refused(
    aws_environment: object, changes: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        await tables(held("CSV", **changes), S3Uri("bucket", "train"))


async def test_a_data_file_that_is_gone_is_said_by_its_name(aws_environment: object) -> None:
    objects = held("CSV")
    objects.delete("inventory/data/1")
    with pytest.raises(SourceError, match="There is no object 's3://bucket/inventory/data/1"):
        await tables(objects, S3Uri("bucket", "train"))


async def test_a_source_that_is_only_the_beginning_of_a_name_says_what_there_is(aws_environment: object) -> None:
    told = r"only the beginning of a name; there is s3://bucket/train-2/, s3://b.*/train/"
    with pytest.raises(SourceError, match=told):
        await listed(held("CSV"), S3Uri("bucket", "tra"))
