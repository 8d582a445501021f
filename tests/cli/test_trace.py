"""``fastfuse trace`` of real mounts."""

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from bench.s3server import ACCESS_DENIED, FaultRule, LoopbackServer
from fastfuse.cli.status_command import is_chosen, line_of
from fastfuse.filesystem.talking.control import TASKS, ask, entry_of
from fastfuse.filesystem.talking.hint_taker import cancel_when_gone
from tests.filesystem.waiting import wait_until
from tests.forked import Forked
from tests.mounting import ENVIRONMENT, Mount, mounted
from tests.semantics.places import direct_read, errno_of
from tests.terminals import terminal

READ = {"at": 0.25, "pid": 4711, "process": "py\x1bthon", "path": "shards/a\n.tar"}
READ |= {"offset": 1 << 20, "size": 131072, "us": 1234, "found": "wait\x9bd"}


def test_a_line_for_people_says_all_and_nothing_that_a_terminal_obeys() -> None:
    line = line_of(READ)
    assert line.split()[1:] == ["py\\x1bthon[4711]", "wait\\x9bd", "1048576", "131072", "1234", "shards/a\\n.tar"]
    assert line.partition(" ")[0].endswith(".250000")
    assert line_of({**READ, "errno": "EIO\x07"}) == f"{line} EIO\\x07"
    assert line_of({"lost": 1234}).startswith("(1,234 reads are not shown")
    assert line_of({"replaced": True}) == "(the worker of the mount was replaced)"


@pytest.mark.parametrize(
    ("path", "process", "is_shown"),
    [
        (None, None, True),
        ("shards/*", None, True),
        ("*.tar", "4711", True),
        ("*.TAR", None, False),
        ("a*", None, False),
        (None, "py\x1bthon", True),
        (None, "471", False),
        ("shards/*", "cat", False),
    ],
)
def test_reads_are_chosen_by_path_and_process_and_losses_are_always_shown(
    path: str | None, process: str | None, is_shown: bool
) -> None:
    assert is_chosen(READ, path, process) is is_shown
    assert is_chosen({"lost": 1}, path, process)


OBJECTS = {f"data/{name}": name.encode() * 1000 for name in ("a", "sub/b", "c", "d")}


# A command whose first thread no signal interrupts in a system call, as if each signal came just before the call.
LATE_SIGNALS = """
import signal, sys, threading
threading.Thread(target=threading.Event().wait, daemon=True).start()
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
from fastfuse.__main__ import main
sys.exit(main())
"""


@contextmanager
def traced(
    mount: Mount, *options: str, program: Sequence[str] = ("-m", "fastfuse")
) -> Iterator["subprocess.Popen[str]"]:
    """A trace that shows each read from now on."""
    command = [sys.executable, *program, "trace", str(mount.path), *options]
    with Forked[str](command, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True) as process:
        try:
            wait_until(lambda: is_watched(mount))
            yield process
        finally:
            process.kill()


def is_watched(mount: Mount) -> bool:
    """Return whether the worker shows its reads: it waits for the end of a watcher, which it has noted before."""
    return cancel_when_gone.__name__ in str(ask(entry_of(mount.path), TASKS)["tasks"])


def is_asleep(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "S"


pytestmark = pytest.mark.fuse


def test_reads_of_a_mount_are_shown_until_it_ends(server: LoopbackServer) -> None:
    with mounted("s3://bucket/data", server.endpoint_url) as mount, traced(mount, "--json") as trace:
        assert trace.stdout is not None
        (mount.path / "a").read_bytes()
        read: dict[str, Any] = json.loads(trace.stdout.readline())
        assert (read["path"], read["offset"], read["found"], read["pid"]) == ("a", 0, "waited", os.getpid())
        assert read["process"] == Path("/proc/self/comm").read_text().rstrip("\n")
        assert read["size"] >= 1000
        assert read["us"] > 0
        denied = server.faults.add(FaultRule(action=ACCESS_DENIED, operation="GetObject"))
        assert errno_of(direct_read, mount.path / "d", 4096) == errno.EACCES
        server.faults.remove(denied)
        read = json.loads(trace.stdout.readline())
        assert (read["path"], read["offset"], read["errno"]) == ("d", 0, "EACCES")
        os.kill(mount.worker(), signal.SIGKILL)
        # The worker that follows is asked for the trace, too.
        assert json.loads(trace.stdout.readline()) == {"replaced": True}
        (mount.path / "sub/b").read_bytes()
        assert json.loads(trace.stdout.readline())["path"] == "sub/b"
        assert mount.stop() == 0
        assert trace.wait(60) == 0


def test_filters_a_stopped_trace_and_ctrl_c(server: LoopbackServer) -> None:
    with mounted("s3://bucket/data", server.endpoint_url) as mount:
        options = ("--path", "[cd]", "--process", str(os.getpid()), "--count", "1")
        with traced(mount, *options) as trace:
            for name in ("a", "d"):
                (mount.path / name).read_bytes()
            heading, line = trace.communicate(timeout=60)[0].splitlines()
            assert (heading.split()[0], line.split()[-1]) == ("time", "d")
            assert trace.returncode == 0
        wait_until(lambda: not is_watched(mount))
        with traced(mount) as trace:
            os.kill(trace.pid, signal.SIGSTOP)
            assert (mount.path / "c").read_bytes() == b"c" * 1000
        wait_until(lambda: not is_watched(mount))
        with traced(mount, program=("-c", LATE_SIGNALS)) as trace:
            wait_until(lambda: is_asleep(trace.pid))
            trace.send_signal(signal.SIGINT)
            assert trace.wait(60) == 130
        wait_until(lambda: not is_watched(mount))
        # Whatever file is just being opened is not closed when Ctrl-C comes.
        with terminal("trace", str(mount.path), settings={"PYTHONWARNINGS": "ignore"}) as screen:
            wait_until(lambda: is_watched(mount))
            (mount.path / "sub/b").read_bytes()
            screen.read_until("sub/b\r\n")
            screen.interrupt()
            assert screen.finished() == 130
            assert "Traceback" not in screen.output
