"""Channels to download: their snapshots, and what is on the disk in the end."""

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.s3server import LoopbackServer, MemoryObjects
from fastfuse.index.inodes.table import InodeTable
from fastfuse.index.inodes.tree import Refusals
from fastfuse.index.snapshot import Snapshot, save_snapshot
from fastfuse.objects import ObjectRef
from fastfuse.s3.base import ConnectionConfig
from fastfuse.sagemaker.download.file_channel import DownloadReport, DownloadSettings, download_channel
from tests.index import indexes

PART_BYTES = 64 << 10
MEMORY_BYTES = 1 << 20


def refs_of(objects: MemoryObjects) -> list[ObjectRef]:
    """What the server lists of the bucket ``bucket``."""
    view = objects.view()
    found = [view.lookup(view.key_at(index)) for index in range(len(view))]
    return [
        ObjectRef("bucket", one.key.decode(), one.size_bytes, one.etag, one.modified_s * 10**9)
        for one in found
        if one is not None
    ]


def table_of(refs: Iterable[ObjectRef], *, prefix: str = "") -> InodeTable:
    rows = {ref.key: (ref.size_bytes, ref.modified_ns, ref.etag, ref.storage_class) for ref in refs}
    return indexes.table_of({key.removeprefix(prefix): row for key, row in rows.items()}, prefix=prefix)


def snapshot_fd(table: InodeTable) -> int:
    fd = os.memfd_create("test")
    save_snapshot(Snapshot(source="s3://bucket/", listed_at_ns=1, table=table, refusals=Refusals()), fd)
    return fd


def settings_for(directory: Path) -> DownloadSettings:
    return DownloadSettings(
        directory=directory,
        base=directory.parent,
        memory_target_bytes=MEMORY_BYTES,
        part_size_bytes=PART_BYTES,
    )


@dataclass(frozen=True)
class Source:
    """A server and its bucket ``bucket``, to be downloaded in this process."""

    server: LoopbackServer
    objects: MemoryObjects

    def table(self) -> InodeTable:
        return table_of(refs_of(self.objects))

    def run(
        self,
        directory: Path,
        *,
        table: InodeTable | None = None,
        tell: Callable[[DownloadReport], None] = lambda _: None,
        **options: Any,  # noqa: ANN401 - those of ConnectionConfig
    ) -> DownloadReport:
        options |= {"endpoint_url": self.server.endpoint_url, "region": "us-east-1", "force_path_style": True}
        connection = ConnectionConfig(sign_request=False, **options)
        fd = snapshot_fd(self.table() if table is None else table)
        try:
            return download_channel(fd, connection, settings_for(directory), tell)
        finally:
            os.close(fd)


def files_below(root: Path) -> dict[str, bytes]:
    """The bytes of all files, private ones too, by path."""
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}
