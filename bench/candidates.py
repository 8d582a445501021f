"""Who reads: the mount, what bounds it from above, and its peers; each starts cold and is alone while it runs."""

import os
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from bench.machine import cpu_seconds
from bench.readers import Outcome, RawAccess, Span, read_mount, read_raw
from fastfuse.demo.mounting import MountProcess
from fastfuse.demo.processes import peak_memory_bytes
from fastfuse.mount.mountpoint import find_mount
from fastfuse.testing.process import ServerProcess

__all__ = ["CANDIDATES", "ENVIRONMENT", "Candidate", "Limits", "Target"]

# Nothing of the user's own configuration or proxies; keys of a length that rclone takes.
ENVIRONMENT = {
    **{
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("AWS_", "FASTFUSE_", "RCLONE_")) and not name.lower().endswith("_proxy")
    },
    "AWS_ACCESS_KEY_ID": "AKIABENCHBENCHBENCH0",
    "AWS_SECRET_ACCESS_KEY": "bench" * 8,
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    "AWS_EC2_METADATA_DISABLED": "true",
}
_START_S = 30.0
_POLL_S = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a candidate may use."""

    memory_target_bytes: int
    max_connections: int = 64
    part_bytes: int = 8 << 20


class Target(Protocol):
    """A candidate that is ready to be read."""

    def read(self, tasks: Sequence[Sequence[Span]]) -> list[Outcome]: ...

    def cpu_s(self) -> float:
        """CPU seconds spent by whatever serves the readers, until now."""
        ...

    def peak_bytes(self) -> int:
        """The most memory that it had resident."""
        ...


Candidate = Callable[[ServerProcess, Path, Limits], AbstractContextManager[Target]]


@dataclass(frozen=True, slots=True)
class _Mounted:
    root: Path
    pid: int

    def read(self, tasks: Sequence[Sequence[Span]]) -> list[Outcome]:
        return read_mount(self.root, tasks)

    def cpu_s(self) -> float:
        return cpu_seconds(self.pid)

    def peak_bytes(self) -> int:
        return peak_memory_bytes(self.pid)


@dataclass(slots=True)
class _Raw:
    access: RawAccess
    outcomes: list[Outcome] = field(default_factory=list)

    def read(self, tasks: Sequence[Sequence[Span]]) -> list[Outcome]:
        outcomes = read_raw(self.access, tasks)
        self.outcomes += outcomes
        return outcomes

    def cpu_s(self) -> float:
        return sum(outcome.cpu_s for outcome in self.outcomes)

    def peak_bytes(self) -> int:
        return max(outcome.peak_bytes for outcome in self.outcomes)


@contextmanager
def raw(server: ServerProcess, _: Path, limits: Limits) -> Iterator[Target]:
    """Ranged GETs by the mount's own client, with as many in flight, and the bytes thrown away: no FUSE."""
    yield _Raw(
        RawAccess(
            endpoint_url=server.endpoint_url,
            bucket=server.bucket,
            part_bytes=limits.part_bytes,
            requests_in_flight=limits.max_connections,
        )
    )


@contextmanager
def fastfuse(server: ServerProcess, place: Path, limits: Limits) -> Iterator[Target]:
    """``fastfuse mount``."""
    arguments = ["--endpoint-url", server.endpoint_url, "--region", "us-east-1", "--force-path-style"]
    arguments += ["--memory-target", str(limits.memory_target_bytes), "--part-size", str(limits.part_bytes)]
    arguments += ["--max-connections", str(limits.max_connections)]
    uri, root = f"s3://{server.bucket}", _mountpoint(place)
    with MountProcess(uri, root, log_path=place / "log", environment=ENVIRONMENT, arguments=arguments) as mount:
        yield _Mounted(root, mount.pid)


@contextmanager
def fuse_only(server: ServerProcess, place: Path, _: Limits) -> Iterator[Target]:
    """The mount's own FUSE adapter, answering from memory: no store, no readahead engine."""
    root = _mountpoint(place)
    with _foreground(
        [sys.executable, "-m", "bench.fuse_only", server.endpoint_url, server.bucket, str(root)], root
    ) as pid:
        yield _Mounted(root, pid)


@contextmanager
def rclone(server: ServerProcess, place: Path, _: Limits, *options: str) -> Iterator[Target]:
    """``rclone mount``, tuned for streaming."""
    root = _mountpoint(place)
    remote = f":s3,provider=Other,list_version=2,env_auth,region=us-east-1,endpoint='{server.endpoint_url}':"
    command = [str(Path(sysconfig.get_path("scripts"), "rclone")), "mount", remote + server.bucket, str(root)]
    command += ["--buffer-size", "64M", "--vfs-read-chunk-size", "8M", "--vfs-read-chunk-streams", "16"]
    command += ["--vfs-read-ahead", "128M", "--read-only", "--no-modtime", "--dir-cache-time", "1h"]
    command += ["--attr-timeout", "1h", "--config", "", "--log-file", str(place / "log"), *options]
    with _foreground(command, root) as pid:
        yield _Mounted(root, pid)


@contextmanager
def rclone_unchecked(server: ServerProcess, place: Path, limits: Limits) -> Iterator[Target]:
    """The same without the MD5 sum that rclone computes of a file read from its start: a good part of a core."""
    with rclone(server, place, limits, "--no-checksum") as target:
        yield target


CANDIDATES: dict[str, Candidate] = {
    "raw": raw,
    "fuse-only": fuse_only,
    "fastfuse": fastfuse,
    "rclone": rclone,
    "rclone-unchecked": rclone_unchecked,
}


def _mountpoint(place: Path) -> Path:
    root = place / "mount"
    root.mkdir()
    return root


@contextmanager
def _foreground(command: list[str], root: Path) -> Iterator[int]:
    """Run a command that mounts at `root` and serves until it is unmounted; yields its pid."""
    with subprocess.Popen(command, env=ENVIRONMENT, stdin=subprocess.DEVNULL) as process:
        try:
            deadline_s = time.monotonic() + _START_S
            while find_mount(root) is None:
                if process.poll() is not None or time.monotonic() > deadline_s:
                    raise RuntimeError(f"nothing was mounted by {' '.join(command)}")
                time.sleep(_POLL_S)
            # The mount is in the table before its daemon serves it; this waits until it does.
            os.listdir(root)
            yield process.pid
        finally:
            if find_mount(root) is not None:
                subprocess.run(["umount", "--lazy", root], check=True)
            process.terminate()
