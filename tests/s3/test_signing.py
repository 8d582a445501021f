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
        scheme="http", host="not signed", port=80, host_header=host, base_path="", region=region, signing_name=service,
        proxy=None,
    )  # fmt: skip
    return Signer(endpoint, extra or {})


def authorization_of_botocore(
    url: str, credentials: Credentials, now: datetime, extra: dict[str, str], method: str, service: str
) -> str:
    """The Authorization header that botocore computes for the same request, at the same time."""
    request = AWSRequest(method, url, headers=extra)
    request.context["timestamp"] = now.strftime("%Y%m%dT%H%M%SZ")
    request.context["payload_signing_enabled"] = True
    request.headers["X-Amz-Date"] = request.context["timestamp"]
    keys = BotoCredentials(credentials.access_key, credentials.secret_key, credentials.token)
    auth = S3SigV4Auth(keys, service, "eu-west-1")
    if credentials.token:
        request.headers["X-Amz-Security-Token"] = credentials.token
    request.headers["X-Amz-Content-SHA256"] = auth.payload(request)
    canonical = auth.canonical_request(request)
    auth._inject_signature_to_request(request, auth.signature(auth.string_to_sign(request, canonical), request))
    found: str = request.headers["Authorization"]
    return found


@given(
    key=st.text(min_size=1, max_size=20).filter(lambda key: key.isprintable()),
    asked=st.dictionaries(st.sampled_from(["delimiter", "list-type", "prefix", "start-after"]), st.text(max_size=20)),
    at=_TIMES,
    token=_TOKENS,
    pays=st.booleans(),
    method=st.sampled_from(["GET", "HEAD"]),
    service=st.sampled_from(["s3", "s3-object-lambda"]),  # the second: of an access point of Object Lambda
)
def test_a_signature_is_botocores(
    key: str, asked: dict[str, str], at: datetime, token: str | None, pays: bool, method: str, service: str
) -> None:
    path = f"/bucket/{quote(key, safe='/~')}"
    query = "&".join(f"{name}={quote(asked[name], safe='-_.~')}" for name in sorted(asked))
    credentials = Credentials(access_key="AKIAEXAMPLE", secret_key="secret/+" * 5, token=token)
    extra = {"x-amz-request-payer": "requester"} if pays else {}
    now = at.replace(tzinfo=UTC)
    signer = signer_for("eu-west-1", "127.0.0.1:9000", extra, service=service)
    signer.lines("/another", credentials, now.timestamp())
    found = signer.lines(path, credentials, now.timestamp(), query=query, method=method)
    url = f"http://127.0.0.1:9000{path}" + (f"?{query}" if query else "")
    expected = authorization_of_botocore(url, credentials, now, extra, method, service)
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


def test_without_credentials_only_the_headers_of_every_request_are_sent() -> None:
    extra = {"x-amz-request-payer": "requester"}
    assert signer_for("eu-west-1", "h", extra).lines("/b/k", None, 0) == "x-amz-request-payer: requester\r\n"
    assert signer_for("eu-west-1", "h").lines("/b/k", None, 0) == ""
