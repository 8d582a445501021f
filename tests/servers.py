"""Independent S3 servers for the contract tests: moto and `rclone serve s3`, each a process of its own.

Import the fixtures into a ``conftest.py``. Nothing waits for a time: each server is ready when it prints its port.
"""

import os
import re
import socket
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, Any

import boto3
import pytest
from botocore.config import Config

from fastfuse.objects import ObjectRef
from fastfuse.s3.base import ConnectionConfig

# rclone refuses keys of an unrealistic length.
ACCESS_KEY = "AKIATESTTESTTESTTEST"
SECRET_KEY = "secret-secret-secret-secret-secret-secret"
BUCKET = "bucket"


@dataclass(frozen=True)
class S3Server:
    """A running server with one bucket."""

    endpoint_url: str
    bucket: str = BUCKET

    @property
    def config(self) -> ConnectionConfig:
        return ConnectionConfig(endpoint_url=self.endpoint_url, region="us-east-1")

    @cached_property
    def client(self) -> Any:  # noqa: ANN401 - made at run time
        """A boto3 client, to arrange what a test reads."""
        return boto3.client(
            "s3",
            endpoint_url=self.endpoint_url,
            region_name="us-east-1",
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
            config=Config(request_checksum_calculation="when_required"),
        )

    def put(self, key: str, data: bytes, **extra: str) -> ObjectRef:
        """Create or replace the object, and return it with the ETag of its listing and the time of its replies.

        rclone lists the time of the file, and its replies tell when the PUT came, which may be in the second before.
        """
        self.client.put_object(Bucket=self.bucket, Key=key, Body=data, **extra)
        listed = self.client.list_objects_v2(Bucket=self.bucket, Prefix=key)["Contents"]
        entry = next(entry for entry in listed if entry["Key"] == key)
        modified = self.client.head_object(Bucket=self.bucket, Key=key)["LastModified"]
        return ObjectRef(self.bucket, key, len(data), entry["ETag"], int(modified.timestamp()) * 10**9)

    def delete(self, key: str) -> None:
        self.client.delete_object(Bucket=self.bucket, Key=key)


@contextmanager
def running(command: list[str], ready: re.Pattern[str]) -> Iterator[str]:
    """Runs `command` until the end of the block; yields the first match of `ready` in what it prints."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        try:
            yield _first_match(process.stdout, ready)
        finally:
            process.kill()


def _first_match(output: IO[str], ready: re.Pattern[str]) -> str:
    seen = []
    for line in output:
        match = ready.search(line)
        if match:
            return match[1]
        seen.append(line)
    raise RuntimeError(f"the server ended before it was ready: {''.join(seen)}")


@pytest.fixture(scope="session")
def moto_server() -> Iterator[S3Server]:
    # A read of its pipe is not needed: moto logs a line per request, and 64 KiB of them would block it.
    program = (
        "import logging, sys; from moto.server import main;"
        "logging.getLogger('werkzeug').addFilter(lambda record: 'Running on' in record.getMessage());"
        "main(['-H', '127.0.0.1', '-p', '0'])"
    )
    with running([sys.executable, "-c", program], re.compile(r"Running on (http://[0-9.:]+)")) as url:
        server = S3Server(url)
        server.client.create_bucket(Bucket=server.bucket)
        yield server


@pytest.fixture(scope="session")
def rclone_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    root = tmp_path_factory.mktemp("rclone")
    (root / BUCKET).mkdir()
    command = [str(Path(sysconfig.get_path("scripts")) / "rclone"), "serve", "s3", "--config", "", str(root)]
    command += ["--auth-key", f"{ACCESS_KEY},{SECRET_KEY}", "--addr", "127.0.0.1:0"]
    with running(command, re.compile(r"Starting s3 server on \[(http://[0-9.:]+)")) as url:
        yield S3Server(url)


def configure(file: Path, text: str) -> None:
    """Writes an AWS configuration file (from async tests, too: it is a few bytes)."""
    file.write_text(text)


@pytest.fixture
def aws_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No AWS settings but a pair of keys in the environment; returns the (absent) configuration file's path."""
    for name in list(os.environ):
        if name.startswith("AWS_") or name.lower() in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    return tmp_path / "config"


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens at now, for programs that do not take one by themselves."""
    with ExitStack() as exits:
        sockets = [exits.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
