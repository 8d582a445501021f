"""An S3 server on the loopback interface, for tests, benches and ``fastfuse demo``.

In this process, with its requests and faults at hand::

    with LoopbackServer({"bucket": MemoryObjects({"a/b": b"data"})}) as server:
        server.faults.add(FaultRule(action=SLOW_DOWN, operation="GetObject", times=2))
        ...  # a client of server.endpoint_url
        server.requests, server.statistics()

Or in processes of its own, fast enough to measure against::

    with ServerProcess("count=1000000,size=128KiB,layout=dirs,dirs=1000", workers=4) as server:
        ...  # server.endpoint_url, server.bucket

Layers, each knowing only those after it: `process` → `server` → `service` (S3, pure) → `pages`, `faults`, `wire` →
`synthetic` → `buckets` → `xml`.
"""

from fastfuse.testing.buckets import DirectoryObjects, MemoryObjects, ObjectSet, UploadedPart
from fastfuse.testing.faults import (
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
from fastfuse.testing.process import ServerProcess
from fastfuse.testing.recording import RequestRecord
from fastfuse.testing.server import LoopbackServer
from fastfuse.testing.server_config import Pace, ServerConfig, TlsFiles, create_certificate
from fastfuse.testing.synthetic import SyntheticObjects, parse_synthetic, synthetic_bytes

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
    "ServerProcess",
    "ShortPage",
    "Stall",
    "SyntheticObjects",
    "TlsFiles",
    "Truncate",
    "UploadedPart",
    "WrongEtag",
    "WrongLength",
    "create_certificate",
    "parse_synthetic",
    "synthetic_bytes",
]
