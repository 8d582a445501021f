"""The settings of a loopback server."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

__all__ = ["Pace", "ServerConfig", "TlsFiles"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """The delays and the rate of every request; 0 is as fast as it goes."""

    first_byte_delay_s: float = 0.0
    list_delay_s: float = 0.0
    # The rate of the body on each connection: S3 gives about 90 MB/s to one.
    rate_bytes_per_s: float = 0.0


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """A certificate chain and its key, both PEM."""

    certificate: Path
    key: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """The behaviour of a server. By default it behaves as S3 does, and accepts any access key."""

    port: int = 0
    pace: Pace = Pace()
    tls: TlsFiles | None = None
    # Bucket → region. Requests signed for another region than a bucket's are refused, either as a regional endpoint
    # does (301 PermanentRedirect) or as the global one (400 AuthorizationHeaderMalformed).
    regions: Mapping[str, str] = field(default_factory=dict)
    wrong_region: Literal["redirect", "malformed"] = "redirect"
    allow_anonymous: bool = True
    # The only access key that is known; empty accepts any. Signatures are not verified.
    access_key_id: str = ""
    page_keys_max: int = 1000
    # The reply to a valid range: as S3's, the whole object (a server without ranges), or the right bytes and
    # Content-Range under status 200 (as `rclone serve s3`).
    range_reply: Literal["206", "200-whole", "200-part"] = "206"
    # If-Match and If-Unmodified-Since.
    honour_conditions: bool = True
    # PUT of whole objects into `MemoryObjects`, with or without If-Match and If-None-Match.
    writes: Literal["refused", "conditional", "unconditional"] = "refused"
    # The server's clock: of Date, and of the Last-Modified of what is written. None: replies have no Date.
    clock_s: Callable[[], float] | None = None
    # False: ``encoding-type=url`` is ignored and keys are sent as bare XML.
    encode_keys: bool = True
    # How many requests the log keeps; 0 keeps none, for benches.
    log_limit: int = 10_000
