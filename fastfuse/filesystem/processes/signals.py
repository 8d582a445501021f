"""Take blocked signals one at a time."""

import ctypes
import errno
import os
import sys
from collections.abc import Iterable

_LIBC = ctypes.CDLL(None, use_errno=True)
# <bits/types/siginfo_t.h>, and a sigset_t, of which the kernel reads 64 bits.
_SIGINFO_BYTES, _SIGSET_BYTES, _READ_BYTES = 128, 128, 8
_NS = 1_000_000_000


class _Timespec(ctypes.Structure):
    _fields_ = (("tv_sec", ctypes.c_long), ("tv_nsec", ctypes.c_long))


class SignalInfo(ctypes.Structure):
    """The beginning of a siginfo_t."""

    si_signo: int
    si_errno: int
    si_code: int
    _fields_ = (
        *((name, ctypes.c_int) for name in ("si_signo", "si_errno", "si_code")),
        ("_others", ctypes.c_char * (_SIGINFO_BYTES - 3 * ctypes.sizeof(ctypes.c_int))),
    )


def next_signal(signals: Iterable[int], timeout_s: float) -> SignalInfo | None:
    """Return the next of the blocked `signals`, or None if none came in time or a pause cut the wait short.

    `signal.sigtimedwait` is no help: after a pause (SIGSTOP, a frozen control group) that outlasts the timeout, CPython
    returns whatever memory holds for a signal.
    """
    numbers = sum(1 << number - 1 for number in signals).to_bytes(_READ_BYTES, sys.byteorder)
    seconds, ns = divmod(int(timeout_s * _NS), _NS)
    caught = SignalInfo()
    wanted, timeout = numbers.ljust(_SIGSET_BYTES, b"\0"), _Timespec(seconds, ns)
    if _LIBC.sigtimedwait(wanted, ctypes.byref(caught), ctypes.byref(timeout)) != -1:
        return caught
    if (number := ctypes.get_errno()) not in {errno.EAGAIN, errno.EINTR}:
        raise OSError(number, os.strerror(number))
    return None
