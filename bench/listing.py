"""``python -m bench.listing``: how fast a prefix becomes a table that is ready to mount.

The loopback server makes up the keys and takes 100 ms for each page, as S3 does. Each listing runs in a process of its
own, as in a mount, from the first request to the saved snapshot.
"""

import argparse
import os
import statistics
from dataclasses import replace

from bench.mounting import ENVIRONMENT
from bench.s3server import Pace
from bench.server import PROFILES, Server
from fastfuse.filesystem.refresh import run_lister
from fastfuse.index.make import IndexReport
from fastfuse.index.origin import IndexOrigin
from fastfuse.index.sources.uri import S3Uri
from fastfuse.s3.aws import S3Session
from fastfuse.s3.base import ConnectionConfig

_LAYOUTS = {
    "1,000 directories": "layout=dirs,dirs=1000",
    "one flat directory": "layout=flat",
    "random hexadecimal names": "layout=hex",
}


def _measure(endpoint_url: str, bucket: str) -> IndexReport:
    connection = ConnectionConfig(
        endpoint_url=endpoint_url, region="us-east-1", sign_request=True, force_path_style=True
    )
    snapshot_fd, report = run_lister(S3Uri(bucket, ""), IndexOrigin(), S3Session(connection))
    os.close(snapshot_fd)
    return report


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.listing", description=__doc__)
    parser.add_argument("--count", type=int, default=1_000_000, help="objects")
    parser.add_argument("--page-ms", type=float, default=100.0, help="the server's time for each page")
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    os.environ |= ENVIRONMENT
    least = -(-options.count // 1000)
    print(f"{options.count:,} objects, {options.page_ms:g} ms a page, medians of {options.runs} runs\n")
    print("| names | seconds | objects/s | requests | of the least |\n|---|---:|---:|---:|---:|")
    for name, layout in _LAYOUTS.items():
        profile = replace(PROFILES["fast"], pace=Pace(list_delay_s=options.page_ms / 1000))
        with Server(f"count={options.count},size=128KiB,{layout}", profile=profile) as server:
            reports = [_measure(server.endpoint_url, server.bucket) for _ in range(options.runs)]
        elapsed_s = statistics.median(report.elapsed_s for report in reports)
        requests = statistics.median(report.requests for report in reports)
        print(
            f"| {name} | {elapsed_s:.2f} | {options.count / elapsed_s:,.0f} | {requests:.0f} | {requests / least:.2f} |"
        )


if __name__ == "__main__":
    main()
