"""Sockets that are found by a name and trusted by who listens, and paths that come through them in pieces."""

import os
import signal
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfuse.filesystem.processes.sockets import (
    MAX_PATH_BYTES,
    PathTooLongError,
    addresses,
    connect_in_turn,
    listen,
    split_paths,
)

PREFIX = f"fastfuse-sockets-test:{os.getpid()}"


def test_a_socket_is_found_by_its_prefix_as_long_as_it_is_open() -> None:
    with listen(PREFIX, backlog=1) as listener:
        assert addresses(PREFIX) == [listener.getsockname().decode()]
        assert addresses(PREFIX[:-1]) == []
        assert addresses(f"{PREFIX}-{os.getpid()}") == addresses(PREFIX)
    assert addresses(PREFIX) == []


def test_a_name_that_is_no_text_can_be_connected_to() -> None:
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as connection:
        listener.bind(f"\0{PREFIX}-".encode() + b"\xff" * 50)
        listener.listen()
        (address,) = addresses(PREFIX)
        connect_in_turn(connection, address, 60.0)


def test_a_signal_while_there_is_no_room_makes_no_connection() -> None:
    before = signal.signal(signal.SIGALRM, lambda *_: None)
    with listen(PREFIX, backlog=0) as listener, socket.socket(socket.AF_UNIX) as held:
        held.connect(listener.getsockname())
        signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
        try:
            with socket.socket(socket.AF_UNIX) as connection, pytest.raises(BlockingIOError, match="Interrupted"):
                connect_in_turn(connection, addresses(PREFIX)[0], 60.0)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)


names = st.binary(max_size=20).map(lambda name: name.replace(b"\0", b"/"))


@given(st.lists(names), st.lists(st.integers(1, 30), min_size=1))
def test_paths_are_the_same_however_they_are_cut(paths: list[bytes], cuts: list[int]) -> None:
    message = b"".join(path + b"\0" for path in paths)
    found, rest, at = [], b"", 0
    while at < len(message):
        size = cuts[at % len(cuts)]
        ended, rest = split_paths(rest, message[at : at + size])
        found += ended
        at += size
    assert (found, rest) == (paths, b"")


def test_a_path_may_be_as_long_as_a_key() -> None:
    path = b"x" * MAX_PATH_BYTES
    assert split_paths(path[:-1], b"x\0rest") == ([path], b"rest")


@pytest.mark.parametrize("received", [b"x", b"x\0", b"x\0y\0"])
def test_a_longer_one_is_refused_before_it_has_ended(received: bytes) -> None:
    with pytest.raises(PathTooLongError, match="more than 1024 bytes"):
        split_paths(b"x" * MAX_PATH_BYTES, received)
