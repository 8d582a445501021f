"""The same script, unchanged, in every mode; what it finds, and what the console says."""

import hashlib
import json
import re
from collections.abc import Mapping
from itertools import product
from pathlib import Path

import pytest

from bench.s3server import ACCESS_DENIED, SLOW_DOWN, FaultRule, LoopbackServer, MemoryObjects
from fastfuse.filesystem.figures.recorder import samples_of
from fastfuse.report.intervals import figures
from fastfuse.report.records import Record, read_record, record_at
from tests.filesystem.waiting import wait_until
from tests.mounting import run_fastfuse
from tests.sagemaker.running.jobs import BUCKET, CHECKSUMS, Run, channel, checksums, running
from tests.semantics.places import block_bytes

MODES = ("FastFile", "File", "Pipe")
OBJECTS: Mapping[str, bytes] = {
    "train/a": block_bytes(1, 3 << 20),
    "train/b/c": block_bytes(2, 100_001),
    "train/b/d": b"",
    "test/x": block_bytes(3, 5000),
}
TRAIN = hashlib.sha256(b"".join(data for key, data in OBJECTS.items() if key.startswith("train/"))).hexdigest()
TEST = hashlib.sha256(OBJECTS["test/x"]).hexdigest()


@pytest.mark.parametrize("modes", [*zip(MODES, MODES, strict=True), *product(MODES[:1], MODES[1:])], ids="-".join)
def test_a_script_reads_the_same_bytes_whatever_the_mode(run: Run, modes: tuple[str, str]) -> None:
    channels = [channel("train", modes[0], "train/"), channel("test", modes[1], "test/")]
    with run(channels, command=CHECKSUMS, ends_with=0) as job:
        assert checksums(job) == {"train": TRAIN, "test": TEST}
        assert re.search(r"all channels: 3\.1 MiB, [3-9] GET, 2 LIST, \$0\.0000\d+ at the prices", job.log)
        for name, mode in zip(("train", "test"), modes, strict=True):
            [fetched] = re.findall(
                rf"fastfuse.filesystem.figures.status: (.*)fetched .* GETs \(.*channel={name}\n", job.log
            )
            source = {"train": "3 files, 3.1 MiB: ", "test": "1 file, 4.9 KiB: "}[name]
            assert fetched.startswith(source)
            assert (fetched == source) == (mode == "File")  # nobody reads from a download
        assert_reported(read_record(record_at(job.base)), modes)


def assert_reported(record: Record, modes: tuple[str, str]) -> None:
    """The history of the job has what each channel fetched and how many GETs were answered, whatever the mode."""
    assert record.job is not None
    assert record.job.status == "Completed"
    stopping = ["Stopping"] * ({*modes} != {"File"})
    assert [name for name, _ in record.phases] == ["Starting", "Downloading", "Training", *stopping]
    assert [(one.name, one.mode) for one in record.channels] == [("train", modes[0]), ("test", modes[1])]
    for one, prefix in zip(record.channels, ("train/", "test/"), strict=True):
        found = figures(samples_of(one.at, one.numbers))
        sizes = [len(data) for key, data in OBJECTS.items() if key.startswith(prefix) and data]
        assert found.fetched_bytes == sum(sizes)
        assert found.gets >= len(sizes)
        assert found.in_use_s > 0


@pytest.mark.parametrize("mode", MODES)
def test_the_trouble_of_a_channel_and_its_end_are_told(server: LoopbackServer, run: Run, mode: str) -> None:
    """While it is listed, and while it is read."""
    server.faults.add(FaultRule(action=SLOW_DOWN, operation="ListObjectsV2", times=1))
    # A byte of the first file is read while it is listed, if it is to be mounted (L8).
    skip = int(mode == "FastFile")
    server.faults.add(FaultRule(action=SLOW_DOWN, operation="GetObject", key="train/a", times=1, skip=skip))
    with run([channel("train", mode, "train/")], "--metrics-listen", "0", command=("sleep", "infinity")) as job:
        job.wait_for_log("Running sleep")
        if mode == "Pipe":
            assert (job.data / "train_0").read_bytes().startswith(OBJECTS["train/a"])
        else:
            assert (job.data / "train/a").read_bytes() == OBJECTS["train/a"]
        wait_until(lambda: job.log.count("answered again after ") == 2)
        told = [line for line in job.log.splitlines() if "503 SlowDown" in line]
        assert all(line.endswith("1 × 503 SlowDown; 1 request waited channel=train") for line in told[1::2])
        assert all(line.endswith(" so far) channel=train") for line in told[::2])
        assert "page 1 of the listing of 's3://bucket/train/': 503 SlowDown, request FASTFUSE; trying" in told[0]
        assert "'s3://bucket/train/a': 503 SlowDown, request FASTFUSE; trying again (attempt 1 failed, " in told[2]
        counted = re.findall(r'fastfuse_retries_total{.*cause="throttled".*} (.*)', job.metrics())
        assert counted == ["2.0"]


@pytest.mark.parametrize("mode", ["File", "Pipe"])
def test_a_channel_that_is_not_mounted_is_in_trouble_while_nothing_is_fetched(
    server: LoopbackServer, run: Run, mode: str
) -> None:
    def is_in_trouble() -> list[str]:
        return re.findall(r"^fastfuse_in_trouble{.*} (.*)", job.metrics(), re.MULTILINE)

    fault = server.faults.add(FaultRule(action=SLOW_DOWN, operation="GetObject"))
    with run([channel("train", mode, "train/")], "--metrics-listen", "0", command=("sleep", "infinity")) as job:
        job.wait_for_log("SlowDown")
        wait_until(lambda: is_in_trouble() == ["1.0"])
        server.faults.remove(fault)
        job.wait_for_log("Running sleep")
        if mode == "Pipe":
            assert (job.data / "train_0").read_bytes().startswith(OBJECTS["train/a"])
        wait_until(lambda: is_in_trouble() == ["0.0"])


def test_files_that_are_none_of_the_channels_are_told_and_left_alone(run: Run, tmp_path: Path) -> None:
    other = tmp_path / "input/data/train/of-another-dataset"
    other.parent.mkdir(parents=True)
    other.write_bytes(b"x")
    with run([channel("train", "File")], "--keep", base=tmp_path, command=("true",), ends_with=0) as job:
        assert "train holds 1 files that are none of the channel's" in job.log
        assert other.read_bytes() == b"x"


def test_without_a_command_a_run_ends_when_nothing_is_left_to_serve(run: Run) -> None:
    with run([channel("train", "File", "train/")], ends_with=0) as job:
        assert (job.data / "train/b/c").read_bytes() == OBJECTS["train/b/c"]
        assert "Completed - nothing is left to be served" in job.log


def test_the_console_tells_phases_bytes_requests_and_cost_and_what_is_done_otherwise(run: Run) -> None:
    channels = [channel(mode, mode, "train/", ShuffleConfig={"Seed": 7}) for mode in MODES]
    del channels[0]["InputMode"]
    with run(channels, command=CHECKSUMS, ends_with=0) as job:
        phases = re.findall(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d (\w+) - ", job.log, re.MULTILINE)
        assert list(dict.fromkeys(phases)) == ["Starting", "Downloading", "Training", "Stopping", "Completed"]
        assert re.search(r"Completed - Starting [\d.]+ s, Downloading [\d.]+ s, Training [\d.]+ s, Stopping", job.log)
        for mode in MODES:
            line = re.search(rf"Completed - {mode} \({mode}\): ([\d.]+) MiB, (\d+) GET, 1 LIST, \$([\d.]+) ", job.log)
            assert line, job.log
            size, gets, cost = line.groups()
            assert float(size) == pytest.approx(3.1, abs=0.05)
            assert float(cost) == pytest.approx(int(gets) * 0.4e-6 + 5e-6, abs=1e-6)
        assert job.log.count("Starting - No InputMode is given for FastFile: FastFile is taken\n") == 1
        told = re.findall(r"Starting - (\S+): (?:done differently|not done here) \(", job.log)
        assert told == ["InputDataConfig.ShuffleConfig"]
        assert re.findall(r"channel (\S+): ShuffleConfig has no effect in FastFile mode\.", job.log) == ["FastFile"]
        assert job.log.count("fastfuse.hints.order or fastfuse.hints.HintedSampler") == 1


def test_with_json_logs_every_line_of_the_console_is_json(run: Run) -> None:
    channels = [channel("train", "FastFile", "train/"), channel("test", "File", "test/")]
    with run(channels, "--log-format", "json", command=CHECKSUMS, ends_with=0) as job:
        records = [json.loads(line) for line in job.log.splitlines()]
        assert next(record["phase"] for record in records if "phase" in record) == "Starting"
        assert {record["channel"] for record in records if "channel" in record} == {"train", "test"}


@pytest.mark.parametrize("mode", MODES)
def test_a_channel_that_cannot_be_prepared_ends_the_run_and_is_named(run: Run, mode: str) -> None:
    missing = channel("broken", mode)
    missing["DataSource"]["S3DataSource"]["S3Uri"] = "s3://missing/"
    channels = [channel("train", "FastFile", "train/"), channel("test", "Pipe", "test/"), missing]
    with run(channels, command="print('never')", ends_with=4) as job:
        assert "channel broken: There is no bucket 'missing'" in job.log
        assert job.output == ""
        assert not [path for path in job.data.iterdir() if path.is_fifo()]


def test_a_stream_that_two_have_opened_is_told(run: Run) -> None:
    program = """
import os
with open(os.environ["SM_CHANNEL_TRAIN"] + "_0", "rb", buffering=0) as first:
    first.read(1)
    with open(os.environ["SM_CHANNEL_TRAIN"] + "_0", "rb") as second:
        print(len(second.read()))
with open(os.environ["SM_CHANNEL_TRAIN"] + "_1", "rb") as closed_early:
    closed_early.read(1)
while not os.path.exists(os.environ["SM_CHANNEL_TRAIN"] + "_2"):
    pass
with open(os.environ["SM_CHANNEL_TRAIN"] + "_2", "rb") as whole:
    print(len(whole.read()))
"""
    with run([channel("train", "Pipe", "train/")], command=program, ends_with=0) as job:
        rest_bytes, whole_bytes = map(int, job.output.split())
        assert rest_bytes == whole_bytes - 1
        assert "train_0' was opened more than once: each reader got only a part of the epoch" in job.log
        assert job.log.count("was opened more than once") == 1


def test_a_stream_that_breaks_off_is_never_taken_for_whole(server: LoopbackServer, run: Run) -> None:
    server.faults.add(FaultRule(action=ACCESS_DENIED, operation="GetObject", key="test/x"))
    program = """
import os, signal
signal.signal(signal.SIGTERM, lambda number, frame: print("told", flush=True))
open(os.environ["SM_CHANNEL_TEST"] + "_0", "rb").read()
print("whole", flush=True)
"""
    channels = [channel("train", "FastFile", "train/"), channel("test", "Pipe", "test/")]
    with run(channels, "--stop-timeout", "3", command=program, ends_with=1) as job:
        assert "error: channel test: " in job.log
        assert job.output.split() == ["told"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "run takes either --job FILE or --channel"),
        (["--channel", "train=s3://bucket/", "--job", "x.json"], "run takes either --job FILE or --channel"),
        (["--channel", "train=s3://bucket/", "--", "/no/such/program"], "'/no/such/program' is not to be found"),
        (["--channel", "train=s3://bucket/", "--memory-target", "128MiB", "--channel", "b=s3://bucket/"], "256MiB"),
        (["--channel", "train=s3://bucket/", "--memory-target", "128MiB", "--part-size", "64MiB"], "--part-size 64MiB"),
    ],
)
def test_what_cannot_be_run_is_refused_before_a_start(tmp_path: Path, arguments: list[str], message: str) -> None:
    done = run_fastfuse("run", "--base-dir", str(tmp_path / "ml"), *arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert not (tmp_path / "ml").exists()


def test_a_second_run_below_the_same_base_directory_is_refused(run: Run, tmp_path: Path) -> None:
    channels = [channel("train", "Pipe", "train/")]
    with run(channels, base=tmp_path) as first:
        first.wait_for_log("All channels are ready")
        with run(channels, base=tmp_path, ends_with=2) as second:
            assert f"another fastfuse run uses {tmp_path}" in second.log
        assert (tmp_path / "input/data/train_0").read_bytes() == OBJECTS["train/a"] + OBJECTS["train/b/c"]
        assert first.stop() == 0


@pytest.mark.parametrize(("mode", "what"), [("FastFile", "the mountpoint"), ("Pipe", "the directory")])
def test_what_file_mode_has_downloaded_is_neither_mounted_over_nor_left_beside_a_stream(
    run: Run, tmp_path: Path, mode: str, what: str
) -> None:
    (tmp_path / "input/data/train").mkdir(parents=True)
    (tmp_path / "input/data/train/a").write_bytes(b"mine")
    with run([channel("train", mode, "train/")], "--keep", base=tmp_path, ends_with=5) as job:
        assert f"channel train: {what}" in job.log
        assert "hint: remove it, or begin without --keep" in job.log


def test_each_run_begins_with_empty_directories_whatever_its_mode(run: Run, tmp_path: Path) -> None:
    leaving = """
import os
print(sorted(name for top in ("model", "output/data", "checkpoints") for name in os.listdir(os.path.join(BASE, top))))
print(sorted(os.listdir(os.path.join(BASE, "input/data/train"))), flush=True)
open(os.path.join(BASE, "model/weights"), "w").close()
"""
    for number, mode in enumerate(("File", "FastFile", "File")):
        command = f"BASE = {str(tmp_path)!r}{leaving}"
        with run([channel("train", mode, "train/")], base=tmp_path, command=command, ends_with=0) as job:
            assert job.output == "[]\n['a', 'b']\n"
            assert ("What the earlier run left is in " in job.log) == (number > 0)
    left = sorted(str(path.relative_to(tmp_path / "runs")).partition("/")[2] for path in tmp_path.glob("runs/*/*/*"))
    kept = ["model/weights", "output/data", "output/job-history.json", "output/job-record.json"]
    assert left == sorted(["input/data", *kept, *kept])


def test_the_index_of_a_download_is_closed_before_the_disk_is_waited_for(run: Run) -> None:
    change = """
import gc, os
from fastfuse.sagemaker.running import serving
def tell(*_):
    gc.collect()
    for fd in os.listdir("/proc/self/fd"):
        if os.path.islink(f"/proc/self/fd/{fd}"):
            os.write(2, f"open: {os.readlink(f'/proc/self/fd/{fd}')}\\n".encode())
serving.settle_channel = tell
"""
    with run([channel("train", "File", "train/")], change=change, command="''", ends_with=0) as job:
        assert "open: pipe:" in job.log
        assert "open: /memfd:fastfuse-index" not in job.log


# Some of 200 files, in no order.
A_FEW = """
import os, signal
for number in range(0, 1400, 49):
    with open(os.path.join(os.environ["SM_CHANNEL_TRAIN"], f"{number % 200:03}"), "rb") as file:
        assert len(file.read()) == 5000
print("read", flush=True)
signal.pause()
"""


@pytest.mark.parametrize(("host", "fewest_gets", "most_gets"), [("1/1", 101, 146), ("1/2", 30, 30)])
def test_other_small_files_are_fetched_if_a_host_reads_all(host: str, fewest_gets: int, most_gets: int) -> None:
    objects = MemoryObjects({f"small/{number:03}": block_bytes(number, 5000) for number in range(200)})
    channels = [channel("train", "FastFile", "small/")]
    with LoopbackServer({BUCKET: objects}) as server:
        with running(server.endpoint_url, channels, "--host", host, command=A_FEW) as job:
            job.wait_for_output("read")
            server.wait_until(lambda now: now.requests.get("GetObject", 0) >= fewest_gets)
            job.stop()
        assert fewest_gets <= server.statistics().requests["GetObject"] <= most_gets
