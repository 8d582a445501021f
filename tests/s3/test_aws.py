import errno
import socket
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import trio

from bench.s3server import SLOW_DOWN, FaultRule, LoopbackServer
from fastfuse.errors import ConfigurationError, ServiceError, SourceError
from fastfuse.objects import ObjectRef
from fastfuse.s3.aws import S3Session, stall_timeout_s
from fastfuse.s3.base import ConnectionConfig
from fastfuse.s3.client import S3Client
from fastfuse.s3.connection import Connection
from fastfuse.s3.credentials import Credentials
from fastfuse.s3.failures import Failure, Kind
from fastfuse.s3.retry_policy import attempts
from fastfuse.s3.routes import Route, Routes
from tests.s3.canned import canned_server
from tests.s3.places import canned_client

AWS = ConnectionConfig()
REF = ObjectRef("bucket", "key", 1000, '"e"')
OWN = ConnectionConfig(endpoint_url="https://s3.example.com")
UNSIGNED = ConnectionConfig(sign_request=False)


def test_the_endpoint_is_configured_in_three_places(monkeypatch: pytest.MonkeyPatch, aws_environment: Path) -> None:
    aws_environment.write_text(
        "[profile own]\nservices = lab\n[services lab]\ns3 =\n  endpoint_url = https://lab.example.com\n"
    )
    assert S3Session(ConnectionConfig(profile="own")).endpoint_url == "https://lab.example.com"
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "https://environment.example.com")
    assert S3Session(ConnectionConfig()).endpoint_url == "https://environment.example.com"
    assert S3Session(replace(OWN, endpoint_url="https://s3.example.com/")).endpoint_url == "https://s3.example.com"


@pytest.mark.parametrize(
    "url",
    ["example.com", "ftp://a", "https://", "http://a:port", "https://a/?b=c", "http://[a", "https://user:hunter2@a"],
)
def test_an_endpoint_that_is_none_names_the_option_and_shows_no_password(url: str) -> None:
    with pytest.raises(ConfigurationError, match="not a plain URL") as caught:
        _ = S3Session(ConnectionConfig(endpoint_url=url)).endpoint_url
    assert "--endpoint-url" in caught.value.hint
    assert "hunter2" not in str(caught.value) + caught.value.hint


@pytest.mark.parametrize(("deadline_s", "stall_s"), [(6, 2), (600, 20)])
def test_a_stalled_connection_leaves_a_read_time_for_two_more(deadline_s: float, stall_s: float) -> None:
    assert stall_timeout_s(replace(AWS, deadline_s=deadline_s)) == stall_s


@pytest.mark.parametrize("name", ["/absent", f"/{'x' * 256}", "/"])
def test_a_ca_bundle_that_is_missing_or_a_directory_is_named(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"CA bundle '{name}' is not a file") as caught:
        _ = S3Session(ConnectionConfig(ca_bundle=name)).authorities
    assert "a file of certificates in PEM with --ca-bundle" in caught.value.hint


def test_the_ca_bundle_is_botocores_or_the_environments(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = S3Session(ConnectionConfig()).authorities
    assert found is not None
    assert "BEGIN CERTIFICATE" in Path(found).read_text()
    bundle = tmp_path / "ca.pem"
    bundle.touch()
    monkeypatch.setenv("AWS_CA_BUNDLE", str(bundle))
    assert S3Session(ConnectionConfig()).authorities == str(bundle)
    assert S3Session(ConnectionConfig(verify_ssl=False)).authorities is None


# --- the region of a bucket


async def region_of(config: ConnectionConfig, bucket: str = "bucket") -> str:
    async with aclosing(S3Client(S3Session(config))) as client:
        return await client.region(bucket)


@pytest.mark.parametrize("region", ["us-east-1\n", "eu west 1", "ü", "evil.test/x", "-a", "a" * 64])
async def test_a_configured_region_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch, region: str) -> None:
    monkeypatch.setenv("AWS_DEFAULT_REGION", region)
    with pytest.raises(ConfigurationError, match="is not the name of a region") as caught:
        await region_of(OWN)
    assert "AWS_DEFAULT_REGION" in caught.value.hint


@pytest.mark.parametrize("region", ["nonsense", "EU-WEST-1", "eu-west", "auto"])
def test_another_region_takes_an_endpoint(region: str, monkeypatch: pytest.MonkeyPatch, aws_environment: Path) -> None:
    with pytest.raises(ConfigurationError, match="is not the name of an AWS region"):
        _ = S3Session(ConnectionConfig(region=region)).configured_region
    assert S3Session(replace(OWN, region=region)).configured_region == region
    aws_environment.write_text("[profile own]\nendpoint_url = https://lab.example.com\n")
    assert S3Session(ConnectionConfig(profile="own", region=region)).configured_region == region
    monkeypatch.setenv("AWS_ENDPOINT_URL", "https://s3.example.com")
    assert S3Session(ConnectionConfig(region=region)).configured_region == region


async def test_a_given_region_is_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    unreachable = ConnectionConfig(endpoint_url="http://127.0.0.1:1")
    assert await region_of(replace(unreachable, region="eu-west-3")) == "eu-west-3"
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-2")
    assert await region_of(unreachable) == "eu-west-2"


async def test_the_arn_of_an_access_point_tells_the_region_without_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Routes, "connect", None)  # nobody may be asked
    assert await region_of(AWS, "arn:aws:s3:eu-west-2:123456789012:accesspoint/point") == "eu-west-2"


@pytest.mark.parametrize("status", [200, 301, 400, 403])
async def test_many_who_need_a_region_ask_for_it_once_and_without_a_signature_whatever_the_status(status: int) -> None:
    reply = status, {"x-amz-bucket-region": "ap-south-1"}, b""
    async with canned_client(lambda _: reply, AWS) as (client, server):
        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(client.region, "bucket")
        assert await client.region("bucket") == "ap-south-1"
        [(target, headers)] = server.seen
        assert (target.method, target) == ("HEAD", "/bucket")
        assert "authorization" not in headers


async def test_a_busy_service_is_asked_for_the_region_again() -> None:
    with LoopbackServer({}) as server:
        rule = server.faults.add(FaultRule(action=SLOW_DOWN, times=2))
        assert await region_of(ConnectionConfig(endpoint_url=server.endpoint_url), "absent") == "us-east-1"
        assert server.faults.hits(rule) == 2


@pytest.mark.parametrize("region", ["a b", "x" * 65, "evil.test/"])
async def test_a_region_that_a_server_made_up_is_no_answer(region: str) -> None:
    async with canned_client(lambda _: (200, {"x-amz-bucket-region": region}, b""), AWS) as (client, _):
        assert await client.region("bucket") == "us-east-1"


@pytest.mark.parametrize(
    ("status", "error", "message"),
    [(404, SourceError, "no bucket 'bucket' at AWS"), (403, ConfigurationError, "could not be found out")],
)
async def test_aws_that_tells_no_region_is_an_error(
    monkeypatch: pytest.MonkeyPatch, status: int, error: type[Exception], message: str
) -> None:
    async def connect_elsewhere(routes: Routes, route: Route) -> Connection:
        assert route.endpoint.host == "bucket.s3.us-east-1.amazonaws.com"
        here = replace(route.endpoint, scheme="http", host="127.0.0.1", port=urlsplit(server.url).port or 0)
        return await connect(routes, replace(route, endpoint=here))

    connect = Routes.connect
    monkeypatch.setattr(Routes, "connect", connect_elsewhere)
    with canned_server(lambda _: (status, {}, b"")) as server:
        with pytest.raises(error, match=message) as caught:
            await region_of(AWS)
        assert "--region" in getattr(caught.value, "hint", "")
        assert len(server.seen) == 1


@pytest.mark.parametrize(
    ("zone", "host"),
    [("cn-north-1a", "cn-north-1.amazonaws.com.cn"), ("us-west-2-lax-1a", "us-west-2.amazonaws.com"),
     ("us-east-1-wl1-bos-wlz-1", "us-east-1.amazonaws.com"), ("evil.test/", "us-east-1.amazonaws.com")],
)  # fmt: skip
async def test_an_instance_with_a_role_asks_its_region(monkeypatch: pytest.MonkeyPatch, zone: str, host: str) -> None:
    hosts: list[str] = []

    async def record(_: Routes, route: Route) -> Connection:
        hosts.append(route.endpoint.host)
        raise ConnectionRefusedError(errno.ECONNREFUSED, "refused")

    monkeypatch.setattr(Routes, "connect", record)
    monkeypatch.delenv("AWS_EC2_METADATA_DISABLED")
    with canned_server(lambda _: (200, {}, zone.encode())) as server:
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", server.url)
        session = S3Session(AWS)
        assert session.credentials is not None
        async with aclosing(S3Client(session)) as client:
            for provider in ("env", "iam-role"):
                session.credentials.take(Credentials(access_key="a", secret_key="b", provider=provider))
                with pytest.raises(ServiceError) as caught:
                    await client.region("bucket")
                assert ("us-east-1 was asked: give --region" in caught.value.hint) == ("us-east-1" in hosts[-1])
    assert (hosts[0], hosts[-1]) == ("bucket.s3.us-east-1.amazonaws.com", f"bucket.s3.{host}")
    # The service has named the region by the time of a request for an object.
    missing = session.command_error(Failure(kind=Kind.CHANGED, detail="404"), "bucket", "key", "us-east-1")
    assert missing.hint == ""


async def test_a_search_for_a_region_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastfuse.s3.regions._DEADLINE_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        config = ConnectionConfig(endpoint_url=f"http://127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(ServiceError, match=r"at http://127\.0\.0\.1:\d+ cannot be reached: no answer in 0\.1 s"):
            await region_of(config)


def found(path: str) -> tuple[int, dict[str, str], bytes]:
    if not path.endswith("/key"):
        return 200, {"x-amz-bucket-region": "r"}, b""
    return 206, {"ETag": REF.etag, "Content-Range": "bytes 0-9/1000"}, b"0123456789"


async def test_a_read_outlives_an_outage_in_the_search_for_a_region(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastfuse.s3.retry_policy.FIRST_PAUSE_S", 0.0)
    refusals = iter(range(3 * attempts(Kind.UNREACHABLE, is_read=False)))

    async def connect_later(routes: Routes, route: Route) -> Connection:
        if next(refusals, None) is not None:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "refused")
        return await connect(routes, route)

    connect = Routes.connect
    monkeypatch.setattr(Routes, "connect", connect_later)
    async with canned_client(found, UNSIGNED) as (client, _):
        assert bytes(await client.get(REF, 0, 10)) == b"0123456789"


async def test_the_search_for_a_region_delays_no_other_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    is_waiting, may_go_on = trio.Event(), trio.Event()

    async def connect_in_turn(routes: Routes, route: Route) -> Connection:
        if not is_waiting.is_set():
            is_waiting.set()
            await may_go_on.wait()
        return await connect(routes, route)

    connect = Routes.connect
    monkeypatch.setattr(Routes, "connect", connect_in_turn)
    async with canned_client(found, UNSIGNED) as (client, _), trio.open_nursery() as nursery:
        nursery.start_soon(client.prepare, "slow")
        await is_waiting.wait()
        with trio.fail_after(20):
            assert bytes(await client.get(REF, 0, 10)) == b"0123456789"
        may_go_on.set()
