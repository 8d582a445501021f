"""Replies that threads write, while libfuse believes to have written them."""

import errno
import os
import select
import socket
import struct
from collections.abc import Iterator

import pytest
import trio

from fastfuse.mount import replies
from fastfuse.mount.replies import LargeReplies, threads_for

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


def answer_as_libfuse(session: socket.socket, request: int, data: object) -> None:
    assert isinstance(data, bytes)
    os.write(session.fileno(), reply_to(request, data))


def reply_to(request: int, data: bytes) -> bytes:
    return HEAD.pack(HEAD.size + len(data), 0, request) + data


@pytest.mark.parametrize(("cores", "threads"), [(1, 0), (2, 1), (3, 1), (4, 2), (8, 4), (192, 4)])
def test_half_of_the_cores_write_up_to_four(cores: int, threads: int) -> None:
    assert threads_for(cores) == threads


async def test_a_large_reply_reaches_the_kernel_whole_and_as_that_of_its_request(connection: Connection) -> None:
    kernel, session = connection
    large = LargeReplies()
    with large.written_by(2, session.fileno()):
        for request in (7, 1 << 63):
            answer_as_libfuse(session, request, large.hand_over(LARGE))
            large.settle()
            assert kernel.recv(1 << 20) == reply_to(request, LARGE)


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


async def test_a_reply_does_not_wait_for_another_request(connection: Connection) -> None:
    kernel, session = connection
    large = LargeReplies()
    with large.written_by(1, session.fileno()):
        answer_as_libfuse(session, 1, large.hand_over(LARGE))
        with trio.fail_after(PATIENCE_S):
            await trio.lowlevel.wait_readable(kernel)
        assert kernel.recv(1 << 20) == reply_to(1, LARGE)


async def test_nothing_that_was_handed_over_is_lost_at_the_end(connection: Connection) -> None:
    kernel, session = connection
    large = LargeReplies()
    with large.written_by(1, session.fileno()):
        answer_as_libfuse(session, 1, large.hand_over(LARGE))
    assert kernel.recv(1 << 20) == reply_to(1, LARGE)
    assert large.hand_over(LARGE) is LARGE
    answer_as_libfuse(session, 2, b"small")
    assert kernel.recv(1 << 20) == reply_to(2, b"small")


async def test_a_small_reply_is_left_to_libfuse(connection: Connection) -> None:
    _, session = connection
    large = LargeReplies()
    small = LARGE[:-1]
    with large.written_by(1, session.fileno()):
        assert large.hand_over(small) is small


async def test_without_threads_everything_is_left_to_libfuse(connection: Connection) -> None:
    _, session = connection
    large = LargeReplies()
    assert large.hand_over(LARGE) is LARGE
    with large.written_by(0, session.fileno()):
        assert large.hand_over(LARGE) is LARGE


async def test_no_more_wait_for_the_threads_than_may(connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, session = connection
    monkeypatch.setattr(replies, "_MOST_WAITING", 2)
    session.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, len(LARGE))
    large = LargeReplies()
    handed = 0
    with large.written_by(1, session.fileno()):
        # The kernel takes nothing: the first ones fill its buffer, then the thread waits with one, and so do two more.
        while (data := large.hand_over(LARGE)) is not LARGE:
            answer_as_libfuse(session, handed, data)
            large.settle()
            handed += 1
            assert handed < 1000
        assert handed >= 2
        assert [kernel.recv(1 << 20) for _ in range(handed)] == [reply_to(number, LARGE) for number in range(handed)]


async def test_a_reply_that_nobody_waits_for_any_more_ends_no_thread(
    connection: Connection, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    kernel, session = connection
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
        assert kernel.recv(1 << 20) == reply_to(3, LARGE)
    assert [record.getMessage() for record in caplog.records] == [
        f"a reply was not taken by the kernel: [Errno {errno.EINVAL}] not taken"
    ]
