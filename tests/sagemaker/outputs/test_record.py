"""The record of a job, the hash of a listing in it, and the reason that a script gives for its failure."""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from bench.s3server import ACCESS_DENIED, INTERNAL_ERROR, FaultRule, LoopbackServer, MemoryObjects, Reset
from fastfuse import __version__
from fastfuse.index.inodes.builder import TableBuilder
from fastfuse.sagemaker.files import JobPaths
from fastfuse.sagemaker.outputs.record import RECORD_NAME, Usage, listing_of, read_failure
from tests.index.indexes import MD5
from tests.sagemaker.running.jobs import BUCKET, Job, channel, running

OBJECTS = {"a/x": (3, MD5), "a/y": (4, '"odd"'), "b": (5, '"older"'), "c": (0, MD5[:-1] + '-7"')}


def described(objects: Mapping[str, tuple[int, str]], bucket: str = "bucket", mtime_ns: int = 1) -> dict[str, object]:
    builder = TableBuilder(bucket, f"{bucket}/")
    for key, (size_bytes, etag) in objects.items():  # each a page of the listing
        builder.add([f"{bucket}/{key}".encode()], [size_bytes], [mtime_ns], [etag], ["STANDARD"])
    return listing_of(builder.build()[0])


def test_the_same_data_in_another_bucket_at_another_time_has_the_same_hash() -> None:
    first = described(OBJECTS)
    assert (first["Objects"], first["Bytes"]) == (4, 12)
    # Pages of a parallel listing come in any order.
    assert first == described(dict(reversed(OBJECTS.items())), bucket="copy", mtime_ns=7)


@pytest.mark.parametrize(
    "change",
    [
        {"a/x": (4, MD5)},
        {"a/x": (3, MD5.replace("0", "1"))},
        {"a/y": (4, '"older"'), "b": (5, '"odd"')},
        {"c": (0, MD5[:-1] + '-8"')},
        {"d": (0, MD5)},
        {"a/y": None, "a/z": OBJECTS["a/y"]},
    ],
)
def test_another_size_version_or_name_makes_another_hash(change: Mapping[str, tuple[int, str] | None]) -> None:
    changed = {key: value for key, value in {**OBJECTS, **change}.items() if value}
    assert described(changed)["ListingSha256"] != described(OBJECTS)["ListingSha256"]


CHANNELS = [channel("f", "File", "data/"), channel("m", "FastFile", "data/"), channel("p", "Pipe", "data/")]
READ_ALL = """
import os
for name, path in (("f", "/x"), ("m", "/x"), ("p", "_0")):
    open(os.environ["SM_CHANNEL_" + name.upper()] + path, "rb").read()
"""


@pytest.fixture
def server() -> Iterator[LoopbackServer]:
    with LoopbackServer({BUCKET: MemoryObjects({"data/x": bytes(1000)})}) as running_server:
        yield running_server


def record_of(job: Job) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((job.base / "output" / RECORD_NAME).read_text())
    return record


def test_a_job_leaves_a_record_with_what_each_channel_held_and_cost(server: LoopbackServer) -> None:
    with running(server.endpoint_url, CHANNELS, "--record-etags", command=READ_ALL, ends_with=0) as job:
        record = record_of(job)
        etags = {path.name: path.read_bytes() for path in (job.base / "output/job-etags").iterdir()}
    assert etags.keys() == {"f.jsonl", "m.jsonl", "p.jsonl"}
    assert len(set(etags.values())) == 1
    assert record["FastfuseVersion"] == __version__
    assert (record["TrainingJobStatus"], record["SecondaryStatus"], record["ExitCode"]) == ("Completed",) * 2 + (0,)
    assert "FailureReason" not in record
    assert {"Starting", "Downloading", "Training"} <= record["PhaseSeconds"].keys()
    assert record["StartTime"] <= record["EndTime"]
    modes = {name: entry["InputMode"] for name, entry in record["Channels"].items()}
    assert modes == {"f": "File", "m": "FastFile", "p": "Pipe"}
    for entry in record["Channels"].values():
        assert (entry["Source"], entry["Objects"], entry["Bytes"]) == ("s3://bucket/data/", 1, 1000)
        assert entry["BytesRead"] >= 1000
        assert entry["GetRequests"] >= 1
        assert entry["CostUsd"] > 0
    assert len({entry["ListingSha256"] for entry in record["Channels"].values()}) == 1


@pytest.mark.parametrize("mode", ["File", "FastFile"])
def test_a_record_counts_the_attempts_that_s3_charges_for(server: LoopbackServer, mode: str) -> None:
    probes = int(mode == "FastFile")  # the first GET of a mount reads a byte, which no channel counts
    server.faults.add(FaultRule(action=INTERNAL_ERROR, operation="GetObject", skip=probes, times=1))
    server.faults.add(FaultRule(action=Reset(10), operation="GetObject", skip=probes + 1, times=1))
    command = "import os; open(os.environ['SM_CHANNEL_F'] + '/x', 'rb').read()"
    with running(server.endpoint_url, [channel("f", mode, "data/")], command=command, ends_with=0) as job:
        entry = record_of(job)["Channels"]["f"]
    charged = [request.status < 500 for request in server.requests if request.operation == "GetObject"].count(True)
    assert charged - probes == 2
    assert (entry["GetRequests"], entry["ListRequests"]) == (2, 1)


def test_a_script_that_fails_says_why_on_the_screen_and_in_the_record(server: LoopbackServer) -> None:
    text = "import os, sys; open(os.environ['SM_OUTPUT_DIR'] + '/failure', 'w').write('no labels'); sys.exit(7)"
    with running(server.endpoint_url, CHANNELS[:1], command=text, ends_with=7) as job:
        assert "the script's failure: no labels" in job.log
        record = record_of(job)
    assert (record["TrainingJobStatus"], record["ExitCode"]) == ("Failed", 7)
    assert record["FailureReason"] == "no labels"


def test_a_script_that_fails_because_a_read_did_has_a_record_that_tells_it(server: LoopbackServer) -> None:
    server.faults.add(FaultRule(action=ACCESS_DENIED, operation="GetObject", skip=1))  # the first is of the start
    text = "import os; open(os.environ['SM_CHANNEL_M'] + '/x').read()"
    with running(server.endpoint_url, CHANNELS[1:2], command=text, ends_with=1) as job:
        assert "403 AccessDenied" in job.log
        record = record_of(job)
    failed = "the command exited with 1; reads of channel m failed with EACCES, for the reason in the log"
    assert record["FailureReason"] == failed


def test_a_job_that_cannot_be_prepared_has_a_record_too(server: LoopbackServer) -> None:
    server.faults.add(FaultRule(action=ACCESS_DENIED, operation="ListObjectsV2"))
    with running(server.endpoint_url, CHANNELS[:1], command=("true",), ends_with=3) as job:
        record = record_of(job)
    assert (record["TrainingJobStatus"], record["ExitCode"]) == ("Failed", 3)
    assert "channel f: " in record["FailureReason"]
    assert "ListingSha256" not in record["Channels"]["f"]


def test_a_failure_is_cut_and_has_no_control_characters(tmp_path: Path) -> None:
    paths = JobPaths(tmp_path)
    assert read_failure(paths) == ""
    (tmp_path / "output" / "failure").write_bytes(b"\x1b[31mred\n\xff" + "ü".encode() * 2000)
    assert read_failure(paths) == ("\ufffd[31mred\n\ufffd" + "ü" * 2000)[:1024]
    assert read_failure(paths, since=(tmp_path / "output" / "failure").stat().st_mtime + 1) == ""


def test_a_failure_that_is_a_link_or_a_fifo_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "output").mkdir()
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "output" / "failure").symlink_to(tmp_path / "secret")
    assert read_failure(JobPaths(tmp_path)) == ""
    (tmp_path / "output" / "failure").unlink()
    os.mkfifo(tmp_path / "output" / "failure")
    assert read_failure(JobPaths(tmp_path)) == ""


def test_small_costs_are_told_to_the_digit_that_counts() -> None:
    usage = Usage(fetched_bytes=3 << 20, gets=10, lists=1)
    assert str(usage) == "3 MiB, 10 GET, 1 LIST, $0.000009 at the prices of us-east-1"
    assert ", $4.00 at" in str(Usage(fetched_bytes=0, gets=10_000_000, lists=0))
