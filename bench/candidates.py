"""Who reads: the mount, what bounds it from above, and its peers; each starts cold and is alone while it runs."""

import importlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from bench import peers
from bench.machine import memory_directory
from bench.mounting import ENVIRONMENT, Mounted, UnavailableError, foreground, make_mountpoint
from bench.readers import Outcome, in_turns, read_mount, read_raw
from bench.reading import Manner, RawAccess, Span
from bench.server import Server
from fastfuse.demo.mounting import MountProcess

__all__ = [
    "CANDIDATES",
    "LIMITED",
    "LIMITED_BYTES",
    "MADE_UP",
    "Candidate",
    "Limits",
    "Target",
    "UnavailableError",
    "mount_fastfuse",
]

# A memory target that a small container has.
LIMITED_BYTES = 512 << 20
LIMITED = "fastfuse-512MiB"
# Those that make up what they serve, which no record reader takes.
MADE_UP = ("fuse-only", "local")
_BLOCK_BYTES = 1 << 20


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
def mount_fastfuse(server: Server, place: Path, limits: Limits, *options: str) -> Iterator[Mounted]:
    """``fastfuse mount``."""
    arguments = ["--endpoint-url", server.endpoint_url, "--region", "us-east-1", "--force-path-style"]
    arguments += ["--part-size", str(limits.part_bytes), "--max-connections", str(limits.max_connections)]
    arguments += ["--no-index-cache", *options]
    if server.ca_bundle is not None:
        arguments += ["--ca-bundle", str(server.ca_bundle)]
    uri, root = f"s3://{server.bucket}", make_mountpoint(place)
    with MountProcess(uri, root, log_path=place / "log", environment=ENVIRONMENT, arguments=arguments) as mount:
        yield Mounted(root, mount.pid)


def _limited(server: Server, place: Path, limits: Limits) -> AbstractContextManager[Target]:
    return mount_fastfuse(server, place, limits, "--memory-target", str(LIMITED_BYTES))


@dataclass(frozen=True, slots=True)
class _Hinted:
    mounted: Mounted
    hints: Any

    def read(self, tasks: Sequence[Sequence[Span]], manner: Manner) -> list[Outcome]:
        # As the process does that draws the order of an epoch and deals it out to its workers.
        names = [span.name for span in in_turns(tasks)]
        with self.hints.order(names, self.mounted.root):
            return self.mounted.read(tasks, manner)

    def cpu_s(self) -> float:
        return self.mounted.cpu_s()

    def peak_bytes(self) -> int:
        return self.mounted.peak_bytes()


@contextmanager
def _hinted(server: Server, place: Path, limits: Limits) -> Iterator[Target]:
    """The mount, told the order of the files beforehand."""
    try:
        hints = importlib.import_module("fastfuse.hints")
    except ModuleNotFoundError as error:
        raise UnavailableError("fastfuse.hints is not there") from error
    with mount_fastfuse(server, place, limits) as mounted:
        yield _Hinted(mounted, hints)


@contextmanager
def _fuse_only(server: Server, place: Path, _: Limits) -> Iterator[Target]:
    """The mount's own FUSE adapter, answering from memory: no store, no readahead engine."""
    root = make_mountpoint(place)
    command = [sys.executable, "-m", "bench.fuse_only", server.endpoint_url, server.bucket, str(root)]
    if server.ca_bundle is not None:
        command.append(str(server.ca_bundle))
    with foreground(command, root, ENVIRONMENT, place / "log") as mounted:
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


def _without_limits(
    peer: Callable[[Server, Path], AbstractContextManager[Mounted]],
    server: Server,
    place: Path,
    _: Limits,
) -> AbstractContextManager[Target]:
    return peer(server, place)


CANDIDATES: dict[str, Candidate] = {
    "raw": _raw,
    "fuse-only": _fuse_only,
    "local": _local,
    "fastfuse": mount_fastfuse,
    LIMITED: _limited,
    "fastfuse-hints": _hinted,
    **{name: partial(_without_limits, peer) for name, peer in (peers.RCLONES | peers.OTHERS).items()},
}
