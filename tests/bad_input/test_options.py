"""Options that cannot be right: exit code 2 before anything is asked of anybody."""

import os
from pathlib import Path

import pytest

from tests.bad_input.checks import assert_refused, refused, run
from tests.mounting import mount_command

# Nothing listens there: a request would end with exit code 1.
UNREACHABLE = ("--endpoint-url", "http://127.0.0.1:1")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--memory-target", "99999999999999999999%"], "more than the"),
        (["--memory-target", "9" * 5000], "is not a size"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else "",
)
def test_an_option_that_makes_no_sense_is_named(tmp_path: Path, options: list[str], message: str) -> None:
    refused(tmp_path, 2, message, arguments=["mount", "s3://bucket/data", str(tmp_path), *UNREACHABLE, *options])


def test_a_uri_that_is_not_utf8(tmp_path: Path) -> None:
    uri = os.fsdecode(b"s3://bucket/\xff")
    refused(tmp_path, 2, "is not UTF-8", arguments=["mount", uri, str(tmp_path), *UNREACHABLE])


def test_an_address_for_metrics_that_is_not_ours(tmp_path: Path) -> None:
    words = ["mount", "s3://bucket/data", str(tmp_path), *UNREACHABLE, "--metrics-listen", "192.0.2.1:9567"]
    refused(tmp_path, 2, "cannot listen on 192.0.2.1:9567", arguments=words)


def test_a_secret_in_the_endpoint_is_refused_and_not_repeated(tmp_path: Path) -> None:
    done = run(mount_command("s3://bucket/data", tmp_path, "https://user:hunter2@s3.example.com"))
    assert_refused(done, 2, "--endpoint-url")
    assert "hunter2" not in done.stderr
