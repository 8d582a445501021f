"""The demo as a user runs it, small, through the real kernel."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fastfuse.filesystem.mountpoint import fastfuse_mounts
from fastfuse.testing import FaultRule, LoopbackServer, MemoryObjects, WrongEtag
from tests.forked import Forked
from tests.mounting import ENVIRONMENT

pytestmark = pytest.mark.fuse

SMALL = ("--shards", "2", "--shard-size", "9MiB", "--small-files", "5", "--small-file-size", "10KiB")
PATIENCE_S = 60.0


@contextmanager
def demo(tmp_path: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    with Forked(
        [sys.executable, "-m", "fastfuse", "demo", *options],
        env={**ENVIRONMENT, "TMPDIR": str(tmp_path)}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            process.terminate()


def finished(tmp_path: Path, *options: str) -> tuple[int, str]:
    with demo(tmp_path, *options) as process:
        output, _ = process.communicate(timeout=PATIENCE_S)
        return process.returncode, output


def assert_nothing_is_left(tmp_path: Path) -> None:
    assert list(tmp_path.iterdir()) == []
    assert not [path for path in fastfuse_mounts() if path.is_relative_to(tmp_path)]


def wait_for(process: subprocess.Popen[str], text: str) -> list[str]:
    """The lines up to the one with `text`."""
    lines: list[str] = []
    assert process.stdout is not None
    while not lines or text not in lines[-1]:
        lines.append(process.stdout.readline())
        assert lines[-1], lines
    return lines


def test_the_made_data_set_is_read_checked_and_taken_away(tmp_path: Path) -> None:
    code, output = finished(tmp_path, *SMALL)
    assert code == 0, output
    assert "7 objects listed" in output
    assert "every checksum matched: 14 reads of whole files" in output
    assert re.search(r"peak memory of the mount: \d+ MiB", output)
    assert re.search(r"^one shard +1 +1 +9 ", output, re.MULTILINE)
    assert re.search(r"^all again .* 0$", output, re.MULTILINE), "the page cache has all of it"
    assert "WARNING" not in output
    assert_nothing_is_left(tmp_path)


def test_a_shard_and_no_small_files_are_enough(tmp_path: Path) -> None:
    code, output = finished(tmp_path, "--shards", "1", "--shard-size", "1MiB", "--small-files", "0")
    assert (code, "every checksum matched: 2 reads" in output) == (0, True), output


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_leaves_nothing_behind(tmp_path: Path, number: signal.Signals) -> None:
    with demo(tmp_path, "--shards", "2", "--shard-size", "150MiB") as process:
        wait_for(process, "==> reading one shard")
        process.send_signal(number)
        output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130, output
    assert "interrupted; everything is cleaned up" in output
    assert_nothing_is_left(tmp_path)


def test_a_kept_mount_can_be_read_until_it_is_interrupted(tmp_path: Path) -> None:
    with demo(tmp_path, *SMALL, "--keep") as process:
        lines = wait_for(process, "fastfuse unmount")
        (command,) = (line for line in lines if "    find " in line)
        done = subprocess.run(command, shell=True, capture_output=True, text=True, check=True)
        assert done.stdout == "7\n"
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, output
    assert_nothing_is_left(tmp_path)


def test_a_kept_mount_that_is_unmounted_ends_the_demo(tmp_path: Path) -> None:
    with demo(tmp_path, *SMALL, "--keep") as process:
        wait_for(process, "fastfuse unmount")
        (mountpoint,) = (path for path in fastfuse_mounts() if path.is_relative_to(tmp_path))
        subprocess.run(["umount", mountpoint], check=True)
        output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, output
    assert_nothing_is_left(tmp_path)


class TestOnABucketOfTheUser:
    OBJECTS = MemoryObjects({"p/big": bytes(2**23), **{f"p/{number}": os.urandom(10_000) for number in range(4)}})

    def options(self, server: LoopbackServer, uri: str) -> tuple[str, ...]:
        return ("--uri", uri, "--endpoint-url", server.endpoint_url, "--region", "us-east-1", "--force-path-style")

    def test_what_two_mounts_fetched_agrees(self, tmp_path: Path) -> None:
        with LoopbackServer({"b": self.OBJECTS}) as server:
            code, output = finished(tmp_path, *self.options(server, "s3://b/p"))
        assert (code, "every checksum matched: 15 reads" in output) == (0, True), output
        assert re.search(r"^by another mount +4 +5 .* [1-9]$", output, re.MULTILINE), output
        assert_nothing_is_left(tmp_path)

    def test_files_that_cannot_be_read_are_named_and_the_exit_code_is_1(self, tmp_path: Path) -> None:
        with LoopbackServer({"b": self.OBJECTS}) as server:
            server.faults.add(FaultRule(action=WrongEtag('"other"'), operation="GetObject", key="p/2"))
            code, output = finished(tmp_path, *self.options(server, "s3://b/p"))
        assert code == 1
        assert "==> 3 reads were not what they must be" in output
        assert "    2: Stale file handle" in output
        assert_nothing_is_left(tmp_path)

    def test_a_source_that_cannot_be_mounted_is_told_with_its_reason_and_exit_code(self, tmp_path: Path) -> None:
        with LoopbackServer({"b": self.OBJECTS}) as server:
            code, output = finished(tmp_path, *self.options(server, "s3://none"))
        assert code == 4, output
        assert "fastfuse: error: " in output
        assert "none" in output
        assert_nothing_is_left(tmp_path)
