"""Sources that cannot be listed: who is refused, with which exit code, and what is said."""

import json
import socket
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from bench.s3server import LoopbackServer, MemoryObjects, ServerConfig, create_certificate
from bench.s3server.faults import ACCESS_DENIED, EXPIRED_TOKEN, Answer, FaultRule
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


REGION = ("--region", "us-east-1")
SECRET, TOKEN = ENVIRONMENT["AWS_SECRET_ACCESS_KEY"], "token-token-token-token-token"


def arguments(uri: str, path: Path, endpoint_url: str, *more: str) -> list[str]:
    return ["mount", uri, str(path), "--endpoint-url", endpoint_url, "--force-path-style", *more]


@pytest.mark.parametrize("more", [[], ["--profile", "absent"], ["--metrics-listen", "192.0.2.1:1"], ["-o", "no_such"]])
def test_a_mountpoint_stays_as_it_was_where_nothing_is_mounted(
    server: LoopbackServer, tmp_path: Path, more: list[str]
) -> None:
    """L7"""
    there, missing = tmp_path / "there", tmp_path / "missing"
    there.mkdir()
    for place in there, missing:
        done = run_fastfuse(*arguments("s3://nowhere/data", place, server.endpoint_url, *REGION, *more))
        assert "fastfuse: error: " in done.stderr
    assert [*tmp_path.iterdir()] == [there]


def without(*names: str) -> Mapping[str, str]:
    return {name: value for name, value in ENVIRONMENT.items() if name not in names}


@pytest.mark.parametrize(
    ("uri", "options", "code", "messages"),
    [
        ("s3://nowhere/data", (), 4, ["no bucket 'nowhere'"]),
        ("s3://no bucket!/data", (), 2, ["'no bucket!'"]),
        ("s3://bucket/train-01", ("--profile", "nobody"), 2, ["no AWS profile 'nobody'"]),
        ("s3://bucket/nothing", (), 4, ["s3://bucket/nothing", "--allow-empty"]),
        ("s3://bucket/nothing/", (), 4, ["s3://bucket/nothing/", "--allow-empty"]),
        ("s3://bucket/data/a/", ("--strict",), 4, ["an empty path segment"]),
        ("s3://bucket/train", (), 4, ["s3://bucket/train-01/, s3://bucket/train-02/"]),
    ],
)
def test_a_source_that_cannot_be_shown(
    server: LoopbackServer, tmp_path: Path, uri: str, options: tuple[str, ...], code: int, messages: list[str]
) -> None:
    words = arguments(uri, tmp_path, server.endpoint_url, *REGION, *options)
    refused(tmp_path, code, *messages, arguments=words)


@pytest.mark.parametrize(
    ("answer", "code", "messages"),
    [
        (ACCESS_DENIED, 3, ["denies listing the bucket 'bucket'", "hint: "]),
        (Answer(404, "", "<html>not here</html>"), 4, ["no bucket 'bucket' at"]),
        # Errors may quote what must not be shown.
        (Answer(EXPIRED_TOKEN.status, EXPIRED_TOKEN.code, f"expired: {TOKEN}"), 3, ["have expired", "hint: Renew"]),
        *(
            (Answer(403, code, f"signed with {SECRET}"), 3, [f"does not accept the AWS credentials (403 {code})"])
            for code in ("InvalidAccessKeyId", "SignatureDoesNotMatch", "RequestTimeTooSkewed")
        ),
    ],
)
def test_a_service_that_refuses(
    faulty: LoopbackServer, tmp_path: Path, answer: Answer, code: int, messages: list[str]
) -> None:
    faulty.faults.add(FaultRule(action=answer, operation="ListObjectsV2"))
    words = arguments("s3://bucket/train-01", tmp_path, faulty.endpoint_url, *REGION)
    refused(tmp_path, code, *messages, arguments=words, environment={**ENVIRONMENT, "AWS_SESSION_TOKEN": TOKEN})


@pytest.mark.parametrize(
    ("environment", "code", "messages"),
    [
        (without("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), 3, ["No AWS credentials", "--no-sign-request"]),
        (without("AWS_SECRET_ACCESS_KEY"), 2, ["incomplete"]),
        ({**ENVIRONMENT, "AWS_SESSION_TOKEN": f"{TOKEN}\n"}, 3, ["such as a line break"]),
    ],
    ids=["none", "half of a pair", "line break"],
)
def test_credentials_in_the_environment_that_cannot_be_used(
    server: LoopbackServer, tmp_path: Path, environment: Mapping[str, str], code: int, messages: list[str]
) -> None:
    words = arguments("s3://bucket/train-01", tmp_path, server.endpoint_url, *REGION)
    refused(tmp_path, code, *messages, arguments=words, environment=environment)


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


def test_an_error_is_one_json_record_where_that_is_asked_for(server: LoopbackServer, tmp_path: Path) -> None:
    done = run(mount_command("s3://bucket/train", tmp_path, server.endpoint_url, "--log-format", "json"))
    records = [json.loads(line) for line in done.stderr.splitlines()]
    [error] = [record for record in records if record["level"] == "error"]
    assert (error["exit_code"], done.returncode) == (4, 4)
    assert "train-01/" in error["message"]
