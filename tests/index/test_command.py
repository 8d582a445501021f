"""`fastfuse index`, and `mount --index`, as a user has them: real processes and real mounts."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.s3server import FaultRule, LoopbackServer, MemoryObjects, ServerConfig, Stall
from fastfuse.filesystem.mounting.mountpoint import find_mount
from tests.forked import Forked
from tests.mounting import ENVIRONMENT, access, children_of, mount_command, mounted, run_fastfuse
from tests.servers import S3Server

OBJECTS = {"train/a": b"a", "train/b/c": b"cc", "train/bad//name": b"", "train/empty": b""}


@pytest.fixture
def objects() -> MemoryObjects:
    return MemoryObjects(OBJECTS)


@pytest.fixture
def server(objects: MemoryObjects) -> Iterator[LoopbackServer]:
    with LoopbackServer({"bucket": objects}) as server:
        yield server


def make(server: LoopbackServer, output: Path | str, *options: str) -> None:
    done = run_fastfuse("index", "s3://bucket/train", "-o", str(output), *options, *access(server.endpoint_url))
    assert done.returncode == 0, done.stderr


def tree(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_an_index_is_mounted_without_a_listing(server: LoopbackServer, tmp_path: Path) -> None:
    make(server, tmp_path / "x.index")
    before = server.count("ListObjectsV2")
    with mounted("s3://bucket/train/", server.endpoint_url, "--index", str(tmp_path / "x.index")) as mount:
        # The file may change, or go, while it is mounted.
        os.truncate(tmp_path / "x.index", 0)
        assert tree(mount.path) == {"a": b"a", "b/c": b"cc", "empty": b""}
        (tmp_path / "x.index").unlink()
        assert "using the listing of s3://bucket/train" in mount.log
        assert "b'train/bad//name'" in mount.log
    assert server.count("ListObjectsV2") == before


def test_of_a_replaced_object_the_log_says_to_make_the_index_anew_and_a_refresh_reads_that(
    server: LoopbackServer, objects: MemoryObjects, tmp_path: Path
) -> None:
    index = tmp_path / "x.index"
    make(server, index)
    with mounted("s3://bucket/train/", server.endpoint_url, "--index", str(index)) as mount:
        objects.put("train/b/c", b"new")
        with pytest.raises(OSError, match="Stale"):
            (mount.path / "b/c").read_bytes()
        assert "Make the index anew with 'fastfuse index', then 'fastfuse refresh'" in mount.log
        make(server, index)
        assert run_fastfuse("refresh", str(mount.path)).returncode == 0
        assert tree(mount.path) == {"a": b"a", "b/c": b"new", "empty": b""}


def test_a_file_is_made_where_it_is_missing_or_old_and_by_a_refresh(
    server: LoopbackServer, objects: MemoryObjects, tmp_path: Path
) -> None:
    """L6"""
    path = tmp_path / "x.index"
    with mounted("s3://bucket/train", server.endpoint_url, "--index", str(path), "--index-max-age", "1h") as mount:
        assert set(tree(mount.path)) == {"a", "b/c", "empty"}
        assert path.stat().st_mode & 0o777 == 0o600
        objects.put("train/new", b"")
        with mounted(
            "s3://bucket/train", server.endpoint_url, "--index", str(path), "--index-max-age", "1h"
        ) as another:
            assert set(tree(another.path)) == {"a", "b/c", "empty"}
        assert run_fastfuse("refresh", str(mount.path)).returncode == 0
        assert set(tree(mount.path)) == {"a", "b/c", "empty", "new"}
    objects.put("train/newer", b"")
    before = server.count("ListObjectsV2")
    for max_age, has_newer in ("1h", False), ("0.001s", True):
        words = ("--index", str(path), "--index-max-age", max_age)
        with mounted("s3://bucket/train", server.endpoint_url, *words) as mount:
            assert ("newer" in tree(mount.path)) is has_newer
            assert (server.count("ListObjectsV2") > before) is has_newer
    assert os.listdir(tmp_path) == ["x.index"]


def test_a_refresh_lists_where_hosts_cannot_share_an_index(objects: MemoryObjects) -> None:
    """L9"""
    words = ("--index", "s3://bucket/x.index", "--index-max-age", "1h")
    with (
        LoopbackServer({"bucket": objects}, ServerConfig(writes="unconditional", clock_s=time.time)) as server,
        mounted("s3://bucket/train", server.endpoint_url, *words) as mount,
    ):
        objects.put("train/new", b"")
        refreshed = run_fastfuse("refresh", str(mount.path))
        assert refreshed.returncode == 0, refreshed.stderr
        assert set(tree(mount.path)) == {"a", "b/c", "empty", "new"}


def test_an_index_in_s3_is_mounted_by_another_host(moto_server: S3Server, tmp_path: Path) -> None:
    for name in ("a", "b/c"):
        moto_server.put(f"indexed/{name}", name.encode())
    index = "s3://bucket/kept/x.index"
    done = run_fastfuse("index", "s3://bucket/indexed/", "-o", index, *access(moto_server.endpoint_url))
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert f"wrote {index}: 2 objects" in done.stderr
    with mounted("s3://bucket/indexed/", moto_server.endpoint_url, "--index", index) as mount:
        assert tree(mount.path) == {"a": b"a", "b/c": b"b/c"}
    absent = ("--index", "s3://bucket/kept/absent")
    done = run_fastfuse(*mount_command("s3://bucket/indexed/", tmp_path, moto_server.endpoint_url, *absent)[3:])
    assert (done.returncode, done.stderr) == (4, "fastfuse: error: There is no object 's3://bucket/kept/absent'.\n")


def test_the_keys_of_a_file_are_mounted_and_summed_up_and_a_missing_one_is_named(
    server: LoopbackServer, tmp_path: Path
) -> None:
    keys = tmp_path / "keys.txt"
    keys.write_text("train/b/c\ns3://bucket/train/a\n")
    before = server.count("ListObjectsV2")
    with mounted("s3://bucket/train", server.endpoint_url, "--keys-from", str(keys)) as mount:
        assert tree(mount.path) == {"a": b"a", "b/c": b"cc"}
    words = ("index", "s3://bucket/train", "--summary", "--keys-from", str(keys), *access(server.endpoint_url))
    done = run_fastfuse(*words, "--json")
    summary = json.loads(done.stdout)
    assert (done.returncode, summary["objects"], summary["total_bytes"]) == (0, 2, 3)
    assert server.count("ListObjectsV2") == before
    keys.write_text("train/a\ntrain/absent\n")
    done = run_fastfuse(*words)
    assert done.returncode == 4
    assert "1 of the 2 keys in" in done.stderr
    assert "keys.txt:2: 's3://bucket/train/absent'" in done.stderr


@pytest.mark.parametrize("words", ["index --summary -o", "index --summary --json -o", "advise --no-probe --log-file"])
def test_figures_that_cannot_be_printed_are_an_error_of_one_line(
    server: LoopbackServer, tmp_path: Path, words: str
) -> None:
    command = [sys.executable, "-m", "fastfuse", *words.split(), str(tmp_path / "made"), "s3://bucket/train/"]
    with (
        open("/dev/full", "w") as full,
        Forked[str](
            [*command, *access(server.endpoint_url)], env=ENVIRONMENT, stdout=full, stderr=subprocess.PIPE, text=True
        ) as process,
    ):
        stderr = process.communicate(timeout=60)[1]
    assert process.returncode == 1
    lines = [line for line in stderr.splitlines() if "WARNING" not in line and not line.startswith("wrote ")]
    assert lines == ["fastfuse: error: standard output cannot be written: No space left on device"]
    assert (tmp_path / "made").exists()


def test_a_listing_that_is_killed_mounts_nothing(server: LoopbackServer, tmp_path: Path) -> None:
    """`test_lister` and `test_fault_matrix` have services that break off or throttle."""
    server.faults.add(FaultRule(action=Stall(10), operation="ListObjectsV2"))
    command = mount_command("s3://bucket", tmp_path, server.endpoint_url)
    with Forked(command, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True) as process:
        try:
            server.wait_until(lambda now: now.requests.get("ListObjectsV2", 0) > 0, 60)
            [lister] = children_of(process.pid)
            os.kill(lister, signal.SIGKILL)
            _, stderr = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 1
    assert stderr == "fastfuse: error: the lister was killed by signal 9\nhint: out of memory?\n"
    assert find_mount(tmp_path) is None
