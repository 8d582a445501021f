"""The demo's files: TFRecord shards and small files of noise, made with the CRC-32C of each, read and checked."""

import os
import shutil
import statistics
import struct
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import google_crc32c
import numpy as np

from fastfuse.errors import ConfigurationError
from fastfuse.sizes import format_size

__all__ = [
    *("FRAMING_BYTES", "DataFile", "Ledger", "Pass", "create_shards", "create_small_files", "frame", "read_files"),
    "require_space",
]

# Payloads are slices of one block: they must not compress, and need not be made anew for each record.
_NOISE_BYTES = 16 << 20
# Records of ImageNet have 110 KB on average.
_RECORD_BYTES = (50_000, 170_000)
_FILES_PER_FOLDER = 1000
# The bytes of one write.
_BATCH_BYTES = 8 << 20
# https://www.tensorflow.org/tutorials/load_data/tfrecord#tfrecords_format_details: a length and a payload, each with a
# masked CRC-32C.
_LENGTH, _CHECKSUM = struct.Struct("<Q"), struct.Struct("<I")
_MASK_DELTA = 0xA282EAD8
FRAMING_BYTES = _LENGTH.size + 2 * _CHECKSUM.size


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file to read. `name` is its path below the mount; `checksum` is its CRC-32C, or None while it is unknown."""

    name: str
    size_bytes: int
    checksum: int | None


def require_space(directory: Path, size_bytes: int) -> None:
    """Raise `ConfigurationError` unless `size_bytes` fit on the file system of `directory`."""
    free_bytes = shutil.disk_usage(directory).free
    if free_bytes < size_bytes:
        raise ConfigurationError(
            f"the demo's data set takes {format_size(size_bytes)} and {directory} has {format_size(free_bytes)} free",
            hint="lower --shards, --shard-size or --small-files, or name another directory in TMPDIR",
        )


def create_shards(directory: Path, count: int, size_bytes: int) -> list[DataFile]:
    """Write `count` TFRecord files of `size_bytes` each (one record at least) below `directory`."""
    noise = _Noise(seed=1)
    names = [f"shards/train-{number:05d}-of-{count:05d}.tfrecord" for number in range(count)]
    return [_write(directory, name, _batched(_records(noise, size_bytes))) for name in names]


def create_small_files(directory: Path, count: int, size_bytes: int) -> list[DataFile]:
    """Write `count` files of `size_bytes` each below `directory`, in folders of a thousand."""
    noise = _Noise(seed=2)
    names = [f"small/{number // _FILES_PER_FOLDER:04d}/{number:08d}.bin" for number in range(count)]
    return [_write(directory, name, noise.slices(size_bytes)) for name in names]


class _Noise:
    """Bytes that look random, the same in every run."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self._block = self._random.bytes(_NOISE_BYTES)

    def integer(self, low: int, high: int) -> int:
        return int(self._random.integers(low, high))

    def slice(self, length_bytes: int) -> bytes:
        """Return a slice of at most half a block."""
        offset = self.integer(0, _NOISE_BYTES // 2)
        return self._block[offset : offset + length_bytes]

    def slices(self, length_bytes: int) -> Iterator[bytes]:
        while length_bytes > 0:
            piece = self.slice(min(length_bytes, _BATCH_BYTES))
            length_bytes -= len(piece)
            yield piece


def _records(noise: _Noise, size_bytes: int) -> Iterator[bytes]:
    """Yield records of `size_bytes` in all."""
    left_bytes = size_bytes
    while True:
        payload_bytes = noise.integer(*_RECORD_BYTES)
        is_last = left_bytes < payload_bytes + 2 * FRAMING_BYTES
        if is_last:
            payload_bytes = max(0, left_bytes - FRAMING_BYTES)
        yield frame(noise.slice(payload_bytes))
        if is_last:
            return
        left_bytes -= payload_bytes + FRAMING_BYTES


def frame(payload: bytes) -> bytes:
    """Return `payload` as one record of a TFRecord file."""
    length = _LENGTH.pack(len(payload))
    return b"".join((length, _masked_checksum(length), payload, _masked_checksum(payload)))


def _masked_checksum(data: bytes) -> bytes:
    checksum = google_crc32c.value(data)
    rotated = (checksum >> 15) | (checksum << 17) & 0xFFFFFFFF
    return _CHECKSUM.pack((rotated + _MASK_DELTA) & 0xFFFFFFFF)


def _batched(pieces: Iterable[bytes]) -> Iterator[bytes]:
    batch: list[bytes] = []
    batch_bytes = 0
    for piece in pieces:
        batch.append(piece)
        batch_bytes += len(piece)
        if batch_bytes >= _BATCH_BYTES:
            yield b"".join(batch)
            batch, batch_bytes = [], 0
    yield b"".join(batch)


def _write(directory: Path, name: str, pieces: Iterable[bytes]) -> DataFile:
    path = directory / name
    path.parent.mkdir(parents=True, exist_ok=True)
    size_bytes = checksum = 0
    with path.open("wb", buffering=0) as file:
        for piece in pieces:
            file.write(piece)
            size_bytes += len(piece)
            checksum = google_crc32c.extend(checksum, piece)
    return DataFile(name, size_bytes, checksum)


# The bytes of one read, as of a data loader with a sensible buffer.
_READ_BYTES = 1 << 20


class Ledger:
    """Keeps the right checksum of every file, and the files that failed. Shared by all readers."""

    def __init__(self) -> None:
        self._checksums: dict[str, int] = {}
        self._lock = threading.Lock()
        self.checked_reads = 0
        self.failures: list[str] = []

    def check(self, file: DataFile, size_bytes: int, checksum: int) -> None:
        """Compare one read of `file` with its checksum, or with its first read where the checksum is unknown."""
        with self._lock:
            expected = self._checksums.setdefault(file.name, checksum if file.checksum is None else file.checksum)
            self.checked_reads += 1
            if size_bytes != file.size_bytes:
                self.failures.append(f"{file.name}: {size_bytes:,} bytes read instead of {file.size_bytes:,}")
            elif checksum != expected:
                self.failures.append(f"{file.name}: CRC-32C {checksum:08x} instead of {expected:08x}")

    def fail(self, file: DataFile, error: OSError) -> None:
        """Note that `file` could not be read."""
        with self._lock:
            self.failures.append(f"{file.name}: {error.strerror}")


@dataclass(frozen=True, slots=True)
class Pass:
    """The figures of reading some files once."""

    readers: int
    files: int
    size_bytes: int
    elapsed_s: float
    # The median over the files, from before open to the first byte; 0 without files.
    first_byte_s: float


def read_files(root: Path, files: Sequence[DataFile], readers: int, ledger: Ledger) -> Pass:
    """Read every file below `root` to its end, `readers` at once, and note it in `ledger`.

    An interrupt ends every reader after the block that it is reading.
    """
    queue = iter(files)
    interrupted = threading.Event()
    with ThreadPoolExecutor(readers) as executor:
        started_s = time.perf_counter()
        try:
            running = [executor.submit(_read_queue, root, queue, ledger, interrupted) for _ in range(readers)]
            first_bytes_s = [first_s for reader in running for first_s in reader.result()]
        except BaseException:
            interrupted.set()
            raise
        elapsed_s = time.perf_counter() - started_s
    return Pass(
        readers=min(readers, len(files)),
        files=len(files),
        size_bytes=sum(file.size_bytes for file in files),
        elapsed_s=elapsed_s,
        first_byte_s=statistics.median(first_bytes_s) if first_bytes_s else 0.0,
    )


def _read_queue(root: Path, queue: Iterator[DataFile], ledger: Ledger, interrupted: threading.Event) -> list[float]:
    """Read one file after the other, and return the time to the first byte of each."""
    first_bytes_s = []
    # A list's iterator can be shared by threads.
    for file in queue:
        try:
            first_bytes_s.append(_read_file(root, file, ledger, interrupted))
        except OSError as error:
            ledger.fail(file, error)
        if interrupted.is_set():
            break
    return first_bytes_s


def _read_file(root: Path, file: DataFile, ledger: Ledger, interrupted: threading.Event) -> float:
    started_s = time.perf_counter()
    fd = os.open(root / file.name, os.O_RDONLY)
    try:
        os.pread(fd, 1, 0)
        first_byte_s = time.perf_counter() - started_s
        size_bytes = checksum = 0
        while (block := os.read(fd, _READ_BYTES)) and not interrupted.is_set():
            size_bytes += len(block)
            checksum = google_crc32c.extend(checksum, block)
    finally:
        os.close(fd)
    if not interrupted.is_set():
        ledger.check(file, size_bytes, checksum)
    return first_byte_s
