"""System calls that never wait, and so are made without letting go of the GIL.

Python lets go of it around each, and another thread that wants it may have it then: where some receive and others
reply, the loop has to wait for it 50 µs and more, several times for each MiB that is read.
"""

import ctypes
import os
import socket
import struct
from select import POLLIN

__all__ = ["Readable", "dup2", "receive"]

_libc = ctypes.PyDLL(None, use_errno=True)
_libc.recv.restype = ctypes.c_ssize_t
_POLLFD = struct.Struct("@ihh")  # <poll.h>


def dup2(fd: int, number: int) -> None:
    """As `os.dup2`; children do inherit `number`."""
    if _libc.dup2(fd, number) < 0:
        raise _error()


def receive(fd: int, most_bytes: int) -> bytes:
    """What has come through the socket `fd`. `BlockingIOError` if nothing has."""
    buffer = ctypes.create_string_buffer(most_bytes)
    count = _libc.recv(fd, buffer, ctypes.c_size_t(most_bytes), socket.MSG_DONTWAIT)
    if count < 0:
        raise _error()
    return buffer.raw[:count]


class Readable:
    """Whether there is something to read from `fd`, or its other end is gone."""

    __slots__ = ("_pollfd",)

    def __init__(self, fd: int) -> None:
        self._pollfd = ctypes.create_string_buffer(_POLLFD.pack(fd, POLLIN, 0), _POLLFD.size)

    def __call__(self) -> bool:
        return bool(_libc.poll(self._pollfd, ctypes.c_ulong(1), 0))


def _error() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))
