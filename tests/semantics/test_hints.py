"""Announcing an order to a real mount: it arrives, whatever happens to workers, tables and the connection."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fastfuse.hints import order
from tests.bad_input.checks import as_nobody
from tests.filesystem.waiting import wait_until
from tests.forked import Forked
from tests.mounting import ENVIRONMENT, abort_connection
from tests.semantics.places import Place, place
from tests.semantics.test_metrics import Scrape

METRICS = ("--metrics-listen", "0")
NAMES = [f"{number % 10}/{number:04}" for number in range(2000)]


@pytest.fixture(scope="module")
def here() -> Iterator[Place]:
    with place(dict.fromkeys(NAMES, b""), *METRICS) as made:
        yield made


class Counted:
    """How many paths a mount has taken, and how many of them it did not know, since this was made."""

    def __init__(self, here: Place) -> None:
        self._port = here.mount.metrics_port()
        self._before = self._now()

    def _now(self) -> tuple[int, int]:
        scrape = Scrape(self._port)
        return scrape["hints_total", "taken"], scrape["hints_total", "unknown"]

    def __call__(self) -> tuple[int, int]:
        return self._now()[0] - self._before[0], self._now()[1] - self._before[1]


def hint(here: Place, text: bytes, *options: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "fastfuse", "hint", str(here.path), *options]
    with Forked[bytes](
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=dict(ENVIRONMENT)
    ) as process:
        output, errors = process.communicate(text, 60)
    return subprocess.CompletedProcess(command, process.returncode, output, errors)


def test_the_files_of_an_order_arrive_in_the_mount(here: Place) -> None:
    counted = Counted(here)
    with order([*NAMES, "absent", "3", here.path / "3" / "0003"], here.path):
        wait_until(lambda: counted() == (2001, 2))


@pytest.mark.parametrize("end", ["\n", "\0"])
def test_a_list_is_announced_by_a_command(here: Place, tmp_path: Path, end: str) -> None:
    counted = Counted(here)
    options = [] if end == "\n" else ["-0"]
    text = end.join([str(here.path / NAMES[0]), *NAMES[1:], ""]).encode()
    done = hint(here, text, *options)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert counted() == (2000, 0)
    (tmp_path / "list").write_bytes(text)
    assert hint(here, b"", "--file", str(tmp_path / "list"), *options).returncode == 0
    assert counted() == (4000, 0)


def test_the_command_ends_quietly_when_it_is_interrupted(here: Place) -> None:
    counted = Counted(here)
    command = [sys.executable, "-m", "fastfuse", "hint", str(here.path)]
    with Forked[bytes](
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=dict(ENVIRONMENT)
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(NAMES[0].encode() + b"\n")
        process.stdin.flush()
        wait_until(lambda: counted() == (1, 0))
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        assert process.stdout.read() == b""


@pytest.mark.parametrize("allowed", [False, True])
def test_whoever_may_read_may_announce(allowed: bool) -> None:
    with place({"a": b""}, *METRICS, *(["--allow-other"] if allowed else [])) as here:
        counted = Counted(here)
        command = as_nobody([sys.executable, "-m", "fastfuse", "hint", str(here.path)])
        done = subprocess.run(command, input=b"a\n", env=dict(ENVIRONMENT), capture_output=True, check=False)
        assert (done.returncode, counted()) == ((0, (1, 0)) if allowed else (5, (0, 0))), done.stderr
        assert allowed or b"takes no hints from this user" in done.stderr


def test_a_list_that_cannot_be_read_is_a_mistake(here: Place) -> None:
    done = hint(here, b"", "--file", "/nonexistent/list")
    assert done.returncode == 2
    assert done.stderr.startswith(b"fastfuse: error: --file /nonexistent/list cannot be read: No such file or dir")


def test_an_order_that_was_taken_is_announced_to_the_next_worker() -> None:
    """L3"""
    with place(dict.fromkeys(NAMES, b""), *METRICS) as here:
        counted = Counted(here)
        with order(NAMES, here.path):
            for workers in (1, 2, 3):
                wait_until(lambda workers=workers: counted() == (workers * len(NAMES), 0))  # type: ignore[misc]
                os.kill(here.mount.worker(), signal.SIGKILL)


def test_a_mount_that_is_made_again_takes_hints_again_and_ends_although_an_order_stays_open() -> None:
    """L2"""
    with place({"a": b""}, *METRICS) as here:
        counted = Counted(here)
        abort_connection(here.path)
        wait_until(lambda: hint(here, b"a\n").returncode == 0)
        # A worker that dies may have taken one, too.
        taken, unknown = counted()
        assert (taken >= 1, unknown) == (True, 0)
        with order(["a"], here.path):
            wait_until(lambda: counted() == (taken + 1, 0))
            assert here.mount.stop() == 0
