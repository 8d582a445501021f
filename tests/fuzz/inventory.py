"""Inventory reports: each input is tried as a manifest, as the rows of a CSV file, and as a file as it lies in S3.

Parquet files are parsed by Arrow, which has fuzzers of its own.
"""

import gzip
import io

from fastfuse.errors import ConfigurationError
from fastfuse.index.sources.inventory_report import Manifest, parse_manifest, read_rows

TOKENS = (
    *(b'"sourceBucket"', b'"fileFormat"', b'"CSV"', b'"Parquet"', b'"ORC"', b'"fileSchema"', b'"files"', b'"key"'),
    *(b"[]", b'"Bucket, Key, Size, LastModifiedDate, ETag"', b'"size"', b'"MD5checksum"', b'"arn:aws:s3:::bucket"'),
    *(b"{", b"}", b"VersionId", b"IsLatest", b"IsDeleteMarker", b'"true"', b'"false"', b'"TRUE"', b'""', b'"', b","),
    *(b"\n", b"\r", b"2026-11-23T10:00:00.000Z", b"0001-01-01T00:00:00+23:59", b"9999-12-31T23:59:59-23:59"),
    *(b"2262-04-12", b"%2F", b"%", b"+", b"-1", b"1_0", b"1e3", b"9" * 40, b"\xc2\xb2", b"\x00", b"\xff", b"\xd9\xa3"),
    *(b"\\ud800", b"NaN"),
    *(b'"bucket","a","1","2026-11-23T10:00:00.000Z","d41d8cd98f00b204e9800998ecf8427e","STANDARD"\n', b"\xe2\x80\xa8"),
    *(b"\x1f\x8b\x08\x00\x00\x00\x00\x00", b"\x00\x00\xff\xff", b"[" * 64),
)

_PLAIN = ("Bucket", "Key", "Size", "LastModifiedDate", "ETag", "StorageClass")
_VERSIONED = ("Bucket", "Key", "VersionId", "IsLatest", "IsDeleteMarker", "Size", "LastModifiedDate", "ETag")
_REPEATED = ("Key", "Key", "Size", "LastModifiedDate", "ETag", "Unknown")


def try_one(data: bytes) -> None:
    try:
        manifest = parse_manifest(data, "manifest.json")
    except ConfigurationError:
        pass
    else:
        assert manifest.source_bucket
        assert all(0 <= file.size_bytes < 1 << 62 and file.key for file in manifest.files)
    for schema in (_PLAIN, _VERSIONED, _REPEATED):
        _try_rows(gzip.compress(data, 0), schema)
    _try_rows(data, _PLAIN)


def _try_rows(file: bytes, schema: tuple[str, ...]) -> None:
    manifest = Manifest("bucket", "CSV", schema, ())
    try:
        for rows in read_rows(manifest, io.BytesIO(file), "file", b"a"):
            columns = (rows.keys, rows.sizes, rows.mtimes_ns, rows.etags, rows.storage_classes)
            assert {len(column) for column in columns} == {len(rows.keys)}
            assert all(key.startswith(b"a") for key in rows.keys)
            assert all(0 <= size < 1 << 62 for size in rows.sizes)
            assert all(-(1 << 63) <= moment < 1 << 63 for moment in rows.mtimes_ns)
            assert all(rows.storage_classes)
    except ConfigurationError:
        pass
