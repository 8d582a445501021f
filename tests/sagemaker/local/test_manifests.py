"""Manifests of this host: what they may name, and jobs that read it in every mode."""

import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest

from fastfuse.errors import ConfigurationError, EmptySourceError, FastfuseError, SourceError
from fastfuse.index.listing.named import MAX_MANIFEST_BYTES
from fastfuse.index.origin import IndexOrigin, SourceKind
from fastfuse.index.sources.manifests import read_manifest
from fastfuse.index.sources.shard import Shard
from fastfuse.sagemaker.description.channel import Channel, InputMode, LocalDirectory
from fastfuse.sagemaker.local_files import find_files
from fastfuse.sagemaker.outputs.record import RECORD_NAME
from fastfuse.sagemaker.pipe.content import File, sequence_of, source_order
from tests.sagemaker.local.conftest import FILES, write_files
from tests.sagemaker.local.test_jobs import ALL, NO_S3, left_in, local
from tests.sagemaker.running.jobs import CHECKSUMS, channel, checksums, running

# Neither in the order of their names, nor all of them, and one twice.
NAMED = ["f", "b/2", "a", "f", "b/c/3"]


def manifest(path: Path, prefix: str, names: list[str]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([{"prefix": prefix}, *names]))
    return path


def named(path: Path, shard: Shard | None = None, *, allow_empty: bool = False) -> list[str]:
    """The names that a channel with this manifest streams."""
    source = LocalDirectory(path=str(path))
    origin = IndexOrigin(kind=SourceKind.MANIFEST, shard=shard, allow_empty=allow_empty)
    found, table = find_files(source, Path("/opt/ml/input/data/train"), origin)
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


@pytest.mark.parametrize(
    ("prefix", "name", "error", "message"),
    [
        ("s3://DATA/", "a", ConfigurationError, "is not the full path of a file of this host"),
        ("file://data/", "a", ConfigurationError, "is not the full path of a file of this host"),
        ("file://DATA/", "../m", ConfigurationError, "is not the full path of a file of this host"),
        ("file://DATA/", "\ud800", ConfigurationError, "is not the full path of a file of this host"),
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
        named(manifest(tmp_path / "m", prefix.replace("DATA", str(directory)), [name]))


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
    (tmp_path / "lines").touch()
    lines = IndexOrigin(kind=SourceKind.AUGMENTED_MANIFEST)
    with pytest.raises(EmptySourceError, match="has no lines"):
        find_files(LocalDirectory(path=f"{tmp_path}/lines"), tmp_path / "c", lines)
    os.truncate(tmp_path / "lines", MAX_MANIFEST_BYTES + 1)
    with pytest.raises(SourceError, match="has more than"):
        named(tmp_path / "lines")


def test_a_manifest_in_s3_names_no_file_of_this_host() -> None:
    with pytest.raises(ConfigurationError, match="'file:///etc/' is not an S3 URI"):
        read_manifest(b'[{"prefix": "file:///etc/"}, "passwd"]', "s3://bucket/manifest")


def of_manifest(mode: str, path: Path, kind: str = "ManifestFile", **more: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    source = {"S3DataType": kind, "S3Uri": f"file://{path}", **more}
    return channel(mode.lower(), mode) | {"DataSource": {"S3DataSource": source}}


def test_a_job_reads_and_records_what_a_manifest_names_in_every_mode(tmp_path: Path) -> None:
    directory = write_files(tmp_path / "data")
    path = manifest(tmp_path / "m", f"file://{directory}/", NAMED)
    channels = [of_manifest(mode, path) for mode in ("FastFile", "File", "Pipe")]
    with running(NO_S3, [*channels, local("whole", "FastFile", directory)], command=CHECKSUMS, ends_with=0) as job:
        assert left_in(job.data) == []
        told = json.loads((job.base / "output" / RECORD_NAME).read_text())["Channels"]
        sums = checksums(job)
    files = hashlib.sha256(b"".join(FILES[name] for name in sorted({*NAMED}))).hexdigest()
    stream = hashlib.sha256(b"".join(FILES[name] for name in NAMED)).hexdigest()
    assert sums == {"fastfile": files, "file": files, "pipe": stream, "whole": ALL}
    for mode in ("fastfile", "file", "pipe"):
        assert (told[mode]["Objects"], told[mode]["Bytes"]) == (4, sum(len(FILES[name]) for name in {*NAMED}))
    assert told["fastfile"]["ListingSha256"] == told["pipe"]["ListingSha256"]
    assert "ListingSha256" not in told["whole"]


def augmented(path: Path, *uris: str) -> Path:
    """An augmented manifest whose lines name these files, each with a number."""
    path.write_text("".join(json.dumps({"number": at, "file-ref": uri}) + "\n" for at, uri in enumerate(uris)))
    return path


def streamed(path: Path, shard: Shard | None = None) -> list[str | bytes]:
    """The attributes that a Pipe channel with this augmented manifest streams: paths of files, and other values."""
    source = LocalDirectory(path=str(path))
    channel = Channel(
        name="train",
        input_mode=InputMode.PIPE,
        source=source,
        source_kind=SourceKind.AUGMENTED_MANIFEST,
        attribute_names=("file-ref", "number"),
    )
    origin = IndexOrigin(kind=channel.source_kind, attribute_names=channel.attribute_names, shard=shard)
    _, table = find_files(source, Path("/opt/ml/input/data/train"), origin)
    items = sequence_of(table, channel).items(0)
    return [f"{item.ref.bucket}/{item.ref.key}" if isinstance(item, File) else item for item in items]


def test_the_lines_of_an_augmented_manifest_come_in_its_order(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(write_files(tmp_path / "data"))
    files = [f"{tmp_path}/link/{name}" for name in NAMED]
    path = augmented(tmp_path / "m", *(f"file://{file}" for file in files))
    assert streamed(path) == [item for at, file in enumerate(files) for item in (file, b"%d" % at)]


@pytest.mark.parametrize("by_bytes", [False, True])
def test_hosts_share_the_lines_of_an_augmented_manifest(tmp_path: Path, by_bytes: bool) -> None:
    sizes = {"large": 1000, "small": 1, "tiny": 0}
    directory = write_files(tmp_path / "data", {name: bytes(size) for name, size in sizes.items()})
    path = augmented(tmp_path / "m", *(f"file://{directory}/{name}" for name in ("small", "tiny", "large", "small")))
    shares = [streamed(path, Shard(index=index, count=2, by_bytes=by_bytes))[1::2] for index in range(2)]
    assert shares == ([[b"2"], [b"0", b"1", b"3"]] if by_bytes else [[b"0", b"2"], [b"1", b"3"]])
    (directory / "tiny").unlink()  # it is looked at where it is read, and where bytes are to be divided
    with pytest.raises(SourceError, match="tiny"):
        streamed(path, Shard(index=1 - by_bytes, count=2, by_bytes=by_bytes))
    if not by_bytes:
        assert streamed(path, Shard(index=0, count=2))


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("s3://bucket/a", "m:1:27: .*is not the full path of a file of this host"),
        ("file://DATA/b//2", "is not the full path of a file of this host"),
        ("file://DATA/./a", "is not the full path of a file of this host"),
        ("file://DATA/b/../a", "is not the full path of a file of this host"),
        ("file://DATA/", "is not the full path of a file of this host"),
        ("file://DATA/missing", "cannot be read: No such file or directory"),
        ("file://DATA/out", "outside of"),
        ("file://DATA/m", "cannot be taken"),
    ],
)
def test_what_an_augmented_manifest_may_not_name(tmp_path: Path, uri: str, message: str) -> None:
    directory = write_files(tmp_path / "data", {"a": b"", "b/2": b"", "m": b""})
    (directory / "out").symlink_to("/etc/passwd")
    with pytest.raises(FastfuseError, match=message):
        streamed(augmented(tmp_path / "m", uri.replace("DATA", str(directory)), f"file://{directory}/a"))


def test_a_job_reads_an_augmented_manifest_in_every_mode(tmp_path: Path) -> None:
    uris = [f"file://{write_files(tmp_path / 'data')}/{name}" for name in NAMED]
    path = augmented(tmp_path / "labels", *uris)
    more = {"AttributeNames": ["file-ref", "number"], "S3DataDistributionType": "ShardedByS3Key"}
    channels = [of_manifest(mode, path, "AugmentedManifestFile", **more) for mode in ("FastFile", "File", "Pipe")]
    with running(NO_S3, channels, "--host", "1/2", command=CHECKSUMS, ends_with=0) as job:
        sums = checksums(job)
        assert left_in(job.data) == []
    own = NAMED[::2]
    lines = "".join(f'{{"file-ref":{json.dumps(uris[at])},"number":{at}}}\n' for at in (0, 2, 4)).encode()
    # By name, and the manifest behind them.
    files = hashlib.sha256(b"".join(FILES[name] for name in sorted(own)) + lines).hexdigest()
    stream = hashlib.sha256(b"".join(FILES[NAMED[at]] + b"%d" % at for at in (0, 2, 4))).hexdigest()
    assert sums == {"fastfile": files, "file": files, "pipe": stream}


def test_a_manifest_names_files_of_several_disks(tmp_path: Path) -> None:
    """Only the root holds them all, and it holds the places of the channels, too."""
    directory = write_files(tmp_path / "data")
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as other:
        other.write(b"other")
        other.flush()
        files = [f"{directory}/a", other.name]
        lines = augmented(tmp_path / "zlines", *(f"file://{file}" for file in files))
        named = manifest(tmp_path / "named", "file:///", [file[1:] for file in files])
        more = {"AttributeNames": ["file-ref"]}
        channels = [of_manifest(mode, lines, "AugmentedManifestFile", **more) for mode in ("FastFile", "Pipe")]
        channels += [of_manifest(mode, named) | {"ChannelName": f"{mode}-named"} for mode in ("FastFile", "Pipe")]
        with running(NO_S3, channels, command=CHECKSUMS, ends_with=0) as job:
            sums = checksums(job)
    kept = "".join(json.dumps({"file-ref": f"file://{file}"}, separators=(",", ":")) + "\n" for file in files).encode()
    in_order = FILES["a"] + b"other"
    by_name = in_order if files == sorted(files) else b"other" + FILES["a"]
    read = {"fastfile": by_name + kept, "pipe": in_order, "FastFile-named": by_name, "Pipe-named": in_order}
    assert sums == {name: hashlib.sha256(content).hexdigest() for name, content in read.items()}
