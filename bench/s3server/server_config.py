"""The settings of a loopback server, and a certificate for it."""

import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Literal

from fastfuse.errors import ConfigurationError

_NEW_CERTIFICATE = ["openssl", "req", "-x509", "-nodes", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]


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
    # The only access key that is known; empty accepts any. Signatures are not verified.
    access_key_id: str = ""
    page_keys_max: int = 1000
    # False: every range is answered with the whole object.
    honour_ranges: bool = True
    # If-Match and If-Unmodified-Since.
    honour_conditions: bool = True
    # PUT of whole objects into `MemoryObjects`, with or without If-Match and If-None-Match. "creating" refuses each
    # If-Match, "replacing" ignores it, and "bare" knows ETags only without their quotes (as Ceph's gateway 16).
    writes: Literal["refused", "conditional", "unconditional", "creating", "replacing", "bare"] = "refused"
    # The server's clock: of Date, and of the Last-Modified of what is written. None: replies have no Date.
    clock_s: Callable[[], float] | None = None
    # Requests signed at a time that is further from that clock are refused.
    most_skew_s: float = inf
    # How many requests the log keeps; 0 keeps none, for benches.
    log_limit: int = 10_000


def create_certificate(directory: Path) -> TlsFiles:
    """Create a self-signed certificate for 127.0.0.1 and localhost, valid for a day, with the ``openssl`` command.

    Clients trust it by its own file (``--ca-bundle``). `ConfigurationError` where openssl is missing or fails.
    """
    files = TlsFiles(directory / "certificate.pem", directory / "key.pem")
    command = [*_NEW_CERTIFICATE, "-days", "1", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    # Strict verifiers require the extensions of an authority and of a server (RFC 5280).
    command += ["-addext", "keyUsage=digitalSignature,keyCertSign", "-addext", "extendedKeyUsage=serverAuth"]
    command += ["-keyout", str(files.key), "-out", str(files.certificate)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise ConfigurationError(
            f"openssl could not make a certificate in {directory}", hint="install openssl, or give your own files"
        ) from error
    return files


def create_chain(directory: Path) -> tuple[Path, TlsFiles]:
    """Create a certificate of an authority, and what it issued for 127.0.0.1, as a company's servers have it.

    Return the file of the authority, which clients trust, and the files of the server.
    """
    authority, authority_key = directory / "authority.pem", directory / "authority-key.pem"
    issued = TlsFiles(directory / "issued.pem", directory / "issued-key.pem")
    root = [*_NEW_CERTIFICATE, "-subj", "/CN=authority", "-addext", "keyUsage=keyCertSign"]
    leaf = [*_NEW_CERTIFICATE, "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    leaf += ["-addext", "basicConstraints=critical,CA:FALSE", "-CA", str(authority), "-CAkey", str(authority_key)]
    subprocess.run([*root, "-keyout", authority_key, "-out", authority], check=True, capture_output=True)
    subprocess.run([*leaf, "-keyout", issued.key, "-out", issued.certificate], check=True, capture_output=True)
    return authority, issued
