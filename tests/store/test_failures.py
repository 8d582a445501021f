import pytest
from botocore.exceptions import ClientError, EndpointConnectionError, NoCredentialsError, ProfileNotFound
from hypothesis import given
from hypothesis import strategies as st

from fastfuse.errors import FastfuseError, ReadError
from fastfuse.objects import ObjectRef
from fastfuse.store.failures import (
    Failure,
    Kind,
    failure_of_exception,
    failure_of_reply,
    read_error,
    safe_cause,
    start_error,
)

REF = ObjectRef("bucket", "key", 1, "")


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (503, "SlowDown", Kind.BUSY),
        (500, "InternalError", Kind.BUSY),
        (502, "", Kind.BUSY),
        (429, "", Kind.BUSY),
        (400, "RequestTimeout", Kind.BUSY),
        (501, "NotImplemented", Kind.OTHER),
        (400, "BadRequest", Kind.OTHER),
        (403, "", Kind.DENIED),
        (403, "InvalidObjectState", Kind.ARCHIVED),
        (403, "RequestTimeTooSkewed", Kind.BAD_KEYS),
        (400, "ExpiredToken", Kind.EXPIRED),
        (404, "404", Kind.CHANGED),
        (404, "NoSuchBucket", Kind.NO_BUCKET),
        (412, "", Kind.CHANGED),
        (301, "", Kind.WRONG_REGION),
    ],
)
def test_the_code_decides_and_the_status_where_there_is_none(status: int, code: str, kind: Kind) -> None:
    assert failure_of_reply(status, code).kind is kind


def test_a_malformed_header_is_a_wrong_region_only_where_the_right_one_is_told() -> None:
    assert failure_of_reply(400, "AuthorizationHeaderMalformed", "eu-west-1").kind is Kind.WRONG_REGION
    assert failure_of_reply(400, "AuthorizationHeaderMalformed").kind is Kind.BAD_KEYS


@given(code=st.text(), region=st.text(), status=st.integers(100, 599))
def test_nothing_but_plain_words_of_a_reply_is_shown(code: str, region: str, status: int) -> None:
    failure = failure_of_reply(status, code, region)
    shown = failure.detail + failure.region
    assert shown.isascii()
    assert shown.replace(" ", "a").isprintable()
    assert len(shown) < 140


@pytest.mark.parametrize("kind", list(Kind))
def test_every_failure_has_its_two_errors(kind: Kind) -> None:
    failure = Failure(kind=kind, detail="503 Detail")
    read = read_error(failure, REF)
    start = start_error(failure, bucket="bucket", endpoint="", region="us-east-1")
    assert isinstance(read, ReadError)
    assert isinstance(start, FastfuseError)
    assert not isinstance(start, ReadError)
    for error in (read, start):
        assert str(error).endswith(".")
        assert "\n" not in str(error)


def test_only_passing_failures_are_tried_again() -> None:
    again = {kind for kind in Kind if Failure(kind=kind, detail="").attempts > 1}
    assert again == {Kind.BUSY, Kind.UNREACHABLE}


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


def test_the_reason_of_a_failed_connection_is_found_behind_its_wrappers() -> None:
    group = ExceptionGroup("all addresses", [ConnectionRefusedError(111, "Connection refused")])
    wrapper = OSError("All connection attempts failed")
    wrapper.__cause__ = group
    failure = failure_of_exception(EndpointConnectionError(endpoint_url="http://a", error=wrapper))
    assert failure.detail == "Connection refused"


def test_a_cause_that_quotes_the_reply_is_kept_out_of_tracebacks() -> None:
    assert safe_cause(ClientError({"Error": {"Code": "c", "Message": "m"}}, "GetObject")) is None
    kept = NoCredentialsError()
    assert safe_cause(kept) is kept
