"""Answers of READs, and the threads that write the large ones. A socket stands in for the kernel's connection."""

import errno
import os
import select
import socket
import struct
import sys
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest

from fastfuse.filesystem.kernel.fuse import replies
from tests.filesystem.test_mountpoint import fuse_mount
from tests.filesystem.waiting import PATIENCE_S, wait_until
from tests.forked import run_forked

# <linux/fuse.h>: fuse_out_header.
HEAD = struct.Struct("=IiQ")
LEAST_BYTES = 4096
LARGE = os.urandom(LEAST_BYTES)

# The kernel's end, and the session's.
Connection = tuple[socket.socket, socket.socket]


@pytest.fixture
def connection() -> Iterator[Connection]:
    kernel, session = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with kernel, session:
        kernel.settimeout(PATIENCE_S)
        yield kernel, session


@contextmanager
def threads(count: int, connection: Connection, most_waiting: int = 8) -> Iterator[None]:
    kernel, session = connection
    assert replies.start(session.fileno(), count, least_bytes=LEAST_BYTES, most_waiting=most_waiting) == 0
    try:
        yield
    except BaseException:
        # Who is stuck would be for ever; and if nobody could take an answer, the process would end, and say nothing.
        threading.Thread(target=_take_all, args=(kernel,), daemon=True).start()
        raise
    finally:
        replies.finish()


def _take_all(kernel: socket.socket) -> None:
    with suppress(OSError):
        while kernel.recv(1 << 20):
            pass


def filled(session: socket.socket) -> int:
    """Fill the session's end, so that whoever writes there waits; return how many messages are before theirs."""
    session.setblocking(False)
    count = 0
    with suppress(BlockingIOError):
        while session.send(LARGE):
            count += 1
    session.setblocking(True)
    return count


def reply_to(request: int, data: bytes) -> bytes:
    return HEAD.pack(HEAD.size + len(data), 0, request) + data


@pytest.mark.parametrize(("cores", "threads"), [(1, 0), (2, 1), (3, 2), (4, 3), (8, 4), (192, 4)])
def test_all_cores_but_one_write_up_to_four(cores: int, threads: int) -> None:
    assert replies.threads_for(cores) == threads


@pytest.mark.parametrize("count", [0, 1, 4])
def test_each_request_gets_its_own_answer(connection: Connection, count: int) -> None:
    kernel, _ = connection
    answers = {1: LARGE, 2: b"small", 3: b"", 4: LARGE[::-1]}
    with threads(count, connection):
        for number, data in answers.items():
            replies.answer(number, data)
        replies.refuse(5, errno.ESTALE)
        got = {kernel.recv(1 << 20) for _ in range(5)}
    assert got == {reply_to(*answer) for answer in answers.items()} | {HEAD.pack(HEAD.size, -errno.ESTALE, 5)}


def test_a_small_answer_is_written_at_once(connection: Connection) -> None:
    kernel, _ = connection
    with threads(1, connection):
        replies.answer(1, b"small")
        assert select.select([kernel], [], [], 0) == ([kernel], [], [])


def test_nothing_that_waits_is_lost_at_the_end(connection: Connection) -> None:
    kernel, session = connection
    before = filled(session)
    assert replies.start(session.fileno(), 1, least_bytes=LEAST_BYTES) == 0
    for number in range(5):
        replies.answer(number, LARGE)
    ends = threading.Thread(target=replies.finish)
    ends.start()
    got = [kernel.recv(1 << 20) for _ in range(before + 5)]
    ends.join(PATIENCE_S)
    assert got[before:] == [reply_to(number, LARGE) for number in range(5)]
    replies.answer(6, LARGE)  # by nobody else now
    assert kernel.recv(1 << 20) == reply_to(6, LARGE)


def test_what_is_more_than_may_wait_for_the_threads_is_written_without_them(connection: Connection) -> None:
    kernel, session = connection
    with threads(1, connection, most_waiting=1):
        before = filled(session)
        replies.answer(0, LARGE)
        wait_until(lambda: stuck() == ["fastfuse-reply"])  # with the first, so that the next one waits
        replies.answer(1, LARGE)
        loop = threading.Thread(target=replies.answer, args=(2, LARGE))
        loop.start()
        wait_until(lambda: len(stuck()) == 2)  # the other one is `loop`
        got = [kernel.recv(1 << 20) for _ in range(before + 3)][before:]
        loop.join(PATIENCE_S)
    assert sorted(got) == sorted(reply_to(number, LARGE) for number in range(3))


def stuck() -> list[str]:
    """Return the names of this process's threads that wait in a write to a socket."""
    found = []
    for task in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread that has just ended
            # The second is a function of its own where the compiler did not put it into the first (aarch64).
            if (task / "wchan").read_text().startswith(("sock_alloc_send", "sock_wait_for_wmem")):
                found.append((task / "comm").read_text().strip())
    return found


def test_an_answer_that_the_kernel_does_not_take_fails_its_own_read_at_most(connection: Connection) -> None:
    kernel, session = connection
    session.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
    too_large = bytes(1 << 20)
    with threads(1, connection):
        for number, data in ((1, too_large), (2, LARGE)):
            replies.answer(number, data)
        got = [kernel.recv(1 << 20) for _ in range(2)]
    assert got == [HEAD.pack(HEAD.size, -errno.EIO, 1), reply_to(2, LARGE)]
    assert (replies.not_taken(), replies.not_taken()[0]) == ((1, errno.EMSGSIZE), 0)


_NEVER_TAKEN = """
import sys
from fastfuse.filesystem.kernel.fuse import replies
threads, least_bytes = map(int, sys.argv[1:])
with open("/dev/full", "wb", buffering=0) as device:
    replies.start(device.fileno(), threads, least_bytes=least_bytes)
    replies.answer(1, bytes(16))
    replies.finish()
"""


@pytest.mark.parametrize(("threads", "least_bytes"), [(0, 16), (0, 32), (1, 16)])
def test_a_process_that_would_lose_an_answer_ends(threads: int, least_bytes: int) -> None:
    done = run_forked([sys.executable, "-c", _NEVER_TAKEN, str(threads), str(least_bytes)], os.environ)
    assert done.returncode == 1


def test_what_waits_is_kept_and_what_is_written_is_let_go_without_another_answer(connection: Connection) -> None:
    kernel, session = connection
    with threads(1, connection):
        before = filled(session)
        memory = np.frombuffer(LARGE, np.uint8).copy()
        gone = threading.Event()
        weakref.finalize(memory, gone.set)
        replies.answer(1, memory.data)
        del memory
        wait_until(lambda: stuck() == ["fastfuse-reply"])
        assert not gone.is_set()
        assert [kernel.recv(1 << 20) for _ in range(before + 1)][before] == reply_to(1, LARGE)
        wait_until(gone.is_set)


def test_a_thread_that_is_stuck_with_the_last_answer_does_not_move(connection: Connection) -> None:
    kernel, session = connection
    with threads(1, connection):
        assert replies.are_moving()
        before = filled(session)
        replies.answer(1, LARGE)
        wait_until(lambda: stuck() == ["fastfuse-reply"])
        replies.are_moving()
        assert not replies.are_moving()  # nothing waits: the thread has its only answer in hand
        for _ in range(before + 1):
            kernel.recv(1 << 20)
        wait_until(replies.are_moving)


_WITHOUT_ROOM = f"""
import os, resource, socket
from fastfuse.filesystem.kernel.fuse import replies
kernel, session = socket.socketpair()
resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
os.setgid(65534)
os.setuid(65534)
assert replies.start(session.fileno(), 2) == {errno.EAGAIN}
replies.answer(1, bytes(16))
replies.finish()
kernel.close()
session.close()
"""


def test_where_there_is_no_room_for_threads_none_write() -> None:
    done = run_forked([sys.executable, "-c", _WITHOUT_ROOM], os.environ)
    assert (done.returncode, done.stderr) == (0, "")


# Where the reads that are not answered lie, after the message and two numbers; each has its own at its bytes 8 to 16.
_LOST_COUNT, _READS = 8 << 10, (8 << 10) + 16


@contextmanager
def keeping() -> Iterator[bytearray]:
    """Keep requests in memory that a test may look at, and write to."""
    memory = bytearray(replies.REQUESTS_BYTES)
    replies.keep(memory)
    try:
        yield memory
    finally:
        replies.keep(bytearray(replies.REQUESTS_BYTES))


def test_a_read_is_owed_until_its_answer_is_written_not_only_until_a_thread_has_it(connection: Connection) -> None:
    kernel, session = connection
    with threads(1, connection), keeping() as memory:
        before = filled(session)
        struct.pack_into("=Q", memory, _READS + 8, 14)
        struct.pack_into("=Q", memory, 8, 12)  # a message that is not a READ
        assert replies.owed(memory) == {12, 14}
        replies.answer(14, LARGE)
        wait_until(lambda: stuck() == ["fastfuse-reply"])
        assert replies.owed(memory) == {12, 14}
        for _ in range(before + 1):
            kernel.recv(1 << 20)
        wait_until(lambda: replies.owed(memory) == {12})


@pytest.mark.fuse
def test_a_second_answer_is_none_to_a_read_for_which_there_was_no_room(tmp_path: Path) -> None:
    with fuse_mount(tmp_path) as device, keeping() as memory:
        struct.pack_into("=Q", memory, _LOST_COUNT, 1)
        assert replies.start(device.fileno(), 0) == 0
        replies.answer(12, b"of a request that the kernel has an answer to")
        assert not replies.are_all_kept(memory)


def test_an_answer_to_a_read_for_which_there_was_no_room_is_counted_once(connection: Connection) -> None:
    with threads(0, connection), keeping() as memory:
        struct.pack_into("=Q", memory, _LOST_COUNT, 1)
        replies.answer(12, b"")
        assert replies.are_all_kept(memory)
        replies.answer(12, b"")
        assert replies.are_all_kept(memory)
