"""Servers that are not ours: listed in parallel, they give the table that they give when listed page by page."""

import hashlib
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fastfuse.index.listing.lister import list_source
from fastfuse.index.sources.uri import S3Uri
from fastfuse.s3.aws import S3Session
from fastfuse.s3.client import S3Client
from tests.index.listing.test_lister import listed_serially
from tests.servers import S3Server, aws_environment, moto_server, rclone_server
from tests.tables import check_table

__all__ = ["aws_environment", "moto_server", "rclone_server"]

COUNT = 120
SHAPES = {
    "dirs": [f"class-{number // 20:04}/{number:06}.jpg" for number in range(COUNT)],
    "flat": [f"shard-{number:06}.tfrecord" for number in range(COUNT)],
    "hexa": [hashlib.md5(str(number).encode(), usedforsecurity=False).hexdigest() for number in range(COUNT)],
}


@dataclass
class SmallPages:
    """Asks for pages of few keys, and counts those that begin at a key: only a parallel listing has them."""

    client: S3Client
    parallel: int = 0

    async def list(self, bucket: str, **query: Any) -> bytes:  # noqa: ANN401 - as the caller gives
        self.parallel += bool(query.get("start_after"))
        return await self.client.list(bucket, **query | {"max_keys": min(10, query.get("max_keys", 10))})

    async def aclose(self) -> None:
        raise AssertionError("the lister does not own the source")


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("server", ["moto_server", "rclone_server"])
async def test_the_parallel_listing_is_the_serial_one(
    request: pytest.FixtureRequest, aws_environment: Path, server: str, shape: str
) -> None:
    service: S3Server = request.getfixturevalue(server)
    service.client.create_bucket(Bucket=shape)
    for key in SHAPES[shape]:
        service.client.put_object(Bucket=shape, Key=key, Body=b"x")
    async with aclosing(S3Client(S3Session(service.config))) as client:
        pages = SmallPages(client)
        table = await listed_serially(pages, shape)
        assert table.metadata.file_count == COUNT
        found = (await list_source(pages, S3Uri(shape, ""))).table
        check_table(found)
        assert [*found.refs()] == [*table.refs()]
        assert pages.parallel
