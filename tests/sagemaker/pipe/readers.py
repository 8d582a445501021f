"""Readers of FIFOs, in processes of their own."""

import hashlib
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

# Reads epoch after epoch as AWS's example does, or up to `stop_bytes`; prints the bytes of each, and their digest.
_EPOCHS = """
import hashlib, os, select, sys, time
directory, first, count, stop_bytes, is_blocking = sys.argv[1], *map(int, sys.argv[2:])
buffer = bytearray(16777216)

def open_epoch(epoch):
    while True:
        try:
            return os.open(f"{directory}/train_{epoch}", os.O_RDONLY | (0 if is_blocking else os.O_NONBLOCK))
        except FileNotFoundError:
            time.sleep(0.001)  # as the toolkits' readers do

def read(fd):
    if not is_blocking:
        select.select([fd], [], [])
    try:
        return os.readv(fd, [memoryview(buffer)[:stop_bytes or None]])
    except BlockingIOError:
        return None

for epoch in range(first, first + count):
    fd, total, found = open_epoch(epoch), 0, hashlib.sha256()
    while (got := read(fd)) != 0:
        total += got or 0
        found.update(memoryview(buffer)[:got or 0])
        if stop_bytes and total >= stop_bytes:
            break
    os.close(fd)
    print(total, found.hexdigest(), flush=True)
"""


@dataclass(frozen=True, slots=True)
class Reader:
    process: subprocess.Popen[str]

    @classmethod
    def start(
        cls, directory: Path, *, first: int = 0, count: int = 1, stop_bytes: int = 0, is_blocking: bool = True
    ) -> "Reader":
        arguments = map(str, (directory, first, count, stop_bytes, int(is_blocking)))
        command = [sys.executable, "-I", "-c", _EPOCHS, *arguments]
        return cls(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))

    def epochs(self) -> list[tuple[int, str]]:
        told, _ = self.process.communicate()
        assert self.process.returncode == 0
        return [(int(total), found) for total, found in map(str.split, told.splitlines())]

    def waits(self) -> bool:
        """Return whether a second passes without an end."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(1)
        return self.process.returncode is None

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


def digest(data: bytes) -> tuple[int, str]:
    """As `Reader.epochs` has it."""
    return len(data), hashlib.sha256(data).hexdigest()
