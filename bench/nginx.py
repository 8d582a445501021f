"""``python -m bench.nginx``: small files from nginx, a server in C that takes less CPU than this project's own.

The mount takes the keys from a list, as nginx lists no buckets. In each round sixteen readers read every file once,
shuffled, with the page cache empty; ``--hints`` announces the order. Beside it the mount's own client GETs the same
files without FUSE. The CPU is that of all processes of the mount, of its event loop alone, of readers, and of nginx.
"""

import argparse
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

from bench.machine import describe, drop_caches
from bench.mount_process import MountProcess
from bench.mounting import ENVIRONMENT, make_mountpoint
from bench.processes import cpu_seconds, process_tree, thread_cpu_seconds
from bench.readers import Manner, RawAccess, Span, read_mount, read_raw
from fastfuse.hints import order

_BUCKET = "bench"
_FILE_BYTES = 39_000
_CONFIG = """\
user {user}; worker_processes 2; daemon off; pid {place}/pid; error_log {place}/error.log;
events {{ worker_connections 2048; }}
http {{
    access_log off; sendfile on; tcp_nopush on; keepalive_requests 1000000;
    open_file_cache max=100000 inactive=1h; open_file_cache_valid 1h;
    server {{ listen 127.0.0.1:{port} backlog=1024; root {place}/data; }}
}}
"""


def _make_files(bucket: Path, count: int) -> list[str]:
    names = [f"{number % 50:02d}/{number:06d}.jpg" for number in range(count)]
    for name in names:
        (bucket / name).parent.mkdir(parents=True, exist_ok=True)
        (bucket / name).write_bytes(os.urandom(_FILE_BYTES))
    return names


@contextmanager
def _nginx(place: Path) -> Iterator[tuple[int, int]]:
    """Serve `place`/data; yield the port and the process."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    config = place / "nginx.conf"
    config.write_text(_CONFIG.format(place=place, port=port, user=Path.home().owner()))
    with subprocess.Popen(["nginx", "-c", str(config)]) as process:
        try:
            while not _listens(port):
                if process.poll() is not None:
                    raise RuntimeError("nginx has ended: see what it says above")
                time.sleep(0.05)  # it tells nobody when it listens
            yield port, process.pid
        finally:
            process.terminate()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _empty_caches(bucket: Path, root: Path) -> None:
    """Have the server's files in memory again, and the mount's names."""
    drop_caches()
    for path in bucket.rglob("*.jpg"):
        path.read_bytes()
    for path in root.rglob("*"):
        path.stat()


def _shares(names: Sequence[str], readers: int) -> list[list[Span]]:
    return [[Span(name, 0, _FILE_BYTES) for name in names[first::readers]] for first in range(readers)]


def _measure(mount: MountProcess, names: Sequence[str], readers: int, server: int) -> list[float]:
    """Return files a second, and the CPU us of one: of the mount, of its loop, of the readers, and of the server."""
    worker = process_tree(mount.pid)[-1]
    before_s = cpu_seconds(mount.pid), thread_cpu_seconds(worker), cpu_seconds(server)
    outcomes = read_mount(mount.mountpoint, _shares(names, readers), Manner())
    after_s = cpu_seconds(mount.pid), thread_cpu_seconds(worker), cpu_seconds(server)
    mount_s, loop_s, server_s = (after - before for before, after in zip(before_s, after_s, strict=True))
    elapsed_s = max(one.ended_s for one in outcomes) - min(one.started_s for one in outcomes)
    cpus_s = mount_s, loop_s, sum(one.cpu_s for one in outcomes), server_s
    return [len(names) / elapsed_s, *(cpu_s / len(names) * 1e6 for cpu_s in cpus_s)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser("python -m bench.nginx", description=__doc__)
    parser.add_argument("--files", type=int, default=12_000)
    parser.add_argument("--readers", type=int, default=16)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--hints", action="store_true", help="announce the order")
    options = parser.parse_args(arguments)
    print(", ".join(f"{name} {value}" for name, value in describe().items()))
    with tempfile.TemporaryDirectory(prefix="fastfuse-bench-") as name:
        place = Path(name)
        bucket = place / "data" / _BUCKET
        names = _make_files(bucket, options.files)
        (place / "keys").write_text("".join(f"{name}\n" for name in names))
        random.Random(0).shuffle(names)
        with _nginx(place) as (port, server):
            url, uri = f"http://127.0.0.1:{port}", f"s3://{_BUCKET}/"
            access = RawAccess(
                endpoint_url=url,
                bucket=_BUCKET,
                ca_bundle=None,
                part_bytes=_FILE_BYTES,
                requests_in_flight=options.readers,
            )
            settings = ["--endpoint-url", url, "--region", "us-east-1", "--keys-from", str(place / "keys")]
            root = make_mountpoint(place)
            with MountProcess(uri, root, log_path=place / "log", environment=ENVIRONMENT, arguments=settings) as mount:
                rounds: list[list[float]] = []
                raw: list[float] = []
                for _ in range(options.runs):
                    _empty_caches(bucket, root)
                    with order([root / name for name in names], root) if options.hints else nullcontext():
                        rounds.append(_measure(mount, names, options.readers, server))
                    (outcome,) = read_raw(access, _shares(names, options.readers))
                    raw.append(len(names) / (outcome.ended_s - outcome.started_s))
    print("\n| medians | files/s | CPU of the mount, us | its loop | readers | nginx |\n|---|---:|---:|---:|---:|---:|")
    shown = " | ".join(f"{statistics.median(column):,.0f}" for column in zip(*rounds, strict=True))
    print(f"| fastfuse | {shown} |\n| raw GETs by its client | {statistics.median(raw):,.0f} | | | | |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
