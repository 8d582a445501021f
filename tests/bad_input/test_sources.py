"""Sources that cannot be listed: who is refused, with which exit code, and what is said."""

import json
import socket
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

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
from tests.bad_input.checks import refused, run
from tests.mounting import ENVIRONMENT, mount_command, mounted, run_fastfuse

OBJECTS = {"train-01/a": b"a", "train-02/b": b"b", "data/a//b": b"x"}


@pytest.fixture(scope="module")
def server() -> Iterator[LoopbackServer]:
    buckets = {name: MemoryObjects(OBJECTS) for name in ("bucket", "elsewhere")}
    with LoopbackServer(buckets, ServerConfig(regions={"elsewhere": "eu-west-1"})) as server:
        yield server


@pytest.fixture
def faulty(server: LoopbackServer) -> Iterator[LoopbackServer]:
    yield server
    server.faults.clear()


def arguments(uri: str, path: Path, endpoint_url: str, *more: str) -> list[str]:
    return ["mount", uri, str(path), "--endpoint-url", endpoint_url, "--force-path-style", *more]


REGION = ("--region", "us-east-1")


def test_a_bucket_that_does_not_exist(server: LoopbackServer, tmp_path: Path) -> None:
    words = arguments("s3://nowhere/data", tmp_path, server.endpoint_url, *REGION)
    refused(tmp_path, 4, "no bucket 'nowhere'", arguments=words)


@pytest.mark.parametrize("more", [[], ["--profile", "absent"], ["--metrics-listen", "192.0.2.1:1"], ["-o", "no_such"]])
def test_a_mountpoint_stays_as_it_was_where_nothing_is_mounted_l7(
    server: LoopbackServer, tmp_path: Path, more: list[str]
) -> None:
    there, missing = tmp_path / "there", tmp_path / "missing"
    there.mkdir()
    for place in there, missing:
        done = run_fastfuse(*arguments("s3://nowhere/data", place, server.endpoint_url, *REGION, *more))
        assert "fastfuse: error: " in done.stderr
    assert [*tmp_path.iterdir()] == [there]


def test_a_bucket_name_that_cannot_be_one(server: LoopbackServer, tmp_path: Path) -> None:
    words = arguments("s3://no bucket!/data", tmp_path, server.endpoint_url, *REGION)
    refused(tmp_path, 2, "'no bucket!'", arguments=words)


def test_access_is_denied(faulty: LoopbackServer, tmp_path: Path) -> None:
    faulty.faults.add(FaultRule(action=ACCESS_DENIED, operation="ListObjectsV2"))
    words = arguments("s3://bucket/train-01", tmp_path, faulty.endpoint_url, *REGION)
    refused(tmp_path, 3, "denies listing the bucket 'bucket'", "hint: ", arguments=words)


def test_an_expired_token_and_an_error_that_quotes_it(faulty: LoopbackServer, tmp_path: Path) -> None:
    environment = {**ENVIRONMENT, "AWS_SESSION_TOKEN": "token-token-token-token-token"}
    quoting = Answer(EXPIRED_TOKEN.status, EXPIRED_TOKEN.code, f"expired: {environment['AWS_SESSION_TOKEN']}")
    faulty.faults.add(FaultRule(action=quoting, operation="ListObjectsV2"))
    words = arguments("s3://bucket/train-01", tmp_path, faulty.endpoint_url, *REGION)
    refused(tmp_path, 3, "have expired", "hint: Renew", arguments=words, environment=environment)


@pytest.mark.parametrize("code", ["InvalidAccessKeyId", "SignatureDoesNotMatch", "RequestTimeTooSkewed"])
def test_keys_that_the_service_does_not_accept(faulty: LoopbackServer, tmp_path: Path, code: str) -> None:
    secret = ENVIRONMENT["AWS_SECRET_ACCESS_KEY"]
    faulty.faults.add(FaultRule(action=Answer(403, code, f"signed with {secret}"), operation="ListObjectsV2"))
    words = arguments("s3://bucket/train-01", tmp_path, faulty.endpoint_url, *REGION)
    refused(tmp_path, 3, f"does not accept the AWS credentials (403 {code})", arguments=words)


def without(*names: str) -> Mapping[str, str]:
    return {name: value for name, value in ENVIRONMENT.items() if name not in names}


def test_no_credentials(server: LoopbackServer, tmp_path: Path) -> None:
    words = arguments("s3://bucket/train-01", tmp_path, server.endpoint_url, *REGION)
    nothing = without("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
    refused(tmp_path, 3, "No AWS credentials", "--no-sign-request", arguments=words, environment=nothing)


def test_half_of_a_pair_of_keys(server: LoopbackServer, tmp_path: Path) -> None:
    words = arguments("s3://bucket/train-01", tmp_path, server.endpoint_url, *REGION)
    refused(tmp_path, 2, "incomplete", arguments=words, environment=without("AWS_SECRET_ACCESS_KEY"))


def _token_file(token: Path) -> dict[str, str]:
    role = {"AWS_ROLE_ARN": "arn:aws:iam::123456789012:role/test", "AWS_DEFAULT_REGION": "us-east-1"}
    return {"AWS_WEB_IDENTITY_TOKEN_FILE": str(token)} | role


def _program(directory: Path) -> dict[str, str]:
    config = directory / "config"
    config.write_text(f"[default]\ncredential_process = {directory / 'program'}\n")
    return {"AWS_CONFIG_FILE": str(config)}


def _program_that_is_none(directory: Path) -> dict[str, str]:
    (directory / "program").write_text("not executable")
    return _program(directory)


def _container_token(directory: Path) -> dict[str, str]:
    (directory / "token").write_bytes(b"\xff\xfe")
    uri = {"AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://127.0.0.1:1/"}
    return uri | {"AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": str(directory / "token")}


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (lambda directory: _token_file(directory / "absent"), "No such file or directory: '{}/absent'"),
        (_token_file, "Is a directory: '{}'"),
        (_program, "No such file or directory: '{}/program'"),
        (_program_that_is_none, "Permission denied: '{}/program'"),
        (_container_token, "UnicodeDecodeError"),
        (lambda directory: {"AWS_SHARED_CREDENTIALS_FILE": str(directory)}, "No AWS credentials were found"),
        (lambda directory: {"AWS_CONFIG_FILE": str(directory)}, "No AWS credentials were found"),
    ],
    ids=["token missing", "token unreadable", "no program", "no program, but a file", "token is no text",
         "credentials unreadable", "configuration unreadable"],
)  # fmt: skip
def test_credentials_in_a_file_that_cannot_be_read(
    server: LoopbackServer, tmp_path: Path, prepare: Callable[[Path], dict[str, str]], message: str
) -> None:
    """One line and a hint, without the traceback that botocore logs."""
    place, files = tmp_path / "place", tmp_path / "files"
    place.mkdir()
    files.mkdir()
    words = arguments("s3://bucket/train-01", place, server.endpoint_url, *REGION)
    environment = {**without("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), **prepare(files)}
    refused(place, 3, message.format(files), "hint: ", arguments=words, environment=environment)


def test_a_session_token_with_a_line_break(server: LoopbackServer, tmp_path: Path) -> None:
    environment = {**ENVIRONMENT, "AWS_SESSION_TOKEN": "token-token-token-token-token\n"}
    words = arguments("s3://bucket/train-01", tmp_path, server.endpoint_url, *REGION)
    refused(tmp_path, 3, "such as a line break", arguments=words, environment=environment)


def test_a_profile_that_does_not_exist(server: LoopbackServer, tmp_path: Path) -> None:
    words = arguments("s3://bucket/train-01", tmp_path, server.endpoint_url, *REGION, "--profile", "nobody")
    refused(tmp_path, 2, "no AWS profile 'nobody'", arguments=words)


def test_a_wrong_region_is_corrected_as_the_service_names_it(server: LoopbackServer) -> None:
    with mounted("s3://elsewhere/train-01", server.endpoint_url) as mount:
        assert any(mount.path.iterdir())
        assert "'elsewhere' is in the region eu-west-1, not in us-east-1" in mount.log
        assert mount.stop() == 0


def test_an_endpoint_that_is_not_there(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    words = arguments("s3://bucket/data", tmp_path, f"http://127.0.0.1:{port}", *REGION)
    refused(tmp_path, 1, f"http://127.0.0.1:{port} cannot be reached: Connection refused", arguments=words)


def test_an_endpoint_whose_name_is_not_known(tmp_path: Path) -> None:
    words = arguments("s3://bucket/data", tmp_path, "http://no-such-host.invalid", *REGION)
    refused(tmp_path, 1, "http://no-such-host.invalid cannot be reached", "--endpoint-url", arguments=words)


def test_an_endpoint_that_is_no_s3_service(faulty: LoopbackServer, tmp_path: Path) -> None:
    faulty.faults.add(FaultRule(action=Answer(404, "", "<html>not here</html>"), operation="ListObjectsV2"))
    words = arguments("s3://bucket/data", tmp_path, faulty.endpoint_url, *REGION)
    refused(tmp_path, 4, "no bucket 'bucket' at", arguments=words)


@pytest.fixture(scope="module")
def tls_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoopbackServer]:
    files = create_certificate(tmp_path_factory.mktemp("tls"))
    with LoopbackServer({"bucket": MemoryObjects(OBJECTS)}, ServerConfig(tls=files)) as server:
        yield server


def test_a_certificate_that_nobody_vouches_for(tls_server: LoopbackServer, tmp_path: Path) -> None:
    words = arguments("s3://bucket/train-01", tmp_path, tls_server.endpoint_url, *REGION)
    refused(tmp_path, 1, "No secure connection", "certificate verification failed", "--ca-bundle", arguments=words)


@pytest.mark.parametrize("kind", ["missing", "no certificates"])
def test_a_ca_bundle_that_is_none(tls_server: LoopbackServer, tmp_path: Path, kind: str) -> None:
    bundle = tmp_path / "bundle.pem"
    if kind == "no certificates":
        bundle.write_text("nothing of the kind")
    place = tmp_path / "place"
    place.mkdir()
    words = arguments("s3://bucket/data", place, tls_server.endpoint_url, *REGION, "--ca-bundle", str(bundle))
    refused(place, 2, str(bundle), arguments=words)


@pytest.mark.parametrize("path", ["nothing", "nothing/"])
def test_an_empty_prefix(server: LoopbackServer, tmp_path: Path, path: str) -> None:
    words = arguments(f"s3://bucket/{path}", tmp_path, server.endpoint_url, *REGION)
    refused(tmp_path, 4, f"s3://bucket/{path}", "--allow-empty", arguments=words)


def test_a_prefix_of_which_nothing_can_be_shown(server: LoopbackServer, tmp_path: Path) -> None:
    words = arguments("s3://bucket/data/a/", tmp_path, server.endpoint_url, *REGION, "--strict")
    refused(tmp_path, 4, "an empty path segment", arguments=words)


def test_a_partial_folder_name(server: LoopbackServer, tmp_path: Path) -> None:
    words = arguments("s3://bucket/train", tmp_path, server.endpoint_url, *REGION)
    refused(tmp_path, 4, "s3://bucket/train-01/, s3://bucket/train-02/", arguments=words)


def test_an_error_is_one_json_record_where_that_is_asked_for(server: LoopbackServer, tmp_path: Path) -> None:
    done = run(mount_command("s3://bucket/train", tmp_path, server.endpoint_url, "--log-format", "json"))
    records = [json.loads(line) for line in done.stderr.splitlines()]
    [error] = [record for record in records if record["level"] == "error"]
    assert (error["exit_code"], done.returncode) == (4, 4)
    assert "train-01/" in error["message"]
