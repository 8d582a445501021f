"""Measure libraries that read files on a mount: seconds, bytes asked and fetched. ``python -m bench.libraries``.

Each workload reads once from the local directory, and then from a fresh mount of it by each candidate, in a process of
its own. What it read is compared with the local read. Candidates take turns, and figures are medians. A number as
candidate is fastfuse with that many KiB of the kernel's readahead, which takes root; one with MiB is its memory target.

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

import numpy as np

from bench.candidates import Limits, rclone
from bench.machine import memory_directory
from bench.mount_process import MountProcess
from bench.mounting import ENVIRONMENT, make_mountpoint
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


def _sequential(place: Path) -> Iterator[bytes]:
    with (place / "shard").open("rb", buffering=0) as file:
        while block := file.read(_BLOCK_BYTES):
            yield block


def _mapped_ends(place: Path) -> Iterator[bytes]:
    shard = np.memmap(place / "shard", mode="r")
    for start in range(0, len(shard), _TENSOR_BYTES):
        yield shard[start : start + _BIAS_BYTES].tobytes()


def _mapped_tensor(place: Path) -> Iterator[bytes]:
    shard = np.memmap(place / "shard", mode="r")
    yield shard[7 * _TENSOR_BYTES : 8 * _TENSOR_BYTES].tobytes()


def _mapped_tensors(place: Path) -> Iterator[bytes]:
    shard = np.memmap(place / "shard", mode="r")
    for number in _SHUFFLED:
        yield shard[number * _TENSOR_BYTES : (number + 1) * _TENSOR_BYTES].tobytes()


def _mapped_rows(place: Path) -> Iterator[bytes]:
    rows = np.load(place / "rows.npy", mmap_mode="r")
    for number in random.Random(1).sample(range(_ROWS), _READS):
        yield rows[number].tobytes()


def _mapped_crops(place: Path) -> Iterator[bytes]:
    tokens = np.memmap(place / "shard", np.uint16, mode="r")
    for start in _crops(len(tokens)):
        yield tokens[start : start + _CROP_TOKENS].tobytes()


def _read_crops(place: Path) -> Iterator[bytes]:
    with (place / "shard").open("rb", buffering=0) as file:
        for start in _crops(_TENSORS * _TENSOR_BYTES // 2):
            yield os.pread(file.fileno(), 2 * _CROP_TOKENS, 2 * start)


def _crops(tokens: int) -> list[int]:
    return random.Random(1).sample(range(tokens - _CROP_TOKENS), _READS)


def _zarr(place: Path, name: str) -> Iterator[bytes]:
    array = importlib.import_module("zarr").open_array(place / name, mode="r")
    for number in random.Random(1).sample(range(_ROWS - 100), 100):
        yield array[number : number + 100, :1024].tobytes()


def _row_group(place: Path) -> Iterator[bytes]:
    table = importlib.import_module("pyarrow.parquet").ParquetFile(place / "rows.parquet").read_row_group(7)
    yield from (column.to_numpy().tobytes() for column in table.columns)


def _safetensors(place: Path, names: list[str]) -> Iterator[bytes]:
    safetensors = importlib.import_module("safetensors")
    with safetensors.safe_open(place / "tensors.safetensors", "numpy") as file:
        for name in names:
            yield file.get_tensor(name).tobytes()


def _torch(place: Path, numbers: Iterable[int]) -> Iterator[bytes]:
    tensors = importlib.import_module("torch").load(place / "tensors.pt", mmap=True)
    for number in numbers:
        yield tensors[f"weight{number:02}"].numpy().tobytes()


def _first_rows(place: Path) -> Iterator[bytes]:
    table = importlib.import_module("polars").scan_parquet(place / "rows.parquet").head(_READS).collect()
    yield from (column.to_numpy().tobytes() for column in table)


def _taken_rows(place: Path) -> Iterator[bytes]:
    numbers = random.Random(1).sample(range(_ROWS), _READS)
    table = importlib.import_module("lance").dataset(str(place / "rows.lance")).take(numbers)
    yield from (row.as_py() for row in table.column("row"))


def _hdf5(place: Path) -> Iterator[bytes]:
    with importlib.import_module("h5py").File(place / "rows.h5", "r") as file:
        for number in random.Random(1).sample(range(_ROWS), _READS):
            yield file["rows"][number].tobytes()


def _lmdb(place: Path) -> Iterator[bytes]:
    lmdb = importlib.import_module("lmdb")
    options = {"subdir": False, "readonly": True, "lock": False, "readahead": False}
    with lmdb.open(str(place / "keys.lmdb"), **options) as environment, environment.begin() as transaction:
        for number in random.Random(1).sample(range(_KEYS), _READS):
            yield transaction.get(_key(number))


def _sqlite(place: Path) -> Iterator[bytes]:
    database = sqlite3.connect(f"file:{place}/keys.sqlite?immutable=1", uri=True)
    for number in random.Random(1).sample(range(_KEYS), _READS):
        yield database.execute("select value from pairs where key = ?", (_key(number),)).fetchone()[0]
    database.close()


def _zip(place: Path) -> Iterator[bytes]:
    with zipfile.ZipFile(place / "members.zip") as archive:
        for number in random.Random(1).sample(range(_MEMBERS), 100):
            yield archive.read(str(number))


def _tar(place: Path) -> Iterator[bytes]:
    with tarfile.open(place / "members.tar") as archive:
        for member in random.Random(1).sample(archive.getmembers(), 100):
            file = archive.extractfile(member)
            assert file is not None
            yield file.read()


# Each with the library that it takes, if that is an extra.
_WORKLOADS: dict[str, tuple[Callable[[Path], Iterator[bytes]], str]] = {
    "one reader of a whole shard, 1 MiB a read": (_sequential, ""),
    "30 × 4 KiB of a mapped shard, 10 MiB apart": (_mapped_ends, ""),
    "10 MiB of a mapped shard": (_mapped_tensor, ""),
    "all 30 × 10 MiB of a mapped shard, shuffled": (_mapped_tensors, ""),
    "numpy memmap, 1,000 random rows of 8 KiB": (_mapped_rows, ""),
    "numpy memmap, 1,000 crops of 1,025 tokens": (_mapped_crops, ""),
    "the same crops by pread": (_read_crops, ""),
    "safetensors, 30 biases of 4 KiB": (partial(_safetensors, names=_BIASES), "safetensors"),
    "safetensors, 1 tensor of 10 MiB": (partial(_safetensors, names=["weight07"]), "safetensors"),
    "torch.load(mmap=True), 1 of 30 tensors of 10 MiB": (partial(_torch, numbers=[7]), "torch"),
    "torch.load(mmap=True), all 30 tensors, shuffled": (partial(_torch, numbers=_SHUFFLED), "torch"),
    "h5py, 1,000 random chunks of 8 KiB": (_hdf5, "h5py"),
    "lmdb, 1,000 random keys": (_lmdb, "lmdb"),
    "sqlite3, 1,000 random keys": (_sqlite, ""),
    "zarr, 100 crops of chunks of 800 KiB": (partial(_zarr, name="chunks.zarr"), "zarr"),
    "zarr, 100 crops of shards of 16 MiB": (partial(_zarr, name="shards.zarr"), "zarr"),
    "pyarrow, one of 20 row groups of Parquet": (_row_group, "pyarrow"),
    "polars, the first 1,000 rows of Parquet": (_first_rows, "polars"),
    "lance, 1,000 random rows of 8 KiB": (_taken_rows, "lance"),
    "zipfile, 100 random members of 100 KB": (_zip, ""),
    "tarfile, 100 random members of 100 KB": (_tar, ""),
}


def _read(name: str, place: Path) -> tuple[float, int, int]:
    """Run a workload in this process; return its seconds, the bytes that it asked for, and their checksum."""
    read, library = _WORKLOADS[name]
    if library:
        importlib.import_module(library)
    began_s = time.perf_counter()
    asked_bytes = checksum = 0
    for piece in read(place):
        asked_bytes += len(piece)
        checksum = zlib.crc32(piece, checksum)
    return time.perf_counter() - began_s, asked_bytes, checksum


def _read_apart(name: str, place: Path) -> tuple[float, int, int]:
    command = [sys.executable, "-m", "bench.libraries", "--read", name, str(place)]
    seconds, asked_bytes, checksum = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    return seconds, asked_bytes, checksum


@contextmanager
def _mounted(candidate: str, server: Server, place: Path) -> Iterator[Path]:
    if candidate == "rclone":
        # The server's ETags are no MD5 sums, which rclone would compare them with.
        with rclone(server, place, Limits(), "--no-checksum") as mounted:
            yield mounted.root
        return
    root = make_mountpoint(place)
    arguments = ["--endpoint-url", server.endpoint_url]
    if candidate.endswith("MiB"):
        arguments += ["--memory-target", candidate]
    with MountProcess(
        f"s3://{server.bucket}", root, log_path=place / "log", environment=ENVIRONMENT, arguments=arguments
    ):
        if candidate.isdecimal():
            device = root.stat().st_dev
            Path(f"/sys/class/bdi/{os.major(device)}:{os.minor(device)}/read_ahead_kb").write_text(candidate)
        yield root


def _measure(candidates: list[str], runs: int, only: str) -> None:
    with memory_directory(_DATA_BYTES) as data:
        make(data)
        with Server(data, profile=PROFILES["s3"]) as server:
            print("| | asked MB | local s |", *(f"{candidate} MB, s |" for candidate in candidates))
            for name, (_, library) in _WORKLOADS.items():
                if only not in name or (library and not _library(library)):
                    continue
                local_s, asked_bytes, checksum = _read_apart(name, data)
                cells = [f"| {name} | {asked_bytes / 1e6:.1f} | {local_s:.2f} |"]
                figures: dict[str, list[tuple[float, float]]] = {candidate: [] for candidate in candidates}
                for candidate in candidates * runs:
                    with TemporaryDirectory() as place, _mounted(candidate, server, Path(place)) as root:
                        before_bytes = server.traffic().sent_bytes
                        seconds, *read = _read_apart(name, root)
                        if read != [asked_bytes, checksum]:
                            raise SystemExit(f"{candidate} gave wrong bytes: {name}")
                        figures[candidate].append(((server.traffic().sent_bytes - before_bytes) / 1e6, seconds))
                for taken in figures.values():
                    megabytes, seconds = (statistics.median(column) for column in zip(*taken, strict=True))
                    cells.append(f"{megabytes:.1f}, {seconds:.2f} |")
                print(*cells, flush=True)


def main() -> None:
    """Measure, or read for a measurement."""
    parser = argparse.ArgumentParser("python -m bench.libraries", description=__doc__)
    parser.add_argument(
        "--candidates", default="fastfuse,rclone", help="fastfuse, rclone, KiB of readahead, or MiB of memory"
    )
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--only", default="", help="workloads whose name contains this")
    parser.add_argument("--read", nargs=2, metavar=("NAME", "DIR"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.read:
        print(json.dumps(_read(options.read[0], Path(options.read[1]))))
    else:
        _measure(options.candidates.split(","), options.runs, options.only)


if __name__ == "__main__":
    main()
