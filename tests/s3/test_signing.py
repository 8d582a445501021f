"""Signatures, held against botocore's."""

from datetime import UTC, datetime
from urllib.parse import quote

import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials as BotoCredentials
from hypothesis import given
from hypothesis import strategies as st

from fastfuse.s3.credentials import Credentials
from fastfuse.s3.endpoints import Endpoint
from fastfuse.s3.signing import Signer

_TIMES = st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1))
_TOKENS = st.none() | st.text("abcXYZ019+/=", min_size=1, max_size=40)


def signer_for(region: str, host: str, extra: dict[str, str] | None = None, *, service: str = "s3") -> Signer:
    endpoint = Endpoint(
        scheme="http",
        host="not signed",
        port=80,
        host_header=host,
        base_path="",
        region=region,
        signing_name=service,
        proxy=None,
    )
    return Signer(endpoint, extra or {})


def botocores(
    path: str,
    host: str,
    credentials: Credentials,
    now: datetime,
    extra: dict[str, str],
    region: str,
    method: str = "GET",
    service: str = "s3",
) -> str:
    """The Authorization header that botocore computes for the same request, at the same time."""
    request = AWSRequest(method, f"http://{host}{path}", headers=extra)
    request.context["timestamp"] = now.strftime("%Y%m%dT%H%M%SZ")
    request.context["payload_signing_enabled"] = True
    request.headers["X-Amz-Date"] = request.context["timestamp"]
    auth = S3SigV4Auth(
        BotoCredentials(credentials.access_key, credentials.secret_key, credentials.token), service, region
    )
    if credentials.token:
        request.headers["X-Amz-Security-Token"] = credentials.token
    request.headers["X-Amz-Content-SHA256"] = auth.payload(request)
    canonical = auth.canonical_request(request)
    auth._inject_signature_to_request(request, auth.signature(auth.string_to_sign(request, canonical), request))
    found: str = request.headers["Authorization"]
    return found


@given(st.text(min_size=1, max_size=20).filter(lambda key: key.isprintable()), _TIMES, _TOKENS, st.booleans())
def test_a_signature_is_botocores(key: str, at: datetime, token: str | None, pays: bool) -> None:
    path = f"/bucket/{quote(key, safe='/~')}"
    credentials = Credentials(access_key="AKIAEXAMPLE", secret_key="secret/+" * 5, token=token)
    extra = {"x-amz-request-payer": "requester"} if pays else {}
    now = at.replace(tzinfo=UTC)
    signer = signer_for("eu-west-1", "127.0.0.1:9000", extra)
    signer.lines("/another", credentials, now.timestamp())
    found = signer.lines(path, credentials, now.timestamp())
    expected = botocores(path, "127.0.0.1:9000", credentials, now, extra, "eu-west-1")
    assert found.endswith(f"\r\nauthorization: {expected}\r\n")
    assert all(f"{name}: {value}\r\n" in found for name, value in extra.items())


@pytest.mark.parametrize("change", ["secret_key", "day", "second"])
def test_new_keys_new_days_and_new_seconds_are_signed_anew(change: str) -> None:
    signer = signer_for("us-east-1", "h")
    first = Credentials(access_key="A", secret_key="one")
    at_s = datetime(2024, 1, 1, tzinfo=UTC).timestamp()
    before = signer.lines("/b/k", first, at_s)
    then = Credentials(access_key="A", secret_key="two") if change == "secret_key" else first
    at_s += {"secret_key": 0, "day": 86400, "second": 1}[change]
    again = signer.lines("/b/k", then, at_s)
    assert again != before
    assert again == signer_for("us-east-1", "h").lines("/b/k", then, at_s)


def test_a_head_is_signed_as_botocore_signs_it() -> None:
    credentials = Credentials(access_key="AKIAEXAMPLE", secret_key="secret/+" * 5)
    now = datetime(2024, 1, 1, tzinfo=UTC)
    found = signer_for("eu-west-1", "127.0.0.1").lines("/bucket/key", credentials, now.timestamp(), method="HEAD")
    expected = botocores("/bucket/key", "127.0.0.1", credentials, now, {}, "eu-west-1", "HEAD")
    assert found.endswith(f"\r\nauthorization: {expected}\r\n")


@given(st.dictionaries(st.sampled_from(["delimiter", "list-type", "prefix", "start-after"]), st.text(max_size=20)))
def test_a_query_is_signed_as_botocore_signs_it(asked: dict[str, str]) -> None:
    query = "&".join(f"{name}={quote(asked[name], safe='-_.~')}" for name in sorted(asked))
    credentials = Credentials(access_key="AKIAEXAMPLE", secret_key="secret/+" * 5)
    now = datetime(2024, 1, 1, tzinfo=UTC)
    found = signer_for("eu-west-1", "127.0.0.1").lines("/bucket", credentials, now.timestamp(), query=query)
    expected = botocores(f"/bucket?{query}", "127.0.0.1", credentials, now, {}, "eu-west-1")
    assert found.endswith(f"\r\nauthorization: {expected}\r\n")


def test_an_endpoint_of_another_service_is_signed_for_that_one() -> None:
    """As an access point of Object Lambda is."""
    credentials = Credentials(access_key="AKIAEXAMPLE", secret_key="secret/+" * 5)
    now = datetime(2024, 1, 1, tzinfo=UTC)
    signer = signer_for("eu-west-1", "127.0.0.1", service="s3-object-lambda")
    expected = botocores("/key", "127.0.0.1", credentials, now, {}, "eu-west-1", service="s3-object-lambda")
    assert signer.lines("/key", credentials, now.timestamp()).endswith(f"\r\nauthorization: {expected}\r\n")


def test_without_credentials_only_the_headers_of_every_request_are_sent() -> None:
    extra = {"x-amz-request-payer": "requester"}
    assert signer_for("eu-west-1", "h", extra).lines("/b/k", None, 0) == "x-amz-request-payer: requester\r\n"
    assert signer_for("eu-west-1", "h").lines("/b/k", None, 0) == ""
