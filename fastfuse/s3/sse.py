"""Reads the key of objects that are encrypted with a customer's key (SSE-C), and makes the headers that send it."""

import base64
import logging
import os
import stat
from pathlib import Path

from fastfuse.errors import ConfigurationError
from fastfuse.regular_files import open_regular

_logger = logging.getLogger(__name__)

_KEY_BYTES = 32
_BASE64_LETTERS = 44
_LONGEST_BYTES = _BASE64_LETTERS + len("\r\n")


def customer_key_headers(path: Path) -> dict[str, str]:
    """Return the headers that a GET or HEAD of an object encrypted with the key in `path` carries and signs.

    Logs a warning if every user of this machine may read the key.

    Raises:
        ConfigurationError: the file holds no key, or cannot be read.
    """
    import hashlib  # every command loads this module, and few have a key

    key = read_customer_key(path)
    if path.stat().st_mode & stat.S_IROTH:
        _logger.warning("every user of this machine may read the encryption key in %s (chmod o-r)", path)
    prefix = "x-amz-server-side-encryption-customer"
    return {
        f"{prefix}-algorithm": "AES256",
        f"{prefix}-key": base64.b64encode(key).decode(),
        f"{prefix}-key-md5": base64.b64encode(hashlib.md5(key, usedforsecurity=False).digest()).decode(),
    }


def read_customer_key(path: Path) -> bytes:
    """Return the key in `path`: 32 bytes as they are, or 44 letters of Base64 and perhaps the end of a line.

    Raises:
        ConfigurationError: the file holds no key, or cannot be read. No message shows its content.
    """
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            content = file.read(_LONGEST_BYTES + 1)
    except OSError as error:
        raise ConfigurationError(
            f"The encryption key {str(path)!r} cannot be read: {error.strerror}.", hint="Correct --sse-c-key-file."
        ) from error
    key = content if len(content) == _KEY_BYTES else _decoded(content)
    if key is None:
        raise ConfigurationError(
            f"The file {str(path)!r} does not hold an encryption key for SSE-C.",
            hint="--sse-c-key-file names a regular file of 32 bytes, or of their Base64 (44 letters).",
        )
    return key


def _decoded(content: bytes) -> bytes | None:
    text = content.removesuffix(b"\n").removesuffix(b"\r")
    try:
        key = base64.b64decode(text, validate=True)
    except ValueError:
        return None
    return key if len(text) == _BASE64_LETTERS and len(key) == _KEY_BYTES else None
