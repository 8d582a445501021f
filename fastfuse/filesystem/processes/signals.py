"""Take blocked signals one at a time."""

import ctypes
import errno
import os
import struct
import sys
from collections.abc import Iterable
from typing import NamedTuple

_LIBC = ctypes.CDLL(None, use_errno=True)
# <bits/types/siginfo_t.h>, and a sigset_t, of which the kernel reads 64 bits.
_SIGINFO_BYTES, _SIGSET_BYTES, _READ_BYTES = 128, 128, 8
_SIGINFO = struct.Struct("3i")
_TIMESPEC = struct.Struct("2l")
_NS = 1_000_000_000


class SignalInfo(NamedTuple):
    """The beginning of a siginfo_t."""

    si_signo: int
    si_errno: int
    si_code: int


def next_signal(signals: Iterable[int], timeout_s: float) -> SignalInfo | None:
    """Return the next of the blocked `signals`, or None if none came in time or a pause cut the wait short.

    `signal.sigtimedwait` is no help: after a pause (SIGSTOP, a frozen control group) that outlasts the timeout, CPython
    returns whatever memory holds for a signal.
    """
    numbers = sum(1 << number - 1 for number in signals).to_bytes(_READ_BYTES, sys.byteorder)
    timeout, caught = _TIMESPEC.pack(*divmod(int(timeout_s * _NS), _NS)), ctypes.create_string_buffer(_SIGINFO_BYTES)
    if _LIBC.sigtimedwait(numbers.ljust(_SIGSET_BYTES, b"\0"), caught, timeout) != -1:
        return SignalInfo(*_SIGINFO.unpack_from(caught))
    if (number := ctypes.get_errno()) not in {errno.EAGAIN, errno.EINTR}:
        raise OSError(number, os.strerror(number))
    return None
