import fcntl
import os
import select
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trio
import trio.testing

from fastfuse.errors import ConfigurationError, MountError
from fastfuse.sagemaker.pipe.fifo import Fifo, Guard, remove_stale
from tests.descriptors import open_descriptors

PIPE_MAX = int(Path("/proc/sys/fs/pipe-max-size").read_text())


@pytest.fixture
def fifo(tmp_path: Path) -> Iterator[Fifo]:
    fifo = Fifo(tmp_path / "train_0")
    yield fifo
    fifo.close()


async def test_who_writes_to_a_fast_reader_lets_other_tasks_run(fifo: Fifo) -> None:
    fd = os.open(fifo.path, os.O_RDONLY)
    await fifo.opened()
    turns = 0

    async def take_turns() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(take_turns)
        for _ in range(64):
            await fifo.write(bytes(64 << 10))
            os.read(fd, 64 << 10)  # so that no write has to wait
        assert turns > 4
        nursery.cancel_scope.cancel()
    os.close(fd)


async def test_a_reader_that_has_come_after_another_had_gone_is_noticed(fifo: Fifo) -> None:
    os.close(os.open(fifo.path, os.O_RDONLY | os.O_NONBLOCK))
    await fifo.opened()
    with pytest.raises(BrokenPipeError):
        await fifo.write(b"data")
    assert (fifo.has_reader(), fifo.note_openings()) == (False, False)
    late = os.open(fifo.path, os.O_RDONLY | os.O_NONBLOCK)
    fifo.hide()
    assert not fifo.path.exists()
    assert (fifo.has_reader(), fifo.note_openings()) == (True, True)
    os.close(late)


def test_the_pipe_is_as_large_as_it_may_be(fifo: Fifo) -> None:
    assert fcntl.fcntl(fifo.fileno(), fcntl.F_GETPIPE_SZ) == min(1 << 20, PIPE_MAX)


def test_a_fifo_of_somebody_else_is_not_removed(tmp_path: Path, fifo: Fifo) -> None:
    fifo.path.unlink()
    os.mkfifo(fifo.path)
    fifo.close()
    fifo.close()
    assert [path.name for path in tmp_path.iterdir()] == ["train_0"]


def test_what_is_where_a_fifo_belongs_stays(tmp_path: Path) -> None:
    (tmp_path / "train_0").write_text("mine")
    with pytest.raises(ConfigurationError, match=r"something is at '.*/train_0', where a FIFO of the channel belongs"):
        Fifo(tmp_path / "train_0")
    assert [path.read_text() for path in tmp_path.iterdir()] == ["mine"]


def test_no_descriptor_is_left(tmp_path: Path) -> None:
    before = open_descriptors()
    Fifo(tmp_path / "train_0").close()
    (tmp_path / "train_1").write_text("mine")
    with pytest.raises(ConfigurationError):
        Fifo(tmp_path / "train_1")
    assert open_descriptors() == before
    assert [path.name for path in tmp_path.iterdir()] == ["train_1"]


def test_where_no_fifo_can_be_made_the_error_says_where(tmp_path: Path) -> None:
    with pytest.raises(MountError, match=r"missing/train_0' cannot be made: No such file"):
        Fifo(tmp_path / "missing" / "train_0")


@pytest.mark.parametrize("puts", [os.symlink, os.link])
def test_what_takes_the_place_of_a_new_fifo_keeps_its_mode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, puts: Callable[[Path, Path], None]
) -> None:
    secret = tmp_path / "secret"
    secret.touch(0o600)
    monkeypatch.setattr(os, "mkfifo", lambda path: puts(secret, path))
    before = open_descriptors()
    with pytest.raises((ConfigurationError, MountError)):
        Fifo(tmp_path / "train_0")
    assert secret.stat().st_mode & 0o777 == 0o600
    assert (open_descriptors(), os.listdir(tmp_path)) == (before, ["secret"])


def test_only_fifos_of_the_channels_epochs_are_stale(tmp_path: Path) -> None:
    for name in ("train_0", "train_12", "train_1_0", "train_x", "train2_0", "train_"):
        os.mkfifo(tmp_path / name)
    (tmp_path / "train_3").mkdir()
    (tmp_path / "train_4").write_text("mine")
    remove_stale(tmp_path, "train")
    left = {"train_1_0", "train_x", "train2_0", "train_", "train_3", "train_4"}
    assert {*os.listdir(tmp_path)} == left


def is_over(reading_fd: int) -> bool:
    """Whether nobody has the other end open; nothing is ever written there."""
    return bool(select.select([reading_fd], [], [], 0)[0])


def test_what_is_held_has_no_end_until_it_is_let_go_the_earliest_first() -> None:
    guard = Guard()
    pipes = [os.pipe() for _ in range(3)]
    for name, (_, writing_fd) in zip("aba", pipes, strict=True):
        guard.hold(name, writing_fd)
        os.close(writing_fd)
    guard.update()
    readers = [reading_fd for reading_fd, _ in pipes]
    assert [is_over(fd) for fd in readers] == [False, False, False]
    guard.let_go("a")
    assert select.select([guard], [], [], 0)[0] == [guard]
    guard.update()
    assert [is_over(fd) for fd in readers] == [True, False, False]
    guard.close()
    assert [is_over(fd) for fd in readers] == [True, True, True]
    for fd in readers:
        os.close(fd)


def test_the_end_of_all_that_is_said_is_nothing_said() -> None:
    guard = Guard()
    with socket.socket(fileno=os.dup(guard.fileno())) as said:
        said.shutdown(socket.SHUT_RD)
    guard.update()
    assert guard.held == {}
    guard.close()


def test_what_was_held_last_before_a_death_is_held() -> None:
    guard = Guard()
    reading_fd, writing_fd = os.pipe()
    guard.hold("train", writing_fd)
    os.close(writing_fd)
    assert not is_over(reading_fd)  # though nobody has looked yet
    guard.close()
    assert is_over(reading_fd)
    os.close(reading_fd)
