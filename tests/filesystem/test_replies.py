"""Replies that threads write, while libfuse believes to have written them."""

import errno
import os
import select
import socket
import struct
import threading
import weakref
from collections.abc import Iterator

import numpy as np
import pytest
import trio

from fastfuse.filesystem import replies
from fastfuse.filesystem.replies import LargeReplies, threads_for
from fastfuse.index.inodes.changes import Changes
from fastfuse.objects import Buffer

# <linux/fuse.h>: fuse_out_header.
HEAD = struct.Struct("=IiQ")
LEAST_BYTES = 4096
LARGE = os.urandom(LEAST_BYTES)
PATIENCE_S = 60.0

# The kernel's end, and the session's.
Connection = tuple[socket.socket, socket.socket]


@pytest.fixture(autouse=True)
def little_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a message fits into the buffer of any socket."""
    monkeypatch.setattr(replies, "_LEAST_BYTES", LEAST_BYTES)


@pytest.fixture
def connection() -> Iterator[Connection]:
    kernel, session = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with kernel, session:
        kernel.settimeout(PATIENCE_S)
        yield kernel, session


def answer_as_libfuse(session: socket.socket, request: int, data: Buffer) -> None:
    os.write(session.fileno(), reply_to(request, bytes(data)))


def reply_to(request: int, data: bytes) -> bytes:
    return HEAD.pack(HEAD.size + len(data), 0, request) + data


@pytest.mark.parametrize(("cores", "threads"), [(1, 0), (2, 1), (3, 2), (4, 3), (8, 4), (192, 4)])
def test_all_cores_but_one_write_up_to_four(cores: int, threads: int) -> None:
    assert threads_for(cores) == threads


async def test_only_the_thread_s_reply_reaches_the_kernel_and_then_libfuse_has_its_connection_again(
    connection: Connection,
) -> None:
    kernel, session = connection
    large = LargeReplies()
    with large.written_by(1, session.fileno()):
        answer_as_libfuse(session, 1, large.hand_over(LARGE))
        assert select.select([kernel], [], [], 0) == ([], [], [])
        large.settle()
        large.settle()  # nothing is left to do
        answer_as_libfuse(session, 2, b"small")
        assert {kernel.recv(1 << 20), kernel.recv(1 << 20)} == {reply_to(1, LARGE), reply_to(2, b"small")}


async def test_nothing_that_was_handed_over_is_lost_at_the_end(connection: Connection) -> None:
    kernel, session = connection
    large = LargeReplies()
    with large.written_by(1, session.fileno()):
        answer_as_libfuse(session, 1, large.hand_over(LARGE))
    assert kernel.recv(1 << 20) == reply_to(1, LARGE)
    assert large.hand_over(LARGE) is LARGE
    answer_as_libfuse(session, 2, b"small")
    assert kernel.recv(1 << 20) == reply_to(2, b"small")


async def test_without_threads_everything_is_left_to_libfuse(connection: Connection) -> None:
    _, session = connection
    large = LargeReplies()
    assert large.hand_over(LARGE) is LARGE
    with large.written_by(0, session.fileno()):
        assert large.hand_over(LARGE) is LARGE


async def test_what_is_more_than_may_wait_for_the_threads_is_written_without_them(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel, session = connection
    monkeypatch.setattr(replies, "_MOST_WAITING", 1)
    is_busy, may_go_on = threading.Event(), threading.Event()
    writev = os.writev

    def slow_in_threads(fd: int, buffers: tuple[bytes, bytes]) -> int:
        if threading.current_thread() is not threading.main_thread():
            is_busy.set()
            may_go_on.wait(PATIENCE_S)
        return writev(fd, buffers)

    monkeypatch.setattr(os, "writev", slow_in_threads)
    large = LargeReplies()
    with large.written_by(1, session.fileno()):
        for request in range(3):
            answer_as_libfuse(session, request, large.hand_over(LARGE))
            large.settle()
            assert is_busy.wait(PATIENCE_S)
        # The thread has the first one, and the second waits for it.
        assert kernel.recv(1 << 20) == reply_to(2, LARGE)
        may_go_on.set()
        assert [kernel.recv(1 << 20) for _ in range(2)] == [reply_to(0, LARGE), reply_to(1, LARGE)]


async def test_a_reply_that_the_kernel_does_not_take_fails_its_own_read_at_most(
    connection: Connection, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    kernel, session = connection
    # Of the first nobody waits for the answer any more.
    errors = {1: errno.ENOENT, 2: errno.EINVAL}
    writev = os.writev

    def failing(fd: int, buffers: tuple[bytes, bytes]) -> int:
        _, _, request = HEAD.unpack(buffers[0])
        if request in errors:
            raise OSError(errors[request], "not taken")
        return writev(fd, buffers)

    monkeypatch.setattr(os, "writev", failing)
    large = LargeReplies()
    with large.written_by(1, session.fileno()):
        for request in (1, 2, 3):
            answer_as_libfuse(session, request, large.hand_over(LARGE))
            large.settle()
        assert kernel.recv(1 << 20) == HEAD.pack(HEAD.size, -errno.EIO, 2)
        assert kernel.recv(1 << 20) == reply_to(3, LARGE)
    assert [record.getMessage() for record in caplog.records] == [
        f"the kernel does not take a reply, so the read fails: [Errno {errno.EINVAL}] not taken"
    ]


async def test_a_thread_that_has_written_keeps_nothing(connection: Connection) -> None:
    kernel, session = connection
    large = LargeReplies()
    with large.written_by(1, session.fileno()):
        memory = np.frombuffer(LARGE, np.uint8).copy()
        gone = threading.Event()
        weakref.finalize(memory, gone.set)
        answer_as_libfuse(session, 1, large.hand_over(memory.data))
        del memory
        large.settle()
        assert kernel.recv(1 << 20) == reply_to(1, LARGE)
        assert gone.wait(PATIENCE_S)


async def test_a_thread_that_is_stuck_with_the_last_reply_does_not_move(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel, session = connection
    is_busy, may_go_on = threading.Event(), threading.Event()
    writev = os.writev

    def stuck(fd: int, buffers: tuple[bytes, bytes]) -> int:
        is_busy.set()
        may_go_on.wait(PATIENCE_S)
        return writev(fd, buffers)

    monkeypatch.setattr(os, "writev", stuck)
    large = LargeReplies()
    with large.written_by(1, session.fileno()):
        assert large.are_moving()
        answer_as_libfuse(session, 1, large.hand_over(LARGE))
        large.settle()
        assert is_busy.wait(PATIENCE_S)
        assert not large.are_moving()  # the queue is empty: the thread has its only reply in hand
        may_go_on.set()
        assert kernel.recv(1 << 20) == reply_to(1, LARGE)
        while not large.are_moving():
            await trio.lowlevel.checkpoint()


@pytest.mark.parametrize("room", [0, 1])
async def test_where_there_is_no_room_for_threads_fewer_write(
    connection: Connection, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, room: int
) -> None:
    kernel, session = connection
    start, started = threading.Thread.start, 0

    def start_some(thread: threading.Thread) -> None:
        nonlocal started
        if started == room:
            raise RuntimeError("can't start new thread")
        started += 1
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_some)
    large = LargeReplies()
    with large.written_by(2, session.fileno()):
        answer_as_libfuse(session, 1, large.hand_over(LARGE))
        large.settle()
        assert kernel.recv(1 << 20) == reply_to(1, LARGE)
    assert [record.getMessage() for record in caplog.records] == [
        "large files are read more slowly: can't start new thread; see ulimit -u and the cgroup's pids.max"
    ]


@pytest.mark.parametrize("place", ["settle", "before_io_wait", "thread"])
def test_a_process_that_would_lose_a_reply_ends(connection: Connection, place: str) -> None:
    _, session = connection

    async def lose() -> None:
        large = LargeReplies()
        with large.written_by(1, session.fileno()):
            data = large.hand_over(LARGE)
            if place == "thread":
                answer_as_libfuse(session, 1, data)
                pytest.MonkeyPatch().setattr(os, "writev", None)
                large.settle()
                await trio.sleep_forever()
            elif place == "settle":
                large.settle()  # libfuse has written nothing
            else:
                await trio.sleep_forever()

    child = os.fork()
    if not child:
        trio.run(lose)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1


def test_notices_of_directories_come_before_those_of_names_and_again_after_them() -> None:
    packed = replies.pack_notices(Changes(stale_names=[(1, b"gone")], stale_directories=[1, 7]))
    inodes = [HEAD.pack(HEAD.size + 24, 2, 0) + struct.pack("=Qqq", inode, 0, 0) for inode in (1, 7)]
    name = HEAD.pack(HEAD.size + 16 + 5, 3, 0) + struct.pack("=QII", 1, 4, 0) + b"gone\0"
    assert packed == b"".join((*inodes, name, *inodes))
