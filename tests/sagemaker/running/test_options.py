"""A run takes the options of a mount, for all its channels or for one."""

import json
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from bench.s3server import LoopbackServer, MemoryObjects
from fastfuse.sagemaker.outputs.record import RECORD_NAME
from tests.index.sources.reports import Row, csv_file, manifest
from tests.mounting import access, run_fastfuse
from tests.sagemaker.jobs import ABSENT, request, source, with_field
from tests.sagemaker.running.jobs import BUCKET, channel, running

OBJECTS = {"train/a": b"a" * 5000, "test/x": b"x" * 300, "eval/y": b"y" * 200}


def test_a_run_takes_the_options_of_a_mount(tmp_path: Path) -> None:
    index = tmp_path / "train=1.index"
    report = {"inventory/1.csv.gz": csv_file([Row("eval/y", 200)])}
    reports = {**report, "inventory/manifest.json": manifest(report)}
    with LoopbackServer({BUCKET: MemoryObjects(OBJECTS | reports)}) as server:
        service = access(server.endpoint_url)
        assert run_fastfuse("index", f"s3://{BUCKET}/train/", "-o", str(index), *service).returncode == 0
        before = len(server.requests)
        options = ["--metrics-listen", "0", "--index", f"train={index}", "--uid", "7", "--gid", "8"]
        options += ["--inventory", f"eval=s3://{BUCKET}/inventory/manifest.json"]
        channels = [channel("train", "FastFile", "train/"), channel("test", "File", "test/")]
        channels += [channel("eval", "FastFile", "eval/")]
        with running(server.endpoint_url, channels, *options) as job:
            job.wait_for_log("All channels are ready")
            found = (job.data / "train/a").stat()
            assert (found.st_uid, found.st_gid) == (7, 8)
            assert (job.data / "train/a").read_bytes() == OBJECTS["train/a"]
            assert (job.data / "eval/y").stat().st_size == 200
            families = {family.name: family for family in text_string_to_metric_families(job.metrics())}
            fetched = [(item.labels, item.value) for item in families["fastfuse_fetched_bytes"].samples]
            assert fetched == [
                ({"channel": name, "mount": str(job.data / name), "bucket": BUCKET}, size_bytes)
                for name, size_bytes in {"train": 5000, "test": 300, "eval": 0}.items()
            ]
            assert job.stop() == 0
            record = json.loads((job.base / "output" / RECORD_NAME).read_text())["Channels"]
        listed = [one.query["prefix"] for one in server.requests[before:] if one.operation == "ListObjectsV2"]
        assert listed == ["test/"]
        assert {name: record[name]["ListRequests"] for name in record} == {"train": 0, "test": 1, "eval": 0}


def test_a_host_whose_instance_group_gets_no_channel_runs_its_command() -> None:
    groups = [{"InstanceGroupName": name, "InstanceType": "local", "InstanceCount": 1} for name in ("data", "train")]
    place = {"S3DataType": "S3Prefix", "S3Uri": f"s3://{BUCKET}/train/", "InstanceGroupNames": ["data"]}
    train = source("train", InputMode="FastFile", DataSource={"S3DataSource": place})
    job_file = with_field(request(train), ("OutputDataConfig",), ABSENT)
    job_file["ResourceConfig"] = {"InstanceGroups": groups}
    given = "import os; os.environ |= {'FASTFUSE_METRICS_LISTEN': '0', 'FASTFUSE_HOST': '2/2', 'FASTFUSE_UID': '7'}"
    command = "import os; print(os.environ['SM_CHANNELS'], *sorted(os.environ.keys() & {names}))"
    command = command.format(names={"FASTFUSE_METRICS_LISTEN", "FASTFUSE_HOST", "FASTFUSE_UID"})
    with (
        LoopbackServer({BUCKET: MemoryObjects(OBJECTS)}) as server,
        running(server.endpoint_url, job_file, command=command, change=given, ends_with=0) as job,
    ):
        assert job.output == "[] FASTFUSE_UID\n"
        assert "Preparing 0 channels: this host gets none" in job.log
        assert "Starting - This is algo-2 of 2 hosts\n" in job.log
        assert "the job's InstanceCount" not in job.log


def test_another_number_of_hosts_than_the_job_asks_for_is_warned_of() -> None:
    """A launcher says that there is one, as a job of Slurm does that got one node."""
    job_file = with_field(request(source(InputMode="FastFile")), ("OutputDataConfig",), ABSENT)
    job_file["ResourceConfig"] = {"InstanceType": "ml.g5.xlarge", "InstanceCount": 4}
    set_by_slurm = "import os; os.environ |= {'SLURM_NODEID': '0', 'SLURM_NNODES': '1'}"
    with (
        LoopbackServer({BUCKET: MemoryObjects(OBJECTS)}) as server,
        running(server.endpoint_url, job_file, command="", change=set_by_slurm, ends_with=0) as job,
    ):
        assert "the job's InstanceCount is 4, and the number of its hosts here is 1: if that is wrong" in job.log
        assert "This is algo-1" not in job.log


def test_an_address_that_is_taken_is_refused_before_anything_is_prepared() -> None:
    with LoopbackServer({BUCKET: MemoryObjects(OBJECTS)}) as server:
        port = server.endpoint_url.rpartition(":")[2]
        channels = [channel("train", "File", "train/")]
        with running(server.endpoint_url, channels, "--metrics-listen", port, ends_with=5) as job:
            assert f"cannot listen on 127.0.0.1:{port}" in job.log
            assert not job.data.exists()
