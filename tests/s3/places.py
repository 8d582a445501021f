"""Each implementation of the seam together with the server that it talks to, for the contract tests."""

import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from functools import partial

import pytest

from bench.s3server import LoopbackServer, MemoryObjects, ServerConfig, create_chain
from fastfuse.cache.directory import open_cache, prepare
from fastfuse.cache.reader import CachedReader
from fastfuse.cache.settings import CacheSettings
from fastfuse.metrics import Counters
from fastfuse.objects import ObjectRef
from fastfuse.s3.aws import S3Session
from fastfuse.s3.base import ConnectionConfig, PageSource, RangeReader
from fastfuse.s3.buffers import PartBuffers
from fastfuse.s3.client import S3Client
from tests.s3.canned import Canned, Reply, canned_server
from tests.servers import S3Server
from tests.store import MemoryStore

IN_A_REGION = ConnectionConfig(region="us-east-1")
PLACES = ("memory", "client-moto", "client-rclone", "client-loopback", "client-tls", "cached-memory")
LISTING = b'<?xml version="1.0"?>\n<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>'


def client_of(config: ConnectionConfig) -> S3Client:
    """Return a client with buffers of which a reply of more than 512 KiB takes one that is used again."""
    return S3Client(S3Session(config), buffers=PartBuffers(part_bytes=1 << 20, limit_bytes=8 << 20))


async def listed(client: S3Client, bucket: str = "bucket", prefix: str = "") -> bytes:
    """Return the first page of a bucket, which is asked for again as the lister does."""
    return await client._retries.run(partial(client.list, bucket, prefix=prefix), name="a page")


@dataclass(frozen=True)
class Place:
    """A bucket that a test can fill, and the implementation under test that reads it."""

    put: Callable[[str, bytes], ObjectRef]
    delete: Callable[[str], None]
    reader: RangeReader
    pages: PageSource


@contextmanager
def open_place(name: str, request: pytest.FixtureRequest) -> Iterator[Place]:
    match name.removeprefix("client-"):
        case "memory":
            store = MemoryStore()
            yield Place(store.put, store.delete, store, store)
        case "cached-memory":
            store = MemoryStore()
            settings = CacheSettings(
                directory=request.getfixturevalue("tmp_path") / "cache", size_bytes=64 << 20, min_free_bytes=0
            )
            prepare(settings, os.geteuid())
            cache = open_cache(settings, os.geteuid())
            reader = CachedReader(
                store, cache, PartBuffers(part_bytes=0, limit_bytes=0), Counters(), endpoint_url="",
                queue_bytes=8 << 20, deadline_s=60.0,
            )  # fmt: skip
            yield Place(store.put, store.delete, reader, store)
        case ("loopback" | "tls") as kind:
            objects = MemoryObjects({})
            authority, issued = create_chain(request.getfixturevalue("tmp_path")) if kind == "tls" else (None, None)
            with LoopbackServer({"bucket": objects}, ServerConfig(tls=issued)) as loopback:
                config = ConnectionConfig(
                    endpoint_url=loopback.endpoint_url,
                    region="us-east-1",
                    ca_bundle=None if authority is None else str(authority),
                )

                def put(key: str, data: bytes) -> ObjectRef:
                    objects.put(key, data)
                    stored = objects.view().lookup(key.encode())
                    assert stored is not None
                    return ObjectRef("bucket", key, len(data), stored.etag, stored.modified_s * 10**9)

                client = client_of(config)
                yield Place(put, objects.delete, client, client)
        case server:
            running: S3Server = request.getfixturevalue(f"{server}_server")
            client = client_of(running.config)
            yield Place(running.put, running.delete, client, client)


@asynccontextmanager
async def opened(endpoint_url: str) -> AsyncIterator[S3Client]:
    config = ConnectionConfig(endpoint_url=endpoint_url, region="us-east-1", force_path_style=True)
    async with aclosing(S3Client(S3Session(config))) as client:
        yield client


@asynccontextmanager
async def loopback_client(
    objects: dict[str, bytes], config: ServerConfig | None = None, connection: ConnectionConfig = IN_A_REGION
) -> AsyncIterator[tuple[LoopbackServer, S3Client]]:
    """Open a client of a server that has `objects` in one bucket."""
    with LoopbackServer({"bucket": MemoryObjects(objects)}, config) as server:
        async with aclosing(client_of(replace(connection, endpoint_url=server.endpoint_url))) as client:
            yield server, client


@asynccontextmanager
async def canned_client(reply: Reply, config: ConnectionConfig = IN_A_REGION) -> AsyncIterator[tuple[S3Client, Canned]]:
    with canned_server(reply) as server:
        async with aclosing(client_of(replace(config, endpoint_url=server.url))) as client:
            yield client, server
