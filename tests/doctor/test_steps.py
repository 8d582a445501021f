"""`fastfuse doctor S3_URI`: each condition of the service provoked, and what is said of it."""

import json
import socket
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from bench.s3server import (
    ACCESS_DENIED,
    EXPIRED_TOKEN,
    Answer,
    FaultRule,
    LoopbackServer,
    MemoryObjects,
    ServerConfig,
    create_certificate,
)
from bench.s3server.faults import Action
from fastfuse.advise.model import Network
from fastfuse.doctor.rules import Level, clock, network
from tests.mounting import ENVIRONMENT, access, run_fastfuse
from tests.s3.canned import Target, canned_server
from tests.terminals import terminal

NAMES = ["credentials", "address", "connection", "clock", "region", "list", "get"]
MEASURED = ["first byte", "small files", "throughput"]
OBJECTS = {"data-1/of another folder": b"a", "data/large": bytes(9 << 20), "data/small": b"a", "tiny/small": b"a"}


@pytest.fixture(scope="module")
def running() -> Iterator[LoopbackServer]:
    buckets = {name: MemoryObjects(OBJECTS) for name in ("bucket", "elsewhere")}
    config = ServerConfig(regions={"elsewhere": "eu-west-1"}, clock_s=time.time)
    with LoopbackServer(buckets, config) as server:
        yield server


@pytest.fixture
def server(running: LoopbackServer) -> Iterator[LoopbackServer]:
    yield running
    running.faults.clear()


def asked(
    uri: str, endpoint_url: str, *more: str, environment: Mapping[str, str] = ENVIRONMENT
) -> dict[str, dict[str, Any]]:
    """Return the findings about the service; the machine's own are left out."""
    words = ("doctor", "--json", uri, *access(endpoint_url), *more)
    done = run_fastfuse(*words, environment=environment)
    assert "Traceback" not in done.stderr
    checks = json.loads(done.stdout)["checks"]
    assert done.returncode == any(one["level"] == "fail" for one in checks)
    found = {one["check"]: one for one in checks}
    names = [*found]
    return {name: found[name] for name in names[names.index("credentials") :]}


def failed(found: Mapping[str, Mapping[str, Any]], check: str) -> str:
    """Return what is said of the `check` that failed; all before it are well, and nothing follows."""
    assert [*found][-1] == check
    assert {name for name, one in found.items() if one["level"] == "fail"} == {check}
    assert found[check]["remedy"]
    return f"{found[check]['found']}; {found[check]['remedy']}"


@pytest.mark.parametrize("uri", ["s3://bucket/data/", "s3://bucket/data"])
def test_a_service_that_is_well(server: LoopbackServer, uri: str) -> None:
    found = asked(uri, server.endpoint_url)
    assert [*found] == NAMES + MEASURED
    assert {name: one["level"] for name, one in found.items() if name in NAMES} == dict.fromkeys(NAMES, "ok")
    assert "2 objects" in found["list"]["found"]
    assert "MB/s, up to 24 at once" in found["throughput"]["found"]


def test_it_tells_whose_keys_and_no_secret(server: LoopbackServer) -> None:
    keys = {"AWS_ACCESS_KEY_ID": "AKIAFIRSTPARTWXYZ", "AWS_SECRET_ACCESS_KEY": "not-to-be-seen"}
    keys["AWS_SESSION_TOKEN"] = "nor-this"
    words = ("doctor", "s3://bucket/tiny/", *access(server.endpoint_url), "-v")
    done = run_fastfuse(*words, environment={**ENVIRONMENT, **keys})
    assert "...WXYZ from env" in done.stdout
    assert not any(secret in done.stdout + done.stderr for secret in keys.values())


def test_no_credentials(server: LoopbackServer) -> None:
    none = {name: value for name, value in ENVIRONMENT.items() if not name.startswith("AWS_")}
    none |= {"AWS_EC2_METADATA_DISABLED": "true", "HOME": "/nonexistent"}
    found = asked("s3://bucket/data/", server.endpoint_url, environment=none)
    assert "No AWS credentials" in failed(found, "credentials")


def test_a_host_without_an_address() -> None:
    assert "resolv.conf" in failed(asked("s3://bucket/data/", "http://nowhere.invalid:9"), "address")


def test_a_certificate_of_an_unknown_authority(tmp_path_factory: pytest.TempPathFactory) -> None:
    files = create_certificate(tmp_path_factory.mktemp("tls"))
    with LoopbackServer({"bucket": MemoryObjects(OBJECTS)}, ServerConfig(tls=files)) as secure:
        assert "--ca-bundle" in failed(asked("s3://bucket/data/", secure.endpoint_url), "connection")
        trusted = asked("s3://bucket/data/", secure.endpoint_url, "--ca-bundle", str(files.certificate))
        assert trusted["connection"]["found"].startswith("TLS")
        # It is for a day, of which the first second may not be over.
        assert trusted["certificate"]["found"] in {"days until it expires: 0", "days until it expires: 1"}
        assert trusted["certificate"]["level"] == "warn"


def test_a_proxy_is_named_without_its_password(server: LoopbackServer) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        environment = {**ENVIRONMENT, "http_proxy": f"http://user:hidden@127.0.0.1:{port}", "no_proxy": ""}
        found = asked("s3://bucket/data/", server.endpoint_url, environment=environment)
    assert f"through the proxy 127.0.0.1:{port}" in found["address"]["found"]
    assert "cannot be reached" in failed(found, "connection")
    assert "hidden" not in json.dumps(found)


def test_a_clock_that_is_an_hour_off() -> None:
    config = ServerConfig(clock_s=lambda: time.time() - 3600)
    with LoopbackServer({"bucket": MemoryObjects(OBJECTS)}, config) as late:
        assert "ahead of the service" in failed(asked("s3://bucket/data/", late.endpoint_url), "clock")


def test_another_region_than_the_buckets(server: LoopbackServer) -> None:
    found = asked("s3://elsewhere/data/", server.endpoint_url)
    assert found["region"]["level"] == "warn"
    assert "--region eu-west-1" in found["region"]["remedy"]
    assert found["get"]["level"] == "ok"


@pytest.mark.parametrize(
    ("action", "operation", "check", "said"),
    [
        (ACCESS_DENIED, "ListObjectsV2", "list", "s3:ListBucket"),
        (ACCESS_DENIED, "GetObject", "get", "s3:GetObject"),
        (Answer(400, "KMS.DisabledException", ""), "GetObject", "get", "KMS"),
        (EXPIRED_TOKEN, "ListObjectsV2", "list", "expired"),
    ],
)
def test_a_refusal(server: LoopbackServer, action: Action, operation: str, check: str, said: str) -> None:
    server.faults.add(FaultRule(action=action, operation=operation))
    assert said in failed(asked("s3://bucket/data/", server.endpoint_url), check)


def test_a_get_that_fails_in_another_way_is_not_called_permitted(server: LoopbackServer) -> None:
    server.faults.add(FaultRule(action=Answer(400, "Odd", ""), operation="GetObject"))
    get = asked("s3://bucket/data/", server.endpoint_url)["get"]
    assert (get["level"], "400 Odd" in get["found"]) == ("warn", True)


def test_nothing_below_the_prefix(server: LoopbackServer) -> None:
    found = asked("s3://bucket/nothing/", server.endpoint_url)
    assert (found["list"]["level"], found["network"]["found"]) == ("warn", "not measured: nothing to read")


def test_small_objects_show_no_rate(server: LoopbackServer) -> None:
    found = asked("s3://bucket/tiny/", server.endpoint_url)
    assert found["throughput"]["level"] == "warn"
    assert "small" in found["throughput"]["found"]
    assert found["address"]["found"].endswith(", 1 address")
    assert found["list"]["found"].startswith("1 object, ")


@pytest.mark.parametrize("size_bytes", [0, 9437190])
def test_an_object_that_is_only_listed_as_empty(size_bytes: int) -> None:
    """Swift lists a dynamic large object and a symlink so; HEAD and GET are of what they stand for."""
    row = "<Contents><Key>%s</Key><LastModified>2026-11-28T02:46:40.000Z</LastModified><ETag>&quot;e&quot;</ETag>"
    row += "<Size>%d</Size><StorageClass>STANDARD</StorageClass></Contents>"
    rows = row % ("data/", 0) + row % ("data/large", 0)
    page = f"<ListBucketResult><IsTruncated>false</IsTruncated>{rows}</ListBucketResult>".encode()
    modified = {"Last-Modified": "Sat, 28 Nov 2026 02:46:40 GMT"}

    def reply(target: Target) -> tuple[int, dict[str, str], bytes]:
        if "list-type" in target:
            return 200, {}, page
        return 200, modified | {"Content-Length": str(size_bytes)}, b""

    with canned_server(reply) as server:
        found = asked("s3://bucket/data/", server.url)
    assert ("empty objects" in found) is bool(size_bytes)
    if size_bytes:
        assert found["empty objects"]["level"] == "warn"
        assert "'data/large' is listed as empty" in found["empty objects"]["found"]


def test_what_is_no_uri_is_a_mistake_of_usage() -> None:
    done = run_fastfuse("doctor", "bucket/data")
    assert (done.returncode, "is not an S3 URI" in done.stderr) == (2, True)


@pytest.mark.parametrize("columns", [80, 200])
def test_no_line_is_wider_than_the_terminal(server: LoopbackServer, columns: int) -> None:
    server.faults.add(FaultRule(action=ACCESS_DENIED, operation="ListObjectsV2"))
    with terminal("doctor", "s3://bucket/data/", *access(server.endpoint_url), columns=columns) as shown:
        assert shown.finished() == 1
    lines = [line for line in shown.output.splitlines() if line]
    assert max(map(len, lines)) <= columns
    assert any(line.startswith("fail  list") for line in lines)


@pytest.mark.parametrize(
    ("skew_s", "level"), [(None, Level.OK), (299, Level.OK), (-300, Level.WARN), (900, Level.FAIL), (-900, Level.FAIL)]
)
def test_the_rule_of_the_clock(skew_s: float | None, level: Level) -> None:
    assert clock(skew_s).level is level


def test_the_rules_of_the_network() -> None:
    all_of_it = {"latency_s", "requests_per_s"}
    quick = Network(latency_s=0.02, connection_bytes_per_s=90e6, total_bytes_per_s=1e9, requests_per_s=4000)
    assert {one.level for one in network(quick, "", all_of_it)} == {Level.OK}
    assert [one.found for one in network(Network(), "not measured: it failed.", ())] == ["not measured: it failed"]
    far = Network(latency_s=0.2, connection_bytes_per_s=20e6, total_bytes_per_s=60e6, requests_per_s=300)
    warned = [one.check for one in network(far, "", all_of_it) if one.level is Level.WARN]
    assert warned == ["first byte", "throughput"]
