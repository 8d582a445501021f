"""``python -m bench.fuse_only ENDPOINT BUCKET MOUNTPOINT [AUTHORITY]``: FUSE over an engine that has every byte.

What this reads at is what the kernel, pyfuse3 and the adapter leave to the rest of the mount. Nobody else in the bench
knows the adapter: whatever takes its place is put in here.
"""

import os
import sys
from math import inf
from pathlib import Path

import trio

from fastfuse.filesystem.kernel.fuse import interposed, replies
from fastfuse.filesystem.kernel.in_hand import ReadsInHand
from fastfuse.filesystem.kernel.loop import Requests
from fastfuse.filesystem.kernel.session import Session
from fastfuse.filesystem.mounting.mount_places import Place
from fastfuse.filesystem.mounting.mountpoint import raise_readahead
from fastfuse.filesystem.refresh import run_lister
from fastfuse.filesystem.serving.operations import MountOperations
from fastfuse.filesystem.serving.reads import Reads
from fastfuse.index.origin import IndexOrigin
from fastfuse.index.snapshot import open_snapshot
from fastfuse.index.sources.uri import S3Uri
from fastfuse.metrics import Counters
from fastfuse.objects import Buffer, ObjectRef
from fastfuse.readahead import ReadEngine
from fastfuse.s3.aws import S3Session
from fastfuse.s3.base import ConnectionConfig

# The kernel asks for at most 1 MiB (256 pages) at once.
_BLOCK = memoryview(os.urandom(1 << 20))


class _MemoryEngine(ReadEngine):
    def __init__(self) -> None:
        """Need nothing of it."""

    def at_hand(self, inode: int, ref: ObjectRef, offset: int, size_bytes: int) -> Buffer | None:
        return _BLOCK[: min(size_bytes, ref.size_bytes - offset)]

    def put_off(self, inode: int, offset: int, size_bytes: int) -> bool:
        return False

    async def read(self, inode: int, ref: ObjectRef, offset: int, size_bytes: int, ends_s: float = inf) -> Buffer:
        return _BLOCK[: min(size_bytes, ref.size_bytes - offset)]

    def began(self, reader: int) -> None: ...

    def forget(self, inode: int) -> None:
        """Nothing is kept."""

    def refreshed(self) -> None:
        """Nothing is kept."""


def main() -> None:
    """Serve until unmounted."""
    endpoint_url, bucket, mountpoint, *authority = sys.argv[1:]
    connection = ConnectionConfig(
        endpoint_url=endpoint_url,
        region="us-east-1",
        force_path_style=True,
        ca_bundle=authority[0] if authority else None,
    )
    source = S3Uri(bucket, "")
    snapshot_fd, _ = run_lister(source, IndexOrigin(), S3Session(connection))
    counters, engine = Counters(), _MemoryEngine()
    operations = MountOperations(counters, uid=os.getuid(), gid=os.getgid())
    operations.serve(open_snapshot(snapshot_fd).table, engine)
    session = Session.mount(operations, Place(Path(mountpoint)), source=str(source), allow_other=False)
    raise_readahead(session.device)
    requests = Requests()
    trio.run(_serve, operations, engine, counters, session.fd, requests, instruments=[requests])
    session.close()


async def _serve(
    operations: MountOperations, engine: _MemoryEngine, counters: Counters, session_fd: int, requests: Requests
) -> None:
    replies.start(session_fd, replies.threads_for(len(os.sched_getaffinity(0))))
    async with trio.open_nursery() as nursery:
        interposed.take_reads(Reads(operations, engine, counters, ReadsInHand(), nursery).take)
        await requests.serve()
    replies.finish()


if __name__ == "__main__":
    main()
