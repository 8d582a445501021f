"""Creates a certificate for the loopback server with the ``openssl`` command."""

import subprocess
from pathlib import Path

from fastfuse.errors import ConfigurationError
from fastfuse.testing.server_config import TlsFiles

__all__ = ["create_certificate"]


def create_certificate(directory: Path) -> TlsFiles:
    """Create a self-signed certificate for 127.0.0.1 and localhost, valid for a day, in `directory`.

    Clients trust it by its own file (``--ca-bundle``). `ConfigurationError` where openssl is missing or fails.
    """
    files = TlsFiles(directory / "certificate.pem", directory / "key.pem")
    command = ["openssl", "req", "-x509", "-nodes", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    command += ["-days", "1", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
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
