"""Keeps readers from taking the death of a streamer for the end of an epoch.

A FIFO ends when nobody has it open for writing any more, so also where the process that wrote was killed in the middle
of an object: its reader would have a shorter epoch and not know. So whoever started the streamer and notices its death
holds the writing ends as well, until the streamer says that an epoch has come to its proper end.

    guard = Guard()
    child = fork_child(lambda: stream_channel(..., guard=guard))
    # now and then, or when `guard` is readable:
    guard.update()
    # when the job's processes are dead:
    guard.close()

Where a third process holds them, forked before the streamer, its parent calls `hand_over` in between.
"""

import os
import socket
from collections.abc import Sequence
from contextlib import suppress

__all__ = ["Guard"]

_BEGIN, _END = b"+", b"-"


class Guard:
    """Between two processes, the one of which forks the other. Every method returns at once."""

    def __init__(self) -> None:
        self._ours, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ours.setblocking(False)
        # In the order of the epochs.
        self._held: list[int] = []

    def fileno(self) -> int:
        """Readable when there is something to `update`."""
        return self._ours.fileno()

    def hold(self, fd: int) -> None:
        """In the streamer: the FIFO with the writing end `fd` is there for readers."""
        with suppress(ConnectionError):  # whoever held them was killed
            socket.send_fds(self._theirs, [_BEGIN], [fd])

    def let_go(self) -> None:
        """In the streamer: the earliest that is held is through, or nobody reads it any more."""
        with suppress(ConnectionError):
            self._theirs.send(_END)

    def hand_over(self) -> None:
        """In the process that forked the one which holds: should that be killed, nobody is to wait for it.

        What lies in a socket that another process has open, too, would stay open with it, and no epoch ever end.
        """
        self._ours.close()

    @property
    def held(self) -> Sequence[int]:
        """Writing ends, of the earliest epoch first."""
        return self._held

    def update(self) -> None:
        """In the process that started it: do as it says."""
        while True:
            try:
                message, fds, _, _ = socket.recv_fds(self._ours, 1, 1, socket.MSG_CMSG_CLOEXEC)
            except BlockingIOError:
                return
            self._held += fds
            if message == _END:
                os.close(self._held.pop(0))
            elif not message:
                return

    def close(self) -> None:
        """In the process that started it: nobody reads any more."""
        if self._ours.fileno() >= 0:  # not handed over
            self.update()
        for fd in self._held:
            os.close(fd)
        self._held.clear()
        self._ours.close()
        self._theirs.close()
