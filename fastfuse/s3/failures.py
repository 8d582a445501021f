"""Classifies what goes wrong between here and the service, and makes the errors that users and readers see.

Every failure becomes a `Failure` of one `Kind`, whether the service refused a request, the network broke or botocore
found no credentials. A message consists of the status, the error code and names that the user gave. It never quotes
the reply's own text, which may hold the token, the access key or the string that was signed.
"""

import errno
import os
import re
import ssl
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum, auto

from botocore import exceptions as boto
from botocore.exceptions import ClientError

from fastfuse.errors import (
    AccessError,
    BadReplyError,
    ConfigurationError,
    DeadlineError,
    FastfuseError,
    ForbiddenObjectError,
    MissingObjectError,
    ObjectArchivedError,
    ObjectChangedError,
    ObjectDeniedError,
    ReadError,
    RefusedError,
    ServiceError,
    SourceError,
    UnavailableError,
    UploadGoneError,
)
from fastfuse.objects import ObjectRef
from fastfuse.s3.proxies import ProxyRefusalError
from fastfuse.s3.threads import NoThreadError
from fastfuse.s3.tls import CertificateError, TlsError


class NoReplyError(ConnectionResetError):
    """A new connection ended before any byte of a reply, or in a refusal before its reason."""


class Kind(Enum):
    """A class of failures, by what can be done about them."""

    # docs/SEMANTICS.md has the table of what each kind leads to; tests/s3/test_retry_policy.py generates it.

    THROTTLED = auto()  # the service asks for fewer requests
    BUSY = auto()  # a passing fault of the service
    BROKEN = auto()  # the connection was cut off or stalled
    UNREACHABLE = auto()
    TLS = auto()
    NOT_S3 = auto()  # something else answers, or what comes is not what was asked for
    CHANGED = auto()
    NO_BUCKET = auto()
    DENIED = auto()
    ARCHIVED = auto()
    EXPIRED = auto()
    SKEWED = auto()
    BAD_CREDENTIALS = auto()
    NO_CREDENTIALS = auto()
    WRONG_REGION = auto()
    BAD_CONFIGURATION = auto()
    OTHER = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One failure. `detail` is safe to show; `region` is the right one where the service named it."""

    kind: Kind
    detail: str
    region: str = ""
    # What the service calls the request, if it answered.
    request_id: str = ""
    # True if something other than an S3 service may have answered, or ended the connection.
    is_foreign: bool = False

    @property
    def name(self) -> str:
        """The detail without what a page says: it may be another one each time."""
        return self.detail.partition(", ")[0]

    @property
    def cause(self) -> str:
        """One of `metrics.RETRY_CAUSES`."""
        return _CAUSES.get(self.kind, "other")


_CREDENTIALS = frozenset({Kind.DENIED, Kind.EXPIRED, Kind.SKEWED, Kind.BAD_CREDENTIALS, Kind.NO_CREDENTIALS})
_CAUSES = dict.fromkeys(_CREDENTIALS, "credentials") | {
    kind: kind.name.lower() for kind in (Kind.THROTTLED, Kind.BUSY, Kind.BROKEN, Kind.UNREACHABLE)
}
_CAUSES[Kind.NOT_S3] = "broken"

# https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html
_CODES_OF_KIND = {
    Kind.THROTTLED: "SlowDown Throttling ThrottlingException KMS.ThrottlingException",
    Kind.BUSY: "RequestTimeout",
    Kind.CHANGED: "InvalidRange NoSuchKey NoSuchVersion PreconditionFailed",
    Kind.NO_BUCKET: "NoSuchBucket",
    Kind.DENIED: "AccessDenied AllAccessDisabled",
    Kind.ARCHIVED: "InvalidObjectState",
    Kind.EXPIRED: "ExpiredToken ExpiredTokenException InvalidToken TokenRefreshRequired",
    Kind.SKEWED: "RequestExpired RequestTimeTooSkewed",
    Kind.BAD_CREDENTIALS: "InvalidAccessKeyId SignatureDoesNotMatch",
    Kind.WRONG_REGION: "AuthorizationHeaderMalformed IllegalLocationConstraintException PermanentRedirect",
}
CODES = {code: kind for kind, codes in _CODES_OF_KIND.items() for code in codes.split()}
STATUSES = {
    **dict.fromkeys((429, 503), Kind.THROTTLED),
    **dict.fromkeys((404, 412, 416), Kind.CHANGED),
    **dict.fromkeys((401, 403), Kind.DENIED),
    **dict.fromkeys((301, 307), Kind.WRONG_REGION),
    408: Kind.BUSY,
}
# OpenSSL's words for plain text in place of a TLS record.
_PLAIN_PORT = "wrong version number"
# A limit of processes, of descriptors or of memory.
_NO_ROOM = (errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ENOMEM)
# Codes and regions are shown to the user, so only such words pass.
_WORD = re.compile(r"[A-Za-z0-9._-]{1,64}", re.ASCII)
# The scheme and host of a redirect, without a user name or path.
_TARGET = re.compile(r"[a-z]{1,8}://[A-Za-z0-9.\[\]:-]{1,128}(?![^/?#])", re.ASCII)


def failure_of_reply(status: int, code: str, region: str = "", location: str = "", request_id: str = "") -> Failure:
    """Classify an HTTP reply; `code` is S3's error code, or empty, and `location` where a redirect points to."""
    code = code if _WORD.fullmatch(code) and not code.isdecimal() else ""
    kind = CODES.get(code) or STATUSES.get(status)
    if kind is None:
        # 501 is final by definition; every other 5xx may be a passing fault of the service.
        kind = Kind.BUSY if 500 <= status < 600 and status != 501 else Kind.OTHER
    region = region if _WORD.fullmatch(region) else ""
    if code == "AuthorizationHeaderMalformed" and not region:
        kind = Kind.BAD_CREDENTIALS  # S3 says the same of an empty or garbled access key
    detail = f"{status} {code}".strip()
    if 300 <= status < 400 and not region:
        # No redirect is followed: signed requests go to the hosts of the endpoint rules only.
        target = _TARGET.match(location)
        detail += f", a redirect to {target[0]!r}, which is not followed" if target else ""
    request_id = request_id if _WORD.fullmatch(request_id) else ""
    return Failure(kind=kind, detail=detail, region=region, request_id=request_id)


def failure_of_network(error: OSError, *, is_connected: bool, is_read: bool = False) -> Failure:
    """Classify what our own sockets raise; `is_connected` tells whether there was a connection before.

    A handshake that fails shows a command (not `is_read`) that its configuration is wrong. A read has an endpoint that
    worked: a terminator of TLS that restarts answers with an alert. Only a wrong certificate is final for both.
    """
    if isinstance(error, CertificateError):
        return Failure(kind=Kind.TLS, detail=f"certificate verification failed: {error.strerror or error}")
    detail = _system_text(error) or str(error) or type(error).__name__
    if is_connected:
        return Failure(kind=Kind.BROKEN, detail=detail, is_foreign=isinstance(error, NoReplyError))
    kind = Kind.TLS if isinstance(error, TlsError) and not is_read else Kind.UNREACHABLE
    return Failure(kind=kind, detail=detail, is_foreign=isinstance(error, ConnectionResetError))


def failure_of_exception(error: Exception, *, is_read: bool = False) -> Failure:
    """Classify what botocore raises; a handshake that fails means the same as in `failure_of_network`."""
    if isinstance(error, ClientError):
        return _failure_of_client_error(error)
    tls = next((cause for cause in _causes(error) if isinstance(cause, ssl.SSLError)), None)
    may_pass = isinstance(tls, ssl.SSLEOFError) or (is_read and not isinstance(tls, ssl.SSLCertVerificationError))
    for kind, types in _KIND_OF_TYPE:
        if isinstance(error, types):
            return Failure(kind=Kind.UNREACHABLE if kind is Kind.TLS and may_pass else kind, detail=_reason(error))
    return Failure(kind=Kind.OTHER, detail=type(error).__name__)


_UNANSWERED = (boto.ConnectionError, boto.HTTPClientError)
# The first row that fits decides: `SSLError` is a `ConnectionError`, too.
_KIND_OF_TYPE: tuple[tuple[Kind, tuple[type[Exception], ...]], ...] = (
    (Kind.TLS, (boto.SSLError,)),
    (Kind.BROKEN, (boto.HTTPClientError, boto.IncompleteReadError)),
    (Kind.UNREACHABLE, (boto.ConnectionError,)),
    (Kind.EXPIRED, (boto.UnauthorizedSSOTokenError, boto.SSOTokenLoadError, boto.TokenRetrievalError)),
    (Kind.NO_CREDENTIALS, (boto.NoCredentialsError, boto.CredentialRetrievalError, boto.MetadataRetrievalError)),
    (Kind.BAD_CONFIGURATION, (boto.ProfileNotFound, boto.ConfigParseError, boto.ConfigNotFound)),
    (Kind.BAD_CONFIGURATION, (boto.PartialCredentialsError, boto.UnknownCredentialError, boto.InvalidConfigError)),
    (Kind.BAD_CONFIGURATION, (boto.InvalidRegionError, boto.NoRegionError, boto.EndpointProviderError)),
    (Kind.BAD_CONFIGURATION, (boto.InvalidS3AddressingStyleError, boto.UnsupportedS3ConfigurationError)),
    (Kind.BAD_CONFIGURATION, (boto.ParamValidationError,)),
)


def _failure_of_client_error(error: ClientError) -> Failure:
    reply = error.response
    metadata = reply.get("ResponseMetadata", {})
    region = metadata.get("HTTPHeaders", {}).get("x-amz-bucket-region") or reply.get("Error", {}).get("Region", "")
    code = str(reply.get("Error", {}).get("Code", ""))
    status = int(metadata.get("HTTPStatusCode", 0))
    return failure_of_reply(status, code, str(region))


def _reason(error: BaseException) -> str:
    """Return the innermost plain cause in words: botocore's own text may hold a whole request URL."""
    for cause in _causes(error):
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"certificate verification failed: {cause.verify_message}"
        if isinstance(cause, ssl.SSLError):
            return f"TLS failed: {cause.reason or 'handshake'}"
        if isinstance(cause, OSError) and cause.strerror:
            return _system_text(cause)
    if isinstance(error, boto.ConnectTimeoutError | boto.ReadTimeoutError):
        return "no answer in time"
    # botocore's wrapper says nothing; the name of the wrapped error (httpx2's RemoteProtocolError, say) does.
    return type([*_causes(error)][-1]).__name__


def _system_text(error: OSError) -> str:
    """Return the system's words for `error`, without the address that trio's repeat; empty where it has none."""
    # A name that does not resolve has a number below 0 and a good text.
    has_own_text = isinstance(error, TlsError | ProxyRefusalError | NoThreadError)
    number = error.errno or 0
    return os.strerror(number) if number > 0 and not has_own_text else error.strerror or ""


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield `error` and its causes, along botocore's ``error=`` argument and Python's own two links."""
    waiting, seen = [error], set[int]()
    while waiting:
        one = waiting.pop(0)
        if id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        kept = getattr(one, "kwargs", {})
        inner = kept.get("error") if isinstance(kept, dict) else None
        # A failed connection is a group, with one error for each of the host's addresses.
        members = one.exceptions if isinstance(one, BaseExceptionGroup) else ()
        links = (*members, inner, one.__cause__, one.__context__)
        waiting += [link for link in links if isinstance(link, BaseException)]


def safe_cause(error: Exception) -> Exception | None:
    """Return `error` for ``raise ... from``, or None if it holds a reply's or a credential process's own text."""
    return None if isinstance(error, ClientError | boto.CredentialRetrievalError) else error


def outcome_of(error: BaseException) -> str:
    """Return the outcome of a GET that ended with `error`, as `metrics.OUTCOMES` names it."""
    return next((name for kind, name in _OUTCOMES if isinstance(error, kind)), "other")


def as_read_error(error: FastfuseError, ref: ObjectRef) -> ReadError:
    """Return what a reader of `ref` is told of an error that is not of the object."""
    kind = ObjectDeniedError if isinstance(error, AccessError | ConfigurationError) else UnavailableError
    return kind(f"{ref.key!r} could not be read: {error}", hint=error.hint)


def read_error(failure: Failure, ref: ObjectRef) -> ReadError:
    """Return the error that the reader of `ref` gets."""
    error = _read_error(failure, ref)
    error.reply = failure.name
    return error


def _read_error(failure: Failure, ref: ObjectRef) -> ReadError:
    detail = failure.detail + (f", request {failure.request_id}" if failure.request_id else "")
    match failure.kind:
        case Kind.NO_BUCKET:
            return ObjectChangedError(f"{ref.key!r} could not be read: its bucket does not exist any more ({detail}).")
        case Kind.CHANGED:
            return ObjectChangedError(f"{ref.key!r} was replaced or deleted since it was listed ({detail}).")
        case Kind.ARCHIVED:
            return ObjectArchivedError(
                f"{ref.key!r} is in an archive storage class ({ref.storage_class}).", hint="Restore the object first."
            )
        case Kind.DENIED:
            return ObjectDeniedError(f"The service denies access to {ref.key!r} ({detail}).")
        case Kind.SKEWED:
            text = f"The service refuses the time at which a request for {ref.key!r} was signed ({detail})."
            return ObjectDeniedError(text, hint="Set this machine's clock.")
        case Kind.EXPIRED | Kind.BAD_CREDENTIALS | Kind.NO_CREDENTIALS:
            text = f"The service refuses the credentials for {ref.key!r} ({detail})."
            return ObjectDeniedError(text, hint=_CREDENTIALS_HINT)
        case Kind.BAD_CONFIGURATION:
            return ObjectDeniedError(f"{ref.key!r} could not be read ({detail}).")
        case Kind.OTHER if _OF_KMS in detail:
            return ObjectDeniedError(f"The service cannot decrypt {ref.key!r} ({detail}).", hint=_KMS_HINT)
        case Kind.TLS:
            hint = _tls_hint(detail) or _AUTHORITY_HINT
            return UnavailableError(f"{ref.key!r} could not be read ({detail}).", hint=hint)
        case _:
            return UnavailableError(f"{ref.key!r} could not be read ({detail}).")


_OUTCOMES: tuple[tuple[type[Exception], str], ...] = (
    (ObjectChangedError, "changed"),
    (ObjectDeniedError, "denied"),
    (UnavailableError, "unavailable"),
    (DeadlineError, "deadline"),
    (BadReplyError, "bad_reply"),
)
_CONFIGURATION_HINT = "Check the --profile (aws configure list-profiles lists them), its files, and the --region."
# The codes with which S3 passes on what KMS refuses, such as a key that is disabled.
_OF_KMS = " KMS."
_KMS_HINT = "The key of KMS that encrypts it must be enabled, and not about to be deleted."
_AUTHORITY_HINT = "Put its authority into the file of --ca-bundle, which root's mounts read as user nobody."
_CREDENTIALS_HINT = "Renew the credentials (for SSO: aws sso login), or name a --profile."


def object_error(failure: Failure, *, bucket: str, key: str, operation: str) -> FastfuseError | None:
    """Return the error of a request for one object, `operation` being "read" or "write"; None for one of the bucket."""
    shown = repr(f"s3://{bucket}/{key}")
    match failure.kind:
        case Kind.CHANGED if operation == "read":
            return MissingObjectError(f"There is no object {shown}.")
        case Kind.CHANGED if failure.detail.endswith(" NoSuchUpload"):
            return UploadGoneError(
                f"The upload to {shown} is gone before its end ({failure.detail}).",
                hint="Does something abort uploads, or a rule of the bucket's lifecycle?",
            )
        case Kind.DENIED | Kind.ARCHIVED:
            return ForbiddenObjectError(
                f"The service denies access to {shown} ({failure.detail}).",
                hint="It takes s3:GetObject to read it, and s3:PutObject to write it; with a key of KMS also "
                "kms:Decrypt, and to write it kms:GenerateDataKey.",
            )
        case Kind.OTHER if _OF_KMS in failure.detail:
            hint = "The key (KmsKeyId of a job, or else the bucket's) must be in the bucket's region, and enabled."
            return ConfigurationError(
                f"The service cannot {operation} {shown} with its key of KMS ({failure.detail}).",
                hint=hint if operation == "write" else "",
            )
        case Kind.THROTTLED | Kind.BUSY | Kind.BROKEN | Kind.OTHER | Kind.CHANGED:
            error = RefusedError if failure.kind is Kind.OTHER else ServiceError
            return error(f"The S3 service failed to {operation} {shown} ({failure.detail}).")
    return None


def start_error(failure: Failure, *, bucket: str, endpoint: str, region: str, is_signed: bool = True) -> FastfuseError:
    """Return the error of a command that cannot use `bucket`. `endpoint` is for display, without credentials."""
    where = f"at {endpoint}" if endpoint else "at AWS"
    detail = failure.detail
    match failure.kind:
        case Kind.NO_BUCKET | Kind.CHANGED:
            return SourceError(f"There is no bucket {bucket!r} {where}.", hint="Check its name and --endpoint-url.")
        case Kind.DENIED | Kind.ARCHIVED:
            hint = "It takes s3:ListBucket and s3:GetObject; another --profile may have them, "
            hint += "and a public bucket needs --no-sign-request."
            if detail.endswith("DomainForbidden"):
                hint = "The host's name must begin with the bucket's: write addressing_style = virtual below s3 = in "
                hint += "the profile of ~/.aws/config."
            return AccessError(f"The service denies listing the bucket {bucket!r} ({detail}).", hint=hint)
        case Kind.EXPIRED:
            return AccessError(f"The AWS credentials have expired ({detail}).", hint=_CREDENTIALS_HINT)
        case Kind.BAD_CREDENTIALS | Kind.SKEWED:
            return AccessError(
                f"The service does not accept the AWS credentials ({detail}).",
                hint="Check the keys, the --profile, the --endpoint-url and this machine's clock.",
            )
        case Kind.WRONG_REGION:
            return _wrong_region(failure, bucket, region)
        case Kind.NOT_S3 | Kind.TLS | Kind.UNREACHABLE:
            return _no_service(failure, where, is_signed=is_signed)
        case Kind.NO_CREDENTIALS | Kind.BAD_CONFIGURATION:
            return ConfigurationError(
                f"The bucket {bucket!r} cannot be used with this configuration ({detail}).", hint=_CONFIGURATION_HINT
            )
        case _:
            return ServiceError(
                f"The S3 service {where} failed to list the bucket {bucket!r} ({detail}).",
                hint="See whether it passes. If it does not, ask whoever runs the service.",
            )


def _no_service(failure: Failure, where: str, *, is_signed: bool) -> ServiceError:
    detail = failure.detail
    if failure.kind is Kind.NOT_S3:
        hint = "Check --endpoint-url, its port, and whether it begins with http:// or https://."
        if not is_signed:
            hint += " Without --no-sign-request it may be one: OpenStack Swift is S3 to signed requests only."
        return ServiceError(f"What answers {where} is not an S3 service: {detail}.", hint=hint)
    if failure.kind is Kind.UNREACHABLE:
        return ServiceError(
            f"The S3 service {where} cannot be reached: {detail}.", hint="Check --endpoint-url and the network."
        )
    if _PLAIN_PORT in detail:
        return ServiceError(
            f"What answers {where} does not speak TLS: {detail}.",
            hint="Correct --endpoint-url: http:// in place of https://, or another port.",
        )
    return ServiceError(
        f"No secure connection to the S3 service {where}: {detail}.",
        hint=_tls_hint(detail)
        or "Name the certificate authority with --ca-bundle, or trust any certificate with --no-verify-ssl.",
    )


def _tls_hint(detail: str) -> str:
    """Return what to do about a certificate of a known authority; `detail` has OpenSSL's words for what is wrong."""
    if "has expired" in detail or "not yet valid" in detail:
        return "Set this machine's clock if it is wrong. If it is right, the service needs another certificate."
    if "mismatch" in detail:
        return "The certificate is of another host: correct the host of --endpoint-url."
    return ""


def _wrong_region(failure: Failure, bucket: str, region: str) -> ConfigurationError:
    if failure.region and failure.region != region:
        return ConfigurationError(
            f"The bucket {bucket!r} is in the region {failure.region}, not in {region}.",
            hint=f"Use --region {failure.region}.",
        )
    return ConfigurationError(
        f"The bucket {bucket!r} is not in the region {region}, and the service does not tell in which it is "
        f"({failure.detail}).",
        hint="Name the right one with --region.",
    )


def resolution_error(error: Exception) -> FastfuseError:
    """Return the error of credentials that cannot be resolved."""
    failure = failure_of_exception(error)
    if failure.kind is Kind.NO_CREDENTIALS and any(isinstance(one, _UNANSWERED) for one in _causes(error)):
        failure = replace(failure, kind=Kind.UNREACHABLE)  # a container's service of credentials
    match failure.kind:
        case Kind.BAD_CONFIGURATION:
            # botocore's text names a profile, a file or a setting; only that of parameters may have their values.
            told = failure.detail if isinstance(error, boto.ParamValidationError) else str(error).rstrip(".")
            return ConfigurationError(f"The AWS configuration is wrong: {told}.", hint=_CONFIGURATION_HINT)
        case Kind.EXPIRED:
            return AccessError(f"The AWS sign-in has expired ({failure.detail}).", hint=_CREDENTIALS_HINT)
        case Kind.UNREACHABLE | Kind.TLS | Kind.THROTTLED | Kind.BUSY | Kind.BROKEN:
            return ServiceError(
                f"The service that issues the AWS credentials cannot be used: {failure.detail}.",
                hint="Check the network and the profile's role or sign-in settings.",
            )
        case _ if isinstance(error, OSError) and error.errno in _NO_ROOM:
            return ServiceError(
                f"The AWS credentials cannot be had now: {_system_text(error)}.",
                hint="see ulimit -u, ulimit -n, the cgroup's pids.max and free memory",
            )
        case _:
            detail = failure.detail
            if isinstance(error, OSError):  # the token file or the credential program
                detail = error.strerror or type(error).__name__
                detail += f": {error.filename!r}" if error.filename else ""
            return AccessError(
                f"The AWS credentials cannot be had ({detail}).",
                hint="Check the profile's role, process or sign-in settings, or name another --profile.",
            )
