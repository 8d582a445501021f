"""A listing from an S3 Inventory report is the listing that LIST gives."""

import pytest

from fastfuse.errors import ConfigurationError, SourceError
from fastfuse.inodes.table import InodeTable
from fastfuse.listing.inventory import list_inventory
from fastfuse.listing.lister import list_source
from fastfuse.sources.uri import S3Uri
from fastfuse.store.base import ConnectionConfig
from fastfuse.store.boto import BotoPageSource
from fastfuse.store.session import S3Session
from fastfuse.store.whole import WholeObjects
from fastfuse.testing import LoopbackServer, MemoryObjects
from tests.sources.reports import Row, csv_file, manifest, parquet_file

MANIFEST = S3Uri("bucket", "inventory/manifest.json")
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


def columns(table: InodeTable) -> dict[str, bytes]:
    table.check_invariants()
    return {name: column.tobytes() for name, column in table.columns.items()}


async def tables(objects: MemoryObjects, source: S3Uri) -> tuple[InodeTable, InodeTable]:
    """By inventory, and by LIST."""
    with LoopbackServer({"bucket": objects}) as server:
        session = S3Session(ConnectionConfig(endpoint_url=server.endpoint_url, region="us-east-1"))
        whole, pages = WholeObjects(session), BotoPageSource(session, "bucket")
        try:
            by_inventory = await list_inventory(whole, MANIFEST, source)
            by_list = await list_source(pages, source)
        finally:
            await whole.aclose()
            await pages.aclose()
    return by_inventory.table, by_list.table


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
        ({"files": [{"key": "inventory/data/0", "MD5checksum": "0" * 32}]}, "is not the one that its manifest names"),
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
