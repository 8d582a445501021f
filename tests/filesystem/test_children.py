"""Forked processes: exit codes, errors through the pipe, an end with their parent, and signals that are waited for."""

import errno
import logging
import os
import select
import signal
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from unittest.mock import Mock

import pytest

from fastfuse.errors import FastfuseError, MountError
from fastfuse.filesystem.figures import endpoint
from fastfuse.filesystem.figures.endpoint import MetricsEndpoint
from fastfuse.filesystem.processes import children
from fastfuse.filesystem.processes.children import (
    UNHEEDED,
    NoRoomError,
    Terminals,
    ask_child,
    error_message,
    fork_child,
    heard,
    is_over_within,
    next_signal,
    wait_child,
)
from fastfuse.filesystem.talking.control import DeadMountError
from tests.descriptors import open_descriptors
from tests.filesystem.waiting import wait_until


def _raise(error: BaseException) -> Callable[[], None]:
    def work() -> None:
        raise error

    return work


def wait_for_end_of_pipe(fd: int) -> bytes:
    """All that is written to `fd` until its last writer is gone."""
    with os.fdopen(fd, "rb") as pipe:
        readable, _, _ = select.select([pipe], [], [], 30)
        assert readable, "the other side lives on"
        return pipe.read()


def test_no_room_for_another_process_is_an_error_that_can_be_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> int:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(os, "fork", refuse)
    with pytest.raises(NoRoomError, match="no process can be started: Resource temporarily unavailable") as caught:
        fork_child(lambda: None)
    assert "pids.max" in caught.value.hint
    before = open_descriptors()
    with pytest.raises(NoRoomError):
        ask_child(dict, "the lister")
    assert open_descriptors() == before


@pytest.mark.parametrize("name", ["waitid", "waitpid"])
def test_an_interrupt_that_comes_as_the_child_ends_is_no_other_error(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait, forked = getattr(os, name), list[int]()

    def fork(work: Callable[[], object]) -> int:
        forked.append(fork_child(work))
        return forked[0]

    def interrupted(*args: int) -> None:
        wait(*args)
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(children, "fork_child", fork)
    monkeypatch.setattr(os, name, interrupted)
    with pytest.raises(KeyboardInterrupt):
        ask_child(dict, "the lister")
    with pytest.raises(ChildProcessError):
        wait_child(forked[0])


def test_children_are_waited_for_although_whoever_started_us_ignores_theirs() -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        assert wait_child(fork_child(lambda: os._exit(3))) == 3
    finally:
        signal.signal(signal.SIGCHLD, before)


@pytest.mark.parametrize("error", [RuntimeError("broken"), SystemExit(0), KeyboardInterrupt()])
def test_a_child_that_raises_exits_with_1_and_never_returns(error: BaseException, tmp_path: Path) -> None:
    parent = os.getpid()
    with closing(logging.FileHandler(tmp_path / "log")) as handler:
        logging.getLogger("fastfuse").addHandler(handler)
        child = fork_child(_raise(error))
        logging.getLogger("fastfuse").removeHandler(handler)
    assert os.getpid() == parent
    assert wait_child(child) == 1
    assert f"\n{type(error).__name__}" in (tmp_path / "log").read_text()


def test_whether_a_child_has_ended_is_told_without_reaping_it() -> None:
    child = fork_child(signal.pause)
    assert not is_over_within(child, 0)
    os.kill(child, signal.SIGKILL)
    assert is_over_within(child, 60)
    assert wait_child(child) == -signal.SIGKILL


def test_a_child_starts_with_default_signals_but_for_those_unheeded_and_none_blocked() -> None:
    reading_fd, writing_fd = os.pipe()
    numbers = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, *UNHEEDED}

    def work() -> None:
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        ignored = {number for number in numbers if signal.getsignal(number) != signal.SIG_DFL}
        os.write(writing_fd, f"{len(blocked)} {ignored == UNHEEDED}".encode())

    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        child = fork_child(work)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    os.close(writing_fd)
    assert wait_for_end_of_pipe(reading_fd) == b"0 True"
    assert wait_child(child) == 0


def test_a_child_dies_with_its_parent_even_when_that_is_killed() -> None:
    alive_fd, writing_fd = os.pipe()
    started_fd, tell_fd = os.pipe()

    def grandchild() -> None:
        os.write(tell_fd, b"started")
        signal.sigtimedwait((), 60)  # an end in any case

    def child() -> None:
        fork_child(grandchild)
        signal.pause()

    parent = fork_child(child)
    os.close(writing_fd)
    assert os.read(started_fd, 7) == b"started"
    os.kill(parent, signal.SIGKILL)
    wait_child(parent)
    # The grandchild alone still holds the writing end.
    assert wait_for_end_of_pipe(alive_fd) == b""
    os.close(started_fd)
    os.close(tell_fd)


def _with_subclasses(kind: type[FastfuseError]) -> list[type[FastfuseError]]:
    return [kind, *(found for each in kind.__subclasses__() for found in _with_subclasses(each))]


class _OddError(MountError):
    def __init__(self) -> None:
        super().__init__("odd", hint="even")


@pytest.mark.parametrize("kind", _with_subclasses(FastfuseError), ids=lambda kind: kind.__name__)
def test_every_error_is_heard_with_its_exit_code_message_and_hint(kind: type[FastfuseError]) -> None:
    error = kind.__new__(kind)
    FastfuseError.__init__(error, "why: ü\n\udcff", hint="what to do")
    with pytest.raises(FastfuseError) as caught:
        heard(error_message(error))
    found = caught.value
    assert isinstance(error, type(found))
    assert (found.exit_code, str(found), found.hint) == (kind.exit_code, "why: ü\n\udcff", "what to do")


@pytest.mark.parametrize(
    ("error", "kind"),
    [(NoRoomError("no room"), FastfuseError), (DeadMountError("dead"), MountError), (_OddError(), MountError)],
    ids=lambda value: type(value).__name__ if isinstance(value, FastfuseError) else value.__name__,
)
def test_an_error_of_another_module_is_heard_as_its_base(error: FastfuseError, kind: type[FastfuseError]) -> None:
    with pytest.raises(FastfuseError) as caught:
        heard(error_message(error))
    assert type(caught.value) is kind


def test_what_is_no_error_is_what_was_told() -> None:
    assert heard(b'{"files": 3}') == {"files": 3}


SIGNALS = {signal.SIGTERM, signal.SIGHUP, signal.SIGRTMAX}
WAIT_S = 0.2


@pytest.mark.parametrize("number", sorted(SIGNALS))
def test_a_signal_is_taken_with_its_origin_and_none_if_none_comes(number: int) -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        assert next_signal(SIGNALS, 0.01) is None
        signal.pthread_kill(threading.get_ident(), number)  # other threads of the tests do not block it
        assert next_signal(SIGNALS - {number}, 0.01) is None
        caught = next_signal(SIGNALS, 60)
        assert caught is not None
        assert (caught.si_signo, caught.si_errno) == (number, 0)
        assert caught.si_code <= 0  # a process sent it, and not the kernel
        assert next_signal(SIGNALS, 0) is None
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def test_a_pause_that_outlasts_the_wait_is_no_signal_and_hides_none() -> None:
    taken_fd, tell_fd = os.pipe()

    def work() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        os.write(tell_fd, b"begun")
        caught = next_signal(SIGNALS, WAIT_S)
        os.write(tell_fd, b"a signal" if caught else b"none")
        while not (caught := next_signal(SIGNALS, 60)):
            pass
        os.write(tell_fd, str(caught.si_signo).encode())

    def is_in(states: str) -> bool:
        return Path(f"/proc/{child}/stat").read_text().rpartition(") ")[2][0] in states

    child = fork_child(work)
    try:
        assert os.read(taken_fd, len(b"begun")) == b"begun"
        wait_until(lambda: is_in("S"))
        os.kill(child, signal.SIGSTOP)
        wait_until(lambda: is_in("T"))
        next_signal((), 2 * WAIT_S)
        os.kill(child, signal.SIGCONT)
        assert os.read(taken_fd, 9) == b"none"
        os.kill(child, signal.SIGSTOP)
        wait_until(lambda: is_in("T"))
        os.kill(child, signal.SIGHUP)
        os.kill(child, signal.SIGCONT)
        assert os.read(taken_fd, 9) == b"1"
    finally:
        os.kill(child, signal.SIGKILL)
        wait_child(child)
        os.close(taken_fd)
        os.close(tell_fd)


def test_a_metrics_endpoint_that_dies_at_once_is_started_every_five_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its end wakes the supervisor, which would do nothing but fork."""
    clock = Mock()
    started_s: list[float] = []

    def fork(_: Callable[[], object]) -> int:
        started_s.append(clock.monotonic())
        return 1

    monkeypatch.setattr(endpoint, "time", clock)
    here = MetricsEndpoint(None, {}, fork)
    here.listener = Mock()
    for now_s in range(12):
        clock.monotonic.return_value = now_s
        here.go_on()
        here.child_ended(1, 1)
        here.go_on()
    assert started_s == [0, 5, 10]


def test_a_terminal_that_went_long_ago_makes_no_signal_a_hangup(monkeypatch: pytest.MonkeyPatch) -> None:
    there = {0, 2}
    monkeypatch.setattr(os, "isatty", there.__contains__)
    terminals = Terminals()
    assert not terminals.have_hung_up()
    for fd in (0, 2):
        there.remove(fd)
        monkeypatch.setattr(children, "_HANGUP_S", 3600.0)
        assert terminals.have_hung_up()
        assert terminals.have_hung_up(), "the kernel and the shell send a signal each"
        monkeypatch.setattr(children, "_HANGUP_S", 0.0)
        assert not terminals.have_hung_up()
