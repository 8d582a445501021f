"""The handles of READ and READDIRPLUS name inode and process, although the kernel opens by itself."""

import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.s3server import LoopbackServer, MemoryObjects
from fastfuse.filesystem.mountpoint import find_mount
from tests import mounting
from tests.filesystem.test_supervisor import with_change
from tests.mounting import ENVIRONMENT

pytestmark = pytest.mark.fuse


@pytest.fixture(scope="module")
def server() -> Iterator[LoopbackServer]:
    with LoopbackServer({"bucket": MemoryObjects({"a": b"a"})}) as server:
        yield server


def test_where_pyfuse3_was_imported_first_nothing_is_mounted_and_the_error_says_what_to_do(
    server: LoopbackServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with_change(monkeypatch, "import pyfuse3")
    done = subprocess.run(
        mounting.mount_command("s3://bucket", tmp_path, server.endpoint_url),
        env=dict(ENVIRONMENT), capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 5, done.stderr
    assert "libfuse does not say which inode is read" in done.stderr
    assert "import no pyfuse3 before it" in done.stderr
    assert "Traceback" not in done.stderr
    assert find_mount(tmp_path) is None


_FLAGS = """
import os, sys
before = sys.getdlopenflags()
import fastfuse.filesystem.fuse
assert sys.getdlopenflags() == before
assert not before & os.RTLD_GLOBAL
"""


def test_other_modules_are_loaded_as_before() -> None:
    subprocess.run([sys.executable, "-c", textwrap.dedent(_FLAGS)], env=dict(ENVIRONMENT), check=True)
