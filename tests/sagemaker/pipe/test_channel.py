"""Channels through real FIFOs: streamers and readers in processes of their own, against the loopback server."""

import gzip
import json
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from bench.s3server import FaultRule, Flip, LoopbackServer, MemoryObjects, Stall
from fastfuse.index.sources.shuffle import shuffled
from tests.sagemaker.pipe.readers import Reader, Streamer, digest, streaming
from tests.sagemaker.pipe.test_encodings import MAGIC, records_of

Stream = Callable[..., AbstractContextManager[Streamer]]

MIB = 1 << 20
# Small files and one of several parts, in folders whose keys are not in the order of their names.
DATA = {
    **{f"data/a/{number:03}": os.urandom(1000 + number) for number in range(200)},
    "data/a!": b"before the folder",
    "data/empty": b"",
    "data/large": os.urandom(20 * MIB + 5),
}
ORDERED = [DATA[key] for key in sorted(DATA)]
WHOLE = digest(b"".join(ORDERED))


@pytest.fixture(scope="module")
def server() -> Iterator[LoopbackServer]:
    lines = [{"source-ref": f"s3://bucket/data/a/{number:03}", "class": number} for number in range(20)]
    objects = {
        **DATA,
        "gzip/1": gzip.compress(DATA["data/a/001"]) + gzip.compress(DATA["data/large"]),
        "gzip/2": gzip.compress(DATA["data/a/002"]),
        "damaged/1": DATA["data/a/001"],
        "damaged/2": gzip.compress(DATA["data/large"])[:-1000],
        "records/1": MAGIC + b"x" * (9 * MIB) + MAGIC,
        "records/2": b"odd",
        "records/3": b"",
        "lines.manifest": "".join(f"{json.dumps(line)}\n" for line in lines).encode(),
    }
    with LoopbackServer({"bucket": MemoryObjects(objects)}) as running_server:
        yield running_server


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "input" / "data"


@pytest.fixture
def stream(server: LoopbackServer, place: Path) -> Iterator[Stream]:
    """Stream a prefix or manifest of the bucket to `place`, until the block ends."""

    @contextmanager
    def streamed(source: str = "data/", **settings: object) -> Iterator[Streamer]:
        with streaming(server.endpoint_url, f"s3://bucket/{source}", place, **settings) as streamer:
            streamer.hear("ready")
            yield streamer

    yield streamed
    server.faults.clear()


def names(place: Path) -> set[str]:
    return {path.name for path in place.iterdir()}


def test_epochs_follow_one_another_each_with_everything_in_the_order_of_keys(stream: Stream, place: Path) -> None:
    with stream() as streamer:
        assert names(place) == {"train_0"}
        assert stat.S_IMODE((place / "train_0").stat().st_mode) == 0o644  # whoever may enter the directory may read
        assert Reader.start(place, count=3).epochs() == [WHOLE] * 3
        # As they were announced, and no more of them than the next one.
        assert [streamer.hear("progress")["epoch"] for _ in range(3)][-1] <= 3
        assert streamer.stop() == 0
    assert names(place) == set()


def test_progress_counts_what_was_streamed_and_fetched_over_all_epochs(stream: Stream, place: Path) -> None:
    with stream() as streamer:
        total_bytes = WHOLE[0]
        for epoch in (1, 2):
            assert Reader.start(place, first=epoch - 1).epochs() == [WHOLE]
            told = streamer.hear("progress")
            while told["written_bytes"] < epoch * total_bytes:
                told = streamer.hear("progress")
            assert told["written_bytes"] == epoch * total_bytes
            # The beginning of the next epoch may be on its way, and what the last one left is not fetched again.
            assert total_bytes <= told["fetched_bytes"] <= epoch * total_bytes + 64 * MIB
            assert len(DATA) - 1 <= told["requests"]


def test_the_next_epochs_fifo_is_there_while_one_is_read(stream: Stream, place: Path) -> None:
    with stream():
        with open(place / "train_0", "rb", buffering=0) as first:
            assert first.read(10) == ORDERED[0][:10]
            assert names(place) == {"train_0", "train_1"}
            # Who opens it now waits for its beginning, however it is opened.
            fd = os.open(place / "train_1", os.O_RDONLY | os.O_NONBLOCK)
            with pytest.raises(BlockingIOError):
                os.read(fd, 1)
        os.set_blocking(fd, True)
        with open(fd, "rb") as second:
            assert digest(second.read()) == WHOLE


def test_a_reader_that_closes_early_or_never_blocks_gets_the_next_epochs_whole(stream: Stream, place: Path) -> None:
    with stream():
        assert all(total < 5000 for total, _ in Reader.start(place, count=3, stop_bytes=2000).epochs())
        assert Reader.start(place, first=3).epochs() == [WHOLE]
        assert Reader.start(place, first=4, count=2, is_blocking=False).epochs() == [WHOLE] * 2


def test_each_epoch_is_shuffled_by_seed_and_number(stream: Stream, place: Path) -> None:
    with stream(shuffle_seed=7):
        expected = [digest(b"".join(ORDERED[at] for at in shuffled(len(ORDERED), 7, epoch))) for epoch in (0, 1)]
        assert Reader.start(place, count=2).epochs() == expected


def test_gzip_is_decompressed_over_all_members(stream: Stream, place: Path) -> None:
    with stream("gzip/", is_gzip=True):
        expected = DATA["data/a/001"] + DATA["data/large"] + DATA["data/a/002"]
        assert Reader.start(place).epochs() == [digest(expected)]


def _read_records(streamer: Streamer) -> list[bytes]:
    with open(streamer.directory / "train_0", "rb") as fifo:
        return records_of(fifo.read())


def test_each_object_is_a_record(stream: Stream) -> None:
    with stream("records/", wraps_records=True) as streamer:
        assert _read_records(streamer) == [MAGIC + b"x" * (9 * MIB) + MAGIC, b"odd", b""]
    with stream("gzip/", wraps_records=True, is_gzip=True) as streamer:
        assert _read_records(streamer) == [DATA["data/a/001"] + DATA["data/large"], DATA["data/a/002"]]


@pytest.mark.parametrize("seed", [None, 3])
def test_attributes_follow_one_another_and_each_may_be_a_record(stream: Stream, place: Path, seed: int | None) -> None:
    settings = {"kind": "AugmentedManifestFile", "attribute_names": ("class", "source-ref"), "shuffle_seed": seed}
    order = range(20) if seed is None else shuffled(20, seed, 0)
    expected = [record for line in order for record in (b"%d" % line, DATA[f"data/a/{line:03}"])]
    with stream("lines.manifest", wraps_records=True, **settings) as streamer:
        assert _read_records(streamer) == expected
    with stream("lines.manifest", **settings):
        assert Reader.start(place).epochs() == [digest(b"".join(expected))]


def test_an_epoch_of_bytes_that_were_damaged_has_no_end(server: LoopbackServer, stream: Stream, place: Path) -> None:
    """The server keeps no checksums, but its ETags are MD5s."""
    with stream("data/large", verify=True):
        assert Reader.start(place).epochs() == [digest(DATA["data/large"])]
    server.faults.add(FaultRule(action=Flip(lambda start, end: [5]), operation="GetObject", key="data/large"))
    with stream("data/large", verify=True) as streamer:
        reader = Reader.start(place)
        assert "'data/large' was received damaged" in streamer.hear("error")
        assert not reader.is_done()
        reader.kill()


@pytest.mark.parametrize(("key", "what"), [("1", "it is not gzip data"), ("2", "cut short")])
def test_damaged_gzip_fails_the_epoch(stream: Stream, place: Path, key: str, what: str) -> None:
    with stream(f"damaged/{key}", is_gzip=True) as streamer:
        reader = Reader.start(place)
        told = streamer.hear("error")
        assert f"'s3://bucket/damaged/{key}' cannot be decompressed" in told
        assert what in told
        assert not reader.is_done()
        reader.kill()
        assert streamer.stop() == 4


def test_sigterm_ends_a_wait_for_a_slow_service(server: LoopbackServer, stream: Stream, place: Path) -> None:
    server.faults.add(FaultRule(action=Stall(0), operation="GetObject", key="data/large"))
    with stream() as streamer, open(place / "train_0", "rb", buffering=0) as fifo:
        assert fifo.read(10) == ORDERED[0][:10]
        assert streamer.stop() == 0
