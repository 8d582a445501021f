"""The seam to S3: its roles, with one contract test that every implementation passes.

Above this seam there are `ObjectRef`, buffers and `fastfuse.errors`. Below it there is one client, `client.S3Client`,
which has all roles; tests have another in memory.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from fastfuse.objects import Buffer, ObjectRef

# A region becomes part of a host name and of the string to sign.
REGION_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?", re.ASCII)

# How long opening one connection may take.
CONNECT_TIMEOUT_S = 5.0
# The deadline of one page of a listing, retries included. A service that sends none for so long is gone.
LIST_DEADLINE_S = 300.0

# Begins to get a range of an object, without a task, and later calls a function with the bytes, or with None if `get`
# has to get them. Returns False, and calls nothing, if `get` has to from the beginning.
BeginGet = Callable[[ObjectRef, int, int, Callable[[Buffer | None], None]], bool]

# Hosts with more cores have faster networks. With 16 cores, and 20 ms and 90 MB/s for each connection, 128 bring
# 3.2 GB/s, 512 bring 9.0: docs/MEASUREMENTS.md.
_CONNECTIONS_PER_CORE = 32
_MOST_CONNECTIONS = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionConfig:
    """The settings that reach one S3 service. ``None`` leaves the choice to the AWS configuration and environment."""

    endpoint_url: str | None = None
    region: str | None = None
    profile: str | None = None
    sign_request: bool = True
    force_path_style: bool = False
    ca_bundle: str | None = None
    verify_ssl: bool = True
    request_payer: bool = False
    # The file of the key that objects are encrypted with (SSE-C); see `s3.sse`.
    sse_c_key_file: str | None = None
    # Check all objects that are read whole, not only those that one GET reads; see `s3.integrity`.
    verify: bool = False
    # Ranged GETs in flight; also the pool size. A third of these saturate a 10 Gbit/s host where parts are large
    # (90 MB/s per connection); small files are nearly all time to the first byte (20 ms), and three quarters of the
    # connections, which may carry announced ones, bring 4,700 of them a second.
    max_connections: int = 128
    # A reader blocked in FUSE cannot be interrupted: after this many seconds, retries included, it gets EIO.
    # The peers give up after about 55 s (Mountpoint: 10 attempts, 20 s cap).
    deadline_s: float = 60.0


def enough_connections(cores: float) -> int:
    """Return the requests in flight that a host of so many cores can make use of."""
    return min(max(ConnectionConfig().max_connections, int(cores * _CONNECTIONS_PER_CORE)), _MOST_CONNECTIONS)


class RangeReader(Protocol):
    """Reads byte ranges of listed objects."""

    async def get(self, ref: ObjectRef, start: int, end: int) -> Buffer:
        """Return exactly ``end - start`` bytes of the listed version of `ref`; `end` is exclusive.

        Requires ``0 <= start < end <= ref.size_bytes``; anything else is a `ValueError`, without a request.
        The GET carries ``If-Match`` with ``ref.etag`` (where there is none, ``If-Unmodified-Since`` with
        ``ref.modified_ns``), and the reply's length, Content-Range and ETag (or time) are checked. The result is owned
        by the caller and never changed afterwards.

        A checkpoint. Cancelling returns promptly; a fetch that cannot be stopped (a thread) runs to its own
        deadline and its result is dropped. The reader stays usable after any error or cancellation.

        Raises:
            ObjectChangedError: replaced or deleted since the listing (412, 404, another ETag).
            ObjectDeniedError: 403; `ObjectArchivedError` where the reason is an archive class.
            UnavailableError: throttled, 5xx or connection lost, after all retries.
            DeadlineError: `ConnectionConfig.deadline_s` passed.
            IntegrityError: the bytes do not have the checksum that the service gives; see `s3.integrity`.
            BadReplyError: wrong length or wrong range; an ETag that no header can carry.
        """
        ...

    async def aclose(self) -> None:
        """Close connections. Idempotent; a read in flight fails or finishes, and none may be started."""
        ...


class PageSource(Protocol):
    """Lists keys, a page at a time, as the raw XML of ListObjectsV2 with ``encoding-type=url``."""

    async def list(
        self,
        bucket: str,
        *,
        prefix: str,
        start_after: str = "",
        continuation_token: str = "",
        delimiter: str = "",
        max_keys: int = 1000,
    ) -> bytes:
        """Return the unparsed body of one ListObjectsV2 reply; parse it with `index.listing.page`.

        Raises:
            RetryableError: it failed, and may be tried again.
            AccessError, SourceError, ConfigurationError, ServiceError: it failed for good.
        """
        ...

    async def aclose(self) -> None:
        """Close connections. Idempotent."""
        ...


class ObjectSource(RangeReader, Protocol):
    """Looks up single objects of any bucket."""

    @property
    def max_connections(self) -> int:
        """The number of requests that are worth having in flight."""
        ...

    async def head(self, bucket: str, key: str) -> ObjectRef:
        """Return what an object is now.

        Raises:
            MissingObjectError: there is none.
            ForbiddenObjectError: these credentials may not read it.
            AccessError, SourceError, ConfigurationError, ServiceError: as `PageSource.list`.
        """
        ...
