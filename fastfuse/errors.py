"""The error tree, by what the caller can do, and the one table from errors to errnos and exit codes.

Two families share the root: errors that stop a command (`exit_code`, shown to the user as one sentence and a hint)
and errors of one read (`errno`, answered to the kernel). Foreign exceptions are translated at the edge
(`s3/*` for S3, `filesystem/*` for FUSE) with ``raise ... from``; nothing above the edge sees them.
"""

import errno as _errno
from typing import NoReturn


class FastfuseError(Exception):
    """Root of the tree. ``str(error)`` is one sentence for the user; `hint` says what to do about it.

    Neither ever contains a secret: no credentials, no signed URL, no authorization header.
    """

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class ConfigurationError(FastfuseError):
    """An argument, an environment variable or a profile is wrong; a wrong region counts as one."""

    exit_code = 2


class AccessError(FastfuseError):
    """No credentials, expired credentials, or the source may not be read with them."""

    exit_code = 3


class ForbiddenObjectError(AccessError):
    """The service denies one object to these credentials; others may be theirs."""


class SourceError(FastfuseError):
    """The source does not exist or cannot be mounted as asked: no such bucket, a partial folder name."""

    exit_code = 4


class EmptySourceError(SourceError):
    """The source exists and holds no object that can be shown."""


class MissingObjectError(SourceError):
    """There is no such object."""


class ServiceError(FastfuseError):
    """The service cannot be used: unreachable, TLS failure, 5xx or throttled after all retries, nonsense replies."""


class RefusedError(ServiceError):
    """The service refuses a request for an object for good, for a reason that is none of the other errors."""


class UploadGoneError(RefusedError):
    """An upload of parts is not there any more: it was completed, or something has aborted it."""


class ConditionsUnsupportedError(ServiceError):
    """The service does not implement conditional writes."""


class WriteConflictError(ServiceError):
    """The object that a conditional write replaces is no longer the one that was seen, or one is there already."""


class MountError(FastfuseError):
    """The kernel or the host refused the mount."""

    exit_code = 5


class DiskError(FastfuseError):
    """The host's disk does not take what is downloaded: it is full, read-only, or something is in the way."""

    exit_code = 5


class OutputError(FastfuseError):
    """An output of a job did not get into S3; the message names the directory where it still lies."""

    exit_code = 6


class ReadError(FastfuseError):
    """One read failed; the mount goes on. Subclasses fix the errno that the reader sees."""

    errno = _errno.EIO
    # This is what the service answered, or why it did not (`Failure.name`); it is empty if that is not why.
    reply = ""


class ObjectChangedError(ReadError):
    """The object is not the one that was listed any more: replaced or deleted (semantics D2)."""

    errno = _errno.ESTALE


class StaleInodeError(ReadError):
    """The kernel asks for an inode that a refresh has taken away; told so, it looks the path up again (L6)."""

    errno = _errno.ESTALE


class ObjectDeniedError(ReadError):
    """The service refuses this object to these credentials (semantics D5)."""

    errno = _errno.EACCES


class ObjectArchivedError(ObjectDeniedError):
    """The object is in an archive storage class and has not been restored (semantics D5)."""


class UnavailableError(ReadError):
    """Throttled, 5xx or connection lost, after all retries (semantics D5)."""


class DeadlineError(ReadError):
    """The read's deadline passed: a reader blocked in the kernel must always get an answer."""

    # A request of it may have failed, and be tried again still.
    TOO_SLOW_HINT = (
        "If the log tells of no request that failed, the bytes came too slowly: a smaller --part-size or a longer "
        "--read-deadline-s may help."
    )

    @classmethod
    def too_slow(cls, key: str, deadline_s: float, what: str = "read") -> "DeadlineError":
        return cls(f"{key!r} could not be {what} within {deadline_s:g} s.", hint=cls.TOO_SLOW_HINT)


class BadReplyError(ReadError):
    """The service answered with the wrong bytes: too few, too many, another range."""


class IntegrityError(BadReplyError):
    """The bytes of an object have another checksum than the one that the service gives, after a second fetch too."""


def about(what: str, error: FastfuseError) -> FastfuseError:
    """Return the `error` with the name of what it is about."""
    return type(error)(f"{what}: {error}", hint=error.hint)


def first_of(error: Exception) -> Exception:
    """The first failure in the group that a nursery raises; the others were ended by it."""
    return first_of(error.exceptions[0]) if isinstance(error, ExceptionGroup) else error


def raise_alone(error: BaseException) -> NoReturn:
    """Raise the `error` of a group that is handled, without the group: each would keep the other until a collection.

    The traceback of a `FastfuseError` is dropped at once, as its frames hold what was sent.
    """
    if isinstance(error, FastfuseError):
        error.__traceback__ = None
    try:
        raise error
    finally:
        error.__context__ = None
        del error  # which holds this frame


def errno_for(error: Exception) -> int:
    """The errno that a reader sees for `error`: a `ReadError`'s own, ``EIO`` for everything unforeseen."""
    return error.errno if isinstance(error, ReadError) else _errno.EIO
