"""Fixtures of the tests with local directories: no mount, no link and no process may be left behind."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.semantics.leftovers import nothing_is_left
from tests.semantics.places import block_bytes

__all__ = ["FILES", "nothing_is_left", "write_files"]

# In the order of their keys: "b-1" comes before "b/...".
FILES = {name: block_bytes(number, 5000) for number, name in enumerate(("a", "b-1", "b/2", "b/c/3", "d", "e", "f"), 1)}


def write_files(directory: Path, files: dict[str, bytes] = FILES) -> Path:
    for name, content in files.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_bytes(content)
    return directory


@pytest.fixture(autouse=True)
def nothing_stays_mounted(tmp_path: Path) -> Iterator[None]:
    yield
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    left = [line.split()[4] for line in lines if line.split()[4].startswith(f"{tmp_path}/")]
    for place in reversed(left):
        subprocess.run(["umount", "--lazy", place], check=True)
    assert not left
    assert os.path.isdir(tmp_path)
