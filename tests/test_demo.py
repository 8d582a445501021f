"""The demo: its files and its checks, and all of it as a user runs it, small, through the real kernel."""

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fastfuse.demo import DataFile, DemoSettings, make_files, read_files, require_space
from fastfuse.errors import ConfigurationError
from fastfuse.filesystem.mountpoint import fastfuse_mounts
from tests.forked import Forked
from tests.mounting import ENVIRONMENT

SMALL = ("--shards", "2", "--shard-size", "9MiB", "--small-files", "5", "--small-file-size", "10KiB")
PATIENCE_S = 60.0


@pytest.fixture
def files(tmp_path: Path) -> list[DataFile]:
    return make_files(tmp_path, "some", 20, 3_000_000)


@pytest.mark.parametrize("readers", [1, 3, 50])
def test_every_file_is_read_once_and_matches(tmp_path: Path, files: list[DataFile], readers: int) -> None:
    done = read_files(tmp_path, files, readers)
    assert (done.size_bytes, done.failures) == (60_000_000, [])
    assert 0 < done.first_byte_s < done.elapsed_s


def test_files_that_are_changed_short_or_missing_are_named(tmp_path: Path, files: list[DataFile]) -> None:
    changed, short, missing = (tmp_path / file.name for file in files[:3])
    changed.write_bytes(changed.read_bytes()[:-1] + b"?")
    short.write_bytes(b"short")
    missing.unlink()
    assert read_files(tmp_path, files, 2).failures == [
        f"{files[0].name}: 3,000,000 bytes of 3,000,000, or other bytes, were read",
        f"{files[1].name}: 5 bytes of 3,000,000, or other bytes, were read",
        f"{files[2].name}: No such file or directory",
    ]


@pytest.mark.parametrize(("count", "size_bytes"), [(1001, 10), (1, 0), (1, 20_000_000)])
def test_files_have_the_size_asked_for_and_lie_in_folders_of_a_thousand(
    tmp_path: Path, count: int, size_bytes: int
) -> None:
    made = make_files(tmp_path, "small", count, size_bytes)
    assert {(tmp_path / file.name).stat().st_size for file in made} == {size_bytes}
    assert len({file.name.rpartition("/")[0] for file in made}) == -(-count // 1000)
    assert len({file.digest for file in made}) == (count if size_bytes else 1)


def test_a_data_set_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    settings = DemoSettings(shard_count=1, shard_bytes=1 << 50, small_file_count=0, small_file_bytes=0, reader_count=1)
    with pytest.raises(ConfigurationError, match="the demo's data set takes 1048576 GiB"):
        require_space(tmp_path, settings)


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


def assert_nothing_is_left(tmp_path: Path) -> None:
    assert list(tmp_path.iterdir()) == []
    assert not [path for path in fastfuse_mounts() if path.is_relative_to(tmp_path)]


@pytest.mark.fuse
@pytest.mark.parametrize(
    ("options", "reads"),
    [(SMALL, 14), (("--shards", "1", "--shard-size", "1MiB", "--small-files", "0"), 2)],
)
def test_the_made_data_set_is_read_checked_and_taken_away(tmp_path: Path, options: tuple[str, ...], reads: int) -> None:
    with demo(tmp_path, *options) as process:
        output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, output
    assert f"{reads // 2} objects listed" in output
    assert f"every checksum matched: {reads} reads of whole files" in output
    assert re.search(r"^ *one shard +1 +1 +\d+ ", output, re.MULTILINE)
    assert re.search(r"^ *all again .* 0 *$", output, re.MULTILINE), "the page cache has all of it"
    assert re.search(r"^read .* fetched .* in \d+ GETs", output, re.MULTILINE)
    assert_nothing_is_left(tmp_path)


@pytest.mark.fuse
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("step", ["==> reading one shard", "==> fastfuse mount"])
def test_an_interrupted_demo_leaves_nothing_behind(tmp_path: Path, step: str, number: signal.Signals) -> None:
    with demo(tmp_path, "--shards", "2", "--shard-size", "150MiB") as process:
        assert process.stdout is not None
        while not (line := process.stdout.readline()).startswith(step):
            assert line
        process.send_signal(number)
        output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130, output
    assert "interrupted; everything is cleaned up" in output
    assert_nothing_is_left(tmp_path)
