"""``fastfuse status`` and ``stats`` of real mounts."""

import json
import os
import re
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bench.s3server import FaultRule, LoopbackServer
from bench.s3server.faults import ACCESS_DENIED, SLOW_DOWN
from fastfuse.cli import cache_work, status_command, top_command
from fastfuse.cli import mounted as mounted_command
from fastfuse.errors import MountError
from fastfuse.filesystem.mounting.mountpoint import MountEntry
from fastfuse.filesystem.processes.sockets import control_prefix, listen
from fastfuse.filesystem.talking import control
from fastfuse.filesystem.talking.control import LOG_LEVEL, ForeignMountError, ask, entry_of, take_index
from fastfuse.version import VERSION
from tests.filesystem.waiting import PATIENCE_S, wait_for_end, wait_until
from tests.mounting import Mount, mounted, run_fastfuse
from tests.terminals import finished_on_terminal, terminal

pytestmark = pytest.mark.fuse


OBJECTS = {f"data/{name}": name.encode() * 1000 for name in ("a", "b", "con\ntrol\x1b[2J")}


@pytest.fixture
def mount(server: LoopbackServer) -> Iterator[Mount]:
    with mounted("s3://bucket/data", server.endpoint_url) as mount:
        yield mount


@pytest.fixture(scope="module")
def idle(server: LoopbackServer) -> Iterator[Mount]:
    """For tests that leave the mount as it was."""
    with mounted("s3://bucket/data", server.endpoint_url) as mount:
        yield mount


def status_of(mount: Mount) -> dict[str, Any]:
    (one,) = json.loads(run_fastfuse("status", str(mount.path), "--json").stdout)["mounts"]
    assert isinstance(one, dict)
    return one


@pytest.fixture
def answer(idle: Mount, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What a mount that is well answers to the command, to be changed."""
    found = status_of(idle)
    monkeypatch.setattr(status_command, "ask_status", lambda _: found)
    return found


def test_a_mount_that_is_well(mount: Mount) -> None:
    assert (mount.path / "a").read_bytes() == b"a" * 1000
    done = run_fastfuse("status", str(mount.path))
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(
        rf"{mount.path}  s3://bucket/data\n"
        rf"  state     ok, mounted for \d+ s, process {mount.process.pid}\n"
        r"  objects   3, listed \d+ s ago\n"
        r"  rates     \d+\.\d MB/s read, \d+\.\d MB/s fetched \(the last \d+ s\)\n"
        r"  waiting   0 reads now; readers waited in \d+% of that time\n"
        r"  memory    \S+ \w+ of 256 MiB for data\n"
        rf"  worker    process {mount.worker()}\n",
        done.stdout,
    )
    # Small files are counted within a second.
    wait_until(lambda: status_of(mount)["counters"]["fastfuse_stalled_seconds"] > 0)
    found = status_of(mount)
    assert found["counters"]["fastfuse_read_served_bytes"] == 1000
    assert found["counters"]["fastfuse_blocked_seconds"] > 0
    assert f"{mount.path}  s3://bucket/data\n  state     ok" in run_fastfuse("status").stdout


def test_a_mount_is_named_by_the_place_where_it_is_now(server: LoopbackServer, tmp_path: Path) -> None:
    bound = tmp_path / "bound"
    bound.mkdir()
    with mounted("s3://bucket/data", server.endpoint_url) as mount:
        subprocess.run(["mount", "--bind", mount.path, bound], check=True)
        try:
            subprocess.run(["umount", mount.path], check=True)
            assert f"{bound}  s3://bucket/data\n" in run_fastfuse("status").stdout
        finally:
            subprocess.run(["umount", bound], check=True)
        mount.process.wait(PATIENCE_S)


@pytest.mark.parametrize(
    "wrong",
    [{"errors": 1}, {"mounted_at": "now"}, {"mounted_at": -1e300, "errors": [[1e300, ""]]}, {"rates": {"seconds": ""}}],
)
def test_of_an_answer_that_is_no_status_only_that_is_told(
    wrong: dict[str, object], idle: Mount, answer: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    answer["state"] = ["\x1b[2J"]
    assert status_command.status(idle.path, as_json=False) == 1
    assert "\n  state     ['\\x1b[2J'], mounted for " in capsys.readouterr().out
    answer |= wrong
    assert status_command.status(idle.path, as_json=False) == 1
    told = "  state     no answer\n  hint      ask with the fastfuse that mounted it, or mount again\n"
    assert capsys.readouterr().out == f"{idle.path}  s3://bucket/data\n{told}"


def test_no_user_says_where_the_requests_of_another_go(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = MountEntry(Path("/mnt"), "0:0", "fuse.fastfuse", "s3://b/", os.geteuid() + 1)
    monkeypatch.setattr(cache_work, "entry_of", lambda _: entry)
    monkeypatch.setattr(cache_work, "ask_status", None)
    with pytest.raises(ForeignMountError, match="who says where requests go"):
        cache_work.plan_of_mount(entry.path, None)


def test_whoever_gets_the_index_cannot_change_it(mount: Mount) -> None:
    for _ in range(2):
        fd = take_index(entry_of(mount.path))
        with pytest.raises(PermissionError):
            os.pwrite(fd, b"x", 0)
        with pytest.raises(PermissionError):
            os.ftruncate(fd, 0)
        os.close(fd)
        assert run_fastfuse("refresh", str(mount.path)).returncode == 0


def test_a_mount_of_another_version_is_told(idle: Mount, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status_command, "VERSION", "99")
    told = f"  version   {VERSION}, and this program is 99: mount again to change that"
    assert told in [*status_command._lines(status_of(idle), 0.0)]


def test_a_counter_that_a_mount_of_another_version_lacks_is_0(idle: Mount) -> None:
    found = status_of(idle)
    told = "\n".join(status_command._lines(found | {"counters": {}, "rates": {}}, 0.0))
    assert "  objects   0, listed" in told
    assert "  rates     0.0 MB/s read" in told
    assert "  0%  " in status_command._row({}, {}, 1.0)


def test_an_answer_that_lacks_a_value_or_has_another_type_is_told(idle: Mount, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = {"cache": {"directory": "/cache"}, "summary": {}, "counters": {"fastfuse_errors": ""}, "level": 1}
    answer = {"fastfuse": 1, "mounted_at": "now", "trouble": None, "errors": [], "threads": 1, **wrong}
    for module in (status_command, cache_work, top_command):
        monkeypatch.setattr(module, "ask_status", lambda _, **__: answer)
    monkeypatch.setattr(status_command, "ask", lambda *_, **__: answer)
    monkeypatch.setattr(status_command, "_reads", lambda *_: iter([wrong]))
    for command in (
        partial(status_command.summary, as_json=False),
        partial(status_command.stats, every_s=0.01, count=1),
        partial(status_command.stack, as_json=False),
        partial(status_command.trace, path=None, process=None, sample=1, count=1, as_json=False),
        partial(top_command.top, every_s=0.1),
        partial(cache_work.plan_of_mount, cache=None),
    ):
        with pytest.raises(MountError, match=f"answered what version {VERSION} of fastfuse does not understand"):
            command(idle.path)


def test_nothing_that_a_mount_answers_commands_the_terminal(
    idle: Mount, answer: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answer["summary"]["verdict"]["text"] = "\x1b[2J"
    monkeypatch.setattr(control, "ask", lambda *_, **__: {"level": "\x1b[2J"})
    assert status_command.summary(idle.path, as_json=False) == mounted_command.log_level(idle.path) == 0
    assert capsys.readouterr().out.count("\\x1b[2J") == 2


def test_a_line_that_does_not_end_is_not_waited_for(idle: Mount, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair()

    @contextmanager
    def endless(*_: object, **__: object) -> Iterator[Any]:
        theirs.sendall(bytes(100))
        yield told

    with ours, theirs, ours.makefile("rb") as told:
        ours.settimeout(PATIENCE_S)
        for module in (status_command, top_command):
            monkeypatch.setattr(module, "watching", endless)
            monkeypatch.setattr(module, "MOST_LINE_BYTES", 20)
        assert [*status_command._told(entry_of(idle.path), 1)] == []
        with pytest.raises(MountError, match="does not understand"):
            top_command.top(idle.path, every_s=0.1)


def test_trouble_is_told_while_it_lasts_and_errors_after_it(mount: Mount, server: LoopbackServer) -> None:
    denied = server.faults.add(FaultRule(action=ACCESS_DENIED, operation="GetObject", key="data/con*"))
    with pytest.raises(PermissionError):
        (mount.path / "con\ntrol\x1b[2J").read_bytes()
    slow = server.faults.add(FaultRule(action=SLOW_DOWN, operation="GetObject", key="data/b"))
    with ThreadPoolExecutor(1) as threads:
        reading = threads.submit((mount.path / "b").read_bytes)
        wait_until(lambda: status_of(mount)["state"] == "in trouble")
        assert status_of(mount)["counters"]["fastfuse_in_trouble"] == 1
        done = run_fastfuse("status", str(mount.path))
        assert done.returncode == 1
        assert re.search(r"\n  trouble   for \d+ s: \d+ × 503 SlowDown; 1 request is tried again\n", done.stdout)
        assert re.search(r"\n  waiting   [1-9]\d* reads? now; ", done.stdout)
        server.faults.remove(slow)
        assert reading.result(60) == b"b" * 1000
    wait_until(lambda: status_of(mount)["state"] == "ok")
    done = run_fastfuse("status", str(mount.path))
    assert re.search(
        r"\n  error     \S+Z a read at 0 failed with EACCES after \d\.\d s: .*con\\ntrol\\x1b", done.stdout
    )
    assert "\x1b" not in done.stdout
    server.faults.remove(denied)


def test_counters_outlive_a_worker_and_its_trouble_is_told_to_end(mount: Mount, server: LoopbackServer) -> None:
    assert (mount.path / "a").read_bytes()
    wait_until(lambda: status_of(mount)["counters"]["fastfuse_read_served_bytes"] == 1000)
    slow = server.faults.add(FaultRule(action=SLOW_DOWN, operation="GetObject", key="data/b"))
    with ThreadPoolExecutor(1) as threads:
        reading = threads.submit((mount.path / "b").read_bytes)
        wait_until(lambda: status_of(mount)["state"] == "in trouble")
        server.faults.remove(slow)
        worker = mount.worker()
        os.kill(worker, signal.SIGKILL)
        assert reading.result(60) == b"b" * 1000
    wait_until(lambda: re.search(r"answered again after \d+\.\d s: [1-9]\d* × 503 SlowDown", mount.log) is not None)
    wait_until(lambda: status_of(mount)["state"] == "ok")
    wait_until(lambda: status_of(mount)["worker_pid"] not in {0, worker})
    wait_until(lambda: status_of(mount)["counters"]["fastfuse_read_served_bytes"] == 2000)
    found = status_of(mount)
    assert f"process {found['worker_pid']}, replaced once (0 hung)\n" in run_fastfuse("status", str(mount.path)).stdout


def test_a_log_level_is_changed_for_the_supervisor_and_every_worker(mount: Mount) -> None:
    def level(*asked: str) -> str:
        done = run_fastfuse("log-level", str(mount.path), *asked)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout.strip()

    worker = mount.worker()
    assert (level(), level("error")) == ("info", "error")
    shown = finished_on_terminal("log-level", str(mount.path), columns=80, settings={"TERM": "dumb"})
    assert shown == (0, "error\r\n")
    os.kill(worker, signal.SIGKILL)  # a warning, which is not logged now
    wait_until(lambda: status_of(mount)["worker_pid"] not in {0, worker})
    assert level("debug") == "debug"
    os.kill(mount.worker(), signal.SIGKILL)
    assert (mount.path / "b").read_bytes()
    assert mount.log.count("the worker died: ") == 1
    assert "ERROR fastfuse.filesystem.answers: lines are logged from the level error on" in mount.log
    refused = run_fastfuse("log-level", str(mount.path), "loud")
    assert refused.returncode == 2
    assert refused.stderr == "fastfuse: error: there is no log level 'loud'\nhint: one of debug, info, warning, error\n"
    with pytest.raises(MountError, match="no such log level"):
        ask(entry_of(mount.path), LOG_LEVEL, level="loud")


def test_the_stacks_of_a_worker_are_told_and_what_can_be_of_one_that_is_stopped(
    mount: Mount, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    worker = mount.worker()  # each answer takes a child of its own, which may be there a moment longer
    done = run_fastfuse("status", str(mount.path), "--stack")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"worker, process {worker}\nthread {worker}: state " in done.stdout
    assert re.search(r"\n\ntasks\n(.*\n)*1 × fastfuse.*\.serving\.worker\._Report\.beat\n  beat \(", done.stdout)
    code, shown = finished_on_terminal("status", str(mount.path), "--stack", columns=200)
    assert (code, "\x1b" in shown) == (0, False)
    monkeypatch.setattr(status_command, "_TASKS_WITHIN_S", 0.1)
    os.kill(worker, signal.SIGSTOP)
    try:
        assert status_command.stack(mount.path, as_json=False) == 0
    finally:
        os.kill(worker, signal.SIGCONT)
    shown = capsys.readouterr().out
    assert f"thread {worker}: state T" in shown
    assert shown.endswith("\ntasks\n(the worker's loop does not answer)\n")
    assert run_fastfuse("status", "--stack").returncode == 2


def test_stats_print_a_line_an_interval_that_fits_on_a_terminal_until_ctrl_c(idle: Mount) -> None:
    done = run_fastfuse("stats", str(idle.path), "--interval", "0.1", "--count", "21")
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert [number for number, line in enumerate(lines) if line.startswith("time ")] == [0, 21]
    assert len(lines) == 23
    assert {len(line) for line in lines} == {len(lines[0])}
    assert len(lines[0]) <= 80
    assert all(re.fullmatch(r"\d\d:\d\d:\d\d( +[\d.,]+){4} +\d+%( +\d+){3}", line) for line in lines[1:21])
    with terminal("stats", str(idle.path), "--interval", "0.1", columns=80) as screen:
        screen.read_until("errors\r\n")
        screen.interrupt()
        assert screen.finished() == 130
        assert "Traceback" not in screen.output


def test_stats_end_with_their_mount_although_another_one_gets_its_device(
    idle: Mount, answer: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter((answer, answer | {"pid": answer["pid"] + 1}))
    monkeypatch.setattr(status_command, "ask_status", lambda _: next(answers))
    with pytest.raises(MountError, match="has ended"):
        status_command.stats(idle.path, every_s=0.01, count=1)


def test_status_and_summary_are_the_same_plain_lines_on_every_terminal(mount: Mount) -> None:
    def without_figures(text: str) -> list[str]:
        return re.sub(r"[\d.,]+( [KM]i)?", "N", text).splitlines()

    for words in ("status",), ("stats", "--summary"):
        wanted = without_figures(run_fastfuse(*words, str(mount.path)).stdout)
        for columns, settings in (80, {}), (200, {"TERM": "dumb"}):
            code, shown = finished_on_terminal(*words, str(mount.path), columns=columns, settings=settings)
            assert (code, without_figures(shown)) == (0, wanted)


def test_where_nothing_is_mounted(tmp_path: Path) -> None:
    for command in ("status", "stats", "top", "trace", "refresh", "hint", "log-level"):
        done = run_fastfuse(command, str(tmp_path))
        assert done.returncode == 5
        assert f"nothing of fastfuse is mounted at {tmp_path}" in done.stderr


def test_a_mount_whose_processes_were_killed_is_dead_and_can_be_taken_away(server: LoopbackServer) -> None:
    with mounted("s3://bucket/data", server.endpoint_url) as mount:
        worker = os.pidfd_open(mount.worker())
        mount.process.kill()
        mount.wait()
        wait_for_end(worker)
        row = (
            f"{mount.path}  s3://bucket/data\n  state     dead: no process serves it\n"
            f"  hint      fastfuse unmount {mount.path}\n"
        )
        assert row in run_fastfuse("status").stdout
        # Another mount that had its number, and is gone, hangs up.
        with listen(control_prefix(entry_of(mount.path).device), backlog=1) as listener:
            listener.settimeout(60)
            hanging_up = threading.Thread(target=lambda: listener.accept()[0].close())
            hanging_up.start()
            assert status_of(mount)["state"] == "dead"
            hanging_up.join()
        done = run_fastfuse("status", str(mount.path))
        assert (done.returncode, done.stdout, done.stderr) == (1, row, "")
        assert status_of(mount)["state"] == "dead"
        done = run_fastfuse("stats", str(mount.path))
        assert (done.returncode, done.stdout) == (5, "")
        assert f"the mount at {mount.path} is dead: no process serves it\nhint: fastfuse unmount" in done.stderr
        assert run_fastfuse("unmount", str(mount.path)).returncode == 0


def status_of_all(capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    return status_command.status(None, as_json=False), capsys.readouterr().out


def test_a_mount_of_another_user_alerts_nobody_and_ones_own_that_does_not_answer_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = MountEntry(Path("/mnt/x"), "no:device", "fuse.fastfuse", "s3://b/\x1b", 1234)
    monkeypatch.setattr(status_command, "fastfuse_file_systems", lambda: [entry])
    monkeypatch.setattr(status_command, "entry_of", lambda _: entry)
    monkeypatch.setattr(status_command, "is_mounted", lambda *_: True)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    said = "/mnt/x  s3://b/\\x1b\n  state     {}\n  hint      {}\n"
    assert status_of_all(capsys) == (0, said.format("not yours", "ask as user 1234, or as root"))
    with pytest.raises(MountError, match="is of user 1234, and answers only that user and root"):
        status_command.status(entry.path, as_json=False)
    hangs = said.format("no answer", "it may hang, or be of another container: see its log")
    for uid in (0, 1234):
        monkeypatch.setattr(os, "geteuid", lambda uid=uid: uid)
        assert status_of_all(capsys) == (1, hangs)


TIER: dict[str, object] = {"cache": {"directory": "/nvme/\x1b"}}
REFUSED: dict[str, object] = {"since": 0.0, "failures": {"Connection refused": 13}, "requests": 0}


@pytest.mark.parametrize(
    ("more", "counters", "exit_code", "told"),
    [
        (
            TIER,
            {'cache_failures{kind="disk"}': 0},
            0,
            "\n  cache     0 B of 1 GiB in /nvme/\\x1b, 0 B served, 1 failure\n",
        ),
        (TIER, {'cache_failures{kind="disk"}': 2}, 0, " 0 B served, 3 failures\n"),
        # No request waits.
        ({"trouble": REFUSED}, {"reads_failing": 0}, 1, ": 13 × Connection refused; nothing was answered since\n"),
        ({"trouble": REFUSED}, {"reads_failing": 1}, 1, ": 13 × Connection refused; reads fail\n"),
    ],
)
def test_failures_of_the_tier_and_of_the_service_are_told(
    idle: Mount,
    answer: dict[str, Any],
    capsys: pytest.CaptureFixture[str],
    more: dict[str, object],
    counters: dict[str, int],
    exit_code: int,
    told: str,
) -> None:
    answer |= more | {"state": "in trouble" if "trouble" in more else "ok"}
    answer["counters"] |= {"fastfuse_cache_size_bytes": 1 << 30, 'fastfuse_cache_failures{kind="index"}': 1}
    answer["counters"] |= {f"fastfuse_{name}": number for name, number in counters.items()}
    assert status_command.status(idle.path, as_json=False) == exit_code
    assert told in capsys.readouterr().out


def test_a_mount_that_goes_while_all_are_looked_at_is_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    entry = MountEntry(tmp_path, "no:device", "fuse.fastfuse", "s3://b/", 1234)
    for entries in ([], [entry]):
        monkeypatch.setattr(status_command, "fastfuse_file_systems", lambda entries=entries: entries)
        assert status_of_all(capsys) == (0, "nothing of fastfuse is mounted\n")
