"""What a run shows on standard error: its phases, and what its processes say to it."""

import io
import os
import select
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from fastfuse.filesystem.figures import recorder
from fastfuse.filesystem.processes.children import NoRoomError, wait_child
from fastfuse.index import progress
from fastfuse.sagemaker.running import job_processes
from fastfuse.sagemaker.running.job_processes import ChildProcess
from fastfuse.sagemaker.running.phases import Phase, Phases
from tests.descriptors import open_descriptors
from tests.filesystem.waiting import wait_until


@pytest.fixture
def announced() -> Iterator[list[int]]:
    numbers: list[int] = []
    before = signal.signal(signal.SIGIO, lambda number, _: numbers.append(number))
    yield numbers
    signal.signal(signal.SIGIO, before)


class Told(ChildProcess):
    """Keeps what the child says."""

    def __init__(self, work: Callable[[int], None]) -> None:
        self.heard: list[tuple[str, dict[str, Any]]] = []
        super().__init__(lambda: work(self._telling_fd))

    def _hear(self, name: str, message: dict[str, Any], phases: Phases) -> None:
        self.heard.append((name, message))


def test_lines_come_whole_and_a_last_one_that_was_cut_off_is_lost(announced: list[int]) -> None:
    going_on_fd, go_on_fd = os.pipe()

    def say(telling_fd: int) -> None:
        os.write(telling_fd, b'one\t{"a": 1}\ntw')
        os.read(going_on_fd, 1)
        os.write(telling_fd, b'o\t{}\n\t{}\nthree\t{"b')

    phases, process = Phases(is_json=False), Told(say)
    wait_until(lambda: bool(announced))
    process.listen(phases)
    assert process.heard == [("one", {"a": 1})]
    os.write(go_on_fd, b".")
    process.ended(wait_child(process.pid), phases)
    assert process.heard[1:] == [("two", {}), ("", {})]
    os.close(going_on_fd)
    os.close(go_on_fd)


def test_a_process_that_cannot_be_forked_leaves_no_pipe_open(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise NoRoomError("no room")

    monkeypatch.setattr(job_processes, "fork_child", refuse)
    before = open_descriptors()
    with pytest.raises(NoRoomError):
        ChildProcess(lambda: None)
    assert open_descriptors() == before


@contextmanager
def stderr_on_terminal(monkeypatch: pytest.MonkeyPatch, kind: str) -> Iterator[int]:
    """Make standard error a terminal of this kind, of which the descriptor is the other end."""
    fd, stderr_fd = os.openpty()
    # Not in a fixture: between one and the test pytest sets its own stream.
    raw = os.fdopen(stderr_fd, "wb", buffering=0)  # nothing is left to be written after a hang-up
    with io.TextIOWrapper(raw, write_through=True) as stderr, monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", stderr)
        patch.setenv("TERM", kind)
        yield fd
    os.close(fd)


def read_until(fd: int, text: bytes) -> bytes:
    """Return what is written up to `text`, which has been written already."""
    found = b""
    while text not in found:
        readable, _, _ = select.select([fd], [], [], 10)
        assert readable, found
        found += os.read(fd, 4096)
    return found


def test_without_a_terminal_a_download_is_told_seldom(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "_BOOTED_AT", 0.0)
    phases = Phases(is_json=False)
    phases.enter(Phase.DOWNLOADING, "x")
    assert phases.begins[0][1] <= recorder.moment()  # on the clock of the samples
    capsys.readouterr()
    for done_bytes in range(100):
        phases.progress("train", done_bytes, 100)
    assert capsys.readouterr().err == ""


def test_on_a_terminal_a_download_is_told_in_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_LOG_EVERY_S", 0)
    with stderr_on_terminal(monkeypatch, "xterm") as fd:
        phases = Phases(is_json=False)
        phases.enter(Phase.DOWNLOADING, "x")
        phases.progress("train", 50, 100)
        read_until(fd, b" Downloading - train: 50 B of 100 B (50%)\r\n")
