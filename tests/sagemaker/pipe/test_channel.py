"""Channels through real FIFOs: jobs and readers in processes of their own, against the loopback server."""

import gzip
import json
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from bench.s3server import FaultRule, Flip, LoopbackServer, MemoryObjects, Stall
from fastfuse.index.sources.shuffle import shuffled
from tests.filesystem.waiting import wait_until
from tests.sagemaker.pipe.readers import Reader, digest
from tests.sagemaker.pipe.test_content import MAGIC, records_of
from tests.sagemaker.running.jobs import Job, Run, channel, running

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
        "damaged": gzip.compress(DATA["data/large"])[:-1000],
        "records/1": MAGIC + b"x" * (9 * MIB) + MAGIC,
        "records/2": b"odd",
        "records/3": b"",
        "lines.manifest": "".join(f"{json.dumps(line)}\n" for line in lines).encode(),
    }
    with LoopbackServer({"bucket": MemoryObjects(objects)}) as running_server:
        yield running_server


@pytest.fixture
def stream(server: LoopbackServer) -> Iterator[Run]:
    """Stream a prefix or manifest of the bucket until the block ends."""

    @contextmanager
    def streamed(source: str = "data/", *options: str, **fields: Any) -> Iterator[Job]:  # noqa: ANN401 - JSON
        with running(server.endpoint_url, [channel("train", "Pipe", source, **fields)], *options) as job:
            job.wait_for_log("All channels are ready")
            yield job

    yield streamed
    server.faults.clear()


def names(place: Path) -> set[str]:
    return {path.name for path in place.iterdir()}


def test_epochs_follow_one_another_each_with_everything_in_the_order_of_keys(stream: Run) -> None:
    with stream() as job:
        assert names(job.data) == {"train_0"}
        # Whoever may enter the directory may read.
        assert stat.S_IMODE((job.data / "train_0").stat().st_mode) == 0o644
        assert Reader.start(job.data, count=3).epochs() == [WHOLE] * 3
        assert job.stop() == 0
        assert names(job.data) == set()


def test_what_memory_holds_of_an_epoch_is_not_fetched_for_the_next(server: LoopbackServer, stream: Run) -> None:
    def counted(name: str) -> int:
        [count] = re.findall(rf"^{name}_total{{.*}} (.*)", job.metrics(), re.MULTILINE)
        return int(float(count))

    before, total_bytes = server.count("GetObject"), WHOLE[0]
    with stream("data/", "--metrics-listen", "0", "--memory-target", "1GiB") as job:
        assert Reader.start(job.data, count=2).epochs() == [WHOLE] * 2
        wait_until(lambda: counted("fastfuse_read_served_bytes") >= 2 * total_bytes)
        assert counted("fastfuse_read_served_bytes") == 2 * total_bytes
        assert counted("fastfuse_fetched_bytes") == total_bytes
        # The large object comes in parts.
        assert server.count("GetObject") - before < len(DATA) + 40


def test_the_next_epochs_fifo_is_there_while_one_is_read(stream: Run) -> None:
    with stream() as job:
        with open(job.data / "train_0", "rb", buffering=0) as first:
            assert first.read(10) == ORDERED[0][:10]
            assert names(job.data) == {"train_0", "train_1"}
            # Who opens it now waits for its beginning, however it is opened.
            fd = os.open(job.data / "train_1", os.O_RDONLY | os.O_NONBLOCK)
            with pytest.raises(BlockingIOError):
                os.read(fd, 1)
        os.set_blocking(fd, True)
        with open(fd, "rb") as second:
            assert digest(second.read()) == WHOLE


def test_a_reader_that_closes_early_or_never_blocks_gets_the_next_epochs_whole(stream: Run) -> None:
    with stream() as job:
        assert all(total < 5000 for total, _ in Reader.start(job.data, count=3, stop_bytes=2000).epochs())
        assert Reader.start(job.data, first=3).epochs() == [WHOLE]
        assert Reader.start(job.data, first=4, count=2, is_blocking=False).epochs() == [WHOLE] * 2


def test_each_epoch_is_shuffled_by_seed_and_number(stream: Run) -> None:
    with stream(ShuffleConfig={"Seed": 7}) as job:
        expected = [digest(b"".join(ORDERED[at] for at in shuffled(len(ORDERED), 7, epoch))) for epoch in (0, 1)]
        assert Reader.start(job.data, count=2).epochs() == expected


def test_gzip_is_decompressed_over_all_members(stream: Run) -> None:
    with stream("gzip/", CompressionType="Gzip") as job:
        expected = DATA["data/a/001"] + DATA["data/large"] + DATA["data/a/002"]
        assert Reader.start(job.data).epochs() == [digest(expected)]
    with stream("gzip/", CompressionType="Gzip", RecordWrapperType="RecordIO") as job:
        # The first is too long to be kept: it is decompressed twice, its length comes first.
        assert _read_records(job) == [DATA["data/a/001"] + DATA["data/large"], DATA["data/a/002"]]


def _read_records(job: Job) -> list[bytes]:
    with open(job.data / "train_0", "rb") as fifo:
        return records_of(fifo.read())


def test_each_object_is_a_record(stream: Run) -> None:
    with stream("records/", RecordWrapperType="RecordIO") as job:
        assert _read_records(job) == [MAGIC + b"x" * (9 * MIB) + MAGIC, b"odd", b""]


def test_attributes_follow_one_another_and_each_may_be_a_record(stream: Run) -> None:
    source = {"S3DataType": "AugmentedManifestFile", "S3Uri": "s3://bucket/lines.manifest"}
    fields: dict[str, object] = {"DataSource": {"S3DataSource": source | {"AttributeNames": ["class", "source-ref"]}}}
    fields |= {"ShuffleConfig": {"Seed": 3}}
    expected = [record for line in shuffled(20, 3, 0) for record in (b"%d" % line, DATA[f"data/a/{line:03}"])]
    with stream(RecordWrapperType="RecordIO", **fields) as job:
        assert _read_records(job) == expected
    with stream(**fields) as job:
        assert Reader.start(job.data).epochs() == [digest(b"".join(expected))]


def test_an_epoch_of_bytes_that_were_damaged_has_no_end(server: LoopbackServer, stream: Run) -> None:
    """The server keeps no checksums, but its ETags are MD5s."""
    with stream("data/large", "--verify") as job:
        assert Reader.start(job.data).epochs() == [digest(DATA["data/large"])]
    server.faults.add(FaultRule(action=Flip(lambda start, end: [5]), operation="GetObject", key="data/large"))
    with stream("data/large", "--verify") as job:
        reader = Reader.start(job.data)
        job.wait_for_log("'data/large' was received damaged")
        assert reader.waits()
        reader.kill()


def test_damaged_gzip_fails_the_epoch(stream: Run) -> None:
    with stream("damaged", CompressionType="Gzip") as job:
        reader = Reader.start(job.data)
        job.wait_for_log("'s3://bucket/damaged' cannot be decompressed: the gzip data is cut short")
        assert reader.waits()
        reader.kill()
        assert job.stop() == 4


def test_sigterm_ends_a_wait_for_a_slow_service(server: LoopbackServer, stream: Run) -> None:
    server.faults.add(FaultRule(action=Stall(0), operation="GetObject", key="data/large"))
    with stream() as job, open(job.data / "train_0", "rb", buffering=0) as fifo:
        assert fifo.read(10) == ORDERED[0][:10]
        assert job.stop() == 0
