"""What the jobs train with: one small script for all modes, written as for SageMaker, with the standard library alone.

``python training.py records`` reads the TFRecords of its channel one after the other; ``files`` has sixteen processes,
forked as a DataLoader's workers are, read all files in a shuffled order, which ``hinted`` announces before; ``bytes``
reads a FIFO to its end. What comes through a FIFO is one stream for one reader. Checksums are not looked at, so that
the reader costs little and the same everywhere. Prints one JSON object.
"""

import json
import os
import random
import struct
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

_BEGAN_S = time.monotonic()

_WORKERS = 16
# As TensorFlow's and PyTorch's readers of remote data have.
_BUFFER_BYTES = 1 << 20
# The longest record that any reader here meets is far below.
_RECORD_BYTES = 4 << 20
# TFRecord: length, its checksum, data, their checksum.
_TFRECORD = struct.Struct("<QI")
_TFRECORD_TAIL_BYTES = 4
# RecordIO: magic, kind and length, data, zeros up to four bytes.
_RECORDIO = struct.Struct("<II")
_LENGTH_MASK = (1 << 29) - 1


class _Tally:
    """Bytes and records, and when the first one was there; of `time.monotonic`, which is the machine's."""

    def __init__(self) -> None:
        self.size_bytes = self.records = 0
        self.first_s = _BEGAN_S

    def count(self, size_bytes: int) -> None:
        if not self.records:
            self.first_s = time.monotonic()
        self.records += 1
        self.size_bytes += size_bytes


def _read_tfrecords(file: Any, tally: _Tally) -> None:  # noqa: ANN401 - any BufferedReader
    data = memoryview(bytearray(_RECORD_BYTES))
    while header := file.read(_TFRECORD.size):
        length, _ = _TFRECORD.unpack(header)
        if file.readinto(data[:length]) != length or len(file.read(_TFRECORD_TAIL_BYTES)) != _TFRECORD_TAIL_BYTES:
            raise EOFError("the records end in the middle of one")
        tally.count(_TFRECORD.size + length + _TFRECORD_TAIL_BYTES)


def _read_recordio(file: Any, tally: _Tally) -> None:  # noqa: ANN401 - any BufferedReader
    data = memoryview(bytearray(_RECORD_BYTES))
    while header := file.read(_RECORDIO.size):
        _, flagged = _RECORDIO.unpack(header)
        length = flagged & _LENGTH_MASK
        padded = length + -length % 4
        if file.readinto(data[:padded]) != padded:
            raise EOFError("the records end in the middle of one")
        tally.count(length)


def _files(place: Path) -> list[Path]:
    """Return the files below `place` in the order of their names."""
    return sorted(Path(top, name) for top, _, names in os.walk(place) for name in names)


def _shuffled(place: Path) -> list[str]:
    paths = [str(path) for path in _files(place)]
    random.Random(1).shuffle(paths)
    return paths


def _read_files(paths: Sequence[str], tally: _Tally) -> None:
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        size_bytes = 0
        while data := os.read(fd, _BUFFER_BYTES):
            size_bytes += len(data)
        os.close(fd)
        tally.count(size_bytes)


def _read_bytes(path: Path, tally: _Tally) -> None:
    buffer = bytearray(_BUFFER_BYTES)
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            tally.count(count)


def _in_processes(works: Sequence[Callable[[_Tally], None]]) -> Iterator[_Tally]:
    reading = []
    for work in works:
        reading_fd, writing_fd = os.pipe()
        if not os.fork():
            tally = _Tally()
            work(tally)
            os.write(writing_fd, json.dumps([tally.size_bytes, tally.records, tally.first_s]).encode())
            os._exit(0)
        os.close(writing_fd)
        reading.append(reading_fd)
    for reading_fd in reading:
        with os.fdopen(reading_fd, "rb") as pipe:
            tally = _Tally()
            tally.size_bytes, tally.records, tally.first_s = json.loads(pipe.read())
            yield tally
    for _ in works:
        if os.wait()[1]:
            raise RuntimeError("a worker has failed")


def _announced(paths: Sequence[str], place: Path) -> AbstractContextManager[object]:
    import fastfuse.hints  # the others import nothing of fastfuse

    return fastfuse.hints.order(paths, place)


def _train(manner: str, place: Path, mode: str) -> Iterator[_Tally]:
    tally = _Tally()
    is_stream = mode == "Pipe"
    if manner == "bytes":
        yield from _in_processes([partial(_read_bytes, Path(f"{place}_0"))])
    elif manner in ("files", "hinted") and not is_stream:
        paths = _shuffled(place)
        with _announced(paths, place) if manner == "hinted" else nullcontext():
            yield from _in_processes([partial(_read_files, paths[worker::_WORKERS]) for worker in range(_WORKERS)])
    else:
        read = _read_tfrecords if manner == "records" else _read_recordio
        for path in [Path(f"{place}_0")] if is_stream else _files(place):
            with open(path, "rb", buffering=_BUFFER_BYTES) as file:
                read(file, tally)
        yield tally


def main() -> None:
    config = json.loads(os.environ["SM_INPUT_DATA_CONFIG"])
    [name] = json.loads(os.environ["SM_CHANNELS"])
    place = Path(os.environ[f"SM_CHANNEL_{name.upper()}"])
    tallies = list(_train(sys.argv[1], place, config[name]["TrainingInputMode"]))
    ended_s, spent = time.monotonic(), os.times()
    print(
        json.dumps(
            {
                "began_s": _BEGAN_S,
                "first_s": min(tally.first_s for tally in tallies),
                "ended_s": ended_s,
                "size_bytes": sum(tally.size_bytes for tally in tallies),
                "records": sum(tally.records for tally in tallies),
                "cpu_s": spent.user + spent.system + spent.children_user + spent.children_system,
            }
        )
    )


if __name__ == "__main__":
    main()
