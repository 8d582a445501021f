"""docs/LAUNCHERS.md with a real Slurm: its scripts, on two nodes with two tasks each."""

import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from bench.s3server import LoopbackServer, MemoryObjects, ServerConfig
from fastfuse.filesystem.mounting.mountpoint import fastfuse_mounts
from tests.docs.blocks import blocks_of
from tests.filesystem.waiting import wait_until
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
place = pathlib.Path(os.environ.get("SM_CHANNEL_TRAIN") or sys.argv[1])
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


@pytest.fixture(scope="module")
def slurm() -> Iterator[Mapping[str, str]]:
    # A short name, for sockets.
    with tempfile.TemporaryDirectory(prefix="slurm-") as name, cluster(Path(name)) as environment:
        yield environment


# Every script that reads needs them.
READING = {"python train.py": f"{sys.executable} train.py", "s3://my-": "s3://"}


def script(mark: str, changes: Mapping[str, str]) -> str:
    """The script of the page that has `mark`, with `changes` for two nodes that are one machine."""
    (text,) = [block.text for block in blocks_of("docs/LAUNCHERS.md") if "#SBATCH" in block.text and mark in block.text]
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    return text


def run_job(text: str, slurm: Mapping[str, str], tmp_path: Path) -> int:
    """Run the job, check what its tasks have read and that it mounts once on each node; return the number of LISTs."""
    work, base = tmp_path / "work", tmp_path / "base"
    for directory in (work, base):
        directory.mkdir()
    (work / "train.py").write_text(TRAIN)
    (work / "train.sh").write_text(text)
    config = ServerConfig(writes="conditional", clock_s=time.time)
    with LoopbackServer({"bucket": MemoryObjects(OBJECTS)}, config) as server:
        told = {"FASTFUSE_ENDPOINT_URL": server.endpoint_url, "FASTFUSE_REGION": "us-east-1", "BASE": str(base)}
        told |= {"FASTFUSE_FORCE_PATH_STYLE": "1", "FASTFUSE": f"{sys.executable} -m fastfuse"}
        done = subprocess.run(
            ["sbatch", "--wait", f"--output={work}/log", "train.sh"],
            env={**slurm, **told}, cwd=work, capture_output=True, text=True, check=False, timeout=200,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr + (work / "log").read_text()
        wait_until(lambda: not [path for path in fastfuse_mounts() if path.is_relative_to(base)])
        listings = server.count("ListObjectsV2")
    assert [(work / f"mounts-{rank}").read_text() for rank in range(4)] == ["2"] * 4  # one for each node
    read = [json.loads((work / f"read-{rank}.json").read_text()) for rank in range(4)]
    assert sum(map(len, read)) == len(OBJECTS)
    assert set().union(*read) == {key.removeprefix("train/") for key in OBJECTS}
    return listings


def test_the_tasks_of_a_node_share_one_mount_and_nodes_one_listing(slurm: Mapping[str, str], tmp_path: Path) -> None:
    changes = {
        "srun fastfuse": "srun --kill-on-bad-exit sh -c 'exec $FASTFUSE",
        '"/tmp/$SLURM_JOB_ID"': '"$BASE/$SLURMD_NODENAME"',
        "train.py": "train.py'",
        **READING,
    }
    assert run_job(script("--share", changes), slurm, tmp_path) == 1


def test_a_step_of_its_own_mounts_for_the_tasks_of_another(slurm: Mapping[str, str], tmp_path: Path) -> None:
    changes = {
        "fastfuse mount": "sh -c 'exec $FASTFUSE mount",
        'train/ "$PLACE"': 'train/ "$PLACE/$SLURMD_NODENAME"\'',
        '-q "$PLACE"': '-q "$PLACE/$SLURMD_NODENAME"',
        'train.py "$PLACE"': 'train.py "$PLACE/$SLURMD_NODENAME"',
        "/tmp/$SLURM_JOB_ID": "$BASE",
        **READING,
    }
    assert run_job(script("mountpoint -q", changes), slurm, tmp_path) == 2


def test_the_names_of_a_job_have_addresses_from_the_list_of_nodes(slurm: Mapping[str, str], tmp_path: Path) -> None:
    run = f"{sys.executable} -m fastfuse run --base-dir $PWD/$SLURMD_NODENAME --channel data=$PWD/data"
    changes = {
        'fastfuse run --base-dir "/tmp/$SLURM_JOB_ID" --job job.json': f"sh -c 'exec {run} \"$@\"' fastfuse",
        # The nodes are this machine, and no name server knows them.
        '"=" $1': '"=" ($1 == "n2" ? "127.0.0.9" : $1 == "n1" ? "localhost" : "unknown")',
        "-- train": "-- getent hosts algo-2",
    }
    (tmp_path / "train.sh").write_text(script("scontrol", changes))
    (tmp_path / "data").mkdir()
    (tmp_path / "data/1").write_text("1")
    command = ["sbatch", "--wait", "--output=log", "train.sh"]
    subprocess.run(command, env=slurm, cwd=tmp_path, check=False, timeout=200)
    told = (tmp_path / "log").read_text()
    assert [line for line in told.splitlines() if line.endswith("algo-2")] == ["127.0.0.9       algo-2"] * 2, told
