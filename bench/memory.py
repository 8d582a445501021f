"""``python -m bench.memory``: memory to list and to serve a large namespace, and the seconds to open it again.

The keys are made up by the loopback server, without any delay. Memory that processes share counts once (PSS), and the
index counts in full: it is in memory whether its pages are mapped or not.
"""

import argparse
import os
import resource
import tempfile
import time
from pathlib import Path

from bench.candidates import Limits, fastfuse_mount
from bench.machine import describe, touch_memory
from bench.mounting import ENVIRONMENT
from bench.processes import pss_bytes
from bench.server import Server
from fastfuse.filesystem.refresh import run_lister
from fastfuse.index.origin import IndexOrigin
from fastfuse.index.saved import copy_index, load_index, replace_file
from fastfuse.index.snapshot import open_snapshot
from fastfuse.index.sources.uri import S3Uri
from fastfuse.s3.aws import S3Session
from fastfuse.s3.base import ConnectionConfig


def _served_bytes(server: Server) -> int:
    """PSS of a mount that has answered its first questions."""
    with (
        tempfile.TemporaryDirectory() as place,
        fastfuse_mount(server, Path(place), Limits(), "--memory-target", "128MiB") as mounted,
    ):
        first, *_ = os.listdir(mounted.root)
        os.listdir(mounted.root / first)
        return pss_bytes(mounted.pid)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.memory", description=__doc__)
    parser.add_argument("--count", type=int, default=10_000_000, help="objects")
    options = parser.parse_args()
    count = options.count
    os.environ |= ENVIRONMENT
    print(", ".join(f"{name} {value}" for name, value in describe().items()))
    layout = f"count={count},size=128KiB,layout=dirs,dirs={max(count // 1000, 1)}"
    with Server(layout) as server:
        source = S3Uri(server.bucket, "")
        connection = ConnectionConfig(endpoint_url=server.endpoint_url, region="us-east-1", force_path_style=True)
        fd, report = run_lister(source, IndexOrigin(), S3Session(connection))
        # The largest child so far: the server's processes are small beside the lister.
        lister_bytes = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
        names_bytes = len(open_snapshot(fd).table.columns["names"]) / count
        size_bytes = os.fstat(fd).st_size
        served_bytes = _served_bytes(server) + size_bytes
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "x.index")
        started_s = time.monotonic()
        replace_file(path, fd)
        written_s = time.monotonic() - started_s
        os.close(fd)
        touch_memory(2 * size_bytes)
        copy_fd = os.memfd_create("bench")
        started_s = time.monotonic()
        copy_index(path, copy_fd)
        load_index(path, S3Session(connection), source, copy_fd)
        opened_s = time.monotonic() - started_s
        os.close(copy_fd)
    budget_bytes = 100 + names_bytes
    print(f"\n{count:,} objects, {names_bytes:.1f} bytes of names each\n")
    print("| | measured | at most |\n|---|---:|---:|")
    print(f"| served: supervisor and worker, bytes an object | {served_bytes / count:.0f} | {budget_bytes:.0f} |")
    print(f"| listed: the lister's peak, bytes an object | {lister_bytes / count:.0f} | {3 * budget_bytes:.0f} |")
    print(f"| listed, s | {report.elapsed_s:.1f} | |")
    print(f"| index file, bytes an object | {size_bytes / count:.0f} | |")
    print(f"| index file written and synced, s | {written_s:.1f} | |")
    print(f"| index file opened and checked, s | {opened_s:.2f} | 1 |")


if __name__ == "__main__":
    main()
