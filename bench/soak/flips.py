"""``python -m bench.soak.flips``: files read to their end over a way that flips bits, with ``--verify``.

In every 10 MB that the server sends one bit is wrong, at random places. Readers read files from beginning to end. A
read that ends without an error must have the right bytes (docs/SEMANTICS.md, "What is checked").
"""

import argparse
import errno
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path

from bench.processes import fork_with_pipe
from bench.s3server.faults import FaultRule, Flip
from bench.soak.data import Kind, expected_bytes
from bench.soak.mounting import SoakMount
from bench.soak.server import SoakServer

# Small files, and larger ones that take several GETs and are right in about a third of all transfers.
_KINDS = [Kind("small/", 4000, 1, 64 << 10), Kind("large/", 200, 8 << 20, 14 << 20)]
_BYTES_A_FLIP = 10e6
_BLOCK_BYTES = 1 << 20
_READERS = 6


def flipped(start: int, end: int) -> list[int]:
    """Return the offsets of the bytes that are sent wrong."""
    count = int((end - start) / _BYTES_A_FLIP + random.random())
    return [random.randrange(start, end) for _ in range(count)]


def _read_files(root: Path, keys: Sequence[str], seconds: float, result: Connection) -> None:
    counts: Counter[str] = Counter()
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        key = random.choice(keys)
        try:
            data = _read_to_end(root / key)
        except OSError as error:
            counts[f"{key.partition('/')[0]} {errno.errorcode.get(error.errno or 0, 'other')}"] += 1
        else:
            is_right = data == expected_bytes(key, 0, 0, len(data)) and len(data) == (root / key).stat().st_size
            counts[f"{key.partition('/')[0]} {'right' if is_right else 'WRONG'}"] += 1
            counts["bytes"] += len(data)
    result.send(counts)


def _read_to_end(path: Path) -> bytes:
    fd = os.open(path, os.O_RDONLY)
    try:
        blocks = []
        while block := os.read(fd, _BLOCK_BYTES):
            blocks.append(block)
        # The next reader of the file is to ask for it again.
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        return b"".join(blocks)
    finally:
        os.close(fd)


def main(arguments: Sequence[str] | None = None) -> int:
    """Read, print what was read, and return 1 if a read gave wrong bytes."""
    parser = argparse.ArgumentParser(
        "python -m bench.soak.flips", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--without", action="store_true", help="mount without --verify, to see what that lets through")
    options = parser.parse_args(arguments)
    with (
        tempfile.TemporaryDirectory(prefix="fastfuse-flips-", ignore_cleanup_errors=True) as place,
        SoakServer(_KINDS, has_checksums=True) as server,
        SoakMount(Path(place), server, "256MiB", [] if options.without else ["--verify"]) as mount,
        server.fault(FaultRule(action=Flip(flipped), operation="GetObject")),
    ):
        counts = _read(mount.root, options.seconds)
    for name, count in sorted(counts.items()):
        print(f"{name}: {count:,}")
    return 1 if any(name.endswith("WRONG") for name in counts) else 0


def _read(root: Path, seconds: float) -> Counter[str]:
    keys = [_KINDS[index % 2].keys() for index in range(_READERS)]
    pipes = [fork_with_pipe(_read_files, root, names, seconds)[1] for names in keys]
    return sum((pipe.recv() for pipe in pipes), Counter[str]())


if __name__ == "__main__":
    sys.exit(main())
