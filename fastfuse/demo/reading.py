"""Reads files with several readers at once, and checks what they read."""

import os
import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import google_crc32c

from fastfuse.demo.dataset import DataFile

__all__ = ["Ledger", "Pass", "read_files"]

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
