"""A short soak of a real mount, and that its readers find what they are there to find."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from bench.s3server.buckets import FileSpan
from bench.soak.data import Kind, Objects, expected_bytes
from bench.soak.disturbances import DISTURBANCES
from bench.soak.flips import flipped
from bench.soak.readers import MANNERS, SHORT, WRONG, Reader, Shared
from bench.soak.squeezing import memory_group

KINDS = [Kind("small/", 6, 1, 900), Kind("moving/", 6, 1, 900), Kind("middle/", 1, 9000, 9000), Kind("large/", 1, 1, 9)]


@pytest.mark.fuse
def test_a_disturbed_mount_gives_right_bytes_allowed_errors_and_leaves_nothing(tmp_path: Path) -> None:
    counts_path = tmp_path / "counts.json"
    # Other tests count on the page cache.
    command = [sys.executable, "-m", "bench.soak", "--seconds", "10", "--seed", "20", "--keep-caches", "--json"]
    done = subprocess.run([*command, counts_path], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    counts = json.loads(counts_path.read_text())
    assert counts["findings"] == []
    assert counts["disturbances"].keys() <= DISTURBANCES.keys()
    assert sum(counts["disturbances"].values()) >= 8
    assert counts["latencies"].keys() == {*MANNERS, "all"}
    assert all(row["calls"] for row in counts["latencies"].values())
    # The less is read, as on a busy machine, the more of the GETs are those of requests that are tried again.
    assert counts["fetch_requests"] > 0
    assert 0 < counts["kernel_requests"] < counts["reads"]


def test_the_kernel_kills_who_wants_more_memory_than_a_squeezed_group_may_have() -> None:
    with memory_group() as group:
        if group is None:
            pytest.skip("takes root, and control groups that can be changed")
        command = [sys.executable, "-c", "import sys; sys.stdin.read(); len(bytearray(64 << 20))"]
        for is_squeezed in (False, True):
            with subprocess.Popen(command, stdin=subprocess.PIPE) as process, ExitStack() as exits:
                group.add([process.pid])
                if is_squeezed:
                    exits.enter_context(group.squeezed())
                process.communicate(timeout=60)
            assert process.returncode == (-signal.SIGKILL if is_squeezed else 0)


@pytest.mark.fuse
def test_files_read_to_their_end_over_a_way_that_flips_bits_are_right_or_an_error() -> None:
    command = [sys.executable, "-m", "bench.soak.flips", "--seconds", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "small right" in done.stdout


def test_a_bit_is_wrong_in_every_ten_megabytes() -> None:
    flips = flipped(10**6, 10**6 + 10**9)
    assert 99 <= len(flips) <= 101
    assert all(10**6 <= offset < 10**6 + 10**9 for offset in flips)


def place_objects(root: Path) -> None:
    view = Objects(KINDS).view()
    for index in range(len(view)):
        stored = view.lookup(view.key_at(index))
        assert stored is not None
        path = root / stored.key.decode()
        path.parent.mkdir(parents=True, exist_ok=True)
        (span,) = stored.content.spans(0, stored.size_bytes)
        assert isinstance(span, FileSpan)
        path.write_bytes(os.pread(span.fd, span.length_bytes, span.offset_bytes))
        os.utime(path, (stored.modified_s, stored.modified_s))


@contextmanager
def times_kept(path: Path) -> Iterator[None]:
    """Give the file its time back after the block."""
    modified_ns = path.stat().st_mtime_ns
    yield
    os.utime(path, ns=(modified_ns, modified_ns))


def failures(root: Path, manner: str) -> set[str]:
    """Return what ten visits in this manner find wrong; one of the moving objects is not there."""
    reader = Reader(manner, root, KINDS, 1, 0, Shared(1, 1.0))
    for _ in range(10):
        with suppress(FileNotFoundError):
            MANNERS[manner](reader)
    return {failure.name for failure in reader.share.failures} - {"ENOENT"}


# Not the one that forks: this process may have threads.
@pytest.mark.parametrize("manner", sorted(MANNERS.keys() - {"mapped"}))
def test_wrong_bytes_and_wrong_sizes_are_found(tmp_path: Path, manner: str) -> None:
    place_objects(tmp_path)
    assert failures(tmp_path, manner) == set()
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    for path in files:
        with times_kept(path), path.open("r+b") as file:
            data = file.read()
            file.seek(0)
            file.write(bytes(byte ^ 1 for byte in data))
    assert failures(tmp_path, manner) == (set() if manner == "found" else {WRONG})
    for path in files:
        with times_kept(path), path.open("ab") as file:
            file.write(b"x")
    assert failures(tmp_path, manner) == {WRONG}


def test_too_few_of_the_right_bytes_are_told_from_wrong_ones(tmp_path: Path) -> None:
    reader = Reader("whole", tmp_path, KINDS, 1, 0, Shared(1, 1.0))
    right = expected_bytes("", 0, 0, 100)
    for got in (right, right[:40], right[:39] + b"?"):
        with reader.call():
            pass
        reader.check(got, 0, 0, 100)
    assert [failure.name for failure in reader.share.failures] == [SHORT, WRONG]
