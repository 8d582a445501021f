import errno
import socket
import ssl

import pytest
from botocore.exceptions import (
    ClientError,
    EndpointConnectionError,
    NoCredentialsError,
    ParamValidationError,
    ProfileNotFound,
    SSLError,
)
from hypothesis import given
from hypothesis import strategies as st

from fastfuse.errors import (
    ConfigurationError,
    FastfuseError,
    ForbiddenObjectError,
    MissingObjectError,
    ObjectChangedError,
    ObjectDeniedError,
    ReadError,
    ServiceError,
)
from fastfuse.objects import ObjectRef
from fastfuse.s3.failures import (
    Failure,
    Kind,
    failure_of_exception,
    failure_of_network,
    failure_of_reply,
    object_error,
    read_error,
    resolution_error,
    safe_cause,
    start_error,
)
from fastfuse.s3.proxies import ProxyRefusalError
from fastfuse.s3.tls import CertificateError, TlsError

REF = ObjectRef("bucket", "key", 1, "")


def test_a_malformed_header_is_a_wrong_region_only_where_the_right_one_is_told() -> None:
    assert failure_of_reply(400, "AuthorizationHeaderMalformed", "eu-west-1").kind is Kind.WRONG_REGION
    assert failure_of_reply(400, "AuthorizationHeaderMalformed").kind is Kind.BAD_CREDENTIALS


@given(code=st.text(), region=st.text(), status=st.integers(100, 599))
def test_nothing_but_plain_words_of_a_reply_is_shown(code: str, region: str, status: int) -> None:
    failure = failure_of_reply(status, code, region, request_id=code)
    shown = failure.detail + failure.region
    assert len(failure.request_id) <= 64
    assert failure.request_id.replace(" ", "a").isprintable()
    assert shown.isascii()
    assert shown.replace(" ", "a").isprintable()
    assert len(shown) < 140


def test_a_service_that_refuses_path_style_is_told_with_the_setting() -> None:
    failure = failure_of_reply(403, "SecondLevelDomainForbidden")
    error = start_error(failure, bucket="bucket", endpoint="https://oss.example.com", region="r")
    assert "addressing_style = virtual" in error.hint


@pytest.mark.parametrize("kind", list(Kind))
def test_every_failure_has_its_two_errors(kind: Kind) -> None:
    failure = Failure(kind=kind, detail="503 Detail")
    read = read_error(failure, REF)
    start = start_error(failure, bucket="bucket", endpoint="", region="us-east-1")
    assert isinstance(read, ReadError)
    assert isinstance(start, FastfuseError)
    assert not isinstance(start, ReadError)
    assert start.hint, "what to do is not told"
    assert ("clock" in start.hint) == (kind in (Kind.SKEWED, Kind.BAD_CREDENTIALS))
    for error in (read, start):
        assert str(error).endswith(".")
        assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("reason", "remedy"),
    [
        ("certificate has expired", "clock"),
        ("certificate is not yet valid", "clock"),
        ("hostname mismatch", "--endpoint-url"),
        ("IP address mismatch", "--endpoint-url"),
        ("self-signed certificate", "--ca-bundle"),
        ("unable to get local issuer certificate", "--ca-bundle"),
    ],
)
def test_what_helps_against_a_certificate_depends_on_what_is_wrong_with_it(reason: str, remedy: str) -> None:
    failure = failure_of_network(CertificateError(0, reason), is_connected=False, is_read=True)
    for error in (read_error(failure, REF), start_error(failure, bucket="b", endpoint="https://h", region="r")):
        assert reason in str(error)
        assert remedy in error.hint
        assert ("--no-verify-ssl" in error.hint) == (remedy == "--ca-bundle" and not isinstance(error, ReadError))


def test_a_bucket_that_was_deleted_is_not_told_as_an_object_that_was_replaced() -> None:
    error = read_error(failure_of_reply(404, "NoSuchBucket"), REF)
    assert isinstance(error, ObjectChangedError)
    assert "its bucket does not exist any more (404 NoSuchBucket)" in str(error)


@pytest.mark.parametrize("code", ["KMS.DisabledException", "KMS.KMSInvalidStateException"])
def test_the_reader_of_an_object_that_kms_does_not_decrypt_is_denied(code: str) -> None:
    error = read_error(failure_of_reply(400, code), REF)
    assert isinstance(error, ObjectDeniedError)
    assert code in str(error)
    assert "enabled" in error.hint


@pytest.mark.parametrize("code", ["ThrottlingException", "KMS.ThrottlingException"])
def test_a_throttled_kms_is_asked_again(code: str) -> None:
    assert failure_of_reply(400, code).kind is Kind.THROTTLED


@pytest.mark.parametrize(
    ("location", "shown"),
    [
        ("https://other.example.com/bucket/key?X-Amz-Signature=s", "https://other.example.com"),
        ("http://[::1]:9000/", "http://[::1]:9000"),
        ("https://user:hunter2@other.example.com/", ""),
        ("//other.example.com/", ""),
        ("/elsewhere", ""),
        ("https://a\nb/", ""),
        ("", ""),
    ],
)
def test_a_redirect_is_told_by_the_host_that_it_leads_to_and_nothing_else(location: str, shown: str) -> None:
    expected = f"307, a redirect to {shown!r}, which is not followed" if shown else "307"
    assert failure_of_reply(307, "", "", location).detail == expected


def test_a_redirect_that_names_a_region_is_told_by_that() -> None:
    failure = failure_of_reply(301, "PermanentRedirect", "eu-west-1", "https://other.example.com/")
    assert (failure.detail, failure.region) == ("301 PermanentRedirect", "eu-west-1")


REFUSED = ConnectionRefusedError(errno.ECONNREFUSED, "all attempts to connect to 127.0.0.1:9 failed")
NO_HOST = socket.gaierror(socket.EAI_NONAME, "Name or service not known")


@pytest.mark.parametrize(
    ("error", "is_connected", "kind", "detail"),
    [
        (REFUSED, False, Kind.UNREACHABLE, "Connection refused"),
        (NO_HOST, False, Kind.UNREACHABLE, "Name or service not known"),
        (TimeoutError(errno.ETIMEDOUT, "no connection in time"), False, Kind.UNREACHABLE, "Connection timed out"),
        (ProxyRefusalError(errno.EACCES, "p answered 407"), False, Kind.UNREACHABLE, "p answered 407"),
        (ConnectionResetError(errno.ECONNRESET, ""), True, Kind.BROKEN, "Connection reset by peer"),
        (ConnectionResetError("the connection was cut off"), True, Kind.BROKEN, "the connection was cut off"),
        (OSError(), True, Kind.BROKEN, "OSError"),
    ],
)
def test_the_network_is_told_in_system_words(error: OSError, *, is_connected: bool, kind: Kind, detail: str) -> None:
    failure = failure_of_network(error, is_connected=is_connected)
    assert (failure.kind, failure.detail) == (kind, detail)


def test_a_failure_of_tls_is_one_of_the_configuration_only_while_there_is_no_connection() -> None:
    broken = TlsError(errno.EPROTO, "wrong version number")
    assert failure_of_network(broken, is_connected=False).kind is Kind.TLS
    assert failure_of_network(broken, is_connected=False, is_read=True).kind is Kind.UNREACHABLE
    assert failure_of_network(broken, is_connected=True).kind is Kind.BROKEN
    untrusted = CertificateError(errno.EPROTO, "self-signed certificate")
    for is_connected in (True, False):
        failure = failure_of_network(untrusted, is_connected=is_connected, is_read=True)
        assert failure.kind is Kind.TLS
        assert failure.detail == "certificate verification failed: self-signed certificate"


@pytest.mark.parametrize(
    ("kind", "operation", "error"),
    [
        (Kind.CHANGED, "read", MissingObjectError),
        (Kind.CHANGED, "write", ServiceError),
        (Kind.DENIED, "read", ForbiddenObjectError),
        (Kind.DENIED, "write", ForbiddenObjectError),
    ],
)
def test_an_object_not_to_be_had_is_named_as_a_string(kind: Kind, operation: str, error: type[FastfuseError]) -> None:
    found = object_error(Failure(kind=kind, detail="d"), bucket="bucket", key="a\x1b]0;b", operation=operation)
    assert type(found) is error
    assert "'s3://bucket/a\\x1b]0;b'" in str(found)


@pytest.mark.parametrize(
    "kind", [Kind.EXPIRED, Kind.BAD_CREDENTIALS, Kind.SKEWED, Kind.WRONG_REGION, Kind.UNREACHABLE, Kind.TLS]
)
def test_what_every_object_of_a_bucket_would_meet_is_no_error_of_one(kind: Kind) -> None:
    assert object_error(Failure(kind=kind, detail="d"), bucket="bucket", key="key", operation="read") is None


@pytest.mark.parametrize("operation", ["read", "write"])
def test_the_key_of_a_job_is_to_blame_for_what_is_written_only(operation: str) -> None:
    failure = Failure(kind=Kind.OTHER, detail="400 KMS.DisabledException")
    found = object_error(failure, bucket="bucket", key="key", operation=operation)
    assert isinstance(found, ConfigurationError)
    assert ("KmsKeyId" in found.hint) == (operation == "write")


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (NoCredentialsError(), Kind.NO_CREDENTIALS),
        (ProfileNotFound(profile="p"), Kind.BAD_CONFIGURATION),
        (EndpointConnectionError(endpoint_url="http://a/?X-Amz-Signature=s"), Kind.UNREACHABLE),
        (RuntimeError("X-Amz-Signature"), Kind.OTHER),
    ],
)
def test_a_foreign_exception_is_told_by_its_type_and_never_by_its_text(error: Exception, kind: Kind) -> None:
    failure = failure_of_exception(error)
    assert failure.kind is kind
    assert "X-Amz" not in failure.detail


def test_a_wrong_parameter_is_told_without_its_value() -> None:
    error = ParamValidationError(report="Invalid type for parameter ExternalId, value: the-secret, type: <class 'int'>")
    assert "the-secret" not in str(resolution_error(error))


def test_the_reason_of_a_failed_connection_is_found_behind_its_wrappers() -> None:
    group = ExceptionGroup("all addresses", [ConnectionRefusedError(111, "Connection refused")])
    wrapper = OSError("All connection attempts failed")
    wrapper.__cause__ = group
    failure = failure_of_exception(EndpointConnectionError(endpoint_url="http://a", error=wrapper))
    assert failure.detail == "Connection refused"


@pytest.mark.parametrize(
    ("cause", "of_a_command", "of_a_read"),
    [
        (ssl.SSLEOFError(8, "EOF"), Kind.UNREACHABLE, Kind.UNREACHABLE),
        (ssl.SSLError(1, "an alert"), Kind.TLS, Kind.UNREACHABLE),
        (ssl.SSLCertVerificationError(1, "another name"), Kind.TLS, Kind.TLS),
    ],
)
def test_a_handshake_of_an_upload_that_fails_may_be_made_again(
    cause: ssl.SSLError, of_a_command: Kind, of_a_read: Kind
) -> None:
    vars(cause).update(reason="words", verify_message="words")  # as OpenSSL's errors have them
    error = SSLError(endpoint_url="https://a", error=cause)
    assert failure_of_exception(error).kind is of_a_command
    assert failure_of_exception(error, is_read=True).kind is of_a_read


def test_a_cause_that_quotes_the_reply_is_kept_out_of_tracebacks() -> None:
    assert safe_cause(ClientError({"Error": {"Code": "c", "Message": "m"}}, "GetObject")) is None
    kept = NoCredentialsError()
    assert safe_cause(kept) is kept
