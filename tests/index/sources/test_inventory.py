"""S3 Inventory: what is in a report comes out, as LIST gives it; one that is none, or damaged, is one sentence."""

import builtins
import gzip
import io
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from bench.s3server import LoopbackServer, MemoryObjects
from fastfuse.errors import ConfigurationError, SourceError
from fastfuse.index.inodes.table import InodeTable
from fastfuse.index.listing.inventory import list_inventory
from fastfuse.index.listing.lister import list_source
from fastfuse.index.sources.inventory_report import Manifest, parse_manifest, read_rows
from fastfuse.index.sources.uri import S3Uri
from fastfuse.s3.aws import S3Session
from fastfuse.s3.base import ConnectionConfig
from fastfuse.s3.client import S3Client
from tests.index.indexes import columns
from tests.index.sources.reports import COLUMNS, Row, csv_file, manifest, parquet_file

_rows = st.lists(
    st.builds(
        Row,
        key=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=10),
        size_bytes=st.integers(0, 1 << 45),
        modified_ms=st.integers(0, 4 * 10**12),
        etag=st.sampled_from(["0123456789abcdef" * 2, "0123456789abcdef" * 2 + "-17"]),
        storage_class=st.sampled_from(["STANDARD", "GLACIER"]),
        is_latest=st.booleans(),
        is_delete_marker=st.booleans(),
    ),
    max_size=20,
)
Objects = list[tuple[bytes, int, int, str, str]]


def expected(rows: list[Row]) -> Objects:
    return [
        (row.key.encode(), row.size_bytes, row.modified_ms * 10**6, f'"{row.etag}"', row.storage_class)
        for row in rows
        if row.is_latest and not row.is_delete_marker
    ]


def read(found: Manifest, data: bytes) -> Objects:
    objects: Objects = []
    for rows in read_rows(found, io.BytesIO(data), "data"):
        objects += zip(rows.keys, rows.sizes, rows.mtimes_ns, rows.etags, rows.storage_classes, strict=True)
    return objects


FORMATS = pytest.mark.parametrize(("file_format", "write"), [("CSV", csv_file), ("Parquet", parquet_file)])
Write = Callable[[list[Row]], bytes]


@FORMATS
@given(rows=_rows)
def test_the_current_objects_of_a_report_come_out(file_format: str, write: Write, rows: list[Row]) -> None:
    assert read(parse_manifest(manifest({}, file_format), "m"), write(rows)) == expected(rows)


@FORMATS
def test_many_rows_come_in_batches(file_format: str, write: Write) -> None:
    rows = [Row(f"{number:06}") for number in range(25_000)]
    found = parse_manifest(manifest({}, file_format), "m")
    batches = [batch.keys for batch in read_rows(found, io.BytesIO(write(rows)), "data")]
    assert max(map(len, batches)) <= 10_000
    assert [key for batch in batches for key in batch] == [row.key.encode() for row in rows]


@FORMATS
def test_a_prefix_leaves_the_others_out(file_format: str, write: Write) -> None:
    data = write([Row("a"), Row("b/1 +ü"), Row("ba"), Row("c")])
    found = parse_manifest(manifest({}, file_format), "m")
    keys = [key for batch in read_rows(found, io.BytesIO(data), "data", b"b") for key in batch.keys]
    assert keys == ["b/1 +ü".encode(), b"ba"]


def test_all_versions_take_the_flags_that_tell_the_latest() -> None:
    with pytest.raises(ConfigurationError, match="is of all versions and does not tell which one is the latest"):
        parse_manifest(manifest({}, fileSchema="Key, VersionId, Size, LastModifiedDate, ETag"), "m")


def test_without_versions_and_classes_everything_is_current_and_standard() -> None:
    columns = ("Bucket", "Key", "Size", "LastModifiedDate", "ETag")
    found = parse_manifest(manifest({}, fileSchema=", ".join(columns), sourceBucket="arn:aws:s3:::bucket"), "m")
    assert found.source_bucket == "bucket"
    assert read(found, csv_file([Row("a")], columns)) == expected([Row("a")])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "s3://b/m is not the manifest of an S3 Inventory"),
        (b"[]", "is not the manifest"),
        (b"{}", r"is not the manifest of an S3 Inventory \(no 'sourceBucket'\)"),
        (manifest({}, files=[{}]), "no 'key'"),
        (manifest({}, files=[{"key": 1, "MD5checksum": "x"}]), "key is no text"),
        (manifest({}, files=[{"key": "k", "MD5checksum": "x", "size": "1"}]), "size is no number of bytes"),
        (manifest({}, files=[{"key": "\ud800", "MD5checksum": "x", "size": 1}]), "is not the manifest"),
        (manifest({}, files=3), "is not the manifest"),
        (manifest({}, sourceBucket=None), "sourceBucket is no text"),
        (manifest({}, "ORC"), "the inventory s3://b/m is in 'ORC', which is not read"),
        (manifest({}, fileSchema="Bucket, Key"), "has no field Size and no field Last modified and no field ETag"),
    ],
)
def test_what_is_no_manifest_or_of_no_use_is_one_sentence(text: bytes, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        parse_manifest(text, "s3://b/m")


def packed(data: bytes) -> bytes:
    """The same in every process that runs tests: without the time."""
    return gzip.compress(data, mtime=0)


def line(**changes: str) -> bytes:
    fields = {
        "Bucket": "bucket", "Key": "k", "VersionId": "", "IsLatest": "true", "IsDeleteMarker": "false", "Size": "1",
        "LastModifiedDate": "2024-01-01T00:00:00.000Z", "ETag": "e", "StorageClass": "STANDARD", **changes,
    }  # fmt: skip
    return packed((",".join(f'"{fields[column]}"' for column in COLUMNS) + "\n").encode())


@pytest.mark.parametrize(
    "data",
    [
        b"not gzip",
        csv_file([Row("a")])[:-9],
        *map(packed, (b'"a","b"\n', b'"' + b"x" * 100_000 + b'"\n', b'"\xff"\n', b"x" * 300_000)),
        *(line(Size=size) for size in ("-1", "", "x", "9" * 30, "9" * 5000, "1_0")),
        *(line(Key=key) for key in ("", "a\nb")),
        line(IsLatest="perhaps"),
        *(line(LastModifiedDate=date) for date in ("", "yesterday", "99999-01-01T00:00:00Z")),
    ],
    ids=str,
)
def test_a_damaged_csv_file_is_one_sentence(data: bytes) -> None:
    found = parse_manifest(manifest({}), "m")
    assert len(read(found, line())) == 1
    with pytest.raises(ConfigurationError, match="the inventory file data is damaged") as caught:
        read(found, data)
    assert "\n" not in str(caught.value)


def with_column(name: str, values: list[object]) -> bytes:
    table = parquet.read_table(io.BytesIO(parquet_file([Row("a")])))
    out = io.BytesIO()
    parquet.write_table(table.set_column(table.column_names.index(name), name, pyarrow.array(values)), out)
    return out.getvalue()


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"PAR1", parquet_file([Row("a")])[:-20], b"x" * 1000),
        *(with_column(name, [None]) for name in ("key", "size", "last_modified_date")),
        with_column("last_modified_date", [1]),
    ],
    ids=["empty", "head", "cut", "odd", "no key", "no size", "no time", "a number for a time"],
)
def test_a_damaged_parquet_file_is_one_sentence(data: bytes) -> None:
    with pytest.raises(ConfigurationError, match="the inventory file data is damaged"):
        read(parse_manifest(manifest({}, "Parquet"), "m"), data)


def test_parquet_without_its_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    found, data = parse_manifest(manifest({}, "Parquet"), "m"), parquet_file([Row("a")])
    real = builtins.__import__

    def refuse(name: str, *arguments: Any, **keywords: Any) -> Any:  # noqa: ANN401 - as the function it stands in for
        if name.startswith("pyarrow"):
            raise ImportError(name)
        return real(name, *arguments, **keywords)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(ConfigurationError, match="takes pyarrow, which is not installed") as caught:
        read(found, data)
    command = f"{sys.executable} -m pip install pyarrow"
    assert caught.value.hint == f"{command}, and mount again if this mount was there before"


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


async def test_a_source_of_which_a_report_has_nothing_is_an_empty_table(aws_environment: object) -> None:
    async with client_of(held("CSV")) as client:
        assert (await list_inventory(client, MANIFEST, S3Uri("bucket", "none"))).table.metadata.file_count == 0


async def test_a_source_that_is_only_the_beginning_of_a_name_says_what_there_is(aws_environment: object) -> None:
    told = r"only the beginning of a name; there is s3://bucket/train-2/, s3://b.*/train/"
    with pytest.raises(SourceError, match=told):
        await tables(held("CSV"), S3Uri("bucket", "tra"))
