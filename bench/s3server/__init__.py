"""An S3 server on the loopback interface, for tests and benches.

It runs in this process, with its requests and faults at hand::

    with LoopbackServer({"bucket": MemoryObjects({"a/b": b"data"})}) as server:
        server.faults.add(FaultRule(action=SLOW_DOWN, operation="GetObject", times=2))
        ...  # a client of server.endpoint_url
        server.requests, server.statistics()

`bench.server` runs it in processes of its own, fast enough to measure against.

Layers, each knowing only those after it: `server` → `service` (S3, pure) → `pages`, `faults`, `wire` → `synthetic` →
`buckets` → `xml`.
"""

from bench.s3server.buckets import DirectoryObjects, MemoryObjects, ObjectSet, UploadedPart
from bench.s3server.faults import (
    ACCESS_DENIED,
    EXPIRED_TOKEN,
    INTERNAL_ERROR,
    SERVICE_UNAVAILABLE,
    SLOW_DOWN,
    Answer,
    Delay,
    FaultRule,
    Flip,
    Limit,
    Replace,
    Reset,
    ShortPage,
    Stall,
    Truncate,
    WrongEtag,
    WrongLength,
)
from bench.s3server.recording import RequestRecord
from bench.s3server.server import LoopbackServer
from bench.s3server.server_config import Pace, ServerConfig, TlsFiles, create_certificate, create_chain
from bench.s3server.synthetic import SyntheticObjects, parse_synthetic, synthetic_bytes

__all__ = [
    "ACCESS_DENIED",
    "EXPIRED_TOKEN",
    "INTERNAL_ERROR",
    "SERVICE_UNAVAILABLE",
    "SLOW_DOWN",
    "Answer",
    "Delay",
    "DirectoryObjects",
    "FaultRule",
    "Flip",
    "Limit",
    "LoopbackServer",
    "MemoryObjects",
    "ObjectSet",
    "Pace",
    "Replace",
    "RequestRecord",
    "Reset",
    "ServerConfig",
    "ShortPage",
    "Stall",
    "SyntheticObjects",
    "TlsFiles",
    "Truncate",
    "UploadedPart",
    "WrongEtag",
    "WrongLength",
    "create_certificate",
    "create_chain",
    "parse_synthetic",
    "synthetic_bytes",
]
