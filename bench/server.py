"""The loopback server in processes of its own, which tell what they were asked and what CPU time that took.

It is as fast as the machine lets it be, or in the shape of S3; plain or over TLS.
"""

import multiprocessing
import shutil
import signal
import socket
import tempfile
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Self

from bench.processes import cpu_seconds
from bench.s3server.buckets import DirectoryObjects, ObjectSet
from bench.s3server.server import LoopbackServer, bind_loopback
from bench.s3server.server_config import Pace, ServerConfig, TlsFiles, create_chain
from bench.s3server.synthetic import parse_synthetic, synthetic_bytes

# Ending takes milliseconds; a process that needs longer is killed.
_STOP_S = 10.0


# 10 to 30 ms to the first byte and about 90 MB/s for each connection is what S3 gives to a client in its region:
# https://docs.aws.amazon.com/AmazonS3/latest/userguide/optimizing-performance-guidelines.html
_S3 = Pace(first_byte_delay_s=0.020, rate_bytes_per_s=90e6)


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One kind of server."""

    name: str
    description: str
    pace: Pace
    is_tls: bool = False

    def get_s(self, size_bytes: int) -> float:
        """The least that one GET of so many bytes takes: the delay and the transfer."""
        rate = self.pace.rate_bytes_per_s
        return self.pace.first_byte_delay_s + (size_bytes / rate if rate else 0.0)


_ALL = (
    Profile(name="s3", description="20 ms to the first byte, 90 MB/s for each connection", pace=_S3),
    Profile(name="s3-tls", description="20 ms to the first byte, 90 MB/s for each connection, TLS", pace=_S3,
            is_tls=True),
    Profile(name="fast", description="no delay, no limit", pace=Pace()),
    Profile(name="fast-tls", description="no delay, no limit, TLS", pace=Pace(), is_tls=True),
)  # fmt: skip
PROFILES = {profile.name: profile for profile in _ALL}


@dataclass(frozen=True, slots=True)
class Traffic:
    """Requests of any kind, and bytes of bodies."""

    requests: int
    sent_bytes: int


class Server:
    """`workers` processes that serve `source` between ``with`` and its end.

    `source` is a directory, or the description of synthetic objects (`bench.s3server.synthetic.parse_synthetic`).
    It ends with this process, even if that is killed.
    """

    # What clients must trust; None without TLS.
    ca_bundle: Path | None = None

    def __init__(
        self, source: Path | str, *, profile: Profile = PROFILES["fast"], workers: int = 2, bucket: str = "bench"
    ) -> None:
        self.bucket = bucket
        self._source = source
        self._profile = profile
        self._workers = workers

    def __enter__(self) -> Self:
        self._directory = Path(tempfile.mkdtemp(prefix="fastfuse-bench-"))
        tls = None
        if self._profile.is_tls:
            self.ca_bundle, tls = create_chain(self._directory)
        context = multiprocessing.get_context("spawn")
        self._channels: list[Connection] = []
        self._processes = []
        with bind_loopback() as listener:
            self.endpoint_url = f"{'https' if tls else 'http'}://127.0.0.1:{listener.getsockname()[1]}"
            for _ in range(self._workers):
                ours, theirs = context.Pipe()
                arguments = (self.bucket, self._source, self._profile, tls, listener, theirs)
                process = context.Process(target=_serve, args=arguments, daemon=True)
                process.start()
                theirs.close()
                self._channels.append(ours)
                self._processes.append(process)
        for channel in self._channels:
            channel.recv()
        return self

    def __exit__(self, *_: object) -> None:
        for channel in self._channels:
            channel.close()
        for process in self._processes:
            process.join(_STOP_S)
            process.kill()
            process.join()
        shutil.rmtree(self._directory)

    def traffic(self) -> Traffic:
        """Until now. A reply counts in full when it begins."""
        for channel in self._channels:
            channel.send(None)
        parts: list[Traffic] = [channel.recv() for channel in self._channels]
        return Traffic(sum(part.requests for part in parts), sum(part.sent_bytes for part in parts))

    def cpu_s(self) -> float:
        """CPU seconds that its processes have spent until now."""
        return sum(cpu_seconds(process.pid) for process in self._processes if process.pid is not None)


def _serve(
    bucket: str, source: Path | str, profile: Profile, tls: TlsFiles | None, listener: socket.socket, asked: Connection
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Nobody can read the log of another process.
    config = ServerConfig(pace=profile.pace, tls=tls, log_limit=0)
    with LoopbackServer({bucket: _objects(source)}, config, listener=listener) as server:
        asked.send(None)
        while True:
            try:
                asked.recv()
            except EOFError:
                return
            statistics = server.statistics()
            asked.send(Traffic(sum(statistics.requests.values()), statistics.sent_bytes))


def _objects(source: Path | str) -> ObjectSet:
    if isinstance(source, Path):
        return DirectoryObjects(source)
    # The block that all contents are slices of is made at the first use, which must not be a timed one.
    synthetic_bytes("", 0, 1)
    return parse_synthetic(source)
