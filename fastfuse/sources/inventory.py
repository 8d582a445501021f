"""S3 Inventory reports: the manifest, and the rows of its CSV and Parquet files.

https://docs.aws.amazon.com/AmazonS3/latest/userguide/storage-inventory-location.html
"""

import csv
import gzip
import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import IO, Any
from urllib.parse import unquote_plus

from fastfuse.errors import ConfigurationError

__all__ = ["DataFile", "InventoryRows", "Manifest", "parse_manifest", "read_rows"]

# Our names for the fields, by those in the schema of CSV and of Parquet files.
_CSV_NAMES = {
    "Bucket": "bucket", "Key": "key", "Size": "size", "LastModifiedDate": "last_modified_date", "ETag": "e_tag",
    "StorageClass": "storage_class", "IsLatest": "is_latest", "IsDeleteMarker": "is_delete_marker",
}  # fmt: skip
_NEEDED = {"key": "the key", "size": "Size", "last_modified_date": "Last modified", "e_tag": "ETag"}
_FORMATS = ("CSV", "Parquet")
_BATCH_ROWS = 10_000
# A key is 1024 bytes, each three letters where it is encoded; other fields are short.
_MAX_FIELD_LETTERS = 1 << 16
_EPOCH = datetime.fromisoformat("1970-01-01T00:00:00+00:00")


@dataclass(frozen=True, slots=True)
class DataFile:
    """One file of a report, in the manifest's bucket."""

    key: str
    md5: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a report covers and where its rows are."""

    source_bucket: str
    file_format: str
    schema: tuple[str, ...]  # names of the columns of CSV files; Parquet files name their own
    files: tuple[DataFile, ...]


@dataclass(slots=True)
class InventoryRows:
    """Columns of objects, as `TableBuilder.add` takes them."""

    keys: list[bytes] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    mtimes_ns: list[int] = field(default_factory=list)
    etags: list[str] = field(default_factory=list)
    storage_classes: list[str] = field(default_factory=list)


def parse_manifest(text: bytes, name: str) -> Manifest:
    """The manifest.json called `name`.

    Raises:
        ConfigurationError: it is none, or the report is of no use here: a format or a field is missing.
    """
    try:
        found = json.loads(text)
        files = tuple(DataFile(_text(entry, "key"), _text(entry, "MD5checksum")) for entry in found["files"])
        manifest = Manifest(
            source_bucket=_text(found, "sourceBucket").removeprefix("arn:aws:s3:::"),
            file_format=_text(found, "fileFormat"),
            schema=tuple(column.strip() for column in _text(found, "fileSchema").split(",")),
            files=files,
        )
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigurationError(
            f"{name} is not the manifest of an S3 Inventory ({_what(error)})", hint="name its manifest.json"
        ) from error
    if manifest.file_format not in _FORMATS:
        raise ConfigurationError(
            f"the inventory {name} is in {manifest.file_format!r}, which is not read",
            hint="configure it for Apache Parquet or CSV",
        )
    if manifest.file_format == "CSV":
        _check_fields({_CSV_NAMES.get(column, "") for column in manifest.schema}, name)
    return manifest


def read_rows(manifest: Manifest, file: IO[bytes], name: str) -> Iterator[InventoryRows]:
    """The current objects in one data file called `name`, some thousand at a time.

    Raises:
        ConfigurationError: the file is not what the manifest says, or its format takes a package that is missing.
    """
    read = _csv_rows if manifest.file_format == "CSV" else _parquet_rows
    try:
        yield from read(manifest, file, name)
    except (ValueError, TypeError, OverflowError, EOFError, OSError, zlib.error, csv.Error) as error:
        raise ConfigurationError(f"the inventory file {name} is damaged ({_what(error)})") from error


def _csv_rows(manifest: Manifest, file: IO[bytes], name: str) -> Iterator[InventoryRows]:
    columns = [_CSV_NAMES.get(column, "") for column in manifest.schema]
    csv.field_size_limit(_MAX_FIELD_LETTERS)
    with gzip.open(file, "rt", encoding="utf-8", newline="") as text:
        # Keys are encoded as LIST encodes them: a plus sign is a space.
        yield from _batches(csv.reader(text, strict=True), columns, _parsed_time, unquote_plus)


def _parquet_rows(manifest: Manifest, file: IO[bytes], name: str) -> Iterator[InventoryRows]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise ConfigurationError(
            "an inventory in Parquet takes pyarrow, which is not installed", hint="pip install 'fastfuse[inventory]'"
        ) from error
    try:
        table = parquet.ParquetFile(file)
        known = [column for column in table.schema_arrow.names if column in _CSV_NAMES.values()]
        _check_fields(set(known), name)
        for batch in table.iter_batches(_BATCH_ROWS, columns=known):
            rows = zip(*(batch.column(column).to_pylist() for column in batch.schema.names), strict=True)
            yield from _batches(rows, batch.schema.names, _given_time, str)
    except pyarrow.ArrowException as error:
        raise ValueError(str(error).partition("\n")[0]) from error


def _batches(
    rows: Iterable[Sequence[Any]], columns: Sequence[str], time_ns: Callable[[Any], int], decoded: Callable[[Any], str]
) -> Iterator[InventoryRows]:
    places = {column: place for place, column in enumerate(columns) if column}
    key, size, modified, etag = (places[name] for name in _NEEDED)
    latest, deleted, storage_class = (
        places.get(name, -1) for name in ("is_latest", "is_delete_marker", "storage_class")
    )
    found = InventoryRows()
    for row in rows:
        if len(row) != len(columns):
            raise ValueError(f"a row of {len(row)} fields, not {len(columns)}")
        # Only the current version of what is there: nothing else is listed.
        if (latest >= 0 and _is(row[latest], False)) or (deleted >= 0 and _is(row[deleted], True)):
            continue
        found.keys.append(decoded(row[key]).encode("utf-8", "surrogateescape"))
        found.sizes.append(_size(row[size]))
        found.mtimes_ns.append(time_ns(row[modified]))
        found.etags.append(f'"{row[etag]}"' if row[etag] else "")
        found.storage_classes.append((row[storage_class] if storage_class >= 0 else "") or "STANDARD")
        if len(found.keys) == _BATCH_ROWS:
            yield found
            found = InventoryRows()
    if found.keys:
        yield found


def _size(value: str | int | None) -> int:
    size = int(value or 0) if value is not None and value != "" else -1
    if not 0 <= size < 1 << 62:
        raise ValueError(f"a size of {value!r}")
    return size


def _parsed_time(value: str) -> int:
    return _given_time(datetime.fromisoformat(value))


def _given_time(value: datetime) -> int:
    """Nanoseconds since the epoch; S3's times have milliseconds."""
    aware = value if value.tzinfo else value.replace(tzinfo=_EPOCH.tzinfo)
    since = aware - _EPOCH
    return ((since.days * 86400 + since.seconds) * 1000 + since.microseconds // 1000) * 10**6


def _is(value: str | bool | None, wanted: bool) -> bool:
    """Whether a flag, which CSV spells as a word, is there and `wanted`."""
    return value is wanted or (isinstance(value, str) and value.lower() == str(wanted).lower())


def _check_fields(columns: set[str], name: str) -> None:
    missing = [title for column, title in _NEEDED.items() if column not in columns]
    if missing:
        raise ConfigurationError(
            f"the inventory {name} has no field {' and no field '.join(missing)}",
            hint="add it to the metadata fields of the inventory's configuration and wait for the next report",
        )


def _text(entry: Mapping[str, object], name: str) -> str:
    value = entry[name]
    if not isinstance(value, str) or not value:
        raise ValueError(f"{name} is no text")
    return value


def _what(error: Exception) -> str:
    """A `KeyError`'s text is the name alone."""
    return f"no {error}" if isinstance(error, KeyError) else str(error) or type(error).__name__
