import os
import signal
from collections.abc import Iterator

import pytest

from fastfuse.sagemaker.running.job_processes import LinePipe
from tests.filesystem.waiting import wait_until


@pytest.fixture
def announced() -> Iterator[list[int]]:
    """One for each SIGIO."""
    numbers: list[int] = []
    before = signal.signal(signal.SIGIO, lambda number, _: numbers.append(number))
    yield numbers
    signal.signal(signal.SIGIO, before)


@pytest.fixture
def pipe(announced: list[int]) -> LinePipe:
    return LinePipe()


def test_lines_come_whole_and_what_has_only_begun_is_kept(pipe: LinePipe) -> None:
    assert pipe.lines() == []
    os.write(pipe.writing_fd, b"one\ntw")
    assert pipe.lines() == [b"one"]
    os.write(pipe.writing_fd, b"o\n\n")
    assert pipe.lines() == [b"two", b""]
    pipe.close_writing()
    assert pipe.lines() == []
    assert pipe.close() == []


def test_the_last_line_need_not_end(pipe: LinePipe) -> None:
    os.write(pipe.writing_fd, b"one\ntwo")
    pipe.close_writing()
    assert pipe.close() == [b"one", b"two"]


def test_what_is_written_is_announced_by_a_signal(pipe: LinePipe, announced: list[int]) -> None:
    assert not announced
    os.write(pipe.writing_fd, b"x")
    wait_until(lambda: bool(announced))
    pipe.close_writing()
    pipe.close()
