"""Who reads: the mount, what bounds it from above, and its peers; each starts cold and is alone while it runs."""

import os
import shutil
import sys
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol

from bench.machine import memory_directory
from bench.mount_process import MountProcess
from bench.mounting import ENVIRONMENT, Mounted, UnavailableError, foreground, make_mountpoint
from bench.readers import Manner, Outcome, RawAccess, Span, in_turns, read_mount, read_raw
from bench.server import Server
from fastfuse import hints

# A memory target that a small container has.
LIMITED_BYTES = 512 << 20
LIMITED = "fastfuse-512MiB"
# Those that make up what they serve, which no record reader takes.
MADE_UP = ("fuse-only", "local")
_BLOCK_BYTES = 1 << 20
_REGION = "us-east-1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the mount and the raw client may use. Latency is measured with a GET for each reader at once."""

    # Of the mount, which needs more than 64 for small files only, and of the raw client.
    max_connections: int = 128
    raw_requests: int = 64
    part_bytes: int = 8 << 20


class Target(Protocol):
    """A candidate that is ready to be read."""

    def read(self, tasks: Sequence[Sequence[Span]], manner: Manner) -> list[Outcome]: ...

    def cpu_s(self) -> float:
        """CPU seconds spent by whatever serves the readers, until now."""
        ...

    def peak_bytes(self) -> int:
        """The most memory that it had resident, what its processes share counted once."""
        ...


Candidate = Callable[[Server, Path, Limits], AbstractContextManager[Target]]


@dataclass(slots=True)
class _Raw:
    access: RawAccess
    outcomes: list[Outcome] = field(default_factory=list)

    def read(self, tasks: Sequence[Sequence[Span]], _: Manner) -> list[Outcome]:
        outcomes = read_raw(self.access, tasks)
        self.outcomes += outcomes
        return outcomes

    def cpu_s(self) -> float:
        return sum(outcome.cpu_s for outcome in self.outcomes)

    def peak_bytes(self) -> int:
        return max(outcome.peak_bytes for outcome in self.outcomes)


@contextmanager
def _raw(server: Server, _: Path, limits: Limits) -> Iterator[Target]:
    """Ranged GETs by the mount's own client, and the bytes thrown away: no FUSE."""
    yield _Raw(
        RawAccess(
            endpoint_url=server.endpoint_url,
            bucket=server.bucket,
            ca_bundle=server.ca_bundle,
            part_bytes=limits.part_bytes,
            requests_in_flight=limits.raw_requests,
        )
    )


@contextmanager
def fastfuse_mount(server: Server, place: Path, limits: Limits, *options: str) -> Iterator[Mounted]:
    """``fastfuse mount``."""
    arguments = ["--endpoint-url", server.endpoint_url, "--region", "us-east-1", "--force-path-style"]
    arguments += ["--part-size", str(limits.part_bytes), "--max-connections", str(limits.max_connections)]
    arguments += options
    if server.ca_bundle is not None:
        arguments += ["--ca-bundle", str(server.ca_bundle)]
    uri, root = f"s3://{server.bucket}", make_mountpoint(place)
    with MountProcess(uri, root, log_path=place / "log", environment=ENVIRONMENT, arguments=arguments) as mount:
        yield Mounted(root, mount.pid)


def _limited(server: Server, place: Path, limits: Limits) -> AbstractContextManager[Target]:
    return fastfuse_mount(server, place, limits, "--memory-target", str(LIMITED_BYTES))


class _Hinted(Mounted):
    def read(self, tasks: Sequence[Sequence[Span]], manner: Manner) -> list[Outcome]:
        # As the process does that draws the order of an epoch and deals it out to its workers.
        with hints.order([span.name for span in in_turns(tasks)], self.root):
            return super().read(tasks, manner)


@contextmanager
def _hinted(server: Server, place: Path, limits: Limits) -> Iterator[Target]:
    """The mount, told the order of the files beforehand."""
    with fastfuse_mount(server, place, limits) as mounted:
        yield _Hinted(mounted.root, mounted.pid)


@contextmanager
def _fuse_only(server: Server, place: Path, _: Limits) -> Iterator[Target]:
    """The mount's own FUSE adapter, answering from memory: no store, no readahead engine."""
    root = make_mountpoint(place)
    command = [sys.executable, "-m", "bench.fuse_only", server.endpoint_url, server.bucket, str(root)]
    if server.ca_bundle is not None:
        command.append(str(server.ca_bundle))
    with foreground(command, root, server, place / "log") as mounted:
        yield mounted


@dataclass(slots=True)
class _Local:
    root: Path

    def read(self, tasks: Sequence[Sequence[Span]], manner: Manner) -> list[Outcome]:
        sizes: dict[str, int] = {}
        for span in in_turns(tasks):
            sizes[span.name] = max(span.end, sizes.get(span.name, 0))
        for name, size_bytes in sizes.items():
            _fill(self.root / name, size_bytes)
        return read_mount(self.root, tasks, manner)

    def cpu_s(self) -> float:
        return 0.0

    def peak_bytes(self) -> int:
        return 0


def _fill(path: Path, size_bytes: int) -> None:
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    block = os.urandom(_BLOCK_BYTES)
    with path.open("wb") as file:
        for offset in range(0, size_bytes, _BLOCK_BYTES):
            file.write(block[: size_bytes - offset])


@contextmanager
def _local(_: Server, __: Path, ___: Limits) -> Iterator[Target]:
    """As many bytes in files of a local file system, in the page cache: what a later epoch could be at best."""
    with memory_directory(4 << 30) as root:
        yield _Local(root)


@contextmanager
def rclone(server: Server, place: Path, _: Limits, *options: str) -> Iterator[Mounted]:
    """``rclone mount``, tuned for streaming as all peers are."""
    root = make_mountpoint(place)
    remote = f":s3,provider=Other,list_version=2,env_auth,region={_REGION},endpoint='{server.endpoint_url}':"
    command = [str(Path(sysconfig.get_path("scripts"), "rclone")), "mount", remote + server.bucket, str(root)]
    command += ["--buffer-size", "64M", "--vfs-read-chunk-size", "8M", "--vfs-read-chunk-streams", "16"]
    command += ["--vfs-read-ahead", "128M", "--read-only", "--no-modtime", "--dir-cache-time", "1h"]
    command += ["--attr-timeout", "1h", "--config", "", *options]
    if server.ca_bundle is not None:
        command += ["--ca-cert", str(server.ca_bundle)]
    with foreground(command, root, server, place / "log") as mounted:
        yield mounted


def _s3fs(server: Server, root: Path, *extra: str) -> list[str]:
    options = [f"url={server.endpoint_url}", "use_path_request_style", f"endpoint={_REGION}", "ro", "kernel_cache"]
    options += ["listobjectsv2", "dbglevel=err"]
    options += ["parallel_count=16", "multipart_size=16", "multireq_max=64", "max_stat_cache_size=2000000"]
    return ["s3fs", server.bucket, str(root), "-f", *(word for option in options for word in ("-o", option)), *extra]


def _mount_s3(server: Server, root: Path, *options: str) -> list[str]:
    command = ["mount-s3", server.bucket, str(root), "--foreground", "--read-only", "--force-path-style"]
    command += ["--endpoint-url", server.endpoint_url, "--region", _REGION]
    # Its client opens connections for so much; the default knows the networks of EC2's instances only.
    return [*command, "--maximum-throughput-gbps", "50", "--metadata-ttl", "indefinite", *options]


def _goofys(server: Server, root: Path) -> list[str]:
    command = ["goofys", "-f", "-o", "ro", "--endpoint", server.endpoint_url, "--region", _REGION]
    return [*command, "--stat-cache-ttl", "1h", "--type-cache-ttl", "1h", server.bucket, str(root)]


def _geesefs(server: Server, root: Path, *options: str) -> list[str]:
    command = ["geesefs", "-f", "-o", "ro", "--endpoint", server.endpoint_url, "--region", _REGION]
    return [*command, "--memory-limit", "2000", "--stat-cache-ttl", "1h", *options, server.bucket, str(root)]


@contextmanager
def peer(name: str, server: Server, place: Path, _: Limits, *options: str) -> Iterator[Mounted]:
    """Mount with a program of `OTHERS`; raise `UnavailableError` where it is not installed or does not mount."""
    if shutil.which(name) is None:
        raise UnavailableError("is not on the PATH")
    root = make_mountpoint(place)
    command = _COMMANDS[name](server, root, *options)
    with ExitStack() as stack:
        try:
            mounted = stack.enter_context(foreground(command, root, server, place / "log"))
        except RuntimeError as error:
            raise UnavailableError(str(error)) from error
        yield mounted


_COMMANDS: dict[str, Callable[..., list[str]]] = {
    "s3fs": _s3fs,
    "mount-s3": _mount_s3,
    "goofys": _goofys,
    "geesefs": _geesefs,
}
OTHERS = tuple(_COMMANDS)
# The second without the MD5 sum that rclone computes of a file read from its start: a good part of a core.
RCLONES = ("rclone", "rclone-unchecked")

CANDIDATES: dict[str, Candidate] = {
    "raw": _raw,
    "fuse-only": _fuse_only,
    "local": _local,
    "fastfuse": fastfuse_mount,
    LIMITED: _limited,
    "fastfuse-hints": _hinted,
    "rclone": rclone,
    "rclone-unchecked": lambda server, place, limits: rclone(server, place, limits, "--no-checksum"),
    **{name: partial(peer, name) for name in OTHERS},
}
