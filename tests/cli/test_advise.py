"""`fastfuse advise` as a user has it: real processes, against the loopback server."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from bench.s3server import LoopbackServer, SyntheticObjects
from tests.mounting import access, mounted, run_fastfuse
from tests.terminals import finished_on_terminal, lines_on_screen

OBJECTS = {f"train/small/{at}": b"x" * 1000 for at in range(100)} | {"train/large": bytes(3 << 20)}
URI = "s3://bucket/train"


def operations(server: LoopbackServer) -> list[str]:
    return [record.operation for record in server.requests]


def found(server: LoopbackServer, *words: str) -> Any:  # noqa: ANN401 - JSON
    done = run_fastfuse("advise", *words, "--json", *access(server.endpoint_url))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(("columns", "hosts", "hours"), [(80, "4", "2"), (200, "4", "2"), (80, "100", "99")])
def test_modes_stand_side_by_side_on_a_terminal(server: LoopbackServer, columns: int, hosts: str, hours: str) -> None:
    words = ["advise", URI, "--hosts", hosts, "--epochs", "3", "--hours", hours, "--host-price", "3.825"]
    code, text = finished_on_terminal(*words, *access(server.endpoint_url), columns=columns)
    assert code == 0, text
    lines = lines_on_screen(text)
    assert max(map(len, lines)) <= columns
    modes = [found[1] for line in lines if (found := re.match(r" (\S.*?) +\d+\.\d[smhd] ", line))]
    assert modes == ["File", "FastFile", "FastFile+hints", "FastFile+page cache", "Pipe", "EFS", "FSx Lustre"]
    assert not any("…" in line for line in lines)
    assert any(re.match(r" objects +101 in 2 directories, 3.1 MiB", line) for line in lines)
    assert any(line.startswith(" recommended  FastFile") for line in lines)


def test_json_has_shape_network_job_and_every_estimate(server: LoopbackServer) -> None:
    server.clear_requests()
    report = found(server, URI, "--epochs", "3", "--host-memory", "16GiB")
    assert report["shape"]["objects"] == 101
    assert report["job"]["epochs"] == 3
    assert len(report["estimates"]) == 7
    assert 0 < operations(server).count("GetObject") <= 700


def test_a_saved_index_is_advised_on_without_a_request(server: LoopbackServer, tmp_path: Path) -> None:
    index = str(tmp_path / "x.index")
    assert run_fastfuse("index", URI, "-o", index, *access(server.endpoint_url)).returncode == 0
    before = len(server.requests)
    report = found(server, URI, "--index", index, "--no-probe")
    assert len(server.requests) == before
    assert report["network"]["latency_s"] == 0.02
    assert report["network"]["requests_per_s"] is None


def test_an_empty_source_has_nothing_to_read(server: LoopbackServer) -> None:
    report = found(server, "s3://bucket/none/", "--allow-empty")
    assert report["recommended"] is None
    assert report["shape"]["objects"] == 0


def test_figures_of_the_network_that_are_not_measured_are_called_assumed(server: LoopbackServer) -> None:
    rates = "90 MB/s a connection, 1,250 MB/s in all"

    def network(source: str, *words: str) -> str:
        done = run_fastfuse("advise", source, *words, *access(server.endpoint_url))
        return re.sub(r"\s+", " ", done.stdout).partition(" network ")[2].partition(" recommended ")[0]

    assert network(URI, "--no-probe") == f"assumed: 20.0 ms, {rates} nothing is measured"
    assert re.fullmatch(
        rf"[\d.]+ ms, [\d,]+ GETs/s; assumed: {rates} the rates of bytes are not measured: all objects are small",
        network(f"{URI}/small"),
    )


@pytest.mark.fuse
def test_the_gets_of_fast_file_are_about_those_of_a_mount_that_reads_cold_files() -> None:
    buckets = {f"of-{mib}-mib": SyntheticObjects(count=1, size_bytes=mib << 20) for mib in (1, 100)}
    with LoopbackServer(buckets) as server:
        for bucket in buckets:
            estimates = found(server, f"s3://{bucket}", "--no-probe")["estimates"]
            (estimate,) = (each for each in estimates if each["mode"] == "FastFile")
            with mounted(f"s3://{bucket}", server.endpoint_url) as mount:
                before = operations(server).count("GetObject")
                (path,) = mount.path.iterdir()
                with path.open("rb") as file:
                    while file.read(1 << 20):
                        pass
            gets = operations(server).count("GetObject") - before
            assert estimate["epoch_gets"] == pytest.approx(gets, rel=0.15)


def test_a_summary_ends_with_the_short_form(server: LoopbackServer) -> None:
    server.clear_requests()
    done = run_fastfuse("index", URI, "--summary", "--json", *access(server.endpoint_url))
    assert json.loads(done.stdout)["advice"].startswith("FastFile: Training begins")
    assert operations(server).count("GetObject") == 0
