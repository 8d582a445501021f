import os
import socket

import pytest

from fastfuse.filesystem.loop import Readable
from fastfuse.filesystem.replies import dup2, receive
from tests.descriptors import open_descriptors


def test_dup2_puts_one_in_the_place_of_another() -> None:
    first, second = socket.socketpair()
    third, fourth = socket.socketpair()
    with first, second, third, fourth:
        before = set(open_descriptors())
        dup2(second.fileno(), fourth.fileno())
        fourth.send(b"x")
        assert first.recv(1) == b"x"
        assert third.recv(1) == b""
        assert set(open_descriptors()) == before


def test_what_dup2_refuses_is_an_error_with_its_number() -> None:
    with pytest.raises(OSError, match=os.strerror(9)) as caught:
        dup2(-1, 0)
    assert caught.value.errno == 9


def test_receive_takes_a_message_and_never_waits() -> None:
    first, second = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with first, second:
        with pytest.raises(BlockingIOError):
            receive(first.fileno(), 16)
        second.send(b"one")
        second.send(bytes(16))
        assert [receive(first.fileno(), 16) for _ in range(2)] == [b"one", bytes(16)]


def test_readable_says_whether_something_came_or_the_other_end_is_gone() -> None:
    first, second = socket.socketpair()
    with first:
        with second:
            is_readable = Readable(first.fileno())
            assert not is_readable()
            second.send(b"x")
            assert is_readable()
            first.recv(1)
            assert not is_readable()
        assert is_readable()
    # As poll(2) says of what is no descriptor.
    assert not Readable(-1)()
