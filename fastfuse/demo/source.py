"""Opens the source of the demo: files that it makes and a loopback server for them, or a bucket of the user's."""

import os
import signal
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex

from fastfuse.demo.dataset import DataFile, create_shards, create_small_files, require_space
from fastfuse.demo.mounting import connection_arguments
from fastfuse.demo.report import Reporter
from fastfuse.index.sources.uri import S3Uri
from fastfuse.s3.base import ConnectionConfig
from fastfuse.sizes import MIB, format_size
from fastfuse.testing.process import ServerProcess

__all__ = ["DemoSettings", "Source", "files_below", "open_source"]

# Larger files of a real bucket are read as shards are; the mount fetches smaller ones with one request each.
SHARD_MIN_BYTES = 8 * MIB
# One process serves while another waits for the disk or the GIL. More would take cores from the readers.
_SERVER_PROCESSES = 2

_BUCKET = "demo"


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoSettings:
    """The settings of `fastfuse demo`: what it makes, reads and leaves behind."""

    # The data set of the built-in server: sequential shards, and many small files.
    shard_count: int
    shard_bytes: int
    small_file_count: int
    small_file_bytes: int
    reader_count: int
    # Leave the mount and the server up until interrupted, to look around.
    keep: bool
    # Read this instead of the built-in server's data set.
    source: S3Uri | None
    connection: ConnectionConfig
    # The environment of the processes that the demo starts. It may hold credentials, so it is not shown.
    environment: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Source:
    """A source with its options and environment. `files` are those that must be there, None if they are unknown."""

    uri: str
    arguments: list[str]
    environment: Mapping[str, str]
    files: tuple[list[DataFile], list[DataFile]] | None


@contextmanager
def open_source(settings: DemoSettings, directory: Path, reporter: Reporter) -> Iterator[Source]:
    """Open the user's bucket, or make a data set below `directory` and serve it until the end of the block."""
    inherited = {name: value for name, value in settings.environment.items() if not name.startswith("FASTFUSE_")}
    if settings.source is not None:
        yield Source(str(settings.source), connection_arguments(settings.connection), inherited, None)
        return
    files = _create_files(settings, directory, reporter)
    with _served(directory) as server:
        reporter.say(f"    served as s3://{_BUCKET} at {server.endpoint_url} by python -m fastfuse.testing")
        connection = ConnectionConfig(
            endpoint_url=server.endpoint_url,
            region="us-east-1",
            force_path_style=True,
            max_connections=settings.connection.max_connections,
        )
        yield Source(f"s3://{_BUCKET}", connection_arguments(connection), _isolated(inherited), files)


def files_below(root: Path, shard_count: int, small_file_count: int) -> tuple[list[DataFile], list[DataFile]]:
    """Return the first files of an unknown mount: at most so many large and so many small ones."""
    shards: list[DataFile] = []
    small: list[DataFile] = []
    for folder, _, names in os.walk(root):
        for name in names:
            path = Path(folder, name)
            status = path.lstat()
            if not stat.S_ISREG(status.st_mode):
                continue
            file = DataFile(str(path.relative_to(root)), status.st_size, None)
            kind, limit = (shards, shard_count) if file.size_bytes >= SHARD_MIN_BYTES else (small, small_file_count)
            if len(kind) < limit:
                kind.append(file)
        if len(shards) == shard_count and len(small) == small_file_count:
            break
    return shards, small


def _create_files(settings: DemoSettings, directory: Path, reporter: Reporter) -> tuple[list[DataFile], list[DataFile]]:
    shards_bytes = settings.shard_count * settings.shard_bytes
    small_bytes = settings.small_file_count * settings.small_file_bytes
    require_space(directory, shards_bytes + small_bytes)
    text = (
        f"making {settings.shard_count:,} TFRecord shards of {format_size(settings.shard_bytes)} and "
        f"{settings.small_file_count:,} files of {format_size(settings.small_file_bytes)} in {directory}"
    )
    with reporter.step(text):
        return (
            create_shards(directory, settings.shard_count, settings.shard_bytes),
            create_small_files(directory, settings.small_file_count, settings.small_file_bytes),
        )


@contextmanager
def _served(directory: Path) -> Iterator[ServerProcess]:
    server = ServerProcess(directory, bucket=_BUCKET, workers=_SERVER_PROCESSES)
    # Ctrl-C in a terminal would reach the server, too, which the mount needs until it is unmounted. A process inherits
    # the blocked signals.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        server.__enter__()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    try:
        yield server
    finally:
        server.__exit__(None, None, None)


def _isolated(environment: Mapping[str, str]) -> dict[str, str]:
    """Return `environment` without the user's AWS settings and proxies, and with keys for the loopback server."""
    kept = {
        name: value
        for name, value in environment.items()
        if not name.startswith("AWS_") and not name.lower().endswith("_proxy")
    }
    return kept | {
        "AWS_ACCESS_KEY_ID": "AKIA" + token_hex(8).upper(),
        "AWS_SECRET_ACCESS_KEY": token_hex(20),
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "AWS_EC2_METADATA_DISABLED": "true",
    }
