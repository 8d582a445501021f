"""Measure libraries that read files on a mount: seconds, bytes asked and fetched. ``python -m bench.libraries``.

Each workload reads once from the local directory, and then from a fresh mount of it by each candidate, in a process of
its own. What it read is compared with the local read. Candidates take turns, and figures are medians. A number as
candidate is fastfuse with that many KiB of the kernel's readahead, which takes root; one with MiB is its memory target.

The candidate ``own`` reads the same objects without a mount, by the library's own reader of S3, or by s3fs where the
library takes file objects. A workload that can only read files has a dash there.

The server counts a reply in full when it begins. A peer that abandons replies, as rclone does, fetches less than shown.
"""

import argparse
import importlib
import json
import os
import random
import sqlite3
import statistics
import subprocess
import sys
import tarfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import IO, NamedTuple

import numpy as np

from bench.candidates import Limits, fastfuse_mount, rclone
from bench.machine import memory_directory
from bench.mounting import ENVIRONMENT
from bench.server import PROFILES, Server

_TENSORS = 30
_SHUFFLED = random.Random(1).sample(range(_TENSORS), _TENSORS)
_BIASES = [f"weight{number:02}.bias" for number in range(_TENSORS)]
_TENSOR_BYTES = 10 << 20
_BIAS_BYTES = 4096
_ROW_BYTES = 8192
_ROWS = 20_000
_READS = 1000
_KEYS = 100_000
_VALUE_BYTES = 512
_MEMBERS = 1000
_MEMBER_BYTES = 100_000
_BLOCK_BYTES = 1 << 20
# A model with a context of 1,024 tokens takes so many at once, of two bytes each.
_CROP_TOKENS = 1025
# The directory holds the files, and the indexes of the libraries.
_DATA_BYTES = 2400 << 20
_OWN = "own"
_S3 = "s3://"
# With its default, 50 MiB ahead, s3fs fetches 43 MB for each random read of HDF5.
_S3FS_OPTIONS = {"cache_type": "blockcache", "block_size": 8 << 20}


def _bytes(size_bytes: int) -> bytes:
    return np.random.default_rng(size_bytes).bytes(size_bytes)


def _key(number: int) -> bytes:
    return b"%012d" % (number * 7_919 % _KEYS)


def make(place: Path) -> None:
    """Write the files that the workloads read; those of a library that is not installed are left out."""
    generator = np.random.default_rng(1)
    rows = generator.integers(0, 256, (_ROWS, _ROW_BYTES), dtype=np.uint8)
    (place / "shard").write_bytes(_bytes(_TENSORS * _TENSOR_BYTES))
    np.save(place / "rows.npy", rows)
    with zipfile.ZipFile(place / "members.zip", "w") as archive, tarfile.open(place / "members.tar", "w") as tar:
        source = place / "member"
        for number in range(_MEMBERS):
            source.write_bytes(_bytes(_MEMBER_BYTES + number))
            archive.write(source, str(number))
            tar.add(source, str(number))
    database = sqlite3.connect(place / "keys.sqlite")
    with database:
        database.execute("create table pairs (key blob primary key, value blob) without rowid")
        database.executemany("insert into pairs values (?, ?)", _pairs())
    database.close()
    tensors = {f"weight{n:02}": rows.reshape(-1)[:_TENSOR_BYTES] ^ np.uint8(n) for n in range(_TENSORS)}
    if safetensors := _library("safetensors.numpy"):
        biases = {name: rows[n, :_BIAS_BYTES].copy() for n, name in enumerate(_BIASES)}
        # It sorts by type and name: each bias follows its weight.
        safetensors.save_file(tensors | biases, place / "tensors.safetensors")
    if h5py := _library("h5py"):
        with h5py.File(place / "rows.h5", "w") as file:
            file.create_dataset("rows", data=rows, chunks=(1, _ROW_BYTES))
    if zarr := _library("zarr"):
        for name, shards in (("chunks.zarr", None), ("shards.zarr", (2000, _ROW_BYTES))):
            chunks = {"chunks": (100, _ROW_BYTES), "shards": shards, "compressors": None}
            zarr.create_array(place / name, shape=rows.shape, dtype=rows.dtype, **chunks)[:] = rows
    if torch := _library("torch"):
        torch.save({name: torch.from_numpy(tensor) for name, tensor in tensors.items()}, place / "tensors.pt")
    _make_tables(place, rows)
    if lmdb := _library("lmdb"):
        with (
            lmdb.open(str(place / "keys.lmdb"), subdir=False, map_size=1 << 30, lock=False) as environment,
            environment.begin(write=True) as transaction,
        ):
            for key, value in sorted(_pairs()):
                transaction.put(key, value)


def _make_tables(place: Path, rows: np.ndarray) -> None:
    if parquet := _library("pyarrow.parquet"):
        arrow = importlib.import_module("pyarrow")
        columns = {f"column{n}": rows[:, n * 1024 : (n + 1) * 1024].copy().view("i8").reshape(-1) for n in range(8)}
        options = {"row_group_size": 128 * _ROWS // 20, "compression": "none", "use_dictionary": False}
        parquet.write_table(arrow.table(columns), place / "rows.parquet", **options)
        if lance := _library("lance"):
            column = arrow.FixedSizeBinaryArray.from_buffers(
                arrow.binary(_ROW_BYTES), _ROWS, [None, arrow.py_buffer(rows)]
            )
            lance.write_dataset(arrow.table({"row": column}), place / "rows.lance")


def _pairs() -> Iterator[tuple[bytes, bytes]]:
    value = _bytes(_VALUE_BYTES)
    return ((_key(number), b"%d" % number + value) for number in range(_KEYS))


def _library(name: str) -> ModuleType | None:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def _file(place: str, name: str) -> str | IO[bytes]:
    """Return the path of a file, or an object as s3fs opens it."""
    path = f"{place}/{name}"
    if not place.startswith(_S3):
        return path
    file: IO[bytes] = importlib.import_module("s3fs").S3FileSystem().open(path, **_S3FS_OPTIONS)
    return file


def _opened(place: str, name: str, buffering: int = -1) -> IO[bytes]:
    file = _file(place, name)
    return open(file, "rb", buffering=buffering) if isinstance(file, str) else file


def _sequential(place: str) -> Iterator[bytes]:
    with _opened(place, "shard", buffering=0) as file:
        while block := file.read(_BLOCK_BYTES):
            yield block


def _mapped_ends(place: str) -> Iterator[bytes]:
    shard = np.memmap(f"{place}/shard", mode="r")
    for start in range(0, len(shard), _TENSOR_BYTES):
        yield shard[start : start + _BIAS_BYTES].tobytes()


def _mapped_tensor(place: str) -> Iterator[bytes]:
    shard = np.memmap(f"{place}/shard", mode="r")
    yield shard[7 * _TENSOR_BYTES : 8 * _TENSOR_BYTES].tobytes()


def _mapped_tensors(place: str) -> Iterator[bytes]:
    shard = np.memmap(f"{place}/shard", mode="r")
    for number in _SHUFFLED:
        yield shard[number * _TENSOR_BYTES : (number + 1) * _TENSOR_BYTES].tobytes()


def _some_rows() -> list[int]:
    return random.Random(1).sample(range(_ROWS), _READS)


def _mapped_rows(place: str) -> Iterator[bytes]:
    rows = np.load(f"{place}/rows.npy", mmap_mode="r")
    for number in _some_rows():
        yield rows[number].tobytes()


def _mapped_crops(place: str) -> Iterator[bytes]:
    tokens = np.memmap(f"{place}/shard", np.uint16, mode="r")
    for start in _crops(len(tokens)):
        yield tokens[start : start + _CROP_TOKENS].tobytes()


def _read_crops(place: str) -> Iterator[bytes]:
    with open(f"{place}/shard", "rb", buffering=0) as file:
        for start in _crops(_TENSORS * _TENSOR_BYTES // 2):
            yield os.pread(file.fileno(), 2 * _CROP_TOKENS, 2 * start)


def _crops(tokens: int) -> list[int]:
    return random.Random(1).sample(range(tokens - _CROP_TOKENS), _READS)


def _zarr(place: str, name: str) -> Iterator[bytes]:
    array = importlib.import_module("zarr").open_array(f"{place}/{name}", mode="r")
    for number in random.Random(1).sample(range(_ROWS - 100), 100):
        yield array[number : number + 100, :1024].tobytes()


def _row_group(place: str) -> Iterator[bytes]:
    table = importlib.import_module("pyarrow.parquet").ParquetFile(f"{place}/rows.parquet").read_row_group(7)
    yield from (column.to_numpy().tobytes() for column in table.columns)


def _safetensors(place: str, names: list[str], framework: str) -> Iterator[bytes]:
    safetensors = importlib.import_module("safetensors")
    with safetensors.safe_open(f"{place}/tensors.safetensors", framework) as file:
        for name in names:
            yield np.asarray(file.get_tensor(name)).tobytes()


def _torch(place: str, numbers: Iterable[int]) -> Iterator[bytes]:
    file = _file(place, "tensors.pt")
    tensors = importlib.import_module("torch").load(file, mmap=isinstance(file, str))
    for number in numbers:
        yield tensors[f"weight{number:02}"].numpy().tobytes()


def _first_rows(place: str) -> Iterator[bytes]:
    table = importlib.import_module("polars").scan_parquet(f"{place}/rows.parquet").head(_READS).collect()
    yield from (column.to_numpy().tobytes() for column in table)


def _column(place: str) -> Iterator[bytes]:
    database = importlib.import_module("duckdb").connect()
    if place.startswith(_S3):
        # The wheel is not DuckDB's. DuckDB loads an extension only with its own signature.
        (wheel,) = importlib.import_module("duckdb_extension_httpfs").__path__
        (extension,) = Path(wheel).glob("extensions/*/httpfs.duckdb_extension")
        database.load_extension(str(extension))
        endpoint = os.environ["AWS_ENDPOINT_URL"].removeprefix("http://")
        keys = [os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"]]
        options = "type s3, key_id ?, secret ?, endpoint ?, url_style 'path', use_ssl false"
        database.execute(f"create secret ({options})", [*keys, endpoint])
    yield database.sql(f"select column3 from '{place}/rows.parquet'").fetchnumpy()["column3"].tobytes()


def _taken_rows(place: str) -> Iterator[bytes]:
    table = importlib.import_module("lance").dataset(f"{place}/rows.lance").take(_some_rows())
    yield from (row.as_py() for row in table.column("row"))


def _hdf5(place: str, *, in_order: bool) -> Iterator[bytes]:
    with importlib.import_module("h5py").File(_file(place, "rows.h5"), "r") as file:
        for number in sorted(_some_rows()) if in_order else _some_rows():
            yield file["rows"][number].tobytes()


def _lmdb(place: str) -> Iterator[bytes]:
    lmdb = importlib.import_module("lmdb")
    options = {"subdir": False, "readonly": True, "lock": False, "readahead": False}
    with lmdb.open(f"{place}/keys.lmdb", **options) as environment, environment.begin() as transaction:
        for number in random.Random(1).sample(range(_KEYS), _READS):
            yield transaction.get(_key(number))


def _sqlite(place: str) -> Iterator[bytes]:
    database = sqlite3.connect(f"file:{place}/keys.sqlite?immutable=1", uri=True)
    for number in random.Random(1).sample(range(_KEYS), _READS):
        yield database.execute("select value from pairs where key = ?", (_key(number),)).fetchone()[0]
    database.close()


def _zip(place: str) -> Iterator[bytes]:
    with _opened(place, "members.zip") as file, zipfile.ZipFile(file) as archive:
        for number in random.Random(1).sample(range(_MEMBERS), 100):
            yield archive.read(str(number))


def _tar(place: str) -> Iterator[bytes]:
    with _opened(place, "members.tar") as file, tarfile.open(fileobj=file) as archive:
        for member in random.Random(1).sample(archive.getmembers(), 100):
            content = archive.extractfile(member)
            assert content is not None
            yield content.read()


class _Workload(NamedTuple):
    """A way to read what `make` wrote, from a directory or from ``s3://bucket``."""

    read: Callable[[str], Iterator[bytes]]
    # The library that it takes, if that is an extra.
    library: str = ""
    # The module that reads S3 for it; empty if it reads files only.
    own_reader: str = ""


_WORKLOADS = {
    "one reader of a whole shard, 1 MiB a read": _Workload(_sequential, own_reader="s3fs"),
    "30 × 4 KiB of a mapped shard, 10 MiB apart": _Workload(_mapped_ends),
    "10 MiB of a mapped shard": _Workload(_mapped_tensor),
    "all 30 × 10 MiB of a mapped shard, shuffled": _Workload(_mapped_tensors),
    "numpy memmap, 1,000 random rows of 8 KiB": _Workload(_mapped_rows),
    "numpy memmap, 1,000 crops of 1,025 tokens": _Workload(_mapped_crops),
    "the same crops by pread": _Workload(_read_crops),
    "safetensors, 30 biases of 4 KiB": _Workload(
        partial(_safetensors, names=_BIASES, framework="numpy"), "safetensors"
    ),
    "the same biases for PyTorch": _Workload(partial(_safetensors, names=_BIASES, framework="pt"), "torch"),
    "safetensors, 1 tensor of 10 MiB": _Workload(
        partial(_safetensors, names=["weight07"], framework="numpy"), "safetensors"
    ),
    "torch.load(mmap=True), 1 of 30 tensors of 10 MiB": _Workload(partial(_torch, numbers=[7]), "torch", "s3fs"),
    "torch.load(mmap=True), all 30 tensors, shuffled": _Workload(partial(_torch, numbers=_SHUFFLED), "torch", "s3fs"),
    "h5py, 1,000 random chunks of 8 KiB": _Workload(partial(_hdf5, in_order=False), "h5py", "s3fs"),
    "h5py, the same chunks in order": _Workload(partial(_hdf5, in_order=True), "h5py", "s3fs"),
    "lmdb, 1,000 random keys": _Workload(_lmdb, "lmdb"),
    "sqlite3, 1,000 random keys": _Workload(_sqlite),
    "zarr, 100 crops of chunks of 800 KiB": _Workload(partial(_zarr, name="chunks.zarr"), "zarr", "s3fs"),
    "zarr, 100 crops of shards of 16 MiB": _Workload(partial(_zarr, name="shards.zarr"), "zarr", "s3fs"),
    "pyarrow, one of 20 row groups of Parquet": _Workload(_row_group, "pyarrow", "pyarrow.fs"),
    "polars, the first 1,000 rows of Parquet": _Workload(_first_rows, "polars", "polars"),
    "DuckDB, one of 8 columns of Parquet": _Workload(_column, "duckdb", "duckdb_extension_httpfs"),
    "lance, 1,000 random rows of 8 KiB": _Workload(_taken_rows, "lance", "lance"),
    "zipfile, 100 random members of 100 KB": _Workload(_zip, own_reader="s3fs"),
    "tarfile, 100 random members of 100 KB": _Workload(_tar, own_reader="s3fs"),
}


def _read(name: str, place: str) -> tuple[float, int, int]:
    """Run a workload in this process; return its seconds, the bytes that it asked for, and their checksum."""
    read, library, own_reader = _WORKLOADS[name]
    for module in (library, own_reader if place.startswith(_S3) else ""):
        if module:
            importlib.import_module(module)
    began_s = time.perf_counter()
    asked_bytes = checksum = 0
    for piece in read(place):
        asked_bytes += len(piece)
        checksum = zlib.crc32(piece, checksum)
    return time.perf_counter() - began_s, asked_bytes, checksum


def _environment(endpoint_url: str) -> dict[str, str]:
    """Return an environment from which botocore, Arrow and object_store take the server and the keys."""
    store = {"AWS_ENDPOINT_URL": endpoint_url, "AWS_DEFAULT_REGION": "us-east-1", "AWS_ALLOW_HTTP": "true"}
    return {**ENVIRONMENT, **store}


def _read_apart(name: str, place: str, endpoint_url: str) -> tuple[float, int, int]:
    command = [sys.executable, "-m", "bench.libraries", "--read", name, place]
    reader = subprocess.run(command, env=_environment(endpoint_url), stdout=subprocess.PIPE, check=True)
    seconds, asked_bytes, checksum = json.loads(reader.stdout)
    return seconds, asked_bytes, checksum


@contextmanager
def _offered(candidate: str, server: Server, place: Path) -> Iterator[str]:
    """Offer the data by a candidate; yield where a workload reads it."""
    if candidate == _OWN:
        yield _S3 + server.bucket
        return
    if candidate == "rclone":
        # The server's ETags are no MD5 sums, which rclone would compare them with.
        with rclone(server, place, Limits(), "--no-checksum") as mounted:
            yield str(mounted.root)
        return
    options = ["--memory-target", candidate] if candidate.endswith("MiB") else []
    with fastfuse_mount(server, place, Limits(), *options) as mounted:
        if candidate.isdecimal():
            device = mounted.root.stat().st_dev
            Path(f"/sys/class/bdi/{os.major(device)}:{os.minor(device)}/read_ahead_kb").write_text(candidate)
        yield str(mounted.root)


def _row(name: str, candidates: list[str], runs: int, server: Server, data: Path) -> Iterator[str]:
    """Measure a workload; yield the cells of its row."""
    local_s, *expected = _read_apart(name, str(data), server.endpoint_url)
    yield f"| {name} | {expected[0] / 1e6:.1f} | {local_s:.2f} |"
    own_reader = _WORKLOADS[name].own_reader
    has_own_reader = own_reader and _library(own_reader)
    figures: dict[str, list[tuple[float, float]]] = {candidate: [] for candidate in candidates}
    for candidate in candidates * runs:
        if candidate == _OWN and not has_own_reader:
            continue
        with TemporaryDirectory() as place, _offered(candidate, server, Path(place)) as root:
            before_bytes = server.traffic().sent_bytes
            seconds, *read = _read_apart(name, root, server.endpoint_url)
            if read != expected:
                raise SystemExit(f"{candidate} gave wrong bytes: {name}")
            figures[candidate].append(((server.traffic().sent_bytes - before_bytes) / 1e6, seconds))
    for candidate, taken in figures.items():
        yield _cell(taken, own_reader if candidate == _OWN else "")


def _cell(figures: list[tuple[float, float]], own_reader: str) -> str:
    if not figures:
        return f"{own_reader} is not installed |" if own_reader else "– |"
    megabytes, seconds = (statistics.median(column) for column in zip(*figures, strict=True))
    return f"{megabytes:.1f}, {seconds:.2f}{own_reader and f' ({own_reader})'} |"


def _measure(candidates: list[str], runs: int, only: str) -> None:
    with memory_directory(_DATA_BYTES) as data:
        make(data)
        with Server(data, profile=PROFILES["s3"]) as server:
            print("| | asked MB | local s |", *(f"{candidate} MB, s |" for candidate in candidates))
            for name, workload in _WORKLOADS.items():
                if only in name and (not workload.library or _library(workload.library)):
                    print(*_row(name, candidates, runs, server, data), flush=True)


def main() -> None:
    """Measure, or read for a measurement."""
    parser = argparse.ArgumentParser("python -m bench.libraries", description=__doc__)
    parser.add_argument(
        "--candidates",
        default="fastfuse,rclone,own",
        help="fastfuse, rclone, own, KiB of readahead, or MiB of memory",
    )
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--only", default="", help="workloads whose name contains this")
    parser.add_argument("--read", nargs=2, metavar=("NAME", "PLACE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.read:
        print(json.dumps(_read(*options.read)))
    else:
        _measure(options.candidates.split(","), options.runs, options.only)


if __name__ == "__main__":
    main()
