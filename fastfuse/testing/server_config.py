"""How a server behaves, beyond what it holds."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

__all__ = ["Pace", "ServerConfig", "TlsFiles"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """The delays and the rate of every request; 0 is as fast as it goes."""

    first_byte_delay_s: float = 0.0
    list_delay_s: float = 0.0
    # Of the body, each connection for itself: S3 gives about 90 MB/s to one.
    rate_bytes_per_s: float = 0.0


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """A certificate chain and its key, both PEM."""

    certificate: Path
    key: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """The defaults are S3's behaviour, for anyone who asks."""

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
    # How a valid range is answered: as S3, with everything (a server without ranges), or with the right bytes and
    # Content-Range under status 200 (as `rclone serve s3`).
    range_reply: Literal["206", "200-whole", "200-part"] = "206"
    # If-Match and If-Unmodified-Since.
    honour_conditions: bool = True
    # False: ``encoding-type=url`` is ignored and keys are sent as bare XML.
    encode_keys: bool = True
    # How many requests the log keeps; 0 keeps none, for benches.
    log_limit: int = 10_000
