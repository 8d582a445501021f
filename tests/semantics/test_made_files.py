"""Files that are no objects, through a real mount: their bytes are the index's, all else is as with others."""

import errno
import hashlib
import mmap
import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from bench.s3server import MemoryObjects
from fastfuse.index.inodes.builder import TableBuilder
from fastfuse.index.origin import SourceKind
from fastfuse.index.snapshot import Snapshot
from tests.index.indexes import index_bytes
from tests.mounting import run_fastfuse
from tests.semantics.places import block_bytes, direct_read, gets, place

LARGE = block_bytes(1, (9 << 20) + 17)  # more than a part
# Only the index of a manifest may have files with contents of its own.
SOURCE = "s3://bucket/list.manifest"
AS_MANIFEST = ("--source-type", "AugmentedManifestFile")
MTIME_NS = 1_700_000_000_000_000_001


def write_index(path: Path, objects: Mapping[str, bytes], made: Mapping[str, bytes]) -> None:
    builder = TableBuilder("bucket", "")
    for key, data in sorted(objects.items()):
        etag = '"' + hashlib.md5(data, usedforsecurity=False).hexdigest() + '"'
        builder.add([key.encode()], [len(data)], [10**18], [etag], ["STANDARD"])
    for name, data in made.items():
        builder.add_made(name.encode(), data, MTIME_NS)
    table, refusals = builder.build()
    snapshot = Snapshot(
        source=SOURCE, listed_at_ns=17, table=table, refusals=refusals, view=SourceKind.AUGMENTED_MANIFEST
    )
    path.write_bytes(index_bytes(snapshot))


def test_a_made_file_is_read_like_any_other_and_takes_no_request(tmp_path: Path) -> None:
    """N6, A1, A3, D1, D3, D4"""
    objects = {"a": b"object", "folder/b": b"another"}
    write_index(tmp_path / "index", objects, {"m": b"made\n", "folder/large": LARGE, "folder/empty": b""})
    options = (*AS_MANIFEST, "--index", str(tmp_path / "index"))
    with place(MemoryObjects(objects), *options, uri=SOURCE) as here:
        assert sorted(os.listdir(here.path)) == ["a", "folder", "m"]
        assert sorted(os.listdir(here.path / "folder")) == ["b", "empty", "large"]
        found = (here.path / "m").stat()
        assert (found.st_size, found.st_mtime_ns, found.st_mode & 0o777) == (5, MTIME_NS, 0o444)
        assert (here.path / "m").read_bytes() == b"made\n"
        assert (here.path / "folder" / "empty").read_bytes() == b""
        assert (here.path / "folder" / "large").read_bytes() == LARGE
        assert direct_read(here.path / "folder" / "large", 8192, (8 << 20) - 4096) == LARGE[(8 << 20) - 4096 :][:8192]
        with (
            (here.path / "folder" / "large").open("rb") as file,
            mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ, flags=mmap.MAP_PRIVATE) as mapped,
        ):
            assert mapped[:] == LARGE
        assert gets(here) == []
        assert (here.path / "a").read_bytes() == b"object"
        assert {record.key for record in gets(here)} == {"a"}
        # It has no attributes of an object.
        assert os.listxattr(here.path / "m") == []
        assert os.getxattr(here.path / "a", "user.s3.bucket") == b"bucket"
        with pytest.raises(OSError, match="No data") as caught:
            os.getxattr(here.path / "m", "user.s3.etag")
        assert caught.value.errno == errno.ENODATA


def test_a_made_file_whose_bytes_change_is_another_file_after_a_refresh(tmp_path: Path) -> None:
    """L6, D2"""
    objects = {"a": b"object"}
    index = tmp_path / "index"
    write_index(index, objects, {"m": b"before", "large": LARGE, "same": b"same"})
    options = (*AS_MANIFEST, "--index", str(index))
    with place(MemoryObjects(objects), *options, uri=SOURCE) as here:
        before = {name: (here.path / name).stat().st_ino for name in ("m", "same")}
        assert (here.path / "same").read_bytes() == b"same"
        with (here.path / "m").open("rb") as held, (here.path / "large").open("rb") as unread:
            assert held.read() == b"before"
            write_index(index, objects, {"m": b"after!", "large": LARGE[::-1], "same": b"same", "more": b"more"})
            done = run_fastfuse("refresh", str(here.path))
            assert done.stdout.startswith("1 added, 0 removed, 2 replaced"), done.stderr
            assert os.pread(held.fileno(), 100, 0) == b"before"
            # Its bytes were in the index of before, which is gone.
            with pytest.raises(OSError, match="Stale file handle"):
                unread.read()
        assert (here.path / "m").read_bytes() == b"after!"
        assert (here.path / "large").read_bytes() == LARGE[::-1]
        assert (here.path / "more").read_bytes() == b"more"
        assert (here.path / "same").read_bytes() == b"same"
        assert (here.path / "m").stat().st_ino != before["m"]
        assert (here.path / "same").stat().st_ino == before["same"]
        assert gets(here) == []


def test_the_summary_of_an_index_counts_made_files_beside_the_objects(tmp_path: Path) -> None:
    write_index(tmp_path / "index", {"a": b"object", "b": b"1234"}, {"m": b"made"})
    options = ("index", SOURCE, *AS_MANIFEST, "--index", str(tmp_path / "index"), "--no-sign-request")
    done = run_fastfuse(*options, "--summary", "--json")
    assert '"objects": 2' in done.stdout, done.stderr
    assert '"made_files": 1' in done.stdout
    assert '"total_bytes": 10' in done.stdout
