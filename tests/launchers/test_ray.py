"""docs/LAUNCHERS.md with a real Ray: the program of the page, on a cluster of two nodes on this machine."""

import importlib.util
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.s3server import LoopbackServer, MemoryObjects, ServerConfig
from fastfuse.filesystem.mounting.mountpoint import fastfuse_mounts
from tests.docs.blocks import blocks_of
from tests.mounting import ENVIRONMENT

pytestmark = [
    pytest.mark.fuse,
    pytest.mark.launchers,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs Ray ('make launchers')"),
]

OBJECTS = {f"train/{number:02}": b"%d" % number * 1000 for number in range(40)}
CLUSTER = """
import json

from ray.cluster_utils import Cluster

node = {"num_cpus": 1, "object_store_memory": 80 << 20}
cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
cluster.add_node(**node)
"""
REPORT = """
print(json.dumps({"paths": paths, "read": read}))
ray.shutdown()
cluster.shutdown()
"""


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory with a short name, for sockets."""
    with tempfile.TemporaryDirectory(prefix="ray-") as name:
        yield Path(name)


def test_the_nodes_of_a_cluster_mount_once_each_and_list_once(place: Path) -> None:
    (text,) = [block.text for block in blocks_of("docs/LAUNCHERS.md") if "ray.init" in block.text]
    program = CLUSTER + text.replace("s3://my-bucket", "s3://bucket").replace('"auto"', "cluster.address") + REPORT
    config = ServerConfig(writes="conditional", clock_s=time.time)
    with LoopbackServer({"bucket": MemoryObjects(OBJECTS)}, config) as server:
        told = {"FASTFUSE_ENDPOINT_URL": server.endpoint_url, "FASTFUSE_REGION": "us-east-1"}
        told |= {"FASTFUSE_FORCE_PATH_STYLE": "1", "RAY_USAGE_STATS_ENABLED": "0", "TMPDIR": str(place)}
        told["RAY_worker_niceness"] = "0"  # else 15: beside other load the mounts would hardly run
        environment = {**ENVIRONMENT, **told}
        del environment["PYTHONWARNINGS"]  # Ray's own
        done = subprocess.run(
            [sys.executable, "-c", program],
            env=environment, cwd=place, capture_output=True, text=True, check=False, timeout=400,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        listings = server.count("ListObjectsV2")
    report = json.loads(done.stdout.splitlines()[-1])
    assert listings == 1
    assert len(set(report["paths"])) == 2
    assert all(len(part) == len(OBJECTS) / 2 for part in report["read"])
    read = {name: size_bytes for part in report["read"] for name, size_bytes in part.items()}
    assert read == {key.removeprefix("train/"): len(data) for key, data in OBJECTS.items()}
    assert not {*map(Path, report["paths"])} & {*fastfuse_mounts()}
