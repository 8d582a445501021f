"""Credentials that cannot be read, and what becomes of the mountpoint of a mount that is refused."""

from collections.abc import Callable
from pathlib import Path

import pytest

from bench.s3server import LoopbackServer
from tests.bad_input.checks import refused
from tests.mounting import ENVIRONMENT, run_fastfuse

OBJECTS = {"train-01/a": b"a"}
REGION = ("--region", "us-east-1")


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
    keys = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
    environment = {name: value for name, value in ENVIRONMENT.items() if name not in keys} | prepare(files)
    refused(place, 3, message.format(files), "hint: ", arguments=words, environment=environment)
