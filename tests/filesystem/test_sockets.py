"""Sockets that are found by a name and trusted by who listens."""

import os
import socket

from fastfuse.filesystem.sockets import addresses, listen, peer_uid

PREFIX = f"fastfuse-sockets-test:{os.getpid()}"


def test_a_socket_is_found_by_its_prefix_as_long_as_it_is_open() -> None:
    with listen(PREFIX, backlog=1) as listener:
        assert addresses(PREFIX) == [listener.getsockname().decode()]
        assert addresses(PREFIX[:-1]) == []
        assert addresses(f"{PREFIX}-{os.getpid()}") == addresses(PREFIX)
    assert addresses(PREFIX) == []


def test_several_sockets_of_one_process_do_not_collide() -> None:
    with listen(PREFIX, backlog=1), listen(PREFIX, backlog=1):
        assert len(addresses(PREFIX)) == 2


def test_who_is_at_the_other_end() -> None:
    with listen(PREFIX, backlog=1) as listener, socket.socket(socket.AF_UNIX) as client:
        client.connect(addresses(PREFIX)[0])
        assert peer_uid(client) == os.geteuid()
        accepted, _ = listener.accept()
        with accepted:
            assert peer_uid(accepted) == os.geteuid()
