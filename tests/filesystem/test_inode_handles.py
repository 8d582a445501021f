"""The handles of READ and READDIRPLUS name inode and process, although the kernel opens by itself."""

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from fastfuse.filesystem.mountpoint import find_mount
from fastfuse.testing import LoopbackServer, MemoryObjects
from tests import mounting
from tests.filesystem.test_supervisor import with_change
from tests.mounting import ENVIRONMENT, mounted

pytestmark = pytest.mark.fuse

_DATA = {f"folder/{number}": b"x" * (number + 1) for number in range(3)}


@pytest.fixture(scope="module")
def server() -> Iterator[LoopbackServer]:
    with LoopbackServer({"bucket": MemoryObjects(_DATA)}) as server:
        yield server


def test_a_handle_has_the_inode_and_the_process_that_reads(
    server: LoopbackServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen = tmp_path / "seen"
    change = f"""
    import os
    from fastfuse.filesystem.operations import MountOperations
    read, readdir = MountOperations.read, MountOperations.readdir

    seen_fd = os.open({str(seen)!r}, os.O_WRONLY | os.O_CREAT)  # nobody, who writes to it, may not open it
    def note(kind, handle):
        os.write(seen_fd, f"{{kind}} {{handle}}\\n".encode())

    async def noted_read(self, fh, off, size):
        note("read", fh)
        return await read(self, fh, off, size)

    async def noted_readdir(self, fh, start_id, token):
        note("readdir", fh)
        return await readdir(self, fh, start_id, token)

    MountOperations.read, MountOperations.readdir = noted_read, noted_readdir

    from fastfuse.filesystem.small_files import SmallFiles

    async def leave_to_handler(self):
        pass

    SmallFiles.arm = leave_to_handler
    """
    with_change(monkeypatch, change)
    with mounted("s3://bucket", server.endpoint_url) as mount:
        folder = mount.path / "folder"
        expected = {("readdir", os.getpid(), folder.stat().st_ino)}
        os.listdir(folder)
        for name in ("0", "1"):
            path = folder / name
            assert path.read_bytes() == _DATA[f"folder/{name}"]
            expected.add(("read", os.getpid(), path.stat().st_ino))
        program = "import os, sys; print(os.getpid(), os.stat(sys.argv[1]).st_ino); open(sys.argv[1]).read()"
        other = subprocess.run(
            [sys.executable, "-c", program, str(folder / "2")], capture_output=True, text=True, check=True
        )
        pid, inode = map(int, other.stdout.split())
        assert pid != os.getpid()
        expected.add(("read", pid, inode))
        assert mount.stop() == 0
    handles = [(kind, int(handle)) for kind, handle in map(str.split, seen.read_text().splitlines())]
    assert {(kind, handle >> 42, handle & (1 << 42) - 1) for kind, handle in handles} == expected


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
