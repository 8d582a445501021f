"""A cause for each class of failure, and what the policy makes of it: errors, and lines of the log."""

import errno
import re
from dataclasses import dataclass

from bench.s3server import Answer, Reset
from bench.s3server.faults import Action
from fastfuse.errors import (
    AccessError,
    ConfigurationError,
    DeadlineError,
    FastfuseError,
    ObjectChangedError,
    ReadError,
    ServiceError,
    UnavailableError,
)
from fastfuse.objects import ObjectRef
from fastfuse.s3.failures import Failure, Kind, as_read_error, read_error, start_error


@dataclass(frozen=True, slots=True)
class Cause:
    """What makes requests fail, and how the log names it."""

    kind: Kind
    # What the server does; None where something else is at fault.
    action: Action | None = None
    detail: str = ""
    # The error of credentials that cannot be had: there is no request.
    resolution: FastfuseError | None = None

    @property
    def is_server_error(self) -> bool:
        return isinstance(self.action, Answer) and self.action.status >= 500

    @property
    def failure(self) -> Failure:
        return Failure(
            kind=self.kind, detail=self.detail, request_id="FASTFUSE" if isinstance(self.action, Answer) else ""
        )

    def retry_line(self, name: str) -> str:
        """Return the line of the first retry of a request for `name`, as `untimed` shows it."""
        request_id = self.failure.request_id
        shown = f"{self.detail}, request {request_id}" if request_id else self.detail
        return f"{name}: {shown}; trying again (attempt 1 failed, N s so far)"

    def command_errors(self, endpoint_url: str, deadline_s: float | None) -> list[FastfuseError]:
        """Return the errors that listing ``s3://bucket`` may end with; with a deadline, it ends close to that."""
        if self.resolution is not None:
            return [self.resolution]
        errors = [start_error(self.failure, bucket="bucket", endpoint=endpoint_url, region="us-east-1")]
        if deadline_s is not None:  # a busy machine may be asking then
            within = f"within {deadline_s:.0f} s"
            errors.append(ServiceError(f"The S3 service did not list a page of the bucket 'bucket' {within}."))
            errors.append(ServiceError(f"no LIST page of 'bucket' arrived {within}"))
        return errors

    def read_errors(self, ref: ObjectRef, deadline_s: float | None) -> list[ReadError]:
        """Return the errors that a read of `ref` may end with; with a deadline, it ends close to that."""
        if self.resolution is not None:
            return [as_read_error(self.resolution, ref)]
        errors = [read_error(self.failure, ref)]
        if deadline_s is not None:  # a busy machine may be asking then
            late = f"{ref.key!r} could not be read within {deadline_s:g} s."
            errors += [
                DeadlineError(late),
                # If not even the first request has failed by then, and if an earlier one has.
                DeadlineError(late, hint=DeadlineError.TOO_SLOW_HINT),
                DeadlineError(f"{late} What failed last: {errors[0]}"),
            ]
            if self.kind is Kind.THROTTLED:
                told = f"the service throttles ({self.detail})"
                errors.append(UnavailableError(f"{ref.key!r} could not be read in time: {told}."))
        return errors


def _answers(kind: Kind, status: int, code: str) -> Cause:
    return Cause(kind, Answer(status, code, "m"), f"{status} {code}")


CAUSES = {
    cause.kind: cause
    for cause in (
        _answers(Kind.THROTTLED, 503, "SlowDown"),
        _answers(Kind.BUSY, 500, "InternalError"),
        Cause(Kind.BROKEN, Reset(10), "Connection reset by peer"),
        Cause(Kind.UNREACHABLE, None, "Connection refused"),
        Cause(Kind.TLS, None, "certificate verification failed: self-signed certificate"),
        Cause(Kind.NOT_S3, Reset(None), "the connection was closed without an answer"),
        _answers(Kind.CHANGED, 412, "PreconditionFailed"),
        _answers(Kind.NO_BUCKET, 404, "NoSuchBucket"),
        _answers(Kind.DENIED, 403, "AccessDenied"),
        _answers(Kind.ARCHIVED, 403, "InvalidObjectState"),
        _answers(Kind.EXPIRED, 400, "ExpiredToken"),
        _answers(Kind.SKEWED, 403, "RequestTimeTooSkewed"),
        _answers(Kind.BAD_CREDENTIALS, 403, "SignatureDoesNotMatch"),
        Cause(
            Kind.NO_CREDENTIALS,
            resolution=AccessError(
                "No AWS credentials were found.",
                hint="Configure them (environment, profile, role), name a --profile, "
                "or use --no-sign-request for a public bucket.",
            ),
        ),
        _answers(Kind.WRONG_REGION, 301, "PermanentRedirect"),
        Cause(
            Kind.BAD_CONFIGURATION,
            resolution=ConfigurationError(
                "The AWS configuration is wrong: The config profile (missing) could not be found.",
                hint="Check the --profile (aws configure list-profiles lists them), its files, and the --region.",
            ),
        ),
        _answers(Kind.OTHER, 501, "NotImplemented"),
    )
}


def is_met(kind: Kind, *, is_read: bool) -> bool:
    """Return whether a request fails so for its cause here: a read whose connection is closed is tried as `broken`."""
    return kind is not Kind.NOT_S3 or not is_read


def untimed(text: str) -> str:
    """Return lines of the log without the times that differ from run to run."""
    return re.sub(r"\d+\.\d s", "N s", text)


def failed_read_line(error: ReadError, offset: int | None) -> str:
    """Return the line of a read that failed, as `untimed` shows it."""
    hint = "'fastfuse refresh' shows what is there now." if isinstance(error, ObjectChangedError) else error.hint
    line = f"a read at {offset} failed with {errno.errorcode[error.errno]} after N s: {error}"
    return untimed(f"{line} {hint}" if hint else line)
