"""``fastfuse trace`` of real mounts."""

import errno
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bench.s3server import ACCESS_DENIED, FaultRule, LoopbackServer
from fastfuse.cli.status_command import is_chosen, line_of
from tests.descriptors import open_descriptors
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


@contextmanager
def traced(mount: Mount, *options: str) -> Iterator["subprocess.Popen[str]"]:
    """A trace, once its connection is with the worker."""
    command = [sys.executable, "-m", "fastfuse", "trace", str(mount.path), *options]
    with Forked[str](command, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True) as process:
        try:
            wait_until(lambda: is_watched(mount))
            yield process
        finally:
            process.kill()


def is_watched(mount: Mount) -> bool:
    """Return whether the worker holds a connection of the control socket: its peer is no child of the mount."""
    names = open_descriptors(mount.worker()).values()
    inodes = {name[8:-1] for name in names if name.startswith("socket:")}
    lines = (line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:])
    return any(words[6] in inodes and "@fastfuse-" in words[-1] and words[5] == "03" for words in lines)


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
        # Whatever file is just being opened is not closed when Ctrl-C comes.
        with terminal("trace", str(mount.path), settings={"PYTHONWARNINGS": "ignore"}) as screen:
            wait_until(lambda: is_watched(mount))
            screen.read_until("path\r\n")
            # The worker may hold the connection, and not yet show what it reads.
            read = partial(direct_read, mount.path / "sub/b", 4096)
            wait_until(lambda: bool(read() and select.select([screen.fd], [], [], 0.1)[0]))
            screen.read_until("sub/b\r\n")
            screen.interrupt()
            assert screen.finished() == 130
            assert "Traceback" not in screen.output
