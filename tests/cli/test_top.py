"""``fastfuse top``: what it draws, and real mounts on real terminals."""

import fcntl
import io
import os
import re
import signal
import struct
import sys
import termios
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from bench.s3server import FaultRule, Stall
from fastfuse.cli.top_command import Look, Screen, the_only_mount
from fastfuse.errors import ConfigurationError
from tests.filesystem.waiting import wait_until
from tests.forked import run_forked
from tests.mounting import ENVIRONMENT, Mount, run_fastfuse
from tests.semantics.places import place
from tests.terminals import terminal

NOW = 1000.0
STATUS: dict[str, Any] = {
    "mountpoint": "/mnt/train",
    "source": "s3://bucket/train",
    "state": "in trouble",
    "mounted_at": NOW - 3700,
    "trouble": {"failures": {"503 SlowDown": 212}, "since": NOW - 31, "requests": 14},
    "errors": [[NOW, "a read at 0 failed with EACCES: 'x\x1b[2J'"]],
    "memory_target_bytes": 4 << 30,
    "counters": {
        "fastfuse_pool_bytes": 2 << 30,  # a second ago
        "fastfuse_waiting_reads": 4,
        'fastfuse_retries{cause="throttled"}': 31,
        'fastfuse_retries{cause="busy"}': 2,
    },
}


def stream(path: str, **figures: object) -> dict[str, object]:
    reader = {"position": 1 << 30, "pid": 4711, "process": "python", "pattern": "sequential", "window": 64 << 20}
    read = {"reads": 100, "bytes": 100_000_000, "blocked_s": 0.5, "waiting_s": 0.0}
    return {"path": path, **reader, **read, **figures}


WORK: dict[str, Any] = {
    "every_s": 1.0,
    "streams": [
        stream("shards/b.tar"),
        stream("shards/a\n.tar", blocked_s=0.9, waiting_s=12.34, bytes=0, pid=0),
        stream("z/" + "long/" * 50 + "leaf", blocked_s=0.0, bytes=5e8, pattern="random", window=0, process="[/x]"),
    ],
    "stream_count": 3,
    "gets": [{"seconds": 12.3, "key": "train/[red]shards/a.tar", "start": 8 << 20, "end": 16 << 20, "runs": True}],
    "gets_running": 7,
    "memory": {"in flight": 1 << 30, "unread": 2 << 30, "read": 0},
}
LOOK = Look(STATUS, WORK, read=884.1e6, fetched=912.5e6, gets=114, stalled=0.62, history=[(0, 0), (4e8, 0.5), (8e8, 1)])


def drawn(screen: Screen, *, width: int = 80, height: int = 40, encoding: str = "utf-8", **options: Any) -> list[str]:  # noqa: ANN401
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding, newline="\n")
    console = Console(file=file, width=width, height=height, color_system=None, **options)
    console.print(screen)
    file.flush()
    lines = file.buffer.getvalue().decode(encoding).splitlines()
    assert all(len(line) <= width for line in lines)
    assert all(line.isprintable() for line in lines)
    return [line.rstrip() for line in lines]


def test_the_whole_screen_at_80_columns() -> None:
    lines = drawn(Screen(LOOK, NOW))
    assert lines[:12] == [
        "/mnt/train  s3://bucket/train  in trouble, mounted for 1 h 1 min",
        "trouble   for 31 s: 212 × 503 SlowDown",
        "read           884.1 MB/s  ▁▅█",
        "stalled          62%       ▁▅█",
        "fetched        912.5 MB/s  114 GETs/s, 7 running, 33 retries; 4 reads wait",
        "memory    3 GiB of 4 GiB: 1 GiB in flight, 2 GiB unread, 0 B read",
        "",
        "waited     now   MB/s  pattern     window  position  process       file",
        "   90%  12.3 s    0.0  sequential  64 MiB     1 GiB                a\\n.tar",
        "   50%          100.0  sequential  64 MiB     1 GiB  python[4711]  b.tar",
        "    0%          500.0  random                 1 GiB  [/x][4711]    leaf",
        "",
    ]
    assert lines[12:16] == [
        "slow GETs  bytes     at  key",
        "12.30 s …  8 MiB  8 MiB  train/[red]shards/a.tar",
        "error  a read at 0 failed with EACCES: 'x\\x1b[2J'",
        "sort by w waiting  b bytes  f file    p pause  q quit",
    ]


def test_a_wide_screen_has_room_for_paths_and_history() -> None:
    look = Look(STATUS | {"state": "\x1b[2J"}, WORK, history=[(float(number), 0.0) for number in range(600)])
    lines = drawn(Screen(look, NOW), width=200)
    assert len(lines[2]) > 180
    assert "shards/a\\n.tar" in lines[8]
    assert any("z/" + "long/" * 10 in line for line in lines)


@pytest.mark.parametrize(("sort", "first"), [("w", "a\\n.tar"), ("b", "leaf"), ("f", "a\\n.tar")])
def test_streams_are_sorted_as_the_keys_say(sort: str, first: str) -> None:
    assert first in drawn(Screen(LOOK, NOW, sort))[8]


def test_a_low_window_shows_the_first_streams_and_how_many_there_are() -> None:
    lines = drawn(Screen(LOOK, NOW), height=16)
    assert len(lines) <= 16
    assert "and 2 more" in lines
    assert lines[-1].endswith("q quit")
    many = {**WORK, "streams": [stream(f"{number:03}") for number in range(64)], "stream_count": 4000}
    lines = drawn(Screen(Look(STATUS, many), NOW), height=30)
    assert len(lines) <= 30
    assert any(line.startswith("and 3,98") for line in lines)


def test_what_is_printed_once_has_no_keys_and_no_history_and_every_stream() -> None:
    lines = drawn(Screen(LOOK, NOW, is_live=False), height=5)
    assert lines[2] == "read           884.1 MB/s"
    assert not any("quit" in line for line in lines)
    assert sum(line.endswith((".tar", "leaf")) for line in lines) == 4


def test_before_a_worker_has_told_anything_and_while_nobody_reads() -> None:
    assert "the worker tells nothing yet" in drawn(Screen(Look(STATUS), NOW))
    idle = {**WORK, "streams": [], "stream_count": 0, "gets": []}
    assert "no reads in this interval" in drawn(Screen(Look(STATUS, idle), NOW))
    assert drawn(Screen(LOOK, NOW, is_paused=True))[-1].startswith("PAUSED  sort by ")


def test_a_terminal_without_utf_8_gets_ascii() -> None:
    assert drawn(Screen(Look({**STATUS, "trouble": None}, {}, history=LOOK.history), NOW), encoding="ascii")[1:3] == [
        "read             0.0 MB/s  _=#",
        "stalled           0%       _=#",
    ]


@pytest.fixture(scope="module")
def mount() -> Iterator[Mount]:
    with place({"shard.tar": b"x" * 1_000_000}) as here:
        yield here.mount


@contextmanager
def read_again_and_again(path: Path) -> Iterator[None]:
    """Read a file until the end of the block, each time past the page cache."""
    is_over = False

    def read() -> None:
        with path.open("rb", buffering=0) as file:
            while not is_over:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                assert len(os.pread(file.fileno(), 100, 0)) == 100

    with ThreadPoolExecutor(1) as threads:
        reading = threads.submit(read)
        try:
            yield
        finally:
            is_over = True
        reading.result(60)


fuse = pytest.mark.fuse


@fuse
def test_keys_sizes_and_the_end_on_a_terminal(mount: Mount) -> None:
    with (
        read_again_and_again(mount.path / "shard.tar"),
        terminal("top", str(mount.path), "--interval", "0.1", columns=80) as screen,
    ):
        screen.read_until("shard.tar")
        os.write(screen.fd, b"p")
        screen.read_until("PAUSED")
        fcntl.ioctl(screen.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 40, 0, 0))
        screen.read_until("PAUSED  sort by w waiting  b bytes  f f…")
        os.write(screen.fd, b"x")
        os.write(screen.fd, b"q")
        assert screen.finished() == 0
        # The screen that was there before comes back, with its cursor.
        assert "\x1b[?1049l" in screen.output[-40:]
        assert screen.output.rfind("\x1b[?25h") > screen.output.rfind("\x1b[?25l") > 0


@fuse
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_leave_the_terminal_in_order(mount: Mount, number: signal.Signals) -> None:
    with terminal(
        "top", str(mount.path), "--interval", "0.1", settings={"NO_COLOR": "1", "PYTHONWARNINGS": "ignore"}
    ) as screen:
        screen.read_until("q quit")
        os.killpg(screen.process.pid, number)
        assert screen.finished() == 128 + number
        assert "\x1b[?1049l" in screen.output
        assert screen.output.rfind("\x1b[?25h") > screen.output.rfind("\x1b[?25l") > 0
        assert "\x1b[3" not in screen.output  # no colour
        assert "Traceback" not in screen.output


@fuse
def test_it_ends_with_a_terminal_that_is_gone(mount: Mount) -> None:
    """The kernel sends SIGHUP only to the processes that a terminal controls, and a program may ignore it."""
    with terminal("top", str(mount.path)) as screen:
        screen.read_until("q quit")
        with open(os.devnull, "rb") as nothing:
            os.dup2(nothing.fileno(), screen.fd)
        assert screen.process.wait(60) in {0, 1}  # 1: it was just drawing


@fuse
def test_a_read_that_began_before_anybody_looked_is_shown() -> None:
    with place({"shard.tar": b"x" * 1_000_000}) as here, ThreadPoolExecutor(1) as threads:
        rule = here.server.faults.add(FaultRule(action=Stall(0), operation="GetObject"))
        reading = threads.submit((here.path / "shard.tar").read_bytes)
        wait_until(lambda: here.server.faults.hits(rule) > 0)
        shown = run_fastfuse("top", str(here.path)).stdout
        here.server.faults.clear()
        assert re.search(r"\d\.\d s .* shard\.tar *$", shown, re.MULTILINE), shown
        assert len(reading.result(60)) == 1_000_000


@fuse
def test_it_is_printed_once_where_it_cannot_be_redrawn(mount: Mount) -> None:
    with read_again_and_again(mount.path / "shard.tar"):
        done = run_fastfuse("top", str(mount.path), "--interval", "1")
        assert (done.returncode, done.stderr) == (0, "")
        assert "\x1b" not in done.stdout
        assert "shard.tar" in done.stdout
        assert "q quit" not in done.stdout
    with terminal("top", str(mount.path), "--interval", "0.1", settings={"TERM": "dumb"}) as screen:
        assert screen.finished() == 0
        assert "\x1b" not in screen.output
        assert screen.output.count("slow GETs") == 1
    done = run_forked(["sh", "-c", f"{sys.executable} -m fastfuse top {mount.path} >/dev/full"], ENVIRONMENT)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "standard output cannot be written: No space left on device" in done.stderr


@fuse
@pytest.mark.parametrize("redirection", ["", "<&-"])
def test_it_outlives_a_worker_and_ends_with_the_mount(redirection: str) -> None:
    words = ("--interval", "0.1")
    with place({"a": b"x" * 1000}) as here, terminal("top", str(here.path), *words, redirection=redirection) as screen:
        screen.read_until("no reads in this interval")
        os.kill(here.mount.worker(), signal.SIGKILL)
        screen.read_until("the worker tells nothing yet")
        told = len(screen.output)
        while "no reads in this interval" not in screen.output[told:]:
            assert screen._read()
        assert here.mount.stop() == 0
        assert screen.finished() == 0


@pytest.mark.parametrize(
    ("paths", "found"),
    [(["/a"], None), ([], "nothing of fastfuse is mounted"), (["/a", "/b"], "there are 2: give a MOUNTPOINT")],
)
def test_without_a_mountpoint_there_has_to_be_one_mount(
    paths: list[str], found: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = [SimpleNamespace(path=Path(path)) for path in paths]
    monkeypatch.setattr("fastfuse.cli.top_command.fastfuse_file_systems", lambda: entries)
    with nullcontext() if found is None else pytest.raises(ConfigurationError, match=found):
        assert the_only_mount("top shows") == Path("/a")
