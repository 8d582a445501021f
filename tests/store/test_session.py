from dataclasses import replace
from pathlib import Path

import pytest

from fastfuse.errors import ConfigurationError, ServiceError, SourceError
from fastfuse.store.base import ConnectionConfig
from fastfuse.store.session import S3Session, host_header
from fastfuse.testing import Answer, FaultRule, LoopbackServer, MemoryObjects, ServerConfig
from fastfuse.testing.faults import SLOW_DOWN

OWN = ConnectionConfig(endpoint_url="https://s3.example.com")


def test_the_endpoint_is_the_configurations_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "https://environment.example.com")
    assert S3Session(replace(OWN, endpoint_url="https://s3.example.com/")).endpoint_url == "https://s3.example.com"
    assert S3Session(ConnectionConfig()).endpoint_url == "https://environment.example.com"


def test_the_endpoint_may_come_from_the_profile(aws_environment: Path) -> None:
    aws_environment.write_text(
        "[profile own]\nservices = lab\n[services lab]\ns3 =\n  endpoint_url = https://lab.example.com\n"
    )
    assert S3Session(ConnectionConfig(profile="own")).endpoint_url == "https://lab.example.com"


def test_configured_endpoints_can_be_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "https://environment.example.com")
    monkeypatch.setenv("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "true")
    assert S3Session(ConnectionConfig()).endpoint_url is None


@pytest.mark.parametrize(
    "url", ["s3.example.com", "ftp://a", "https://", "http://a:port", "https://a/?b=c", "http://[a"]
)
def test_an_endpoint_that_is_no_url_names_the_option(url: str) -> None:
    with pytest.raises(ConfigurationError, match="not a URL") as caught:
        _ = S3Session(ConnectionConfig(endpoint_url=url)).endpoint_url
    assert "--endpoint-url" in caught.value.hint


def test_an_endpoint_with_a_password_is_refused_without_showing_it() -> None:
    with pytest.raises(ConfigurationError) as caught:
        _ = S3Session(ConnectionConfig(endpoint_url="https://user:hunter2@s3.example.com")).endpoint_url
    assert "hunter2" not in str(caught.value) + caught.value.hint


@pytest.mark.parametrize(
    ("config", "bucket", "path_style"),
    [
        (ConnectionConfig(), "bucket", False),
        (ConnectionConfig(), "bucket.with.dots", True),  # no TLS wildcard certificate covers it
        (ConnectionConfig(), "Old_Bucket", True),
        (ConnectionConfig(force_path_style=True), "bucket", True),
        (OWN, "bucket", True),
    ],
)
def test_buckets_go_where_botocore_puts_them(config: ConnectionConfig, bucket: str, path_style: bool) -> None:
    assert S3Session(config).uses_path_style(bucket) is path_style


def test_a_profile_may_ask_for_virtual_hosts_at_an_endpoint_of_ones_own(aws_environment: Path) -> None:
    aws_environment.write_text("[profile own]\ns3 =\n  addressing_style = virtual\n")
    assert not S3Session(replace(OWN, profile="own")).uses_path_style("bucket")
    assert S3Session(replace(OWN, profile="own", force_path_style=True)).uses_path_style("bucket")


@pytest.mark.parametrize(
    ("region", "url"),
    [
        ("eu-west-1", "https://s3.eu-west-1.amazonaws.com"),
        ("cn-north-1", "https://s3.cn-north-1.amazonaws.com.cn"),
        ("us-gov-west-1", "https://s3.us-gov-west-1.amazonaws.com"),
        ("mars-east-1", "https://s3.mars-east-1.amazonaws.com"),
    ],
)
def test_each_partition_of_aws_has_its_own_domain(region: str, url: str) -> None:
    assert S3Session(ConnectionConfig()).service_url(region) == url


def test_a_missing_ca_bundle_is_named() -> None:
    with pytest.raises(ConfigurationError, match="no CA bundle '/absent'") as caught:
        _ = S3Session(ConnectionConfig(ca_bundle="/absent")).verify
    assert "--ca-bundle" in caught.value.hint


def test_the_ca_bundle_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bundle = tmp_path / "ca.pem"
    bundle.touch()
    monkeypatch.setenv("AWS_CA_BUNDLE", str(bundle))
    assert S3Session(ConnectionConfig()).verify == str(bundle)
    assert S3Session(ConnectionConfig(verify_ssl=False)).verify is False


async def test_a_ca_bundle_that_is_none_is_a_configuration_error(tmp_path: Path) -> None:
    bundle = tmp_path / "ca.pem"
    bundle.write_text("not a certificate")
    with pytest.raises(ConfigurationError, match="cannot be read as certificates"):
        await S3Session(replace(OWN, ca_bundle=str(bundle))).region("bucket")


@pytest.mark.parametrize("region", ["us-east-1\n", "eu west 1", "ü", "evil.test/x", "-a"])
async def test_a_configured_region_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch, region: str) -> None:
    monkeypatch.setenv("AWS_DEFAULT_REGION", region)
    with pytest.raises(ConfigurationError, match="is not the name of a region") as caught:
        await S3Session(OWN).region("bucket")
    assert "AWS_DEFAULT_REGION" in caught.value.hint


async def test_a_given_region_is_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    unreachable = ConnectionConfig(endpoint_url="http://127.0.0.1:1")
    assert await S3Session(replace(unreachable, region="eu-west-3")).region("bucket") == "eu-west-3"
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-2")
    assert await S3Session(unreachable).region("bucket") == "eu-west-2"


async def test_the_arn_of_an_access_point_tells_the_region_without_a_request() -> None:
    session = S3Session(ConnectionConfig(endpoint_url="http://127.0.0.1:1"))
    assert await session.region("arn:aws:s3:eu-west-2:123456789012:accesspoint/point") == "eu-west-2"


@pytest.mark.parametrize("answer", [None, Answer(403, "AccessDenied", "no"), Answer(400, "BadRequest", "no")], ids=str)
async def test_the_bucket_tells_its_region_once_whatever_the_status(answer: Answer | None) -> None:
    with LoopbackServer({"bucket": MemoryObjects({})}, ServerConfig(regions={"bucket": "ap-south-1"})) as server:
        if answer is not None:
            server.faults.add(FaultRule(action=answer))
        session = S3Session(ConnectionConfig(endpoint_url=server.endpoint_url))
        assert await session.region("bucket") == "ap-south-1"
        assert await session.region("bucket") == "ap-south-1"
        assert [request.operation for request in server.requests] == ["HeadBucket"]


async def test_a_busy_service_is_asked_for_the_region_again() -> None:
    with LoopbackServer({}) as server:
        rule = server.faults.add(FaultRule(action=SLOW_DOWN, times=2))
        assert await S3Session(ConnectionConfig(endpoint_url=server.endpoint_url)).region("absent") == "us-east-1"
        assert server.faults.hits(rule) == 2


async def test_a_server_of_ones_own_that_tells_no_region_gets_the_default() -> None:
    with LoopbackServer({}) as server:
        assert await S3Session(ConnectionConfig(endpoint_url=server.endpoint_url)).region("absent") == "us-east-1"


async def test_an_unreachable_service_is_told_soon() -> None:
    with pytest.raises(ServiceError, match="cannot be reached: Connection refused") as caught:
        await S3Session(ConnectionConfig(endpoint_url="http://127.0.0.1:1")).region("bucket")
    assert "--endpoint-url" in caught.value.hint


@pytest.mark.parametrize(
    ("status", "error", "message"),
    [(404, SourceError, "no bucket 'bucket' at AWS"), (403, ConfigurationError, "could not be found out")],
)
def test_aws_that_tells_no_region_is_an_error(status: int, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        S3Session(ConnectionConfig())._region_in("bucket", status, "")


@pytest.mark.parametrize(
    ("endpoint_url", "bucket", "url", "host"),
    [
        (None, "bucket", "https://bucket.s3.eu-west-1.amazonaws.com", "bucket.s3.eu-west-1.amazonaws.com"),
        (None, "with.dots", "https://s3.eu-west-1.amazonaws.com/with.dots", "s3.eu-west-1.amazonaws.com"),
        ("http://S3.local:80/base/", "a b", "http://S3.local:80/base/a%20b", "s3.local"),
        ("https://s3.local:8443", "bucket", "https://s3.local:8443/bucket", "s3.local:8443"),
        ("http://[::1]:9000", "bucket", "http://[::1]:9000/bucket", "[::1]:9000"),
        ("https://[::1]:443", "bucket", "https://[::1]:443/bucket", "[::1]"),
    ],
)
def test_a_bucket_has_one_url_for_all_clients(endpoint_url: str | None, bucket: str, url: str, host: str) -> None:
    session = S3Session(ConnectionConfig(endpoint_url=endpoint_url))
    assert session.bucket_url(bucket, "eu-west-1") == url
    assert host_header(url) == host
