"""Clauses L1, L2, L4 and L5: ready, the end, and a place that is not free."""

import errno
import os
import select
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from bench.s3server import FaultRule, LoopbackServer, Stall
from fastfuse.filesystem.mounting.mountpoint import find_mount
from fastfuse.filesystem.processes.children import UNHEEDED
from tests.filesystem.waiting import wait_until
from tests.forked import Forked
from tests.mounting import (
    ENVIRONMENT,
    abort_connection,
    fuse_connections,
    mount_command,
    mounted,
    run_fastfuse,
    tmpfs,
)
from tests.semantics.leftovers import descendants
from tests.semantics.places import BUCKET, Place, block_bytes, direct_read, gets, opened, place

MIB = 1 << 20
OBJECTS = DATA = {"file": block_bytes(1, 3 * MIB), "other": b"other"}
URI = f"s3://{BUCKET}"


@pytest.fixture
def directory() -> Iterator[Path]:
    """An empty directory to mount on."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def test_the_first_read_works_when_the_mount_says_that_it_is_ready() -> None:
    """L1"""
    with place({f"{number:04}": b"x" for number in range(2500)}) as here:
        # `place` has waited for READY=1 and for nothing else.
        assert (here.path / "2499").read_bytes() == b"x"
        assert len(os.listdir(here.path)) == 2500
        assert "mounted s3://bucket/" in here.mount.log
        assert here.server.requests[-1].operation == "GetObject"
        assert sum(record.operation == "ListObjectsV2" for record in here.server.requests) >= 3


def test_the_service_manager_hears_of_every_stage_in_order(server: LoopbackServer, directory: Path) -> None:
    """L1, L2"""
    with tempfile.TemporaryDirectory() as name, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(f"{name}/notify")
        manager.settimeout(60)
        process = Forked(
            mount_command(URI, directory, server.endpoint_url),
            env={**ENVIRONMENT, "NOTIFY_SOCKET": f"{name}/notify"},
            stderr=subprocess.DEVNULL,
        )
        heard = [manager.recv(4096).decode() for _ in range(3)]
        assert (directory / "other").read_bytes() == b"other"
        process.send_signal(signal.SIGTERM)
        heard.append(manager.recv(4096).decode())
        assert process.wait(60) == 0
    assert heard == [f"STATUS=listing {URI}/", "READY=1", f"STATUS=serving {URI}/ at {directory}", "STOPPING=1"]


@contextmanager
def reading(here: Place) -> Iterator[tuple[int, Future[bytes]]]:
    """A read of `file` that the service does not answer while the rule is there."""
    rule = here.server.faults.add(FaultRule(action=Stall(0), operation="GetObject", key="file"))
    with ThreadPoolExecutor(1) as threads:
        read = threads.submit(direct_read, here.path / "file", 4096)
        here.wait_for_gets(1)
        yield rule, read


def stopping(here: Place, number: signal.Signals = signal.SIGTERM) -> None:
    """Tell the mount to stop and return when it has heard of it."""
    assert here.mount.notified().startswith("STATUS=serving")
    here.mount.process.send_signal(number)
    assert here.mount.notified() == "STOPPING=1"


def test_two_signals_at_once_end_an_idle_mount_in_good_order() -> None:
    """L2, L5"""
    with place(DATA, "--grace-s", "60") as here:
        here.mount.process.send_signal(signal.SIGTERM)
        assert here.mount.stop(signal.SIGINT) == 0
        assert find_mount(here.path) is None


def test_signals_to_every_process_of_a_job_end_no_process_of_the_mount() -> None:
    """L2; Slurm sends SIGUSR1 so (`sbatch --signal`), and a terminal's Ctrl-\\ SIGQUIT."""
    with place(DATA, "--metrics-listen", "0") as here:
        processes = here.mount.children()
        for number in UNHEEDED:
            for pid in (*processes, here.mount.process.pid):
                os.kill(pid, number)
        os.kill(here.mount.worker(), signal.SIGQUIT)
        assert (here.path / "other").read_bytes() == b"other"
        assert here.mount.children() == processes
        assert here.mount.stop(signal.SIGQUIT) == 0
        assert find_mount(here.path) is None


@pytest.mark.parametrize("has_died", [False, True])
def test_a_stopping_mount_lets_reads_under_way_end_and_refuses_later_ones(has_died: bool) -> None:
    """L2, and L3 where its worker was replaced"""
    with place(DATA, "--grace-s", "60") as here:
        if has_died:
            os.kill(here.mount.worker(), signal.SIGKILL)
            wait_until(lambda: "starting another" in here.mount.log)
        with reading(here) as (rule, read), (here.path / "other").open("rb", buffering=0) as other:
            assert other.read() == b"other"
            stopping(here)
            with pytest.raises(OSError, match="shutdown") as caught:
                direct_read(here.path / "other", 4096)
            assert caught.value.errno == errno.ESHUTDOWN
            # Pages that the kernel has are readable until the unmount.
            assert os.pread(other.fileno(), 10, 0) == b"other"
            assert here.mount.process.poll() is None
            assert not read.done()
            here.server.faults.remove(rule)
            assert read.result(60) == DATA["file"][:4096]
        assert here.mount.wait() == 0
        assert find_mount(here.path) is None


@pytest.mark.parametrize(
    ("how", "what"),
    [
        *(("parent", what) for what in ("stops", "is held as it stops", "is held, and fusectl is there", "is aborted")),
        *(("mount", what) for what in ("stops", "is aborted")),
    ],
)
def test_a_mount_that_somebody_has_moved_is_unmounted_where_it_is(
    server: LoopbackServer, directory: Path, how: str, what: str
) -> None:
    """L2"""
    base, old, new = directory / "base", directory / "base" / "old", directory / "base" / "new"
    with tmpfs(base), fuse_connections() as connections:
        subprocess.run(["mount", "--make-private", base], check=True)  # no mount can be moved away from a shared one
        (old / "at").mkdir(parents=True)
        change = f"""
        from fastfuse.filesystem.mounting import mountpoint
        from fastfuse.filesystem.worker_process import WorkerProcess
        WorkerProcess.may_survive = {"held" in what}
        mountpoint._CONNECTIONS = mountpoint.Path("{connections}", {"" if "fusectl" in what else "nothing"!r})
        """
        with mounted(f"s3://{BUCKET}", server.endpoint_url, path=old / "at", change=change) as mount:
            if how == "parent":
                old.rename(new)
            else:
                (new / "at").mkdir(parents=True)
                subprocess.run(["mount", "--move", old / "at", new / "at"], check=True)
            if what == "is aborted":
                abort_connection(new / "at")
                wait_until(lambda: "starting another" in mount.log and os.path.exists(new / "at" / "other"))
            assert (new / "at" / "other").read_bytes() == DATA["other"]
            assert mount.stop() == 0
            assert f"the mount was moved from {old / 'at'} to {new / 'at'}" in mount.log
            assert "cannot be ended" not in mount.log
            assert find_mount(new / "at") is None
            assert not any((new / "at").iterdir())


def test_a_bind_mount_of_one_that_somebody_has_unmounted_stays(server: LoopbackServer, directory: Path) -> None:
    with mounted(URI, server.endpoint_url) as mount:
        subprocess.run(["mount", "--bind", mount.path, directory], check=True)
        subprocess.run(["umount", mount.path], check=True)
        assert mount.stop() == 0
        assert find_mount(directory) is not None
        subprocess.run(["umount", directory], check=True)
        assert "was moved" not in mount.log


def test_an_open_file_that_nobody_reads_does_not_delay_the_end() -> None:
    """L2, L5"""
    with place(DATA, "--grace-s", "3600") as here, opened(here.path / "file") as file:
        assert os.read(file, 10) == DATA["file"][:10]
        assert here.mount.stop(signal.SIGINT) == 0
        assert find_mount(here.path) is None
        with pytest.raises(OSError, match="not connected"):
            os.pread(file, 10, 2 * MIB)


@pytest.mark.parametrize("grace_s", ["0.3", "3600"])
def test_reads_under_way_fail_when_the_grace_period_is_over_or_at_a_second_signal(grace_s: str) -> None:
    """L2"""
    with place(DATA, "--grace-s", grace_s) as here, reading(here) as (_, read):
        if grace_s == "3600":
            stopping(here)
        assert here.mount.stop(signal.SIGTERM) == 0
        assert find_mount(here.path) is None
        assert grace_s == "3600" or "1 reads under way fail" in here.mount.log
        with pytest.raises(OSError, match=r"not connected|Input/output|abort"):
            read.result(60)


def test_unmounting_from_outside_ends_the_daemon() -> None:
    """L2, L5"""
    with place(DATA) as here:
        subprocess.run(["fusermount3", "-u", here.path], check=True)
        assert here.mount.wait() == 0


@pytest.mark.parametrize("is_stopped", [False, True])
def test_detaching_from_outside_ends_the_daemon_after_the_last_close_or_as_it_is_stopped(is_stopped: bool) -> None:
    """L2"""
    with place(DATA, "--grace-s", "3600") as here:
        with opened(here.path / "file") as file:
            subprocess.run(["fusermount3", "-u", "-z", here.path], check=True)
            assert os.read(file, 10) == DATA["file"][:10]
            assert os.pread(file, 4 << 20, 0) == DATA["file"]
            if is_stopped:
                assert here.mount.stop() == 0
        assert here.mount.wait() == 0


def test_a_mount_whose_supervisor_was_killed_is_replaced(server: LoopbackServer, directory: Path) -> None:
    """L4"""
    with mounted(URI, server.endpoint_url, path=directory) as dead:
        assert (directory / "other").read_bytes() == b"other"
        children = [os.pidfd_open(pid) for pid in descendants(dead.process.pid)]
        assert children
        dead.process.kill()
        dead.wait()
        for child in children:
            ended, _, _ = select.select([child], [], [], 20)
            os.close(child)
            assert ended, "a child outlived its supervisor"
        with pytest.raises(OSError, match="not connected"):
            os.listdir(directory)
        os.stat(directory)  # the kernel still knows what the root was like, and that must not look alive
        # A listing may take long, and fail. A reader would take the empty directory for the data.
        assert run_fastfuse(*mount_command(f"{URI}/none/", directory, server.endpoint_url)[3:]).returncode == 4
        with pytest.raises(OSError, match="not connected"):
            os.listdir(directory)
        with mounted(URI, server.endpoint_url, path=directory):
            assert (directory / "file").read_bytes() == DATA["file"]
        assert find_mount(directory) is None


def test_a_live_mount_is_never_cleared(server: LoopbackServer) -> None:
    """L4, L5"""
    with mounted(URI, server.endpoint_url) as mount:
        done = run_fastfuse(*mount_command(URI, mount.path, server.endpoint_url)[3:])
        assert done.returncode == 5
        assert "is mounted already" in done.stderr
        assert f"hint: fastfuse unmount {mount.path} first, or read it" in done.stderr
        assert (mount.path / "other").read_bytes() == b"other"


def test_mount_all_leaves_a_mount_whose_name_mount_cannot_compare(server: LoopbackServer) -> None:
    """L4"""
    uri = f"{URI}/50 %é#1"
    with mounted(uri, server.endpoint_url, "--allow-empty") as mount:
        done = run_fastfuse(uri, str(mount.path), "-o", "ro,_netdev")
        assert (done.returncode, done.stderr) == (0, "")
        other = run_fastfuse(f"{uri}2", str(mount.path), "-o", "ro,_netdev")
        assert (other.returncode, "is mounted already" in other.stderr) == (5, True)


def test_an_empty_source_is_mounted_if_that_is_allowed() -> None:
    """L5"""
    with place({"elsewhere": b""}, "--allow-empty", uri=f"{URI}/nothing/") as here:
        assert os.listdir(here.path) == []
        assert gets(here) == []
