"""Servers that are not ours: listed in parallel, they give the table that they give when listed page by page."""

import hashlib
import re
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path

import pytest

from fastfuse.index.listing.lister import list_source
from fastfuse.index.sources.uri import S3Uri
from fastfuse.s3.aws import S3Session
from fastfuse.s3.base import ConnectionConfig
from fastfuse.s3.client import S3Client
from tests.index.indexes import columns
from tests.index.listing.test_lister import listed_serially
from tests.servers import ACCESS_KEY, SECRET_KEY, aws_environment, running

__all__ = ["aws_environment"]

COUNT = 1_200
SHAPES = {
    "dirs": [f"class-{number // 20:04}/{number:06}.jpg" for number in range(COUNT)],
    "flat": [f"shard-{number:06}.tfrecord" for number in range(COUNT)],
    "hexa": [hashlib.md5(str(number).encode(), usedforsecurity=False).hexdigest() for number in range(COUNT)],
}
# moto, with a bucket for each line of keys in the file that it is given: 30,000 requests would take minutes.
MOTO = """
import logging, sys
from moto.s3.models import s3_backends
from moto.server import main
backend = s3_backends["123456789012"]["aws"]
for line in open(sys.argv.pop()):
    bucket, *keys = line.split()
    backend.create_bucket(bucket, "us-east-1")
    for key in keys:
        backend.put_object(bucket, key, b"x")
logging.getLogger("werkzeug").addFilter(lambda record: "Running on" in record.getMessage())
main(["-H", "127.0.0.1", "-p", "0"])
"""


@pytest.fixture(scope="module")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    path = tmp_path_factory.mktemp("moto") / "keys"
    path.write_text("".join(f"{shape} {' '.join(keys)}\n" for shape, keys in SHAPES.items()))
    with running([sys.executable, "-c", MOTO, str(path)], re.compile(r"Running on (http://[0-9.:]+)")) as url:
        yield url


@pytest.fixture(scope="module")
def rclone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    root = tmp_path_factory.mktemp("rclone")
    for shape, keys in SHAPES.items():
        for folder in {(root / shape / key).parent for key in keys}:
            folder.mkdir(parents=True)
        for key in keys:
            (root / shape / key).write_bytes(b"x")
    command = [str(Path(sysconfig.get_path("scripts")) / "rclone"), "serve", "s3", "--config", "", str(root)]
    command += ["--auth-key", f"{ACCESS_KEY},{SECRET_KEY}", "--addr", "127.0.0.1:0"]
    with running(command, re.compile(r"Starting s3 server on \[(http://[0-9.:]+)")) as url:
        yield url


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("server", ["moto", "rclone"])
async def test_the_parallel_listing_is_the_serial_one(
    request: pytest.FixtureRequest, aws_environment: Path, server: str, shape: str
) -> None:
    url = request.getfixturevalue(server)
    config = ConnectionConfig(endpoint_url=url, region="us-east-1", force_path_style=True)
    async with aclosing(S3Client(S3Session(config))) as pages:
        table = await listed_serially(pages, shape)
        assert table.metadata.file_count == COUNT
        assert columns((await list_source(pages, S3Uri(shape, ""))).table) == columns(table)
