"""S3 Inventory reports for tests, as S3 writes them."""

import csv
import gzip
import hashlib
import io
import json
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import quote

import pyarrow
from pyarrow import parquet

COLUMNS = (
    *("Bucket", "Key", "VersionId", "IsLatest", "IsDeleteMarker"),
    *("Size", "LastModifiedDate", "ETag", "StorageClass"),
)


@dataclass(frozen=True)
class Row:
    """One version of an object."""

    key: str
    size_bytes: int = 1
    modified_ms: int = 10**12
    etag: str = "0123456789abcdef" * 2
    storage_class: str = "STANDARD"
    is_latest: bool = True
    is_delete_marker: bool = False

    @property
    def modified(self) -> datetime:
        return datetime.fromtimestamp(self.modified_ms / 1000, UTC)


def csv_file(rows: list[Row], columns: tuple[str, ...] = COLUMNS) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n")
    for row in rows:
        gone = row.is_delete_marker
        fields = {
            "Bucket": "bucket",
            "Key": quote(row.key, safe="/").replace("%20", "+"),
            "VersionId": "v",
            "IsLatest": str(row.is_latest).lower(),
            "IsDeleteMarker": str(gone).lower(),
            "Size": "" if gone else row.size_bytes,
            "LastModifiedDate": row.modified.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "ETag": "" if gone else row.etag,
            "StorageClass": "" if gone else row.storage_class,
        }
        writer.writerow([fields[column] for column in columns])
    return gzip.compress(text.getvalue().encode(), mtime=0)


def parquet_file(rows: list[Row]) -> bytes:
    table = pyarrow.table(
        {
            "bucket": ["bucket"] * len(rows),
            "key": [row.key for row in rows],
            "version_id": ["v"] * len(rows),
            "is_latest": [row.is_latest for row in rows],
            "is_delete_marker": [row.is_delete_marker for row in rows],
            "size": pyarrow.array([None if row.is_delete_marker else row.size_bytes for row in rows], pyarrow.int64()),
            "last_modified_date": pyarrow.array([row.modified for row in rows], pyarrow.timestamp("ms")),
            "e_tag": pyarrow.array([None if row.is_delete_marker else row.etag for row in rows], pyarrow.string()),
            "storage_class": pyarrow.array(
                [None if row.is_delete_marker else row.storage_class for row in rows], pyarrow.string()
            ),
        }
    )
    out = io.BytesIO()
    parquet.write_table(table, out)
    return out.getvalue()


def manifest(data: dict[str, bytes], file_format: str = "CSV", **changes: object) -> bytes:
    """The manifest.json of a report of the bucket ``bucket``."""
    found = {
        "sourceBucket": "bucket",
        "destinationBucket": "arn:aws:s3:::bucket",
        "version": "2016-11-30",
        "creationTimestamp": "1514944800000",
        "fileFormat": file_format,
        "fileSchema": ", ".join(COLUMNS) if file_format == "CSV" else "message s3.inventory { ... }",
        "files": [
            {"key": key, "size": len(body), "MD5checksum": hashlib.md5(body, usedforsecurity=False).hexdigest()}
            for key, body in data.items()
        ],
    }
    return json.dumps({**found, **changes}).encode()
