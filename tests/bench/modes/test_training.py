"""The script, on directories and files as `fastfuse run` would have made them."""

import json
import struct
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from bench.modes import training
from bench.shards import frame

RECORDS = [b"a" * 5, b"b" * 70_000, b""]


def train(place: Path, manner: str, mode: str) -> dict[str, Any]:
    environment = {
        "SM_CHANNELS": json.dumps(["train"]),
        "SM_CHANNEL_TRAIN": str(place),
        "SM_INPUT_DATA_CONFIG": json.dumps({"train": {"TrainingInputMode": mode}}),
    }
    command = [sys.executable, "-E", training.__file__, manner]
    done = subprocess.run(command, env=environment, capture_output=True, check=True, text=True)
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def recordio(records: Iterable[bytes]) -> bytes:
    return b"".join(struct.pack("<II", 0xCED7230A, len(data)) + data + bytes(-len(data) % 4) for data in records)


@pytest.mark.parametrize("mode", ["File", "FastFile", "Pipe"])
def test_tfrecords_are_the_same_as_files_and_as_one_stream(tmp_path: Path, mode: str) -> None:
    framed = [frame(record) for record in RECORDS]
    place = tmp_path / "train"
    place.mkdir()
    for number, record in enumerate(framed):
        (place / f"{number}.tfrecord").write_bytes(record)
    (tmp_path / "train_0").write_bytes(b"".join(framed))  # any file will do where a FIFO is expected
    told = train(place, "records", mode)
    assert (told["records"], told["size_bytes"]) == (3, sum(map(len, framed)))
    assert told["began_s"] < told["first_s"] < told["ended_s"]


def test_records_that_end_too_early_fail(tmp_path: Path) -> None:
    (tmp_path / "train_0").write_bytes(frame(b"data")[:-1])
    with pytest.raises(subprocess.CalledProcessError):
        train(tmp_path / "train", "records", "Pipe")


def test_small_files_are_as_many_bytes_as_recordio(tmp_path: Path) -> None:
    place = tmp_path / "train"
    for number in range(40):
        (place / str(number % 4)).mkdir(parents=True, exist_ok=True)
        (place / str(number % 4) / f"{number}.jpg").write_bytes(b"x" * number)
    (tmp_path / "train_0").write_bytes(recordio(b"x" * number for number in range(40)))
    for mode in ("File", "Pipe"):
        told = train(place, "files", mode)
        assert (told["records"], told["size_bytes"]) == (40, sum(range(40)))
    # Nothing is mounted there, so an order that is announced changes nothing.
    told = train(place, "hinted", "FastFile")
    assert (told["records"], told["size_bytes"]) == (40, sum(range(40)))


def test_the_bytes_of_a_stream_are_counted(tmp_path: Path) -> None:
    (tmp_path / "train_0").write_bytes(bytes(3_000_000))
    assert train(tmp_path / "train", "bytes", "Pipe")["size_bytes"] == 3_000_000
