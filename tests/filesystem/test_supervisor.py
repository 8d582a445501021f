"""The supervisor through real mounts: deaths in a row, lost connections, interrupted listings, its endpoint."""

import contextlib
import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bench.s3server import ACCESS_DENIED, FaultRule, LoopbackServer, MemoryObjects, Stall
from bench.s3server.faults import Action, Delay
from fastfuse.errors import MountError
from fastfuse.filesystem.mounting.mountpoint import find_mount, unmount
from fastfuse.filesystem.processes.children import STOPPING
from fastfuse.filesystem.processes.hang_report import is_held
from fastfuse.filesystem.talking.control import ask_status, entry_of
from tests import mounting
from tests.descriptors import open_descriptors
from tests.filesystem.waiting import wait_for_end, wait_until
from tests.forked import Forked
from tests.mounting import (
    ENVIRONMENT,
    Mount,
    abort_connection,
    changed,
    children_of,
    fuse_connections,
    mount_command,
    mounted,
    run_fastfuse,
)
from tests.s3.test_integrity import told
from tests.semantics.places import direct_read, opened
from tests.semantics.test_metrics import Scrape

pytestmark = pytest.mark.fuse

_DATA = bytes(range(256)) * 2000
_LARGE = bytes(range(256)) * 8192  # two parts of the least size
OBJECTS = {"data/a": _DATA, "data/b": b"b", "large/file": _LARGE}


def with_change(monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    """Let all mounts run with the lines of `change` before the command line."""
    command: Callable[..., list[str]] = mount_command
    monkeypatch.setattr(mounting, "mount_command", lambda *words: changed(command(*words), change))


def kill(pid: int, number: signal.Signals = signal.SIGKILL) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def readable(path: Path, data: bytes) -> bool:
    try:
        return path.read_bytes() == data
    except OSError:
        return False


def abort_and_wait(mount: Mount) -> None:
    """Abort the connection and wait until another one serves. Pages of the old one stay readable meanwhile."""
    before = mount.log.count(f"mounting {mount.path} again")
    abort_connection(mount.path)
    wait_until(lambda: mount.log.count(f"mounting {mount.path} again") > before)
    wait_until(lambda: readable(mount.path / "b", b"b"))


def test_the_pause_after_a_death_ends_with_the_mount_and_its_state_is_told_meanwhile(server: LoopbackServer) -> None:
    """L2"""
    change = """
    from fastfuse.filesystem.processes import health
    health._FIRST_PAUSE_S = health._MAX_PAUSE_S = health._MAX_PAUSE_SHARE = 3600.0
    """
    with mounted("s3://bucket/data", server.endpoint_url, change=change) as mount:
        for count in (1, 2):
            kill(mount.worker())
            wait_until(lambda count=count: mount.log.count("starting another") == count)  # type: ignore[misc]
            assert count == 2 or readable(mount.path / "b", b"b")
        wait_until(lambda: ask_status(entry_of(mount.path))["state"] == "no worker")


def test_a_mount_that_is_gone_leaves_questions_to_the_one_that_may_have_its_number_now(server: LoopbackServer) -> None:
    with mounted("s3://bucket/data", server.endpoint_url) as mount:
        entry, worker = entry_of(mount.path), mount.worker()
        assert ask_status(entry)["state"] == "ok"
        os.kill(worker, signal.SIGSTOP)  # so that the supervisor does not know it yet
        try:
            subprocess.run(["umount", "--lazy", mount.path], check=True)
            answered_by = 0
            with contextlib.suppress(MountError):  # unless a mount of another test has its number now
                answered_by = ask_status(entry)["pid"]
            assert answered_by != mount.process.pid
        finally:
            os.kill(worker, signal.SIGCONT)
        assert mount.wait() == 0


def test_a_request_that_is_no_read_and_kills_workers_fails_and_the_mount_goes_on_while_others_are_answered(
    server: LoopbackServer, tmp_path: Path
) -> None:
    """L3: it ends with workers that cannot start, for which no request is blamed."""
    mark = tmp_path / "cannot-start"
    mark.touch()
    change = f"""
    import os, signal
    from fastfuse.filesystem.processes import health
    from fastfuse.filesystem.serving import worker
    from fastfuse.filesystem.serving.operations import MountOperations
    health._MAX_PAUSE_S = 0.1
    async def statfs(self, context):
        os.kill(os.getpid(), signal.SIGSEGV)
    MountOperations.statfs = statfs
    become_nobody, mark_fd = worker.become_nobody, os.open({str(mark)!r}, os.O_RDONLY)
    def fail_if_marked():
        if os.fstat(mark_fd).st_size:
            os._exit(3)
        become_nobody()
    worker.become_nobody = fail_if_marked
    """
    with mounted("s3://bucket/data", server.endpoint_url, "--metrics-listen", "0", change=change) as mount:
        for count in (1, 2, 3, 4):  # more deaths than end a mount
            with pytest.raises(OSError, match="Input/output"):
                os.statvfs(mount.path)
            # Past the page cache, which would answer by itself. Nothing is answered after the last one.
            assert count == 4 or direct_read(mount.path / "b", 4096) == b"b"
        assert mount.log.count("starting another") == 8
        # The last one is counted after it was answered.
        wait_until(lambda: Scrape(mount.metrics_port())["errors_total", "EIO"] == 4)
        mark.write_text("met")
        with pytest.raises(OSError, match=r"not connected|abort|Input/output"):
            os.statvfs(mount.path)
        assert mount.wait() == 1
        assert "the worker died 5 times without serving anything; last, it exited with 3" in mount.log
        told = re.findall(r"workers die of request \d+, operation 17 of FUSE, of inode 1: it fails", mount.log)
        assert len(told) == mount.log.count("workers die of") == 4
        assert find_mount(mount.path) is None


def test_the_wait_of_the_last_second_is_in_the_summary(server: LoopbackServer) -> None:
    with mounted("s3://bucket/data", server.endpoint_url) as mount:
        late = server.faults.add(FaultRule(action=Delay(0.5), operation="GetObject"))
        assert (mount.path / "b").read_bytes() == b"b"
        server.faults.remove(late)
        assert mount.stop() == 0
        assert "readers waited in" in mount.log
        assert "readers waited in 0.0%" not in mount.log


def test_an_interpreter_of_its_own_ends_without_a_word(server: LoopbackServer) -> None:
    """It takes all modules apart as it ends; a command that the tests fork does not."""
    with mounted("s3://bucket/data", server.endpoint_url, run_by=["env", "PYTHONFAULTHANDLER=1"]) as mount:
        assert readable(mount.path / "b", b"b")
        assert mount.stop() == 0
        assert "Exception ignored" not in mount.log
        assert "Traceback" not in mount.log


@pytest.mark.parametrize("how", ["closed", "stopped"])
def test_a_later_mount_at_the_same_place_outlives_the_one_before(server: LoopbackServer, how: str) -> None:
    """L4"""
    with mounted("s3://bucket/data", server.endpoint_url) as first, contextlib.ExitStack() as held:
        held.enter_context(opened(first.path / "a"))
        unmount(first.path, lazy=True)
        with mounted("s3://bucket/data", server.endpoint_url, path=first.path) as second:
            if how == "closed":
                held.close()
            assert (first.wait if how == "closed" else first.stop)() == 0
            assert (second.path / "b").read_bytes() == b"b"


def test_a_mount_that_may_not_be_unmounted_says_what_to_do_and_fails(server: LoopbackServer) -> None:
    """L2, L5"""
    change = """
    from fastfuse.filesystem.mounting import mountpoint
    permitted = mountpoint.unmount_as_root
    def unmount(entry, *, lazy):
        if entry.path.with_name("refused").exists():
            raise mountpoint._unmount_error(entry.path, "Operation not permitted")
        permitted(entry, lazy=lazy)
    mountpoint.unmount_as_root = unmount
    """
    with mounted("s3://bucket/data", server.endpoint_url, "--grace-s", "0.5", change=change) as mount:
        mount.path.with_name("refused").touch()
        assert mount.stop() == 5
        complaint = f"{mount.path} cannot be unmounted: Operation not permitted"
        assert f"{complaint}; to be rid of it: umount --lazy {mount.path}, as root on the host" in mount.log
        assert mount.log.count(complaint) == 1
        assert find_mount(mount.path) is not None


def test_a_mount_that_another_one_covers_is_left_and_the_error_names_the_other(server: LoopbackServer) -> None:
    """L2, L4, L5"""
    with mounted("s3://bucket/data", server.endpoint_url, "--grace-s", "3600") as mount:
        subprocess.run(["mount", "-t", "tmpfs", "none", mount.path], check=True)
        assert f"umount {mount.path} takes that away" in run_fastfuse("status").stdout
        status = run_fastfuse("status", str(mount.path))
        assert f"a mount of type tmpfs covers that of fastfuse at {mount.path}" in status.stderr
        assert mount.stop() == 5
        assert f"{mount.path} is covered by another mount, of type tmpfs" in mount.log
        covering = find_mount(mount.path)
        subprocess.run(["umount", mount.path], check=True)
        assert covering is not None
        assert covering.file_system_type == "tmpfs"


def test_a_users_busy_mount_is_detached(server: LoopbackServer, tmp_path: Path) -> None:
    """L2"""
    attempts = tmp_path / "attempts"
    (tmp_path / "fusermount3").write_text(f'#!/bin/sh\necho >> {attempts}\nexec {shutil.which("fusermount3")} "$@"\n')
    (tmp_path / "fusermount3").chmod(0o755)
    url, change = server.endpoint_url, "import os; os.geteuid = lambda: 1000"
    environment = {**ENVIRONMENT, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    with mounted("s3://bucket/data", url, "--grace-s", "3600", environment=environment, change=change) as mount:
        with opened(mount.path / "a"):
            assert mount.stop() == 0
        assert attempts.read_text() == "\n"
        assert find_mount(mount.path) is None


def test_a_mount_that_is_gone_when_its_worker_is_killed_is_not_made_again(server: LoopbackServer) -> None:
    with mounted("s3://bucket/data", server.endpoint_url) as mount:
        worker = mount.worker()
        os.kill(worker, signal.SIGSTOP)  # or it would end by itself
        unmount(mount.path)
        kill(worker)
        assert mount.wait() == 0
        assert "mounting" not in mount.log
        # Another worker may have come first: a namespace that another test makes begins with this mount, too.
        assert f"{mount.path} was unmounted" in mount.log


def test_a_worker_with_too_much_memory_is_replaced_and_readers_notice_nothing(
    server: LoopbackServer, tmp_path: Path
) -> None:
    """L3"""
    mark = tmp_path / "large"
    mark.touch()
    change = f"""
    import os
    from fastfuse.filesystem.serving import worker
    mark_fd = os.open({str(mark)!r}, os.O_RDONLY)  # nobody, who looks at it, may not open it
    worker.private_bytes = lambda: os.fstat(mark_fd).st_size << 40
    """
    with mounted("s3://bucket/large", server.endpoint_url, change=change) as mount, ThreadPoolExecutor(1) as threads:
        before = mount.worker()
        rule = server.faults.add(FaultRule(action=Stall(0), operation="GetObject", key="large/file"))
        reader = threads.submit((mount.path / "file").read_bytes)
        wait_until(lambda: server.faults.hits(rule) > 0)
        mark.write_text("x")
        wait_until(lambda: "the worker died: it exited with 0; starting another" in mount.log)
        mark.write_text("")
        server.faults.clear()
        assert reader.result(60) == _LARGE
        assert mount.worker() != before
        assert re.search(
            r"has 1048576 MiB of memory, more than the 1024 MiB that --memory-target allows; another", mount.log
        )


def test_a_mount_that_stops_waits_for_the_reads_that_its_worker_leaves_to_the_next_one(
    server: LoopbackServer, tmp_path: Path
) -> None:
    """L2"""
    mark, go = tmp_path / "large", tmp_path / "go"
    mark.touch()
    os.mkfifo(go)
    go.chmod(0o666)
    change = f"""
    import os
    from fastfuse.filesystem import supervisor
    from fastfuse.filesystem.serving import worker
    mark_fd, go_fd = os.open({str(mark)!r}, os.O_RDONLY), os.open({str(go)!r}, os.O_PATH)  # nobody may not open them
    worker.private_bytes = lambda: os.fstat(mark_fd).st_size << 40
    run_worker = supervisor.run_worker
    def linger(task):
        run_worker(task)
        if os.fstat(mark_fd).st_size:
            open(f"/proc/self/fd/{{go_fd}}").read()
    supervisor.run_worker = linger
    """
    with (
        mounted("s3://bucket/large", server.endpoint_url, "--grace-s", "60", change=change) as mount,
        ThreadPoolExecutor(1) as threads,
    ):
        rule = server.faults.add(FaultRule(action=Stall(0), operation="GetObject", key="large/file"))
        reader = threads.submit(direct_read, mount.path / "file", 4096)
        wait_until(lambda: server.faults.hits(rule) > 0)
        mount.process.send_signal(signal.SIGTERM)
        wait_until(lambda: ask_status(entry_of(mount.path))["state"] == "stopping")
        mark.write_text("x")
        with go.open("w"):  # once the worker has cancelled all
            # Each answer is one look of the supervisor, and two would be enough for it to end.
            for _ in range(4):
                assert ask_status(entry_of(mount.path))["counters"]["fastfuse_waiting_reads"] == 0
            mark.write_text("")
            server.faults.clear()
        assert reader.result(60) == _LARGE[:4096]
        assert mount.wait() == 0
        assert mount.log.count("the worker died: it exited with 0; starting another") == 1


@pytest.mark.parametrize(
    ("handler", "asks"), [("readdir", os.listdir), ("getxattr", lambda at: os.getxattr(at / "a", "user.s3.key"))]
)
def test_a_request_whose_worker_dies_is_answered_by_the_next_one(
    server: LoopbackServer, handler: str, asks: Callable[[Path], object]
) -> None:
    """L3"""
    change = f"""
    import mmap, os, signal
    from fastfuse.filesystem.serving.operations import MountOperations
    has_died = mmap.mmap(-1, 1)  # shared by all workers
    handler = MountOperations.{handler}
    async def dying(*arguments):
        if not has_died[0]:
            has_died[0] = 1
            os.kill(os.getpid(), signal.SIGKILL)
        return await handler(*arguments)
    MountOperations.{handler} = dying
    """
    with mounted("s3://bucket/data", server.endpoint_url, change=change) as mount:
        assert asks(mount.path)
        assert "the worker died" in mount.log
        assert f"mounting {mount.path} again" not in mount.log


def test_a_read_is_answered_as_asked_though_its_worker_died_while_it_copied_another_one(server: LoopbackServer) -> None:
    """D1: the copy has the number of one READ, and the place in the file of another one."""
    change = """
    import os, signal
    from fastfuse.filesystem.serving import worker
    from fastfuse.filesystem.serving.reads import Reads
    keep, take = worker.replies.keep, Reads.take
    def keeping(memory):
        global requests
        requests = memory
        return keep(memory)
    def dying(*arguments):
        place = slice(48, 56)  # after fuse_in_header and the handle
        if not requests[-1]:
            requests[-1] = 1  # of a READ that is not kept
            requests[place] = (1).to_bytes(8, "little")
            os.kill(os.getpid(), signal.SIGKILL)
        take(*arguments)
    worker.replies.keep, Reads.take = keeping, dying
    """
    with mounted("s3://bucket/large", server.endpoint_url, change=change) as mount:
        assert (mount.path / "file").read_bytes() == _LARGE
        assert "the worker died" in mount.log


def test_a_read_has_one_deadline_though_its_worker_dies(server: LoopbackServer) -> None:
    """D5. For the next worker the read came long ago."""
    change = """
    import time
    from fastfuse.filesystem.serving import worker
    keep = worker.replies.keep
    def keeping(memory):
        came_s, now_s = keep(memory), time.monotonic()
        return {number: at_s - 60 for number, at_s in came_s.items() if now_s - at_s < 600}
    worker.replies.keep = keeping
    """
    with mounted("s3://bucket/large", server.endpoint_url, change=change) as mount, ThreadPoolExecutor(1) as threads:
        rule = server.faults.add(FaultRule(action=Stall(0), operation="GetObject", key="large/file"))
        reader = threads.submit(direct_read, mount.path / "file", 4096)
        wait_until(lambda: server.faults.hits(rule) > 0)
        kill(mount.worker())
        with pytest.raises(OSError, match="Input/output error"):
            reader.result(30)
        server.faults.clear()
        assert "'large/file' could not be read within 60 s. A worker died meanwhile." in mount.log


@pytest.mark.parametrize(("refusal", "soft"), [("", "4096"), ("resource.getrlimit = lambda _: (512, 2**40)", "512")])
def test_a_worker_may_have_as_many_files_open_as_the_system_allows(
    refusal: str, soft: str, server: LoopbackServer
) -> None:
    change = f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (512, 4096)); {refusal}"
    with mounted("s3://bucket/data", server.endpoint_url, change=change) as mount:
        limits = Path(f"/proc/{mount.worker()}/limits").read_text()
        assert limits.partition("Max open files")[2].split()[:2] == [soft, "4096"]


def test_a_second_answer_is_no_error(server: LoopbackServer) -> None:
    change = """
    import os, signal
    from fastfuse.filesystem.kernel import loop
    from fastfuse.filesystem.serving import worker
    keep, are_left, requests = worker.replies.keep, loop.replies.are_left, bytes(8)
    def keeping(memory):
        global requests
        requests = memory
        return keep(memory)
    def dying():
        if requests[4] == 17 and not requests[-1]:  # STATFS is answered
            requests[-1] = 1  # of a READ that is not kept
            os.kill(os.getpid(), signal.SIGKILL)
        return are_left()
    worker.replies.keep, loop.replies.are_left = keeping, dying
    """
    with mounted("s3://bucket/data", server.endpoint_url, change=change) as mount:
        assert os.statvfs(mount.path) == os.statvfs(mount.path)
        assert "the worker died" in mount.log
        assert " ERROR " not in mount.log


def test_a_mount_of_which_a_request_was_lost_is_made_again(server: LoopbackServer) -> None:
    change = "from fastfuse.filesystem.kernel import session; session.replies.are_all_kept = lambda _: False"
    with mounted("s3://bucket/data", server.endpoint_url, change=change) as mount:
        with opened(mount.path / "a") as file:
            kill(mount.worker())
            wait_until(lambda: readable(mount.path / "b", b"b"))
            with pytest.raises(OSError, match=r"not connected|Input/output|abort"):
                os.read(file, 1)
        assert f"mounting {mount.path} again: open files fail, opened again they work" in mount.log
        assert mount.stop() == 0
        assert find_mount(mount.path) is None


def test_a_refresh_does_not_outlive_the_connection_that_it_began_with(server: LoopbackServer) -> None:
    with mounted("s3://bucket/data", server.endpoint_url) as mount:
        with faulty(server, Stall(10)) as rule:
            mount.process.send_signal(signal.SIGHUP)
            wait_until(lambda: server.faults.hits(rule) > 0)
            abort_and_wait(mount)
            assert "the connection to the kernel was aborted, which ends the worker; starting another" in mount.log
            assert "exited with 0" not in mount.log
            wait_until(lambda: len(mount.children()) == 1)
        assert run_fastfuse("refresh", str(mount.path)).returncode == 0


def test_the_kernels_readahead_is_that_of_the_mount_that_was_made_again(server: LoopbackServer) -> None:
    change = """
    from fastfuse.filesystem.figures import status
    status.readahead_kib = lambda device: int(device.partition(":")[2])
    """
    with mounted("s3://bucket/data", server.endpoint_url, change=change) as mount:

        def told() -> int:
            return int(ask_status(entry_of(mount.path))["counters"]["fastfuse_kernel_readahead_bytes"]) >> 10

        before = os.minor(os.stat(mount.path).st_dev)
        assert told() == before
        with opened(mount.path / "a"):  # so that the next mount has another number
            abort_and_wait(mount)
        assert before != os.minor(os.stat(mount.path).st_dev) == told()


@contextlib.contextmanager
def listing(
    server: LoopbackServer,
    command: list[str],
    **how: Any,  # noqa: ANN401
) -> Iterator[tuple[subprocess.Popen[Any], list[int]]]:
    """A process that mounts and whose listing hangs, and its children."""
    with faulty(server, Stall(10)) as rule, Forked[Any](command, **{"env": ENVIRONMENT, **how}) as process:
        try:
            wait_until(lambda: server.faults.hits(rule) > 0)
            yield process, children_of(process.pid)
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("number", "exit_code", "whole_group"),
    [
        (signal.SIGINT, 130, True),
        (signal.SIGTERM, -signal.SIGTERM, False),
        (signal.SIGHUP, -signal.SIGHUP, False),
    ],
)
def test_a_signal_during_the_listing_ends_all_of_it_at_once_and_in_silence(
    server: LoopbackServer, tmp_path: Path, number: signal.Signals, exit_code: int, whole_group: bool
) -> None:
    """A directory that was made for the mount goes, too."""
    place = tmp_path / "mount"
    if whole_group:
        place.mkdir()
    command = mount_command("s3://bucket/data", place, server.endpoint_url, "--metrics-listen", "0")
    how = {"env": {**ENVIRONMENT, "TMPDIR": str(tmp_path)}, "text": True, "start_new_session": True}
    with listing(server, command, stderr=subprocess.PIPE, **how) as (process, children):
        assert len(children) == 2  # the lister and the metrics endpoint
        assert place.exists()
        pid_fds = [os.pidfd_open(pid) for pid in children]
        (os.killpg if whole_group else os.kill)(process.pid, number)
        _, stderr = process.communicate(timeout=60)
        assert process.returncode == exit_code, stderr
        assert re.fullmatch(r".* metrics are served at \S+\n", stderr)
        for pid_fd in pid_fds:
            wait_for_end(pid_fd)
    assert find_mount(place) is None
    assert list(tmp_path.iterdir()) == [place] * whole_group


def test_the_first_process_of_a_container_ends_by_a_signal_during_the_listing(
    server: LoopbackServer, tmp_path: Path
) -> None:
    command = mount_command("s3://bucket/data", tmp_path / "mount", server.endpoint_url)
    with listing(server, ["unshare", "--pid", "--fork", "--kill-child", *command]) as (outside, (first,)):
        os.kill(first, signal.SIGTERM)
        assert outside.wait(60) == 128 + signal.SIGTERM
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("is_interrupted", [True, False])
def test_a_terminal_that_hangs_up_or_interrupts_the_listing_ends_a_daemon_that_is_waited_for(
    server: LoopbackServer, tmp_path: Path, is_interrupted: bool
) -> None:
    place, log = tmp_path / "mount", str(tmp_path / "log")
    command = mount_command("s3://bucket/data", place, server.endpoint_url, "--daemon", "--log-file", log)
    ours, terminal = os.openpty()
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), terminal)
    with listing(server, ["setsid", "--ctty", *command], **streams) as (parent, (daemon,)):
        os.close(terminal)
        pid_fd = os.pidfd_open(daemon)
        try:
            if is_interrupted:
                os.write(ours, b"\x03")
                parent.wait(60)
            os.close(ours)
            assert parent.wait(60) == 128 + (signal.SIGINT if is_interrupted else signal.SIGHUP)
            wait_for_end(os.dup(pid_fd))
            assert find_mount(place) is None
            assert not place.exists()
        finally:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(pid_fd, signal.SIGKILL)
            os.close(pid_fd)
            if find_mount(place) is not None:
                unmount(place, lazy=True)


def test_a_hangup_ends_a_mount_whose_terminal_is_gone_and_that_logs_to_a_file(server: LoopbackServer) -> None:
    """As after ``fastfuse mount … 2> log``; the shell sends SIGHUP, too."""
    ours, terminal = os.openpty()
    change = f"import os; os.dup2({terminal}, 0); os.close({terminal})"
    with mounted("s3://bucket/data", server.endpoint_url, pass_fds=[terminal], change=change) as mount:
        os.close(terminal)
        os.close(ours)
        assert mount.stop(signal.SIGHUP) == 0
        assert find_mount(mount.path) is None


def test_a_metrics_endpoint_that_dies_is_started_again_and_does_not_keep_the_connection(server: LoopbackServer) -> None:
    change = "from fastfuse.filesystem.figures import endpoint; endpoint._START_EVERY_S = 0.1"
    with mounted("s3://bucket/data", server.endpoint_url, "--metrics-listen", "0", change=change) as mount:
        port, worker = mount.metrics_port(), mount.worker()
        for deaths in (1, 2):
            (endpoint,) = set(mount.children()) - {worker}
            kill(endpoint)
            # The port is listened at all the time.
            assert Scrape(port)["worker_respawns_total",] == 0
            assert mount.log.count("the metrics endpoint was killed by signal 9; it is started again") == deaths
        (endpoint,) = set(mount.children()) - {worker}
        files = open_descriptors(endpoint).values()
        assert not [file for file in files if file.startswith(("/dev/fuse", "/memfd:fastfuse-"))]
        assert (mount.path / "b").read_bytes() == b"b"
        subprocess.run(["umount", "-f", mount.path], check=True)
        assert mount.wait() == 0
        assert mount.log.count("was unmounted") == 1


def test_a_signal_to_every_process_of_a_mount_is_for_its_supervisor_alone(server: LoopbackServer) -> None:
    """As systemd, Slurm and a terminal send it."""
    with mounted("s3://bucket/data", server.endpoint_url, "--metrics-listen", "0") as mount:
        children = mount.children()
        for child, number in itertools.product(children, STOPPING | {signal.SIGHUP}):
            os.kill(child, number)
        assert Scrape(mount.metrics_port())["worker_respawns_total",] == 0
        assert (mount.path / "b").read_bytes() == b"b"
        assert mount.children() == children
        assert mount.stop() == 0
        assert "ERROR" not in mount.log


def test_every_process_of_a_mount_follows_a_log_file_that_is_moved_away(server: LoopbackServer, tmp_path: Path) -> None:
    log = tmp_path / "log"
    words = ("--metrics-listen", "0", "--log-file", str(log))
    with mounted("s3://bucket/data", server.endpoint_url, *words) as mount:
        log.rename(tmp_path / "log.1")

        def logs() -> set[str]:
            pids = (mount.process.pid, *mount.children())
            try:
                return {file for pid in pids for file in open_descriptors(pid).values() if file.startswith(str(log))}
            except FileNotFoundError:
                return set()  # the first endpoint ended meanwhile

        # Two children: the worker, and another endpoint.
        wait_until(lambda: len(mount.children()) == 2 and logs() == {str(log)})
        assert "metrics endpoint" not in log.read_text()


@contextlib.contextmanager
def limit(forks_left: Path, number: int) -> Iterator[None]:
    forks_left.write_text(str(number))
    try:
        yield
    finally:
        forks_left.unlink()


def test_a_worker_without_descriptors_is_replaced_for_a_table(tmp_path: Path) -> None:
    """L6"""
    limit = tmp_path / "limit"
    limit.touch()
    # As the kernel does where the receiver may have no more: it delivers the message without them.
    change = f"""
    import os, socket
    limit_fd = os.open({str(limit)!r}, os.O_RDONLY)
    receive = socket.recv_fds
    def limited(*arguments):
        message, descriptors, *rest = receive(*arguments)
        if os.fstat(limit_fd).st_size:
            while descriptors:
                os.close(descriptors.pop())
        return (message, descriptors, *rest)
    socket.recv_fds = limited
    """
    with holding(a=b"a") as (server, held), mounted("s3://bucket/data", server.endpoint_url, change=change) as mount:
        worker = mount.worker()
        limit.write_text("met")
        run_fastfuse("status", "--stack", str(mount.path))
        wait_until(lambda: "no descriptor is left for what the supervisor hands over" in mount.log)
        assert (mount.path / "a").read_bytes() == b"a"
        assert worker in mount.children()
        held.put("data/b", b"b")
        assert run_fastfuse("refresh", str(mount.path)).returncode == 0
        assert (mount.path / "b").read_bytes() == b"b"
        assert "the new table cannot be taken: Too many open files; another worker takes over" in mount.log
        assert mount.log.count("starting another") == 1
        assert "unforeseen" not in mount.log


@pytest.mark.parametrize("options", [(), ("--cache",)], ids=["S3 alone", "tier"])
def test_a_limit_of_threads_passes(options: tuple[str, ...], tmp_path: Path) -> None:
    """L3"""
    limit = tmp_path / "limit"
    limit.touch()
    objects = MemoryObjects({})
    for name in ("a", "b", "c"):
        objects.put(f"data/{name}", _LARGE, checksums=told("crc64nvme", _LARGE))
    # The threads that receive, that resolve names, that write to the tier, and those of large replies.
    change = f"""
    import os, threading
    limit_fd = os.open({str(limit)!r}, os.O_RDONLY)
    def limited(start):
        def start_or_not(*arguments):
            if os.fstat(limit_fd).st_size:
                raise RuntimeError("can't start new thread")
            return start(*arguments)
        return start_or_not
    threading.Thread.start = limited(threading.Thread.start)
    """
    words = (*options, *(str(tmp_path / "tier") for _ in options))
    with (
        LoopbackServer({"bucket": objects}) as server,
        mounted(
            "s3://bucket/data", server.endpoint_url.replace("127.0.0.1", "localhost"), *words, change=change
        ) as mount,
        ThreadPoolExecutor(3) as threads,
    ):
        assert (mount.path / "a").read_bytes() == _LARGE
        limit.write_text("met")
        kill(mount.worker())
        readers = [threads.submit((mount.path / name).read_bytes) for name in ("b", "c")]
        wait_until(lambda: "no room for a thread; see ulimit -u and pids.max; trying again" in mount.log)
        limit.write_text("")
        assert [reader.result(60) for reader in readers] == [_LARGE, _LARGE]
        assert mount.log.count("starting another") == 1
        assert "unforeseen" not in mount.log
        assert ("is not used: can't start new thread" in mount.log) == bool(options)


@contextlib.contextmanager
def holding(**objects: bytes) -> Iterator[tuple[LoopbackServer, MemoryObjects]]:
    """A server of its own for a test that changes what it holds."""
    held = MemoryObjects({f"data/{name}": data for name, data in objects.items()})
    with LoopbackServer({"bucket": held}) as server:
        yield server, held


def refresh_in_vain(mount: Mount, held: MemoryObjects) -> str:
    """`a` is replaced, and the kernel is not told although it remembers the name; returns the reason."""
    held.put("data/a", b"longer")
    done = run_fastfuse("refresh", str(mount.path))
    assert (done.returncode, done.stdout) == (1, "")
    message, hint, _ = done.stderr.split("\n")
    start = "fastfuse: error: the kernel was not told of every change, and may still show what it remembers: "
    assert message.startswith(start)
    assert hint == "hint: refresh again: it is told then"
    assert "s3://bucket/data was refreshed, but the kernel was not told" in mount.log
    assert (mount.path / "a").stat().st_size == 1
    return message.removeprefix(start)


def test_at_a_limit_of_processes_refreshes_fail_and_changes_and_workers_wait(tmp_path: Path) -> None:
    """L3, L6"""
    forks_left = tmp_path / "forks-left"
    # It may fork as often as the file `left` says, once that is there.
    change = f"""
    import errno, os, pathlib
    from fastfuse.filesystem import supervisor
    supervisor._ROOM_RETRY_S = 0.02
    left, fork = pathlib.Path({str(forks_left)!r}), os.fork
    def limited():
        try:
            number = int(left.read_text())
        except FileNotFoundError:
            return fork()
        if number == 0:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        left.write_text(str(number - 1))
        return fork()
    os.fork = limited
    """
    with (
        holding(a=b"a") as (server, held),
        mounted("s3://bucket/data", server.endpoint_url, "--metrics-listen", "0", change=change) as mount,
        ThreadPoolExecutor(1) as threads,
    ):
        with limit(forks_left, 0):
            mount.process.send_signal(signal.SIGHUP)
            wait_until(lambda: "was not refreshed: no process can be" in mount.log)
            done = run_fastfuse("refresh", str(mount.path))
            assert done.returncode == 1
            assert done.stderr.startswith("fastfuse: error: no process can be started")
        assert run_fastfuse("refresh", str(mount.path)).returncode == 0
        assert Scrape(mount.metrics_port())["refreshes_total", "failed"] == 2
        with opened(mount.path / "a"):  # so that the kernel does not forget the name for want of memory
            with limit(forks_left, 2):  # that list
                assert refresh_in_vain(mount, held).startswith("no process can be started")
            assert run_fastfuse("refresh", str(mount.path)).returncode == 0
            assert (mount.path / "a").stat().st_size == 6
        wait_until(lambda: len(mount.children()) == 2)
        with limit(forks_left, 0):
            kill(mount.worker())
            reader = threads.submit((mount.path / "a").read_bytes)
            # More often than workers may die.
            wait_until(lambda: mount.log.count("no worker can be started yet") > 6)
        assert reader.result(60) == b"longer"
        assert mount.log.count("starting another") == 1
        with limit(forks_left, 0):
            before = mount.log.count("no worker can be started yet")
            kill(mount.worker())
            wait_until(lambda: mount.log.count("no worker can be started yet") > before)
            assert mount.stop() == 1
        assert "fastfuse: error: the mount cannot go on: no process can be started" in mount.log
        assert "Traceback" not in mount.log
        assert find_mount(mount.path) is None


def test_the_process_of_the_notices_is_the_last_to_hold_the_old_table(server: LoopbackServer, tmp_path: Path) -> None:
    """To free its gigabytes takes seconds, in which a worker or a supervisor would answer nothing."""
    change = f"""
    import pathlib
    from fastfuse.filesystem.refresh import Refresher
    from tests.descriptors import open_descriptors
    send = Refresher._send
    def send_and_tell(self, connection_fd):
        pathlib.Path({str(tmp_path / "held")!r}).write_text(str(open_descriptors()))
        send(self, connection_fd)
    Refresher._send = send_and_tell
    """
    with mounted("s3://bucket/data", server.endpoint_url, change=change) as mount:
        assert run_fastfuse("refresh", str(mount.path)).returncode == 0
        assert (tmp_path / "held").read_text().count("memfd:fastfuse-index") == 2
        assert str(open_descriptors(mount.process.pid)).count("memfd:fastfuse-index") == 1


def test_five_processes_at_most_die_while_they_tell_the_kernel(tmp_path: Path) -> None:
    """L6: what none of them told is told with the next refresh."""
    deaths = tmp_path / "deaths"
    deaths.touch()
    change = f"""
    import os, signal
    from fastfuse.filesystem import refresh
    send = refresh.send_notices
    deaths_fd = os.open({str(deaths)!r}, os.O_RDWR)  # nobody, who looks at it, may not open it
    def die(fd, notices):
        left = os.fstat(deaths_fd).st_size
        if left:
            os.ftruncate(deaths_fd, left - 1)
            os.kill(os.getpid(), signal.SIGKILL)
        send(fd, notices)
    refresh.send_notices = die
    """
    with holding(a=b"a") as (server, held), mounted("s3://bucket/data", server.endpoint_url, change=change) as mount:
        with opened(mount.path / "a"):  # so that the kernel does not forget the name for want of memory
            deaths.write_bytes(bytes(5))
            assert refresh_in_vain(mount, held) == "the process that tells it was killed by signal 9"
            assert mount.log.count("died; another one does") == 4
            # One that fails before that loses nothing either.
            with faulty(server, ACCESS_DENIED):
                assert run_fastfuse("refresh", str(mount.path)).returncode == 3
            assert run_fastfuse("refresh", str(mount.path)).stdout.startswith("0 added")
            assert (mount.path / "a").stat().st_size == 6
        assert os.listdir(mount.path) == ["a"]
        held.put("data/b", b"b")
        deaths.write_bytes(bytes(4))
        assert run_fastfuse("refresh", str(mount.path)).returncode == 0
        assert mount.log.count("died; another one does") == 8
        assert sorted(os.listdir(mount.path)) == ["a", "b"]


@contextlib.contextmanager
def faulty(server: LoopbackServer, action: Action) -> Iterator[int]:
    """Listings fail, or do not end until then; yields the rule."""
    rule = server.faults.add(FaultRule(action=action, operation="ListObjectsV2"))
    try:
        yield rule
    finally:
        server.faults.remove(rule)


def test_a_mount_without_a_socket_serves_and_refreshes(server: LoopbackServer) -> None:
    change = """
    from fastfuse.filesystem import supervisor
    def refuse(_):
        raise OSError(24, "Too many open files")
    supervisor.ControlSocket = refuse
    """
    with mounted("s3://bucket/data", server.endpoint_url, change=change) as mount:
        assert mount.log.count("no socket: [Errno 24] Too many open files") == 1
        mount.process.send_signal(signal.SIGHUP)
        wait_until(lambda: "refreshed s3://bucket/data: 0 added" in mount.log)


def test_a_mount_without_standard_streams_serves(server: LoopbackServer) -> None:
    run_by = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh"]
    with mounted("s3://bucket/data", server.endpoint_url, run_by=run_by) as mount:
        assert os.readlink(f"/proc/{mount.process.pid}/fd/2") == "/dev/null"
        kill(mount.worker())
        assert (mount.path / "b").read_bytes() == b"b"
        assert run_fastfuse("refresh", str(mount.path)).returncode == 0


@dataclass
class Stuck:
    """A mount whose worker is stopped, a reader that waits for it, and a process that waits for the reader."""

    mount: Mount
    server: LoopbackServer
    reader: subprocess.Popen[bytes]
    notices_pid_fd: int

    def kill(self) -> None:
        self.mount.process.kill()
        self.mount.wait()

    def wait_for_end(self) -> None:
        """Until all are gone; the reader with an error."""
        assert self.reader.wait(60) == 1
        wait_for_end(self.notices_pid_fd)


@pytest.fixture
def stuck(tmp_path: Path) -> Iterator[Stuck]:
    go = tmp_path / "go"
    os.mkfifo(go)
    go.chmod(0o666)
    change = f"""
    import os
    from fastfuse.filesystem.mounting import mountpoint
    from fastfuse.filesystem import refresh
    mountpoint._ANSWER_WITHIN_S = 0.5
    send = refresh.send_notices
    go_fd = os.open({str(go)!r}, os.O_PATH)  # nobody, who opens it, may not enter its directory
    def hesitate(fd, notices):
        open(f"/proc/self/fd/{{go_fd}}").read()
        send(fd, notices)
    refresh.send_notices = hesitate
    """
    with (
        holding(a=b"a") as (server, held),
        mounted("s3://bucket/data", server.endpoint_url, change=change) as mount,
        fuse_connections() as connections,
    ):
        connection = connections / str(os.minor(os.stat(mount.path).st_dev))
        # Open from now on: in the end the number may be another mount's.
        abort_fd = os.open(connection / "abort", os.O_WRONLY)
        worker = mount.worker()
        held.put("data/late", b"late")
        mount.process.send_signal(signal.SIGHUP)
        with go.open("w"):  # once the kernel is to be told
            os.kill(worker, signal.SIGSTOP)
            # It holds the directory's lock until the worker answers.
            reader = subprocess.Popen([sys.executable, "-c", f"open({str(mount.path / 'missing')!r})"])
            wait_until(lambda: (connection / "waiting").read_text() != "0\n")
        [notices] = set(mount.children()) - {worker}
        wait_until(lambda: is_held(notices))
        try:
            yield Stuck(mount, server, reader, os.pidfd_open(notices))
        finally:
            with contextlib.suppress(OSError):
                os.write(abort_fd, b"1")
            os.close(abort_fd)
            reader.wait(60)


def test_the_next_mount_clears_the_place_of_one_that_was_killed_while_it_told_the_kernel(stuck: Stuck) -> None:
    """L4"""
    stuck.kill()
    with mounted("s3://bucket/data", stuck.server.endpoint_url, path=stuck.mount.path) as mount:
        stuck.wait_for_end()
        assert (mount.path / "late").read_bytes() == b"late"


def test_a_mount_that_ends_while_it_tells_the_kernel_leaves_no_reader_behind(stuck: Stuck) -> None:
    """L2"""
    stuck.mount.process.send_signal(signal.SIGTERM)
    assert stuck.mount.stop(signal.SIGINT) == 0
    stuck.wait_for_end()


def test_where_the_kernels_readahead_cannot_be_raised_the_page_cache_is_used_and_one_line_says_what_it_costs(
    server: LoopbackServer,
) -> None:
    change = """
    from fastfuse.filesystem.mounting import mount_places
    permitted = mount_places.raise_readahead
    mount_places.raise_readahead = lambda device: permitted("no" + device)
    """
    options = ("--part-size", "1MiB", "--metrics-listen", "0")
    with mounted("s3://bucket/large", server.endpoint_url, *options, change=change) as mount:
        for _ in range(2):
            assert (mount.path / "file").read_bytes() == _LARGE
        assert Scrape(mount.metrics_port())["read_served_bytes_total",] == len(_LARGE)
        assert ask_status(entry_of(mount.path))["counters"]["fastfuse_kernel_readahead_bytes"] == 128 << 10
        [line] = [line for line in mount.log.splitlines() if "reads ahead only 128 KiB" in line]
        assert "WARNING" in line
        assert "read_ahead_kb cannot be written (No such file or directory); let root write 1024 there" in line
