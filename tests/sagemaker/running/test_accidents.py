"""Disks that fill up and whole process trees that are killed, in the middle of a job, in every mode."""

import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from unittest.mock import Mock

import pytest

from bench.s3server import FaultRule, LoopbackServer, Stall
from fastfuse.filesystem.mounting.mountpoint import fastfuse_mounts, find_mount
from fastfuse.filesystem.processes.children import wait_child
from fastfuse.sagemaker.running import job_processes
from fastfuse.sagemaker.running.job_processes import ChildProcess
from fastfuse.sagemaker.running.phases import Phases
from tests.filesystem.waiting import wait_for_end
from tests.mounting import tmpfs
from tests.sagemaker.running.jobs import CHECKSUMS, Job, Run, channel, checksums
from tests.semantics.leftovers import descendants
from tests.semantics.places import block_bytes

MIB = 1 << 20
OBJECTS = {f"data/small{number}": block_bytes(number, 1000) for number in range(5)}
OBJECTS |= {"data/x": block_bytes(9, 24 * MIB)}
SIZE_BYTES = sum(map(len, OBJECTS.values()))

# Reads what there is of its channel twice, and in between calls what a test puts in front of this.
READ_TWICE = """
import os, sys
def paths(epoch):
    place = os.environ["SM_CHANNEL_DATA"]
    return [place + "/" + name for name in os.listdir(place)] if os.path.isdir(place) else [f"{place}_{epoch}"]
for epoch in range(2):
    total = 0
    for path in paths(epoch):
        with open(path, "rb", buffering=0) as file:
            total += len(file.read(1000))
            if epoch == 0:
                meanwhile()
            while data := file.read(1 << 20):
                total += len(data)
    print(total, flush=True)
"""
FILL_BYTES = """
import os
def meanwhile():
    with open(os.environ["SM_MODEL_DIR"] + "/model", "ab", buffering=0) as model:
        try:
            while model.write(bytes(1 << 16)):
                pass
        except OSError as error:
            os.write(2, f"the model: {error}\\n".encode())
"""


def fill(directory: Path) -> Path:
    filler = directory / "filler"
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        while file.write(bytes(1 << 16)):
            pass
    return filler


def kill_all(job: Job) -> None:
    """As who kills a control group: nobody is left who could clear up."""
    processes = [os.pidfd_open(pid) for pid in (job.process.pid, *descendants(job.process.pid))]
    for process in processes:  # one that is stopped forks no others
        signal.pidfd_send_signal(process, signal.SIGSTOP)
    for process in processes:
        signal.pidfd_send_signal(process, signal.SIGKILL)
        wait_for_end(process)
    assert job.wait() == -signal.SIGKILL


def test_a_disk_that_fills_up_during_a_download_ends_the_run(server: LoopbackServer, run: Run, tmp_path: Path) -> None:
    rule = server.faults.add(FaultRule(action=Stall(0), operation="GetObject", key="data/x", skip=1))
    channels = [channel("data", "File", "data/"), channel("mounted", "FastFile", "data/")]
    with tmpfs(tmp_path / "disk", f"size={SIZE_BYTES + 8 * MIB}") as base:
        with run(channels, base=base, command=CHECKSUMS) as job:
            server.wait_until(lambda statistics: statistics.requests.get("GetObject", 0) > 2)
            filler = fill(base)
            server.faults.remove(rule)
            assert job.wait() == 5, job.log
            assert "error: channel data: the disk is full" in job.log
            (line,) = [line for line in job.log.splitlines() if "data (File): " in line and " GET, " in line]
            assert "data (File): 0 B" not in line  # what was fetched is paid for
            assert job.output == ""
            assert find_mount(job.data / "mounted") is None
            shown = {path.name: path.read_bytes() for path in (job.data / "data").iterdir() if path.is_file()}
            assert "x" not in shown
            assert all(OBJECTS[f"data/{name}"] == data for name, data in shown.items() if name[0] != ".")
        filler.unlink()
        # The option keeps what was fetched; moved aside, it would fill the disk, which holds the data only once.
        with run(channels, "--keep", base=base, command=CHECKSUMS, ends_with=0) as job:
            sums = checksums(job)
            assert sums["data"] == sums["mounted"]


def test_two_channels_that_do_not_fit_together_end_the_run(run: Run, tmp_path: Path) -> None:
    channels = [channel("one", "File", "data/"), channel("two", "File", "data/")]
    with (
        tmpfs(tmp_path / "disk", f"size={SIZE_BYTES * 3 // 2}") as base,
        run(channels, base=base, command=CHECKSUMS, ends_with=5) as job,
    ):
        assert "are free there" in job.log or "the disk is full" in job.log


@pytest.mark.parametrize("mode", ["FastFile", "Pipe"])
def test_a_disk_that_fills_up_meanwhile_does_not_disturb_who_only_reads(run: Run, mode: str, tmp_path: Path) -> None:
    channels = [channel("data", mode, "data/")]
    with (
        tmpfs(tmp_path / "disk", f"size={4 * MIB}") as base,
        run(channels, base=base, command=FILL_BYTES + READ_TWICE, ends_with=0) as job,
    ):
        assert "the model: [Errno 28]" in job.log
        assert job.output.split() == [str(SIZE_BYTES)] * 2


def test_where_the_next_epochs_fifo_cannot_be_made_no_epoch_is_taken_for_whole(run: Run, tmp_path: Path) -> None:
    take_inodes = """
import itertools, os
try:
    for number in itertools.count():
        open(os.environ["SM_MODEL_DIR"] + f"/{number}", "xb").close()
except OSError as error:
    os.write(2, f"the model: {error}\\n".encode())
def meanwhile():
    pass
"""
    with tmpfs(tmp_path / "disk", f"size={4 * MIB}") as base:
        subprocess.run(["mount", "-o", "remount,nr_inodes=40", base], check=True)
        with run([channel("data", "Pipe", "data/")], base=base, command=take_inodes + READ_TWICE, ends_with=5) as job:
            assert "the model: [Errno 28]" in job.log
            assert "data_1' cannot be made: No space left on device" in job.log
            assert job.output == ""
            assert not [path for path in job.data.iterdir() if path.is_fifo()]


def test_a_full_disk_is_told_before_anything_is_served(server: LoopbackServer, run: Run, tmp_path: Path) -> None:
    with tmpfs(tmp_path / "disk", f"size={MIB}") as base:
        fill(base)
        with run([channel("data", "Pipe", "data/")], base=base, ends_with=5) as job:
            assert "No space left on device" in job.log
            assert not [path for path in base.rglob("*") if path.is_fifo()]
    assert server.requests == ()


@pytest.mark.parametrize(("mode", "next_mode"), [("FastFile", "File"), ("Pipe", "FastFile")])
def test_the_next_run_clears_up_after_one_that_was_killed(run: Run, mode: str, next_mode: str, tmp_path: Path) -> None:
    reading = "def meanwhile():\n    import signal\n    print('reading', flush=True)\n    signal.pause()\n"
    with run([channel("data", mode, "data/")], base=tmp_path, command=reading + READ_TWICE) as job:
        job.wait_for_output("reading")
        kill_all(job)
        assert job.output.split() == ["reading"]
    reading = "def meanwhile():\n    pass\n"
    channels = [channel("data", next_mode, "data/")]
    with run(channels, base=tmp_path, command=reading + READ_TWICE, ends_with=0) as job:
        assert job.output.split() == [str(SIZE_BYTES)] * 2
    assert find_mount(tmp_path / "input/data/data") is None
    assert not [path for path in (tmp_path / "input/data").iterdir() if path.is_fifo()]


@pytest.mark.parametrize(("mode", "place"), [("File", "data"), ("FastFile", "data"), ("Pipe", "")])
def test_a_link_in_the_place_of_a_channel_is_not_followed(run: Run, tmp_path: Path, mode: str, place: str) -> None:
    base, elsewhere = tmp_path / "base", tmp_path / "elsewhere"
    elsewhere.mkdir()
    planted = base / "input/data" / place
    planted.parent.mkdir(parents=True)
    planted.symlink_to(elsewhere)
    with run([channel("data", mode, "data/")], "--keep", base=base) as job:
        assert job.wait() != 0
        assert f"{planted} is a symbolic link, and none below " in job.log
    assert not any(elsewhere.iterdir())
    assert find_mount(elsewhere) is None


@pytest.mark.parametrize("mode", ["FastFile", "File"])  # Pipe may still make the FIFO of the next epoch
def test_a_script_that_removes_everything_keeps_no_later_run_away(run: Run, tmp_path: Path, mode: str) -> None:
    remove = f"import os, shutil; shutil.rmtree({str(tmp_path / 'base')!r}, ignore_errors=True)\n"
    make = f"os.makedirs({str(tmp_path / 'base/model')!r}); open({str(tmp_path / 'base/model/weights')!r}, 'w')"
    for command in (remove + make, "''"):
        with run([channel("data", mode, "data/")], base=tmp_path / "base", command=command, ends_with=0):
            pass
    assert len([*(tmp_path / "base/runs").rglob("weights")]) == 1


def test_an_error_while_channels_are_prepared_leaves_neither_a_mount_nor_a_fifo(run: Run) -> None:
    """The system has no room for another process, or there is a defect."""
    change = """
from fastfuse.sagemaker.running.run import _Run
def fail(run):
    while not all(channel.is_ready for channel in run._channels):
        run._take_signal(1)
    raise RuntimeError("no room")
_Run._environment = fail
"""
    channels = [channel("mounted", "FastFile", "data/"), channel("piped", "Pipe", "data/")]
    with run(channels, change=change, command="print('never')", ends_with=1) as job:
        assert "unforeseen: RuntimeError('no room')" in job.log
        assert "Stopping - Taking down mounted, piped" in job.log
        assert find_mount(job.data / "mounted") is None
        assert not [path for path in job.data.iterdir() if path.is_fifo()]


def test_a_run_ends_though_a_disk_that_hangs_holds_the_process_of_a_channel(run: Run) -> None:
    """Here nobody sends the signals, so the process stays until the run has ended."""
    change = """
from fastfuse.sagemaker.running import job_processes, run
job_processes.DIES_WITHIN_S = run._TAKE_DOWN_S = 0.1
job_processes.ChannelProcess.send = lambda *_: None
"""
    with run([channel("data", "Pipe", "data/")], "--grace-s", "0", change=change, command="''", ends_with=0) as job:
        assert "channel data: its process was killed and does not end: a disk that hangs may hold it" in job.log


# Reads all channels at once, then waits.
READ_ALL = """
import json, os, signal
from concurrent.futures import ThreadPoolExecutor
def read(name):
    with open(os.environ["SM_CHANNEL_" + name.upper()] + "/x", "rb") as file:
        return len(file.read(1 << 20))
names = json.loads(os.environ["SM_CHANNELS"])
with ThreadPoolExecutor(len(names)) as pool:
    print("read", sum(pool.map(read, names)), flush=True)
signal.pause()
"""


def test_twenty_channels_are_one_tree_that_ends_as_one(run: Run) -> None:
    """As many as a job may have."""
    names = {f"channel{number}" for number in range(20)}
    with run([channel(name, "FastFile", "data/") for name in names], command=READ_ALL) as job:
        job.wait_for_output(f"read {20 * MIB}")
        assert {path.name for path in fastfuse_mounts() if path.is_relative_to(job.data)} == names
        processes = descendants(job.process.pid)
        # The command, the guardian, and of each channel a supervisor and a worker.
        assert len(processes) == 2 + 2 * 20
        ends = [os.pidfd_open(pid) for pid in processes]
        assert job.stop() == 128 + signal.SIGTERM
        for end in ends:
            wait_for_end(end)
        assert not [path for path in fastfuse_mounts() if path.is_relative_to(job.data)]


def test_a_program_that_a_process_of_a_run_leaves_behind_ends_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a `credential_process` that hangs."""
    monkeypatch.setattr(job_processes, "raise_sigio", lambda _: None)
    ours, theirs = os.pipe()
    process = ChildProcess(lambda: subprocess.Popen(["sleep", "600"], pass_fds=[theirs]).poll())
    os.close(theirs)
    process.ended(wait_child(process.pid), Phases(is_json=False))
    assert process.exit_code == 0
    wait_for_end(ours)


def test_a_program_of_another_user_that_is_left_behind_does_not_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a `credential_process` that hangs in sudo, where an ordinary user runs the job."""
    monkeypatch.setattr(job_processes, "raise_sigio", lambda _: None)
    kill = Mock(side_effect=PermissionError)
    monkeypatch.setattr(os, "killpg", kill)
    process = ChildProcess(lambda: 0)
    process.ended(wait_child(process.pid), Phases(is_json=False))
    assert process.exit_code == 0
    process.ended(1, Phases(is_json=False))  # an orphan of the command that got its pid
    assert process.exit_code == 0
    assert kill.call_count == 1
