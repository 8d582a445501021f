"""Turn every outcome of a handler into an answer: any exception but `FUSEError` would end the mount of pyfuse3.

It becomes an errno, is counted, and is logged if it was not foreseen.
"""

import errno
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from fastfuse.errors import FastfuseError, errno_for
from fastfuse.filesystem.kernel.fuse import pyfuse3
from fastfuse.metrics import ERRNO_LABELS, Counters
from fastfuse.repeats import RepeatedFailures

_log = logging.getLogger(__name__)

_NO_FAILURES = frozenset({errno.ENOENT, errno.ENODATA, errno.ENOSYS})  # they answer questions

_P = ParamSpec("_P")
_T = TypeVar("_T")


class Outcomes:
    """The answers of one process, counted."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._failures = RepeatedFailures(_log)
        self._requests = counters.memory("fastfuse_requests")

    def count(self, number: int = 0) -> None:
        """Count an answered request, and its errno if that is a failure."""
        self._requests[0] += 1
        if number and number not in _NO_FAILURES:
            name = errno.errorcode.get(number, "other")
            self._counters.count("fastfuse_errors", value=name if name in ERRNO_LABELS else "other")

    def count_bug(self, name: str, error: Exception) -> None:
        """Count and tell a request that failed for an unforeseen reason."""
        self._counters.count("fastfuse_handler_failures")
        self.count(errno.EIO)
        reason = f"{name} failed for an unforeseen reason"
        self._failures.tell(f"{reason} ({type(error).__name__})", name, f"{reason}; the mount goes on", error)


class _Answering(Protocol):
    @property
    def outcomes(self) -> Outcomes: ...


_S = TypeVar("_S", bound=_Answering)


def answered(
    handler: Callable[Concatenate[_S, _P], Coroutine[Any, Any, _T]],
) -> Callable[Concatenate[_S, _P], Coroutine[Any, Any, _T]]:
    """Turn every outcome of `handler` into an answer to the kernel; no exception but `FUSEError` passes."""

    async def answer(self: _S, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        try:
            result = await handler(self, *args, **kwargs)
        except pyfuse3.FUSEError as error:
            self.outcomes.count(error.errno)
            raise
        except FastfuseError as error:
            number = errno_for(error)
            self.outcomes.count(number)
            raise pyfuse3.FUSEError(number) from error
        except Exception as error:
            self.outcomes.count_bug(handler.__name__, error)
            raise pyfuse3.FUSEError(errno.EIO) from error
        # A cancelled request is not counted: a dying worker answers nothing, and the crash-loop guard reads this count.
        self.outcomes.count()
        return result

    return answer
