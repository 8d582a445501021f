import io
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from botocore.awsrequest import AWSPreparedRequest, AWSResponse
from botocore.config import Config
from botocore.exceptions import BotoCoreError
from botocore.loaders import JSONFileLoader, Loader, create_loader
from botocore.session import Session
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from fastfuse.errors import ConfigurationError
from fastfuse.s3.aws import S3Session
from fastfuse.s3.base import ConnectionConfig
from fastfuse.s3.endpoints import Endpoint, resolve_endpoint

ACCOUNT = "123456789012"
OWN = "http://127.0.0.1:9000"
OUTPOST_ALIAS = "test-accessp-o0b1d075431d83bebde8xz5w8ijx1qzlbp3i3kuse10--op-s3"


@dataclass(frozen=True)
class Case:
    """A bucket and everything that decides where botocore looks for it."""

    bucket: str
    region: str = "eu-west-1"
    endpoint_url: str | None = None
    force_path_style: bool = False
    # Of the profile, and of its "s3 =" section.
    profile: Mapping[str, str] | None = None
    s3: Mapping[str, str] | None = None

    def written(self) -> str:
        lines = ["[default]", *(f"{name} = {value}" for name, value in (self.profile or {}).items())]
        if self.s3:
            lines += ["s3 =", *(f"  {name} = {value}" for name, value in self.s3.items())]
        return "\n".join(lines) + "\n"

    def resolved(self) -> Endpoint:
        config = ConnectionConfig(endpoint_url=self.endpoint_url, force_path_style=self.force_path_style)
        return resolve_endpoint(S3Session(config), self.bucket, self.region)


# Where a request goes and how it is signed: scheme, host, path, region and the name of the service.
Sent = tuple[str, str, str, str, str]


@cache
def loader() -> Loader:
    return create_loader()


def sent_by_botocore(case: Case) -> Sent:
    """Return what a client of botocore's sends for a GET of the object "key"."""
    session = Session()
    session.register_component("data_loader", loader())
    config = Config(s3={"addressing_style": "path"}) if case.force_path_style else None
    client = session.create_client("s3", region_name=case.region, endpoint_url=case.endpoint_url, config=config)
    requests: list[AWSPreparedRequest] = []

    def answer(request: AWSPreparedRequest, **_: object) -> AWSResponse:
        requests.append(request)
        return AWSResponse(request.url, 200, {}, io.BytesIO())

    client.meta.events.register("before-send.s3", answer)
    client.get_object(Bucket=case.bucket, Key="key")
    url = urlsplit(requests[0].url)
    credential = requests[0].headers["Authorization"].decode().partition("Credential=")[2].partition(",")[0]
    _, _, region, signing_name, _ = credential.split("/")
    default_port = {"http": ":80", "https": ":443"}[url.scheme]
    host = url.netloc.lower().removesuffix(default_port)
    return url.scheme, host, url.path, region, signing_name


def sent_to(endpoint: Endpoint) -> Sent:
    path = f"{endpoint.base_path}/key"
    return endpoint.scheme, endpoint.host_header, path, endpoint.region, endpoint.signing_name


REGIONS = (
    *("us-east-1", "eu-west-1", "us-west-2", "cn-north-1", "us-gov-west-1", "us-iso-east-1", "aws-global"),
    *("fips-us-gov-west-1", "us-east-1-fips", "mars-east-1"),
)
ENDPOINTS = (
    *("http://127.0.0.1:9000", "https://s3.example.com", "https://S3.Example.com:443/base/", "http://[::1]:9000/a"),
    *("http://[::1]:80", "https://s3.local:8443/a/b", "https://s3-accelerate.amazonaws.com"),
    *("https://s3.example.com/a%20b", "http://localhost"),
)
booleans = st.sampled_from(["true", "false"])
arns = st.builds(
    "arn:{}:{}:{}:{}:{}".format,
    st.sampled_from(["aws", "aws", "aws-cn", "aws-us-gov", "awsx"]),
    st.sampled_from(["s3", "s3", "s3-object-lambda"]),
    st.sampled_from(["eu-west-1", "us-west-2", "cn-north-1", "us-gov-west-1", "fips-us-gov-west-1"]),
    st.just(ACCOUNT),
    st.sampled_from(["accesspoint/points", "accesspoint:points", "accesspoint/with.dot", "accesspoint/a/b", "other/a"]),
)
outposts = st.builds(
    "arn:{}:s3-outposts:{}:{}:outpost{}op-01234567890123456{}accesspoint{}points".format,
    st.sampled_from(["aws", "aws-us-gov"]),
    st.sampled_from(["us-west-2", "us-gov-west-1"]),
    st.just(ACCOUNT),
    *([st.sampled_from([":", "/"])] * 3),
)
names = st.one_of(
    st.sampled_from(["bucket", "with.dots", "Old_Bucket", "ab", "a-b", "192.168.1.1", "x-1234-s3alias", OUTPOST_ALIAS]),
    st.sampled_from(["no bucket", "bücket", "a/b", "", "a" * 64, "a" * 256, "arn:aws:s3:::bucket", "-a-"]),
    st.from_regex(r"[a-zA-Z0-9_-][a-zA-Z0-9._-]{0,70}", fullmatch=True).filter(lambda name: not name.endswith("-s3")),
)
cases = st.builds(
    Case,
    bucket=st.one_of(names, arns, outposts),
    region=st.sampled_from(REGIONS),
    endpoint_url=st.one_of(st.none(), st.sampled_from(ENDPOINTS)),
    force_path_style=st.booleans(),
    profile=st.fixed_dictionaries(
        {},
        optional={
            "use_fips_endpoint": booleans,
            "use_dualstack_endpoint": booleans,
            "endpoint_url": st.sampled_from(ENDPOINTS),
            "ignore_configured_endpoint_urls": booleans,
        },
    ),
    s3=st.fixed_dictionaries(
        # Only here do we differ: the default of botocore is "legacy".
        {"us_east_1_regional_endpoint": st.sampled_from(["legacy", "regional"])},
        optional={
            "addressing_style": st.sampled_from(["auto", "path", "virtual"]),
            "use_accelerate_endpoint": booleans,
            "use_dualstack_endpoint": booleans,
            "use_arn_region": booleans,
        },
    ),
)


@given(cases)
@example(Case(f"arn:aws:s3:us-west-2:{ACCOUNT}:accesspoint/points", s3={"use_dualstack_endpoint": "true"}))
@example(Case(f"arn:aws:s3:us-west-2:{ACCOUNT}:accesspoint/points", endpoint_url="https://s3.local:8443/base"))
@example(Case("bucket", s3={"use_accelerate_endpoint": "true"}))
@example(Case(OUTPOST_ALIAS, region="us-west-2"))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_requests_go_where_botocores_go_and_are_signed_alike(aws_environment: Path, case: Case) -> None:
    aws_environment.write_text(case.written())
    try:
        expected = sent_by_botocore(case)
    except (BotoCoreError, ValueError):
        with pytest.raises(ConfigurationError) as caught:
            case.resolved()
        assert caught.value.hint
        return
    if "[" in expected[1][1:]:  # "points.[::1]", which botocore's HTTP client would then not take
        with pytest.raises(ConfigurationError, match="not a host name"):
            case.resolved()
        return
    assert sent_to(case.resolved()) == expected


@pytest.mark.parametrize(
    ("url", "host", "port", "host_header"),
    [
        ("http://[::1]:9000", "::1", 9000, "[::1]:9000"),
        ("https://[::1]:443", "::1", 443, "[::1]"),
        ("http://S3.Local", "s3.local", 80, "s3.local"),
        ("http://store_1:9000", "store_1", 9000, "store_1:9000"),  # a name that Docker gives; botocore refuses it
        ("https://s3.local:8443/base", "s3.local", 8443, "s3.local:8443"),
    ],
)
def test_the_host_to_connect_to_is_plain_and_the_sent_one_not(url: str, host: str, port: int, host_header: str) -> None:
    endpoint = Case("bucket", endpoint_url=url).resolved()
    assert (endpoint.host, endpoint.port, endpoint.host_header) == (host, port, host_header)


def test_the_environment_decides_like_the_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_USE_FIPS_ENDPOINT", "true")
    assert Case("bucket").resolved().host == "bucket.s3-fips.eu-west-1.amazonaws.com"
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "https://own.example.com")
    assert Case("bucket").resolved().host == "own.example.com"
    monkeypatch.setenv("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "true")
    assert Case("bucket").resolved().host == "bucket.s3-fips.eu-west-1.amazonaws.com"


@pytest.mark.parametrize(
    ("bucket", "kind", "hint"),
    [
        ("fast--use1-az4--x-s3", "S3 Express One Zone", "general purpose bucket"),
        ("points--use1-az4--xa-s3", "S3 Express One Zone", "general purpose bucket"),
        (f"arn:aws:s3::{ACCOUNT}:accesspoint/mfzwi23gnjvgw.mrap", "multi-region access point", "one region"),
    ],
)
@pytest.mark.parametrize("endpoint_url", [None, OWN])
def test_unsupported_buckets_are_refused_by_name(bucket: str, kind: str, hint: str, endpoint_url: str | None) -> None:
    with pytest.raises(ConfigurationError, match=f"{kind}.*not supported") as caught:
        Case(bucket, endpoint_url=endpoint_url).resolved()
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("case", "message"),
    [
        *(
            (Case(bucket, endpoint_url=OWN), re.escape(repr(bucket)))
            for bucket in ("no bucket!", "..", ".", "", "bucket\n", "a/b", "arn:aws:s3:::bucket")
        ),
        *(
            (Case("bucket", region=region, endpoint_url=url), "not the name of a region")
            for region in ("", "evil.example.com/", "eu-west-1\r\nx: y", "-a", "a" * 64)
            for url in (None, OWN)
        ),
        *(
            (Case("bucket", endpoint_url=url), "not a host name")
            for url in (
                *("http://a b", "http://bücher.example", "http://a\x7f", "http://-a", "http://a..b"),
                *(
                    f"http://{'a' * 64}.test",
                    f"http://a.{'b' * 64}",
                    "http://[fe80::1%a..b]",
                    f"http://[::1%{'a' * 64}]",
                ),
            )
        ),
    ],
    ids=repr,
)
def test_what_no_bucket_no_region_and_no_host_can_be_called_is_refused(case: Case, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as caught:
        case.resolved()
    assert message != "not a host name" or "--endpoint-url" in caught.value.hint


def test_what_does_not_go_together_is_told_in_the_words_of_the_rules(aws_environment: Path) -> None:
    case = Case("bucket", profile={"use_fips_endpoint": "true"}, s3={"use_accelerate_endpoint": "true"})
    aws_environment.write_text(case.written())
    with pytest.raises(ConfigurationError, match="cannot be used with these settings") as caught:
        case.resolved()
    assert "Accelerate cannot be used with FIPS" in str(caught.value)
    assert "--region" in caught.value.hint


def test_a_base_path_is_sent_as_it_is_signed(aws_environment: Path) -> None:
    virtual = Case("bucket", endpoint_url="http://s3.local/a b/%20", s3={"addressing_style": "virtual"})
    aws_environment.write_text(virtual.written())
    assert virtual.resolved().base_path == "/a%20b/%20"


@pytest.mark.parametrize("from_environment", [False, True])
def test_an_encryption_key_is_not_sent_over_plain_http(monkeypatch: pytest.MonkeyPatch, from_environment: bool) -> None:
    url = "http://s3.example.com"
    config = ConnectionConfig(sse_c_key_file="key", endpoint_url=None if from_environment else url)
    assert resolve_endpoint(S3Session(replace(config, endpoint_url=None)), "bucket", "eu-west-1").scheme == "https"
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", url)
    with pytest.raises(ConfigurationError, match="not sent over plain HTTP"):
        resolve_endpoint(S3Session(config), "bucket", "eu-west-1")


def test_the_model_of_s3_is_not_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    load = JSONFileLoader.load_file

    def recorded(self: JSONFileLoader, path: str) -> Any:  # noqa: ANN401 - any JSON
        read.append(path)
        return load(self, path)

    monkeypatch.setattr(JSONFileLoader, "load_file", recorded)
    session = S3Session(ConnectionConfig(endpoint_url="http://127.0.0.1:9000"))
    session.aws.register_component("data_loader", create_loader())
    resolve_endpoint(session, "bucket", "eu-west-1")
    loaded = {Path(path).name for path in read}
    assert {"partitions", "endpoint-rule-set-1"} <= loaded
    assert "service-2" not in loaded
    read.clear()
    resolve_endpoint(session, "other", "eu-west-2")
    assert not read
