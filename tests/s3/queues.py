"""What the kernel has of a socket's bytes, for tests that wait until it has them."""

import fcntl
import socket
import struct
import termios


def unread_bytes(sock: socket.socket) -> int:
    """What has come and was not received."""
    return _queued_bytes(sock, termios.FIONREAD)


def unsent_bytes(sock: socket.socket) -> int:
    """What was sent and has not arrived."""
    return _queued_bytes(sock, termios.TIOCOUTQ)


def _queued_bytes(sock: socket.socket, direction: int) -> int:
    count: int
    (count,) = struct.unpack("@i", fcntl.ioctl(sock, direction, bytes(4)))
    return count
