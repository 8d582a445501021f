"""AWS Signature Version 4 for GETs and HEADs, at a tenth of botocore's cost (20 µs). Tests compare it with botocore.

https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html
"""

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from fastfuse.s3.credentials import Credentials
from fastfuse.s3.endpoints import Endpoint

_ALGORITHM = "AWS4-HMAC-SHA256"
_NO_BODY = hashlib.sha256(b"").hexdigest()


@dataclass(frozen=True, slots=True)
class _Frame:
    """The text that the requests of one second with the same credentials share: all but the path and the signature."""

    credentials: Credentials
    at_s: int
    # The text behind the query in the canonical request, and the text before its hash in the string to sign.
    canonical_rest: str
    before_hash: str
    mac: hmac.HMAC
    # All header lines but the end of the last one, which is the signature.
    lines: str


class Signer:
    """Signs GETs and HEADs to one endpoint; keeps what it derived for the day and for the second."""

    def __init__(self, endpoint: Endpoint, extra: Mapping[str, str]) -> None:
        """`extra` are the ``x-amz-…`` headers of every request, in lower case: S3 wants them signed."""
        self._region = endpoint.region
        self._service = endpoint.signing_name
        self._host = endpoint.host_header
        self._extra = extra
        self._unsigned = "".join([f"{name}: {value}\r\n" for name, value in extra.items()])
        self._signing_key = b""
        self._signing_key_of: tuple[str, str] | None = None
        self._frame: _Frame | None = None

    def lines(
        self, path: str, credentials: Credentials | None, at_s: float, *, query: str = "", method: str = "GET"
    ) -> str:
        """Return the header lines that a request for `path` sends beside ``host``, `extra` included.

        The request is made at the Unix time `at_s`; without credentials it is not signed. `path`
        is URL-encoded. So is `query`, with all but ``A-Z a-z 0-9 - _ . ~`` encoded and its names in order.
        """
        if credentials is None:
            return self._unsigned
        frame = self._frame_of(credentials, int(at_s))
        canonical = hashlib.sha256(f"{method}\n{path}\n{query}{frame.canonical_rest}".encode()).hexdigest()
        mac = frame.mac.copy()
        mac.update(f"{frame.before_hash}{canonical}".encode())
        return f"{frame.lines}{mac.hexdigest()}\r\n"

    def texts(self, credentials: Credentials | None, at_s: float) -> tuple[str, str, str, bytes]:
        """Return what all signatures made at `at_s` have in common, for `direct_get.h`.

        That is the header lines up to the signature, the text behind the path in the canonical request, the text before
        its hash in the string to sign, and the signing key; without credentials that is empty.
        """
        if credentials is None:
            return self._unsigned, "", "", b""
        frame = self._frame_of(credentials, int(at_s))
        return frame.lines, f"\n{frame.canonical_rest}", frame.before_hash, self._signing_key

    def _frame_of(self, credentials: Credentials, at_s: int) -> _Frame:
        frame = self._frame
        if frame is None or frame.at_s != at_s or frame.credentials is not credentials:
            frame = self._frame = self._new_frame(credentials, at_s)
        return frame

    def _new_frame(self, credentials: Credentials, at_s: int) -> _Frame:
        at = datetime.fromtimestamp(at_s, UTC).strftime("%Y%m%dT%H%M%SZ")
        headers = {"x-amz-content-sha256": _NO_BODY, "x-amz-date": at, **self._extra}
        if credentials.token:
            headers["x-amz-security-token"] = credentials.token
        signed = {"host": self._host, **headers}
        ordered = sorted(signed)
        names = ";".join(ordered)
        lines = "".join([f"{name}:{signed[name]}\n" for name in ordered])
        scope = f"{at[:8]}/{self._region}/{self._service}/aws4_request"
        sent = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
        return _Frame(
            credentials=credentials,
            at_s=at_s,
            canonical_rest=f"\n{lines}\n{names}\n{_NO_BODY}",
            before_hash=f"{_ALGORITHM}\n{at}\n{scope}\n",
            mac=hmac.new(self._signing_key_for(credentials, at[:8]), digestmod="sha256"),
            lines=f"{sent}authorization: {_ALGORITHM} Credential={credentials.access_key}/{scope}, "
            f"SignedHeaders={names}, Signature=",
        )

    def _signing_key_for(self, credentials: Credentials, day: str) -> bytes:
        if self._signing_key_of != (day, credentials.secret_key):
            key = f"AWS4{credentials.secret_key}".encode()
            for part in (day, self._region, self._service, "aws4_request"):
                key = hmac.digest(key, part.encode(), "sha256")
            self._signing_key, self._signing_key_of = key, (day, credentials.secret_key)
        return self._signing_key
