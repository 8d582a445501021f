"""docs/SLURM.md with a real Slurm: the script of the page, on two nodes with two tasks each."""

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from fastfuse.filesystem.mountpoint import fastfuse_mounts
from fastfuse.testing import LoopbackServer, MemoryObjects
from tests.docs.blocks import blocks_of
from tests.launchers.slurm import PROGRAMS, cluster

pytestmark = [
    pytest.mark.fuse,
    pytest.mark.launchers,
    pytest.mark.skipif(not all(map(shutil.which, PROGRAMS)), reason="needs Debian's slurm-wlm and munge"),
]

OBJECTS = {f"train/{number:02}": b"%d" % number * 1000 for number in range(40)}
# Each task reads its part, then waits for all of them: the mounts of both nodes can be counted.
TRAIN = """
import json, os, pathlib, sys, time
place = pathlib.Path(os.environ["SM_CHANNEL_TRAIN"])
rank, count = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
names = sorted(os.listdir(place))[rank::count]
read = {name: len((place / name).read_bytes()) for name in names}
pathlib.Path(f"read-{rank}.part").write_text(json.dumps(read))
os.rename(f"read-{rank}.part", f"read-{rank}.json")
while sum(name.endswith(".json") for name in os.listdir()) < count:
    time.sleep(0.01)
mounts = [line for line in open("/proc/self/mountinfo") if "fuse.fastfuse" in line and os.environ["BASE"] in line]
pathlib.Path(f"mounts-{rank}").write_text(str(len(mounts)))
while sum(name.startswith("mounts-") for name in os.listdir()) < count:
    time.sleep(0.01)
"""


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory with a short name, for sockets."""
    with tempfile.TemporaryDirectory(prefix="slurm-") as name:
        yield Path(name)


def test_the_tasks_of_a_node_share_one_mount(place: Path) -> None:
    (text,) = [block.text for block in blocks_of("docs/SLURM.md") if "#SBATCH" in block.text]
    base, work = place / "base", place / "work"
    work.mkdir()
    (work / "train.py").write_text(TRAIN)
    # Both nodes are this machine: each needs a directory of its own.
    program = work / "fastfuse"
    program.write_text(
        f'#!/bin/sh\nshift 4\nexec {sys.executable} -m fastfuse run --share --base-dir "$BASE/$SLURMD_NODENAME" "$@"\n'
    )
    program.chmod(0o755)
    text = text.replace("s3://my-bucket", "s3://bucket").replace("srun ", "srun --kill-on-bad-exit ./")
    (work / "train.sh").write_text(text.replace("python train.py", f"{sys.executable} train.py"))
    with LoopbackServer({"bucket": MemoryObjects(OBJECTS)}) as server, cluster(place) as environment:
        told = {"FASTFUSE_ENDPOINT_URL": server.endpoint_url, "FASTFUSE_REGION": "us-east-1", "BASE": str(base)}
        command = ["sbatch", "--wait", f"--output={work}/log", "train.sh"]
        whole = {**environment, **told, "FASTFUSE_FORCE_PATH_STYLE": "1"}
        done = subprocess.run(command, env=whole, cwd=work, capture_output=True, text=True, check=False, timeout=100)
        assert done.returncode == 0, done.stderr + (work / "log").read_text()
        listings = sum(record.operation == "ListObjectsV2" for record in server.requests)
    assert [(work / f"mounts-{rank}").read_text() for rank in range(4)] == ["2"] * 4  # one for each node
    assert listings == 2
    read = [json.loads((work / f"read-{rank}.json").read_text()) for rank in range(4)]
    assert sum(map(len, read)) == len(OBJECTS)
    assert set().union(*read) == {key.removeprefix("train/") for key in OBJECTS}
    assert not [path for path in fastfuse_mounts() if path.is_relative_to(base)]
