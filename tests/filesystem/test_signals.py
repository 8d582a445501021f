import os
import signal
import threading
from pathlib import Path

import pytest

from fastfuse.filesystem.processes.children import fork_child, next_signal, wait_child
from tests.filesystem.waiting import wait_until

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
        assert os.read(taken_fd, 9) == b"begun"
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
