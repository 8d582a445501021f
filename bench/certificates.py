"""A certificate authority and what it issued for the loopback server, as a company's servers have it."""

import subprocess
from pathlib import Path

from fastfuse.testing.server_config import TlsFiles

__all__ = ["create_chain"]

_NEW = ["openssl", "req", "-x509", "-nodes", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-days", "2"]


def create_chain(directory: Path) -> tuple[Path, TlsFiles]:
    """Write an authority's certificate, and the chain and key of a server at 127.0.0.1, into `directory`.

    `fastfuse.testing` has a self-signed one, which peers do not accept.
    """
    authority, authority_key = directory / "authority.pem", directory / "authority-key.pem"
    issued = TlsFiles(directory / "issued.pem", directory / "issued-key.pem")
    root = [*_NEW, "-subj", "/CN=fastfuse bench", "-addext", "keyUsage=keyCertSign"]
    leaf = [*_NEW, "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    leaf += ["-addext", "basicConstraints=critical,CA:FALSE", "-CA", str(authority), "-CAkey", str(authority_key)]
    subprocess.run([*root, "-keyout", authority_key, "-out", authority], check=True, capture_output=True)
    subprocess.run([*leaf, "-keyout", issued.key, "-out", issued.certificate], check=True, capture_output=True)
    return authority, issued
