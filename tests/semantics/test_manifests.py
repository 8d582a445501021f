"""Manifests and parts as mounts: what is shown, what is read, and what a refresh brings."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.s3server import LoopbackServer, MemoryObjects
from tests.mounting import mounted, run_fastfuse
from tests.semantics.places import refresh, tree

Stored = dict[str, MemoryObjects]
KEYS = [f"set/{at % 3}/{at:02}" for at in range(20)]


@pytest.fixture
def stored() -> Stored:
    return {
        "lists": MemoryObjects(),
        "one": MemoryObjects({key: key.encode() * 3 for key in KEYS}),
        "two": MemoryObjects({"x/picture": b"pixels", "y": b"", "set/0/00": b"another"}),
    }


@pytest.fixture
def server(stored: Stored) -> Iterator[LoopbackServer]:
    with LoopbackServer(stored) as server:
        yield server


def manifest(*keys: str, prefix: str = "s3://one/set/") -> bytes:
    return json.dumps([{"prefix": prefix}, *keys]).encode()


def lines(*members: dict[str, object]) -> bytes:
    return b"".join(json.dumps(one).encode() + b"\n" for one in members)


def labels(path: Path) -> list[object]:
    return [json.loads(line)["label"] for line in path.read_text().splitlines()]


def xattrs(path: Path) -> tuple[str, str]:
    return os.getxattr(path, "user.s3.bucket").decode(), os.getxattr(path, "user.s3.key").decode()


def test_a_manifest_shows_its_objects_and_a_refresh_reads_it_again(stored: Stored, server: LoopbackServer) -> None:
    stored["lists"].put("m", manifest("0/00", "1/01", "0/00"))
    with mounted("s3://lists/m", server.endpoint_url, "--source-type", "ManifestFile") as mount:
        assert tree(mount.path) == {"set/0/00": b"set/0/00" * 3, "set/1/01": b"set/1/01" * 3}
        kept = (mount.path / "set/1/01").stat().st_ino
        assert xattrs(mount.path / "set/1/01") == ("one", "set/1/01")
        stored["lists"].put("m", manifest("1/01", "2/02", "2/05"))
        assert refresh(mount.path).startswith("2 added, 1 removed, 0 replaced; 3 objects now")
        assert tree(mount.path) == {key: key.encode() * 3 for key in ("set/1/01", "set/2/02", "set/2/05")}
        assert (mount.path / "set/1/01").stat().st_ino == kept
        # One that is wrong changes nothing.
        stored["lists"].put("m", manifest("1/01", "absent"))
        done = run_fastfuse("refresh", str(mount.path))
        assert done.returncode == 4
        assert "1 of the 2 keys in s3://lists/m do not exist (m:1:39: 's3://one/set/absent')" in done.stderr
        assert tree(mount.path).keys() == {"set/1/01", "set/2/02", "set/2/05"}
        # The same path in another bucket is another object, even if nothing else tells them apart.
        stored["two"].put("set/1/01", b"set/1/01" * 3)
        stored["lists"].put("m", manifest("1/01", prefix="s3://two/set/"))
        assert refresh(mount.path).startswith("0 added, 2 removed, 1 replaced; 1 objects now")
        assert xattrs(mount.path / "set/1/01") == ("two", "set/1/01")


def test_an_augmented_manifest_over_two_buckets_has_its_labels(stored: Stored, server: LoopbackServer) -> None:
    first: dict[str, object] = {"label": 1, "source-ref": "s3://two/x/picture", "text-ref": "s3://one/set/0/00"}
    stored["lists"].put("images.jsonl", lines(first, {**first, "label": 2, "source-ref": "s3://two/y"}))
    options = ("--source-type", "AugmentedManifestFile")
    with mounted("s3://lists/images.jsonl", server.endpoint_url, *options) as mount:
        assert {path: data for path, data in tree(mount.path).items() if path != "images.jsonl"} == {
            "two/x/picture": b"pixels",
            "two/y": b"",
            "one/set/0/00": b"set/0/00" * 3,
        }
        assert xattrs(mount.path / "two/x/picture") == ("two", "x/picture")
        assert xattrs(mount.path / "two/x") == ("two", "x/")
        assert xattrs(mount.path / "one") == ("one", "")
        assert xattrs(mount.path) == ("", "")
        assert labels(mount.path / "images.jsonl") == [1, 2]
        stored["lists"].put("images.jsonl", lines({**first, "label": 3}))
        assert refresh(mount.path).startswith("0 added, 1 removed, 1 replaced; 2 objects now")
        assert labels(mount.path / "images.jsonl") == [3]


def test_the_part_of_a_host_is_dealt_anew(stored: Stored, server: LoopbackServer) -> None:
    whole = {key.removeprefix("set/"): key.encode() * 3 for key in KEYS}
    with mounted("s3://one/set", server.endpoint_url, "--shard", "2/3") as mount:
        assert tree(mount.path) == {key: whole[key] for key in sorted(whole)[1::3]}
        stored["one"].put("set/new", b"new")
        stored["one"].delete("set/0/00")
        whole["new"] = b"new"
        del whole["0/00"]
        refresh(mount.path)
        assert tree(mount.path) == {key: whole[key] for key in sorted(whole)[1::3]}
