"""Killed, out of disk, out of power: nothing half-written is taken for whole, and nothing whole is fetched again."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bench.s3server import FaultRule, MemoryObjects, Stall
from fastfuse.errors import DiskError
from fastfuse.sagemaker.download import disk
from fastfuse.sagemaker.download.file_channel import settle_channel
from tests.forked import Forked
from tests.mounting import tmpfs
from tests.sagemaker.download.channels import PART_BYTES, Source, files_below, snapshot_fd

OBJECTS = {f"small/{number:02}": os.urandom(1000) for number in range(20)} | {"z-large": os.urandom(40 * PART_BYTES)}
# Rows go breadth first: the large object is on its way before the small ones.
TOTAL_BYTES = sum(map(len, OBJECTS.values()))
# Downloads, and prints each progress.
DOWNLOAD = """
import os, pathlib, sys
from fastfuse.s3.base import ConnectionConfig
from fastfuse.sagemaker.download.file_channel import download_channel
from tests.sagemaker.download.channels import settings_for
url, snapshot, directory = sys.argv[1:]
connection = ConnectionConfig(endpoint_url=url, region="us-east-1", sign_request=False, force_path_style=True)
settings, snapshot_fd = settings_for(pathlib.Path(directory)), os.open(snapshot, os.O_RDONLY)
download_channel(snapshot_fd, connection, settings, lambda report: print(report.done_bytes, flush=True))
"""


@pytest.fixture
def objects() -> MemoryObjects:
    return MemoryObjects(OBJECTS)


def kill_when(s3: Source, directory: Path, *, gets: int) -> None:
    """Kill a download once `gets` of its GETs are on the disk."""
    rule = s3.server.faults.add(FaultRule(action=Stall(0), operation="GetObject", skip=gets))
    snapshot = directory.parent / "snapshot"
    fd = snapshot_fd(s3.table())
    snapshot.write_bytes(os.pread(fd, 1 << 20, 0))
    os.close(fd)
    command = [sys.executable, "-c", DOWNLOAD, s3.server.endpoint_url, str(snapshot), str(directory)]
    with Forked(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        for line in child.stdout:
            total_bytes = int(line)
            done_parts = total_bytes // PART_BYTES + total_bytes % PART_BYTES // 1000
            if done_parts == gets:
                break
        child.kill()
        child.wait()
        assert child.returncode == -signal.SIGKILL
    s3.server.faults.remove(rule)
    s3.server.clear_requests()


@pytest.mark.parametrize("gets", [0, 17, 45])
def test_after_a_kill_only_files_that_are_missing_are_fetched(s3: Source, tmp_path: Path, gets: int) -> None:
    channel = tmp_path / "channel"
    kill_when(s3, channel, gets=gets)
    shown = {name: data for name, data in files_below(channel).items() if name[0] != "."}
    assert shown.items() <= OBJECTS.items()
    report = s3.run(channel)
    assert files_below(channel) == OBJECTS
    assert report.kept_files == len(shown)
    assert report.fetched_bytes == TOTAL_BYTES - sum(map(len, shown.values()))


@pytest.fixture
def other_boot(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where to write the boot's number, in place of the kernel's."""
    path = tmp_path / "boot_id"
    path.write_text("00000000-0000-0000-0000-000000000001\n")
    monkeypatch.setattr(disk, "_BOOT_ID", path)
    return path


def multipart(objects: MemoryObjects) -> None:
    objects.put("z-large", OBJECTS["z-large"], etag='"' + "0" * 32 + '-5"')


def test_after_another_boot_files_that_prove_themselves_are_kept(s3: Source, tmp_path: Path, other_boot: Path) -> None:
    multipart(s3.objects)
    channel = tmp_path / "channel"
    s3.run(channel)
    damaged = channel / "small/03"
    times = damaged.stat().st_mtime_ns
    damaged.write_bytes(bytes(1000))  # as a file whose bytes never reached the disk
    os.utime(damaged, ns=(times, times))
    other_boot.write_text("00000000-0000-0000-0000-000000000002\n")
    report = s3.run(channel)
    assert report.kept_files == 19
    assert report.fetched_bytes == 1000 + 40 * PART_BYTES
    assert files_below(channel) == OBJECTS
    assert s3.run(channel).requests == 0


def test_after_another_boot_a_settled_channel_is_kept(s3: Source, tmp_path: Path, other_boot: Path) -> None:
    multipart(s3.objects)
    channel = tmp_path / "channel"
    s3.run(channel)
    settle_channel(channel, channel.parent)
    other_boot.write_text("00000000-0000-0000-0000-000000000002\n")
    assert s3.run(channel).requests == 0


def test_without_extended_attributes_only_an_md5_keeps_a_file(s3: Source, tmp_path: Path) -> None:
    multipart(s3.objects)
    s3.run(tmp_path)
    for path in tmp_path.rglob("*"):
        if path.is_file():
            os.removexattr(path, "user.fastfuse")
    report = s3.run(tmp_path)
    assert (report.kept_files, report.fetched_bytes) == (20, 40 * PART_BYTES)


def test_a_disk_without_enough_inodes_is_refused_before_the_first_byte(s3: Source, tmp_path: Path) -> None:
    with tmpfs(tmp_path / "disk", f"size={1 << 30}") as place:
        subprocess.run(["mount", "-o", "remount,nr_inodes=10", place], check=True)
        with pytest.raises(DiskError, match=r"needs 22 inodes in '.*', and . are free there"):
            s3.run(place)
    assert s3.server.requests == ()
