"""S3 Inventory reports: the manifest, and the rows of its CSV and Parquet files.

https://docs.aws.amazon.com/AmazonS3/latest/userguide/storage-inventory-location.html
"""

import csv
import gzip
import json
import sys
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import compress
from operator import and_
from typing import IO, Any
from urllib.parse import unquote_to_bytes

from fastfuse.errors import ConfigurationError
from fastfuse.index.sources.uri import shown
from fastfuse.objects import ObjectColumns, times_ns

# The names of the fields in Parquet files, which are ours too, by their names in the schema of CSV files.
_CSV_NAMES = {
    "Bucket": "bucket", "Key": "key", "VersionId": "version_id", "Size": "size", "ETag": "e_tag",
    "LastModifiedDate": "last_modified_date", "StorageClass": "storage_class", "IsLatest": "is_latest",
    "IsDeleteMarker": "is_delete_marker",
}  # fmt: skip
_NEEDED = {"key": "the key", "size": "Size", "last_modified_date": "Last modified", "e_tag": "ETag"}
_FLAGS = ("is_latest", "is_delete_marker")
_USED = (*_NEEDED, *_FLAGS, "storage_class")
_FORMATS = ("CSV", "Parquet")
_BATCH_ROWS = 10_000
# About 400 rows of unpacked CSV. With 1 MiB the rows fall out of the CPU's cache, and parsing takes a third longer.
_STEP_BYTES = 1 << 16
# A key has 1024 bytes, each of which may be encoded as three letters; other fields are short. The limits stop a file
# that unpacks to one endless line or field.
_MAX_FIELD_LETTERS = 1 << 16
_MAX_LINE_BYTES = 4 * _MAX_FIELD_LETTERS
_MAX_SIZE_BYTES = 1 << 62


@dataclass(frozen=True, slots=True)
class DataFile:
    """One file of a report, in the manifest's bucket."""

    key: str
    size_bytes: int
    md5: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """The bucket of a report, and the files with its rows."""

    source_bucket: str
    file_format: str
    schema: tuple[str, ...]  # names of the columns of CSV files; Parquet files name their own
    files: tuple[DataFile, ...]


def parse_manifest(text: bytes, name: str) -> Manifest:
    """Parse the manifest.json called `name`.

    Raises:
        ConfigurationError: `text` is no manifest, or the report has an unknown format or lacks a field.
    """
    try:
        found = json.loads(text)
        manifest = Manifest(
            source_bucket=_text(found, "sourceBucket").removeprefix("arn:aws:s3:::"),
            file_format=_text(found, "fileFormat"),
            schema=tuple(column.strip() for column in _text(found, "fileSchema").split(",")),
            files=tuple(
                DataFile(_text(entry, "key"), _size(entry, "size"), _text(entry, "MD5checksum"))
                for entry in found["files"]
            ),
        )
    except (ValueError, TypeError, KeyError, RecursionError) as error:
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


def read_rows(manifest: Manifest, file: IO[bytes], name: str, prefix: bytes = b"") -> Iterator[ObjectColumns]:
    """Yield the current objects below `prefix` in one data file called `name`, some thousand at a time.

    Raises:
        ConfigurationError: the file is damaged, or its format takes a package that is not installed.
    """
    read = _csv_rows if manifest.file_format == "CSV" else _parquet_rows
    try:
        yield from read(manifest, file, name, prefix)
    except (ValueError, TypeError, OverflowError, EOFError, OSError, zlib.error, csv.Error) as error:
        raise ConfigurationError(f"the inventory file {name} is damaged ({_what(error)})") from error


def _csv_rows(manifest: Manifest, file: IO[bytes], name: str, prefix: bytes) -> Iterator[ObjectColumns]:
    names = [_CSV_NAMES.get(column, "") for column in manifest.schema]
    csv.field_size_limit(_MAX_FIELD_LETTERS)
    for lines in _line_blocks(file):
        rows = list(csv.reader(lines, strict=True))
        if len(rows) != len(lines):
            raise ValueError("a field that goes over a line's end")
        rows = list(filter(None, rows))
        if any(len(row) != len(names) for row in rows):
            raise ValueError(f"a row that does not have {len(names)} fields")
        columns = dict(zip(names, zip(*rows, strict=True), strict=False))
        if columns:
            yield from _current_csv_rows(columns, prefix)


def _line_blocks(file: IO[bytes]) -> Iterator[list[str]]:
    """Yield the lines of a gzipped text in blocks of about `_STEP_BYTES`.

    No field of a report contains a line's end (keys are URL-encoded), so each block can be parsed on its own.
    """
    rest = b""
    with gzip.open(file, "rb") as unpacked:
        while block := unpacked.read(_STEP_BYTES):
            whole, end, tail = block.rpartition(b"\n")
            rest, text = (tail, rest + whole) if end else (rest + block, b"")
            if len(rest) > _MAX_LINE_BYTES:
                raise ValueError("a line of implausible length")
            yield text.decode().split("\n")
    yield rest.decode().split("\n")


def _current_csv_rows(columns: Mapping[str, Sequence[str]], prefix: bytes) -> Iterator[ObjectColumns]:
    # Keys are encoded as in LIST: a plus sign is a space.
    keys = [
        unquote_to_bytes(key.replace("+", " ")) if "%" in key or "+" in key else key.encode() for key in columns["key"]
    ]
    is_wanted = [key.startswith(prefix) for key in keys]
    for name in _FLAGS:
        if name in columns:
            is_wanted = list(map(and_, is_wanted, _flags(columns[name], wanted=name == "is_latest")))
    if not any(is_wanted):
        return
    key, size, modified, etag = (list(compress(columns[name], is_wanted)) for name in _NEEDED)
    classes = compress(columns["storage_class"], is_wanted) if "storage_class" in columns else [""] * len(key)
    yield _rows(list(compress(keys, is_wanted)), _parsed_sizes(size), times_ns(modified), etag, classes)


def _rows(
    keys: list[bytes],
    sizes: list[int],
    mtimes_ns: list[int],
    etags: Iterable[str | None],
    storage_classes: Iterable[str | None],
) -> ObjectColumns:
    """Check the columns, and write ETags and storage classes as LIST does."""
    if not all(keys):
        raise ValueError("an empty key")
    if min(sizes) < 0 or max(sizes) >= _MAX_SIZE_BYTES:
        raise ValueError("a size that no object has")
    return ObjectColumns(
        keys=keys,
        sizes=sizes,
        mtimes_ns=mtimes_ns,
        etags=[f'"{etag}"' if etag else "" for etag in etags],
        storage_classes=[name or "STANDARD" for name in storage_classes],
    )


def _flags(words: Sequence[str], *, wanted: bool) -> list[bool]:
    """Return for each flag whether it is as `wanted`, or empty."""
    meanings = {word: word.lower() for word in set(words)}
    unknown = set(meanings.values()) - {"true", "false", ""}
    if unknown:
        raise ValueError(f"the flag {shown(min(unknown))}")
    kept = {word: meaning in ("", str(wanted).lower()) for word, meaning in meanings.items()}
    return [kept[word] for word in words]


def _parsed_sizes(words: Sequence[str]) -> list[int]:
    """Parse decimal digits; `int` alone would accept signs, spaces and underscores."""
    digits = "".join(words)
    if not all(words) or not (digits.isascii() and digits.isdigit()):
        raise ValueError("a size that is no number")
    return list(map(int, words))


def load_parquet() -> None:
    """Load what reads Parquet, if it is installed, for a process that may load nothing later."""
    with suppress(ImportError):
        import pyarrow
        from pyarrow import compute, parquet  # noqa: F401

        pyarrow.array([0])  # pyarrow looks for pandas with the first of them


def _parquet_rows(manifest: Manifest, file: IO[bytes], name: str, prefix: bytes) -> Iterator[ObjectColumns]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise ConfigurationError(
            "an inventory in Parquet takes pyarrow, which is not installed",
            hint=f"{sys.executable} -m pip install pyarrow, and mount again if this mount was there before",
        ) from error
    try:
        table = parquet.ParquetFile(file)
        columns = table.schema_arrow.names
        _check_fields(set(columns), name)
        for batch in table.iter_batches(_BATCH_ROWS, columns=[column for column in _USED if column in columns]):
            yield from _current_parquet_rows(batch, prefix)
    except (pyarrow.ArrowException, KeyError) as error:  # a KeyError for two columns of one name
        raise ValueError(str(error).partition("\n")[0]) from error


def _current_parquet_rows(batch: Any, prefix: bytes) -> Iterator[ObjectColumns]:  # noqa: ANN401 - a RecordBatch
    """Yield the rows of one batch; the casts refuse values of another type or size, and text that is not UTF-8."""
    import pyarrow
    from pyarrow import compute

    # Cast to bytes, because a number would be cast to text.
    keys = batch.column("key").cast(pyarrow.binary())
    is_wanted = compute.starts_with(keys, pattern=prefix)
    for name in _FLAGS:
        if name in batch.schema.names:
            flags = batch.column(name).cast(pyarrow.bool_())
            wanted = flags if name == "is_latest" else compute.invert(flags)
            is_wanted = compute.and_(is_wanted, wanted.fill_null(True))
    if keys.null_count:
        raise ValueError("a row without a key")
    batch = batch.filter(is_wanted)
    if not batch.num_rows:
        return
    modified = batch.column("last_modified_date")
    sizes = batch.column("size").cast(pyarrow.int64())
    if not pyarrow.types.is_timestamp(modified.type) or sizes.null_count or modified.null_count:
        raise ValueError("a row without a size or a time")
    # S3 and the CSV have milliseconds.
    in_ms = modified.cast(pyarrow.timestamp("ms"), safe=False)
    mtimes_ns = in_ms.cast(pyarrow.timestamp("ns")).cast(pyarrow.int64()).to_pylist()
    etags = batch.column("e_tag").cast(pyarrow.binary()).cast(pyarrow.string()).to_pylist()
    classes = [""] * batch.num_rows
    if "storage_class" in batch.schema.names:
        classes = batch.column("storage_class").cast(pyarrow.binary()).cast(pyarrow.string()).to_pylist()
    yield _rows(keys.filter(is_wanted).to_pylist(), sizes.to_pylist(), mtimes_ns, etags, classes)


def _check_fields(columns: set[str], name: str) -> None:
    missing = [title for column, title in _NEEDED.items() if column not in columns]
    if missing:
        raise ConfigurationError(
            f"the inventory {name} has no field {' and no field '.join(missing)}",
            hint="add it to the metadata fields of the inventory's configuration and wait for the next report",
        )
    if "version_id" in columns and not columns.issuperset(_FLAGS):
        raise ConfigurationError(
            f"the inventory {name} is of all versions and does not tell which one is the latest",
            hint="configure an inventory of the current version only",
        )


def _text(entry: Mapping[str, object], name: str) -> str:
    value = entry[name]
    if not isinstance(value, str) or not value:
        raise ValueError(f"{name} is no text")
    value.encode()  # JSON can spell text that UTF-8 cannot
    return value


def _size(entry: Mapping[str, object], name: str) -> int:
    value = entry[name]
    if type(value) is not int or not 0 <= value < _MAX_SIZE_BYTES:
        raise ValueError(f"{name} is no number of bytes")
    return value


def _what(error: Exception) -> str:
    """Return the text of an error; that of a `KeyError` is only the name."""
    return f"no {error}" if isinstance(error, KeyError) else str(error) or type(error).__name__
