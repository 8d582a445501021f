"""Signatures, held against botocore's."""

from datetime import UTC, datetime
from urllib.parse import quote

import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials as BotoCredentials
from hypothesis import given
from hypothesis import strategies as st

from fastfuse.store.credentials import Credentials
from fastfuse.store.signing import Signer

_TIMES = st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1))
_TOKENS = st.none() | st.text("abcXYZ019+/=", min_size=1, max_size=40)


def botocores(path: str, host: str, credentials: Credentials, now: datetime, extra: dict[str, str], region: str) -> str:
    """The Authorization header that botocore computes for the same request, at the same time."""
    request = AWSRequest("GET", f"http://{host}{path}", headers=extra)
    request.context["timestamp"] = now.strftime("%Y%m%dT%H%M%SZ")
    request.context["payload_signing_enabled"] = True
    request.headers["X-Amz-Date"] = request.context["timestamp"]
    auth = S3SigV4Auth(BotoCredentials(credentials.access_key, credentials.secret_key, credentials.token), "s3", region)
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
    found = Signer("eu-west-1").headers(path, "127.0.0.1:9000", credentials, now=now, extra=extra)
    expected = botocores(path, "127.0.0.1:9000", credentials, now, extra, "eu-west-1")
    assert found["authorization"] == expected


@pytest.mark.parametrize("change", ["secret_key", "day"])
def test_new_keys_and_new_days_are_signed_anew(change: str) -> None:
    signer = Signer("us-east-1")
    first = Credentials(access_key="A", secret_key="one")
    signer.headers("/b/k", "h", first, now=datetime(2024, 1, 1, tzinfo=UTC), extra={})
    then = first if change == "day" else Credentials(access_key="A", secret_key="two")
    at = datetime(2024, 1, 2 if change == "day" else 1, tzinfo=UTC)
    again = signer.headers("/b/k", "h", then, now=at, extra={})
    assert again == Signer("us-east-1").headers("/b/k", "h", then, now=at, extra={})
