"""Manifests and shards, in every mode: the same job with another InputMode, and nothing else."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from fastfuse.testing import LoopbackServer, MemoryObjects
from tests.sagemaker.running.jobs import BUCKET, channel, running, script
from tests.semantics.places import block_bytes

MODES = ("FastFile", "File", "Pipe")
RECORD_BYTES = 4096
RECORDS: Mapping[str, bytes] = {f"data/{number:02}": block_bytes(number, RECORD_BYTES) for number in range(20)}
LINES = [{"source-ref": f"s3://{BUCKET}/data/{number:02}", "label": number} for number in (3, 1, 4)]
OBJECTS: Mapping[str, bytes] = {
    **RECORDS,
    "manifest": json.dumps([{"prefix": f"s3://{BUCKET}/data/"}, "03", "01", "04"]).encode(),
    "augmented": "".join(json.dumps(line) + "\n" for line in LINES).encode(),
}

# Prints the number of each record, wherever it is: the last eight bytes' first half.
NUMBERS = f"""
import json, os
place, mode = os.environ["SM_CHANNEL_DATA"], json.loads(os.environ["SM_INPUT_DATA_CONFIG"])["data"]["TrainingInputMode"]
if mode == "Pipe":
    paths = [place + "_0"]
else:
    paths = sorted(os.path.join(top, file) for top, _, files in os.walk(place) for file in files)
for path in paths:
    data = open(path, "rb").read()
    if path.endswith("augmented"):
        print("labels", [json.loads(line)["label"] for line in data.splitlines()])
    elif not os.path.basename(path).startswith("."):
        print(*(data[at + 3] - 1 for at in range(0, len(data) - {RECORD_BYTES - 1}, {RECORD_BYTES})))
print("all", flush=True)
"""


@pytest.fixture
def server() -> Iterator[LoopbackServer]:
    with LoopbackServer({BUCKET: MemoryObjects(OBJECTS)}) as running_server:
        yield running_server


def source(kind: str, key: str, mode: str, **more: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    made = channel("data", mode, key)
    made["DataSource"]["S3DataSource"] |= {"S3DataType": kind} | more
    return made


def printed(server: LoopbackServer, described: Mapping[str, Any], *options: str) -> list[str]:
    with running(server.endpoint_url, [described], *options, command=script(NUMBERS)) as job:
        assert job.wait() == 0, job.log
        *lines, last = job.output.splitlines()
        assert last == "all"
        return lines


@pytest.mark.parametrize("mode", MODES)
def test_three_hosts_have_every_object_once(server: LoopbackServer, mode: str) -> None:
    described = source("S3Prefix", "data/", mode, S3DataDistributionType="ShardedByS3Key")
    shares = [" ".join(printed(server, described, "--host", f"{host}/3")).split() for host in (1, 2, 3)]
    assert sorted(int(number) for share in shares for number in share) == list(range(20))
    assert [len(share) for share in shares] == [7, 7, 6]


@pytest.mark.parametrize("mode", MODES)
def test_a_host_without_a_share_is_no_failure(server: LoopbackServer, mode: str) -> None:
    described = source("S3Prefix", "data/00", mode, S3DataDistributionType="ShardedByS3Key")
    shares = [" ".join(printed(server, described, "--host", f"{host}/2")).split() for host in (1, 2)]
    assert sorted(shares) == [[], ["0"]]


@pytest.mark.parametrize("mode", MODES)
def test_a_manifest_is_read_in_every_mode(server: LoopbackServer, mode: str) -> None:
    lines = printed(server, source("ManifestFile", "manifest", mode))
    # Files are looked at by name; a stream has the manifest's order.
    assert " ".join(lines).split() == (["3", "1", "4"] if mode == "Pipe" else ["1", "3", "4"])


@pytest.mark.parametrize("mode", ["FastFile", "File"])
def test_of_an_augmented_manifest_labels_and_objects_are_files(server: LoopbackServer, mode: str) -> None:
    lines = printed(server, source("AugmentedManifestFile", "augmented", mode, AttributeNames=["source-ref", "label"]))
    assert sorted(lines) == ["1", "3", "4", "labels [3, 1, 4]"]


def test_of_an_augmented_manifest_attributes_are_streamed_line_by_line(server: LoopbackServer) -> None:
    lines = printed(server, source("AugmentedManifestFile", "augmented", "Pipe", AttributeNames=["source-ref"]))
    assert lines == ["3 1 4"]
