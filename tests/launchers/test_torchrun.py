"""docs/LAUNCHERS.md with a real torchrun: the script of the page, in two processes of one elastic host."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from fastfuse.testing import LoopbackServer, MemoryObjects
from tests.docs.blocks import blocks_of
from tests.mounting import ENVIRONMENT
from tests.servers import free_ports

pytestmark = [
    pytest.mark.fuse,
    pytest.mark.launchers,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs PyTorch ('make launchers')"),
]

OBJECTS = {f"train/{number:02}": b"%d" % number * 1000 for number in range(40)}
# Replaces the training: notes what was read, and what is mounted meanwhile.
RECORD = """
        with open(f"read-{os.environ['RANK']}-{epoch}", "a") as file:
            file.writelines(f"{name} {len(data)}\\n" for name, data in batch)
        with open(f"mounts-{os.environ['RANK']}", "w") as file:
            file.writelines(line for line in open("/proc/self/mountinfo") if str(train.parent) in line)
"""


def test_the_ranks_of_an_elastic_host_read_everything_through_one_mount(tmp_path: Path) -> None:
    (text,) = [block.text for block in blocks_of("docs/LAUNCHERS.md") if "init_process_group" in block.text]
    assert "        pass  # train with it\n" in text
    (tmp_path / "train.py").write_text(text.replace("        pass  # train with it\n", RECORD.lstrip("\n")))
    # The host does not wait for a second one.
    elastic = {"PET_NNODES": "1:2", "PET_RDZV_BACKEND": "c10d", "PET_RDZV_CONF": "last_call_timeout=1"}
    elastic |= {"PET_RDZV_ENDPOINT": f"127.0.0.1:{free_ports(1)[0]}", "PET_NPROC_PER_NODE": "2"}
    with LoopbackServer({"bucket": MemoryObjects(OBJECTS)}) as server:
        done = subprocess.run(
            [
                *(sys.executable, "-m", "fastfuse", "run", "--base-dir", "ml", "--endpoint-url", server.endpoint_url),
                *("--region", "us-east-1", "--force-path-style", "--channel", "train=s3://bucket/train/", "--"),
                *(sys.executable, "-m", "torch.distributed.run", "train.py"),
            ],
            env={**ENVIRONMENT, **elastic}, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        listings = sum(record.operation == "ListObjectsV2" for record in server.requests)
    assert listings == 1
    for rank in range(2):
        assert len((tmp_path / f"mounts-{rank}").read_text().splitlines()) == 1
    for epoch in range(2):
        lines = [line for rank in range(2) for line in (tmp_path / f"read-{rank}-{epoch}").read_text().splitlines()]
        assert sorted(lines) == [f"{key.removeprefix('train/')} {len(data)}" for key, data in sorted(OBJECTS.items())]
