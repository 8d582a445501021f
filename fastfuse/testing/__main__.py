"""Runs the loopback server as a command: ``python -m fastfuse.testing``.

It prints one line of JSON, ``{"endpoint_url": …, "bucket": …}``, when it serves, and ends on SIGTERM or SIGINT.
"""

import argparse
import json
import os
import signal
import sys
from pathlib import Path
from types import FrameType

from fastfuse.errors import FastfuseError
from fastfuse.testing.buckets import DirectoryObjects, ObjectSet
from fastfuse.testing.process import Workers
from fastfuse.testing.server_config import Pace, ServerConfig, TlsFiles
from fastfuse.testing.synthetic import parse_synthetic


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m fastfuse.testing", description="S3 on the loopback interface")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--dir", type=Path, help="serve the files below this directory")
    source.add_argument("--synthetic", metavar="SPEC", help="count=1000000,size=128KiB,layout=flat|dirs|hex,dirs=1000")
    parser.add_argument("--bucket", default="bench")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1, help="processes")
    parser.add_argument("--first-byte-delay-s", type=float, default=0.0)
    parser.add_argument("--list-delay-s", type=float, default=0.0)
    parser.add_argument("--rate-bytes-per-s", type=float, default=0.0, help="of each connection; 0 has no limit")
    parser.add_argument("--tls-cert", type=Path)
    parser.add_argument("--tls-key", type=Path)
    parser.add_argument("--until-stdin-closes", action="store_true", help="end with the process that started this")
    return parser


def _stop(_number: int, _frame: FrameType | None) -> None:
    raise SystemExit(0)


def main() -> None:
    """Serve until told to stop."""
    parser = _parser()
    options = parser.parse_args()
    if bool(options.tls_cert) != bool(options.tls_key):
        parser.error("--tls-cert and --tls-key need each other")
    try:
        objects: ObjectSet = DirectoryObjects(options.dir) if options.dir else parse_synthetic(options.synthetic)
    except FastfuseError as error:
        parser.error(f"{error}: {error.hint}")
    pace = Pace(
        first_byte_delay_s=options.first_byte_delay_s,
        list_delay_s=options.list_delay_s,
        rate_bytes_per_s=options.rate_bytes_per_s,
    )
    tls = TlsFiles(options.tls_cert, options.tls_key) if options.tls_cert else None
    # No other process can read the log.
    config = ServerConfig(port=options.port, pace=pace, tls=tls, log_limit=0)
    with Workers({options.bucket: objects}, config, options.workers) as workers:
        signal.signal(signal.SIGTERM, _stop)
        signal.signal(signal.SIGINT, _stop)
        scheme = "https" if config.tls else "http"
        ready = {"endpoint_url": f"{scheme}://127.0.0.1:{workers.port}", "bucket": options.bucket}
        sys.stdout.write(json.dumps(ready) + "\n")
        sys.stdout.flush()
        if options.until_stdin_closes:
            os.read(sys.stdin.fileno(), 1)
        else:
            signal.pause()


if __name__ == "__main__":
    main()
