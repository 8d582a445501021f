"""Each implementation of the seam together with the server that it talks to, for the contract tests."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
import trio

from fastfuse.objects import ObjectRef
from fastfuse.store.base import ConnectionConfig, PageSource, RangeReader
from fastfuse.store.boto import BotoPageSource, BotoRangeReader
from fastfuse.store.buffers import PartBuffers
from fastfuse.store.direct import DirectRangeReader
from fastfuse.store.memory import MemoryStore
from fastfuse.store.pages import SignedPageSource
from fastfuse.store.receivers import Receivers
from fastfuse.store.router import open_reader
from fastfuse.store.rust import RustRangeReader
from fastfuse.store.session import S3Session
from fastfuse.testing import LoopbackServer, MemoryObjects, ServerConfig
from tests.servers import S3Server, create_chain

__all__ = ["PAGE_PLACES", "READER_PLACES", "Place", "direct_reader", "open_place", "rust_reader"]

READER_PLACES = (
    "memory",
    "direct-moto",
    "direct-rclone",
    "direct-loopback",
    "direct-tls",
    "rust-moto",
    "rust-loopback",
    "rust-tls",
    "boto-moto",
    "boto-rclone",
    "boto-loopback",
    "routed-moto",
    "routed-rclone",
    "routed-tls",
    "unlinked-tls",
)
PAGE_PLACES = (
    "memory",
    "signed-moto",
    "signed-rclone",
    "signed-loopback",
    "boto-moto",
    "boto-rclone",
    "boto-loopback",
)


def direct_reader(config: ConnectionConfig, bucket: str = "bucket") -> DirectRangeReader:
    """With buffers of which a reply of more than 512 KiB takes one that is used again."""
    buffers = PartBuffers(part_bytes=1 << 20, limit_bytes=8 << 20)
    slots = trio.Semaphore(config.max_connections)
    return DirectRangeReader(S3Session(config), bucket, buffers, slots, Receivers())


def rust_reader(config: ConnectionConfig, bucket: str = "bucket") -> RustRangeReader:
    return RustRangeReader(S3Session(config), bucket, trio.Semaphore(config.max_connections))


@dataclass(frozen=True)
class Place:
    """A bucket that a test can fill, and the implementation under test that reads it."""

    put: Callable[[str, bytes], ObjectRef]
    delete: Callable[[str], None]
    reader: RangeReader
    pages: PageSource


@contextmanager
def open_place(name: str, request: pytest.FixtureRequest) -> Iterator[Place]:
    client, _, server = name.partition("-")
    if client == "unlinked":  # routed, too, but by another way
        request.getfixturevalue(client)
    match server:
        case "":
            store = MemoryStore()
            yield Place(store.put, store.delete, store, store)
        case "loopback" | "tls":
            objects = MemoryObjects({})
            authority, issued = create_chain(request.getfixturevalue("tmp_path")) if server == "tls" else (None, None)
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

                yield Place(put, objects.delete, _reader(client, config), _pages(client, config))
        case _:
            running: S3Server = request.getfixturevalue(f"{server}_server")
            config = running.config
            yield Place(running.put, running.delete, _reader(client, config), _pages(client, config))


def _reader(client: str, config: ConnectionConfig) -> RangeReader:
    match client:
        case "direct":
            return direct_reader(config)
        case "rust":
            return rust_reader(config)
        case "boto":
            return BotoRangeReader(S3Session(config), "bucket")
        case _:
            return open_reader(config)


def _pages(client: str, config: ConnectionConfig) -> PageSource:
    return (SignedPageSource if client == "signed" else BotoPageSource)(S3Session(config), "bucket")
