import base64
import hashlib
import logging
import os
from pathlib import Path

import pytest

from fastfuse.errors import ConfigurationError
from fastfuse.s3.sse import customer_key_headers

KEY = bytes(range(223, 255))
TEXT = base64.b64encode(KEY)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "key"
    path.touch(0o600)
    return path


LETTERS = b"A" * 31 + b"\n"


@pytest.mark.parametrize(
    ("content", "key"), [*((text, KEY) for text in (KEY, TEXT, TEXT + b"\n", TEXT + b"\r\n")), (LETTERS, LETTERS)]
)
def test_a_key_in_any_form_comes_with_its_digest(
    path: Path, content: bytes, key: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    path.write_bytes(content)
    assert customer_key_headers(path) == {
        "x-amz-server-side-encryption-customer-algorithm": "AES256",
        "x-amz-server-side-encryption-customer-key": base64.b64encode(key).decode(),
        "x-amz-server-side-encryption-customer-key-md5": base64.b64encode(hashlib.md5(key).digest()).decode(),
    }
    assert not caplog.records


@pytest.mark.parametrize(
    "content",
    [
        *(b"", KEY[:-1], KEY + b"\n", base64.b64encode(KEY[:-1]), KEY.hex().encode()),
        *(TEXT[:-1], TEXT + b"\n\n", b" " + TEXT, TEXT * 1000),
        *(b"A" * 44, b"?" * 44),  # the first is the Base64 of 33 bytes
    ],
)
def test_what_is_no_key_is_refused_without_being_shown(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(ConfigurationError, match="does not hold an encryption key") as caught:
        customer_key_headers(path)
    told = f"{caught.value} {caught.value.hint} {caught.value.__cause__} {caught.value.__context__}"
    assert str(path) in told
    assert "--sse-c-key-file" in told
    assert TEXT[:12].decode() not in told


def test_a_place_without_a_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for name, why in (("fifo", "it is no regular file"), ("", "it is no regular file"), ("none", "No such file")):
        with pytest.raises(ConfigurationError, match=f"{tmp_path / name}.*{why}"):
            customer_key_headers(tmp_path / name)


def test_a_key_that_everybody_may_read_is_warned_of(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path.write_bytes(KEY)
    path.chmod(0o644)
    assert customer_key_headers(path)
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert str(path) in record.getMessage()
