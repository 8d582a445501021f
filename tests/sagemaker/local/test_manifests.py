"""Manifests of this host: what they may name, and jobs that read it in every mode."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from fastfuse.errors import ConfigurationError, EmptySourceError, FastfuseError, SourceError
from fastfuse.index.sources.manifests import read_manifest
from fastfuse.index.sources.shard import Shard
from fastfuse.sagemaker.description.channel import LocalDirectory
from fastfuse.sagemaker.local_files import find_files
from fastfuse.sagemaker.pipe.content import source_order
from tests.sagemaker.local.conftest import FILES, write_files
from tests.sagemaker.local.test_jobs import NO_S3, left_in
from tests.sagemaker.running.jobs import CHECKSUMS, channel, running, script

# Neither in the order of their names, nor all of them, and one twice.
NAMED = ["f", "b/2", "a", "f", "b/c/3"]


def manifest(path: Path, prefix: str, names: list[str]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([{"prefix": prefix}, *names]))
    return path


def named(path: Path, shard: Shard | None = None, *, allow_empty: bool = False) -> list[str]:
    """The names that a channel with this manifest streams."""
    source = LocalDirectory(path=str(path), is_manifest=True)
    found, table = find_files(source, Path("/opt/ml/input/data/train"), shard, allow_empty=allow_empty)
    refs = [table.ref(int(inode)) for inode in source_order(table)]
    assert {ref.bucket for ref in refs} <= {str(found.path)}
    return [ref.key for ref in refs]


def test_the_files_come_in_the_order_of_the_manifest(tmp_path: Path) -> None:
    directory = write_files(tmp_path / "data")
    assert named(manifest(tmp_path / "m", f"file://{directory}/", NAMED)) == NAMED
    assert named(manifest(tmp_path / "m", f"file://{directory}/b", ["-1", "/2"])) == ["b-1", "b/2"]


def test_hosts_share_what_a_manifest_names(tmp_path: Path) -> None:
    path = manifest(tmp_path / "m", f"file://{write_files(tmp_path / 'data')}/", NAMED)
    shares = [named(path, Shard(index=index, count=2)) for index in range(2)]
    assert sorted(shares[0] + shares[1]) == sorted(NAMED)
    assert {*shares[0]}.isdisjoint(shares[1])


def bad(tmp_path: Path, prefix: str, *names: str) -> Path:
    return manifest(tmp_path / "m", prefix.replace("DATA", str(tmp_path / "data")), list(names))


@pytest.mark.parametrize(
    ("prefix", "name", "error", "message"),
    [
        ("s3://bucket/", "a", ConfigurationError, "is not the full path of a file of this host"),
        ("file://data/", "a", ConfigurationError, "is not the full path of a file of this host"),
        ("file://DATA/", "../m", ConfigurationError, "is not the full path of a file of this host"),
        ("file://DATA/", "", ConfigurationError, "names no object"),
        ("file://DATA/", "missing", SourceError, "cannot be read: No such file or directory"),
        ("file://DATA/", "b", SourceError, "which the manifest names, is no file"),
        ("file://DATA/", "out", SourceError, "outside of"),
        ("file:///nowhere/", "a", SourceError, "cannot be used"),
    ],
)
def test_what_a_manifest_may_not_name(
    tmp_path: Path, prefix: str, name: str, error: type[FastfuseError], message: str
) -> None:
    directory = write_files(tmp_path / "data")
    (directory / "out").symlink_to("/etc/passwd")
    with pytest.raises(error, match=message):
        named(bad(tmp_path, prefix, name))


def test_what_is_no_manifest_to_be_read(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"the manifest '.*' cannot be read: No such file"):
        named(tmp_path / "missing")
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(SourceError, match="it is no regular file"):
        named(tmp_path / "fifo")
    directory = write_files(tmp_path / "data")
    empty = manifest(tmp_path / "m", f"file://{directory}/", [])
    with pytest.raises(EmptySourceError, match="names no file"):
        named(empty)
    assert named(empty, allow_empty=True) == []


def test_a_manifest_in_s3_names_no_file_of_this_host() -> None:
    with pytest.raises(ConfigurationError, match="'file:///etc/' is not an S3 URI"):
        read_manifest(b'[{"prefix": "file:///etc/"}, "passwd"]', "s3://bucket/manifest")


def of_manifest(mode: str, path: Path, **more: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    source = {"S3DataType": "ManifestFile", "S3Uri": f"file://{path}", "S3DataDistributionType": "FullyReplicated"}
    return channel(mode.lower(), mode, **more) | {"DataSource": {"S3DataSource": source}}


def test_a_job_reads_what_a_manifest_names_in_every_mode(tmp_path: Path) -> None:
    path = manifest(tmp_path / "m", f"file://{write_files(tmp_path / 'data')}/", NAMED)
    channels = [of_manifest(mode, path) for mode in ("FastFile", "File", "Pipe")]
    with running(NO_S3, channels, command=script(CHECKSUMS)) as job:
        assert job.wait() == 0, job.log
        sums = json.loads(job.output.splitlines()[0])
        assert left_in(job.data) == []
    files = hashlib.sha256(b"".join(FILES[name] for name in sorted({*NAMED}))).hexdigest()
    stream = hashlib.sha256(b"".join(FILES[name] for name in NAMED)).hexdigest()
    assert sums == {"fastfile": files, "file": files, "pipe": stream}
