"""What a run shows on standard error: its phases, and the lines that its processes write."""

import io
import os
import select
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from fastfuse.filesystem.figures import recorder
from fastfuse.filesystem.processes.children import NoRoomError
from fastfuse.index import progress
from fastfuse.sagemaker.running import job_processes
from fastfuse.sagemaker.running.job_processes import ChildProcess, LinePipe
from fastfuse.sagemaker.running.phases import Phase, Phases
from tests.descriptors import open_descriptors
from tests.filesystem.waiting import wait_until


@pytest.fixture
def announced() -> Iterator[list[int]]:
    numbers: list[int] = []
    before = signal.signal(signal.SIGIO, lambda number, _: numbers.append(number))
    yield numbers
    signal.signal(signal.SIGIO, before)


def test_lines_come_whole_and_the_last_need_not_end(announced: list[int]) -> None:
    pipe = LinePipe()
    assert pipe.lines() == []
    assert not announced
    os.write(pipe.writing_fd, b"one\ntw")
    wait_until(lambda: bool(announced))
    assert pipe.lines() == [b"one"]
    os.write(pipe.writing_fd, b"o\n\n")
    assert pipe.lines() == [b"two", b""]
    os.write(pipe.writing_fd, b"three\nfour")
    pipe.close_writing()
    assert pipe.close() == [b"three", b"four"]
    silent = LinePipe()
    silent.close_writing()
    assert silent.close() == []


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


def test_lines_of_channels_are_passed_on_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    phases = Phases(is_json=False)
    phases.relay("[bold] träge".encode())
    phases.relay(b"\xff")
    assert capsys.readouterr().err == "[bold] träge\n\\xff\n"


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
