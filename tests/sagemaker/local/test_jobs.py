"""Real jobs whose channels are directories of this host: at their place, streamed, shared, and gone afterwards."""

import ast
import gzip
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.s3server import LoopbackServer, MemoryObjects
from fastfuse.filesystem.mounting.mountpoint import find_mount
from fastfuse.sagemaker.description.channel import Channel, InputMode, LocalDirectory
from fastfuse.sagemaker.local_places import take_away
from tests.bad_input.checks import NOBODY, as_nobody, run
from tests.mounting import Mount, mounted, tmpfs
from tests.sagemaker.local.conftest import FILES, write_files
from tests.sagemaker.running.jobs import CHECKSUMS, channel, running
from tests.sagemaker.running.test_accidents import kill_all

# Nothing answers there: no channel of these jobs is in S3.
NO_S3 = "http://127.0.0.1:9"
EFS = "fs-0123456789abcdef0"
# Of three hosts each has every third file, in the order of keys.
FILES_OF_THE_SECOND = ["b-1", "d"]
ALL = hashlib.sha256(b"".join(FILES.values())).hexdigest()


def local(name: str, mode: str, directory: Path, distribution: str = "FullyReplicated", **more: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    source = {"S3DataType": "S3Prefix", "S3Uri": f"file://{directory}", "S3DataDistributionType": distribution}
    return channel(name, mode, **more) | {"DataSource": {"S3DataSource": source}}


def on_efs(name: str, path: str, access: str = "ro", mode: str = "File") -> dict[str, Any]:
    source = {"FileSystemId": EFS, "FileSystemAccessMode": access, "FileSystemType": "EFS", "DirectoryPath": path}
    return channel(name, mode) | {"DataSource": {"FileSystemDataSource": source}}


def left_in(data: Path) -> list[str]:
    """What is neither an empty directory nor the directory of a channel."""
    return [str(path) for path in data.rglob("*") if path.is_symlink() or path.is_fifo() or not path.is_dir()]


def test_a_directory_is_read_in_every_mode_without_s3(tmp_path: Path) -> None:
    packed = write_files(tmp_path / "packed", {"1.gz": gzip.compress(b"one"), "2.gz": gzip.compress(b"two")})
    directory = write_files(tmp_path / "data")
    channels = [local(mode.lower(), mode, directory) for mode in ("FastFile", "File", "Pipe")]
    channels += [local("records", "Pipe", packed, CompressionType="Gzip", RecordWrapperType="RecordIO")]
    text = f"""{CHECKSUMS}
import struct
record = lambda data: struct.pack("<II", 0xCED7230A, len(data)) + data + bytes(-len(data) % 4)
print(hashlib.sha256(record(b"one") + record(b"two")).hexdigest(), config)
"""
    with running(NO_S3, channels, command=text, ends_with=0) as job:
        sums, rest = job.output.splitlines()
        records, config = rest.split(" ", 1)
        assert json.loads(sums) == {"fastfile": ALL, "file": ALL, "pipe": ALL, "records": records}
        entries = ast.literal_eval(config)
        assert {entry["S3DistributionType"] for entry in entries.values()} == {"FullyReplicated"}
        assert [entries[each]["TrainingInputMode"] for each in ("fastfile", "file", "pipe")] == ["File", "File", "Pipe"]
        assert left_in(job.data) == []


def test_what_is_read_only_cannot_be_written_nor_unmounted_elsewhere(tmp_path: Path) -> None:
    """A mount below the directory is shown, read-only, and stays where it is when the job ends."""
    text = """
import os
os.chdir(os.environ["SM_INPUT_DIR"] + "/data")
for path in ("ro/a", "ro/below/x", "rw/new", "rw/below/new"):
    try:
        open(path, "ab").write(b"!")
        print("written", path)
    except OSError as error:
        print(error.strerror, path)
print(open("/proc/self/mountinfo").read())
"""
    with tmpfs(tmp_path / "efs") as efs, tmpfs(efs / "train" / "below"):
        subprocess.run(["mount", "--make-rshared", efs], check=True)  # as systemd has them
        write_files(efs / "train", {"a": b"a", "below/x": b"x"})
        channels = [on_efs("ro", "/train"), on_efs("rw", "/train/", "rw", "FastFile")]
        options = ("--file-system", f"{EFS}={efs}")
        with running(NO_S3, channels, *options, command=text, ends_with=0) as job:
            refused = [f"Read-only file system ro/{name}" for name in ("a", "below/x")]
            assert job.output.splitlines()[:4] == [*refused, "written rw/new", "written rw/below/new"]
            mounts = [line for line in job.output.splitlines() if f"{job.data}/" in line]
            assert len(mounts) == 4
            assert all("nosuid,nodev" in line for line in mounts)
            assert f"{efs}/train mounted read-only at {job.data}/ro" in job.log
        assert (efs / "train/a").read_bytes() == b"a"
        assert (efs / "train/below/new").read_bytes() == b"!"


def test_a_host_has_its_share_of_a_directory(tmp_path: Path) -> None:
    directory = write_files(tmp_path / "data")
    channels = [local(mode.lower(), mode, directory, "ShardedByS3Key") for mode in ("File", "Pipe")]
    text = """
import os
from pathlib import Path
place = Path(os.environ["SM_CHANNEL_FILE"])
files = [path for path in place.rglob("*") if path.is_file()]
print(*sorted(str(path.relative_to(place)) for path in files))
with open(os.environ["SM_CHANNEL_PIPE"] + "_0", "rb") as stream:
    print(sorted(path.read_bytes() for path in files) == sorted(iter(lambda: stream.read(5000), b"")))
"""
    with running(NO_S3, channels, "--host", "2/3", command=text, ends_with=0) as job:
        names, are_streamed = job.output.splitlines()
        assert names.split() == FILES_OF_THE_SECOND
        assert are_streamed == "True"
        assert left_in(job.data) == []


def test_an_ordinary_user_gets_a_link(tmp_path: Path) -> None:
    base = tmp_path / "ml"
    base.mkdir()
    os.chown(base, NOBODY, NOBODY)
    directory = write_files(tmp_path / "data")
    command = [sys.executable, "-m", "fastfuse", "run", "--base-dir", str(base), "--channel", f"train={directory}"]
    read = "readlink -f $SM_CHANNEL_TRAIN; sha256sum <$SM_CHANNEL_TRAIN/b/2"
    done = run(as_nobody([*command, "--", "sh", "-c", read]))
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(directory), hashlib.sha256(FILES["b/2"]).hexdigest(), "-"]
    assert f"{directory} linked (Operation not permitted; " in done.stderr
    assert left_in(base / "input/data") == []


def test_links_go_with_the_directories_that_held_nothing_else(tmp_path: Path) -> None:
    links, empty = ["a/b/1", "a/2", "c/3", "4"], ["c/empty", "d/empty"]
    for directory in ("a/b", *empty):
        (tmp_path / directory).mkdir(parents=True)
    for link in links:
        (tmp_path / link).symlink_to("/./data/file")
    take_away(tmp_path, Channel(name="train", input_mode=InputMode.FILE, source=LocalDirectory(path="/data")))
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")) == ["c", "c/empty", "d", "d/empty"]


@pytest.fixture
def mount() -> Iterator[Mount]:
    server = LoopbackServer({"bucket": MemoryObjects({"data/x": b"x"})})
    with server, mounted("s3://bucket", server.endpoint_url) as mount:
        yield mount


def test_nothing_is_left_after_kill_9(tmp_path: Path, mount: Mount) -> None:
    directory = write_files(tmp_path / "data")
    channels = [
        local("whole", "FastFile", directory),
        local("share", "File", directory, "ShardedByS3Key"),
        local("ours", "FastFile", mount.path / "data"),
    ]
    with running(NO_S3, channels, base=tmp_path / "ml") as job:
        job.wait_for_log("All channels are ready")
        kill_all(job)
        assert all(find_mount(job.data / name) is not None for name in ("whole", "ours"))
        assert len(left_in(job.data / "share")) == len(FILES)
    with running(NO_S3, channels, base=tmp_path / "ml") as job:
        job.wait_for_log("All channels are ready")
        job.kill()
        assert all(find_mount(job.data / name) is None for name in ("whole", "ours"))
        assert left_in(job.data) == []
    assert all((directory / name).read_bytes() == content for name, content in FILES.items())
