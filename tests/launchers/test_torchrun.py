"""docs/LAUNCHERS.md with a real torchrun: the script of the page on one elastic host, and on two."""

import importlib.util
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bench.s3server import LoopbackServer, MemoryObjects, ServerConfig
from tests.docs.blocks import blocks_of
from tests.mounting import ENVIRONMENT
from tests.servers import free_ports

pytestmark = [
    pytest.mark.fuse,
    pytest.mark.launchers,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs PyTorch ('make launchers')"),
]

OBJECTS = {f"train/{number:02}": b"%d" % number * 1000 for number in range(40)}
READ = [f"{key.removeprefix('train/')} {len(data)}" for key, data in sorted(OBJECTS.items())]
# Replaces the training: notes what was read, and what is mounted meanwhile.
RECORD = """
        with open(f"read-{os.environ['RANK']}-{epoch}", "a") as file:
            file.writelines(f"{name} {len(data)}\\n" for name, data in batch)
        with open(f"mounts-{os.environ['RANK']}", "w") as file:
            file.writelines(line for line in open("/proc/self/mountinfo") if str(train.parent) in line)
"""
# Stands before it: until the second host has joined, which starts the processes of the first one again.
JOIN = """
open("alone", "a").close()
while torch.distributed.get_world_size() < 2:
    __import__("time").sleep(0.1)
"""


def script(before: str = "") -> str:
    """The script of the page, with `before` after its first line that talks to other processes."""
    (text,) = [block.text for block in blocks_of("docs/LAUNCHERS.md") if "init_process_group" in block.text]
    assert "        pass  # train with it\n" in text
    first = 'torch.distributed.init_process_group("gloo")  # "nccl" with GPUs\n'
    assert first in text
    return text.replace(first, first + before).replace("        pass  # train with it\n", RECORD.lstrip("\n"))


class Host:
    """A run of torchrun, for one to two hosts that meet at `port`, below `fastfuse run` in a directory of its own."""

    def __init__(self, directory: Path, server: LoopbackServer, port: int, *, processes: int, before: str = "") -> None:
        self.directory = directory
        directory.mkdir(exist_ok=True)
        (directory / "train.py").write_text(script(before))
        # The host does not wait for a second one.
        elastic = {"PET_NNODES": "1:2", "PET_RDZV_BACKEND": "c10d", "PET_RDZV_CONF": "last_call_timeout=1"}
        elastic |= {"PET_RDZV_ENDPOINT": f"127.0.0.1:{port}", "PET_NPROC_PER_NODE": str(processes)}
        elastic |= {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "fastfuse", "run", "--base-dir", "ml", "--endpoint-url", server.endpoint_url),
                *("--region", "us-east-1", "--force-path-style", "--channel", "train=s3://bucket/train/"),
                *("--index", "train=s3://bucket/train.index", "--index-max-age", "1h", "--"),
                *(sys.executable, "-m", "torch.distributed.run", "train.py"),
            ],
            env={**ENVIRONMENT, **elastic}, cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def check(self) -> None:
        output, _ = self.process.communicate(timeout=300)
        assert self.process.returncode == 0, output

    def read(self, rank: int, epoch: int) -> list[str]:
        """What a rank of this host read in an epoch, through the one mount that the host had."""
        assert len((self.directory / f"mounts-{rank}").read_text().splitlines()) == 1
        return (self.directory / f"read-{rank}-{epoch}").read_text().splitlines()


def test_the_ranks_of_an_elastic_host_read_everything_through_one_mount(tmp_path: Path) -> None:
    config = ServerConfig(writes="conditional", clock_s=time.time)
    with LoopbackServer({"bucket": MemoryObjects(OBJECTS)}, config) as server:
        host = Host(tmp_path, server, free_ports(1)[0], processes=2)
        host.check()
        assert server.count("ListObjectsV2") == 1
    for epoch in range(2):
        assert sorted(host.read(0, epoch) + host.read(1, epoch)) == READ


def test_a_host_that_joins_an_elastic_job_shares_its_work_and_its_listing(tmp_path: Path) -> None:
    config = ServerConfig(writes="conditional", clock_s=time.time)
    (port,) = free_ports(1)
    with LoopbackServer({"bucket": MemoryObjects(OBJECTS)}, config) as server:
        first = Host(tmp_path / "first", server, port, processes=1, before=JOIN)
        while not (first.directory / "alone").exists():  # its process trains, or would
            assert first.process.poll() is None, first.process.communicate()[0]
            time.sleep(0.05)
        second = Host(tmp_path / "second", server, port, processes=1, before=JOIN)
        first.check()
        second.check()
        assert server.count("ListObjectsV2") == 1
    ranks = {
        rank: host for host in (first, second) for rank in range(2) if (host.directory / f"mounts-{rank}").exists()
    }
    assert {*ranks.values()} == {first, second}
    for epoch in range(2):
        parts = [ranks[rank].read(rank, epoch) for rank in range(2)]
        assert [len(part) for part in parts] == [20, 20]
        assert sorted(parts[0] + parts[1]) == READ
