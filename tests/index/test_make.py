"""Indexes of manifests and of parts: made, kept, saved and taken again, and never one for another."""

import gc
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest

from bench.s3server import LoopbackServer, MemoryObjects
from fastfuse.errors import ConfigurationError, EmptySourceError, FastfuseError, SourceError
from fastfuse.index.listing.acceptance import ListingProgress
from fastfuse.index.make import make_index
from fastfuse.index.origin import IndexOrigin, SourceKind
from fastfuse.index.progress import listing_progress
from fastfuse.index.saved import store_index
from fastfuse.index.snapshot import Snapshot, open_snapshot
from fastfuse.index.sources.shard import Shard
from fastfuse.index.sources.uri import S3Uri
from fastfuse.s3.aws import S3Session
from fastfuse.s3.base import ConnectionConfig
from tests.index.indexes import file_size_limit, index_bytes, index_of, memory_file
from tests.index.sources.reports import Row, csv_file, manifest
from tests.tables import check_table, files_of

MANIFEST = S3Uri("lists", "m.json")
AUGMENTED = S3Uri("lists", "m.jsonl")
PREFIX = S3Uri("data", "set")
KEYS = [*(f"set/{at:02}" for at in range(7)), "set/a!b", "set/a/x", "set/a", "set/bad//name", "set/empty/"]
# 'set/a' has the name of a directory.
SHOWN = sorted(KEYS[:9], key=str.encode)


@pytest.fixture
def server(aws_environment: object) -> Iterator[LoopbackServer]:
    lines = [{"a-ref": f"s3://data/{key}", "n": at} for at, key in enumerate(KEYS[:7])]
    lists = {
        "m.json": json.dumps([{"prefix": "s3://data/"}, *KEYS[6::-1]]).encode(),
        "m.jsonl": "\n".join(map(json.dumps, lines)).encode(),
    }
    data = {key: b"" if key.endswith("/") else bytes(1 + at) for at, key in enumerate(KEYS)}
    with LoopbackServer({"data": MemoryObjects(data), "lists": MemoryObjects(lists)}) as server:
        yield server


def made(
    server: LoopbackServer, source: S3Uri, origin: IndexOrigin, save: Path | None = None, key: str | None = None
) -> Snapshot:
    connection = ConnectionConfig(
        endpoint_url=server.endpoint_url, region="us-east-1", force_path_style=True, sse_c_key_file=key
    )
    with memory_file() as fd:
        try:
            make_index(source, origin, S3Session(connection), fd)
        finally:
            gc.enable()  # which a process that makes an index does not live to need
        if save is not None:
            store_index(save, connection, fd)
        return open_snapshot(fd)


def keys(snapshot: Snapshot) -> list[str]:
    table = snapshot.table
    check_table(table)
    return sorted((table.key(inode) for inode in files_of(table).values() if not table.is_made(inode)), key=str.encode)


@pytest.mark.parametrize("by_bytes", [False, True])
def test_the_parts_of_a_prefix_are_what_the_whole_shows(server: LoopbackServer, by_bytes: bool) -> None:
    parts = [made(server, PREFIX, IndexOrigin(shard=Shard(index=at, count=3, by_bytes=by_bytes))) for at in range(3)]
    shown = [keys(part) for part in parts]
    assert keys(made(server, PREFIX, IndexOrigin())) == SHOWN
    assert sorted((key for part in shown for key in part), key=str.encode) == SHOWN
    if not by_bytes:
        assert shown == [SHOWN[at::3] for at in range(3)]
    assert [part.view for part in parts] == [f"part {at}/3 by {'bytes' if by_bytes else 'count'}" for at in (1, 2, 3)]
    # What is left out is told on every host.
    assert [part.refusals.total for part in parts] == [2, 2, 2]


def test_what_fastfuse_and_s3_write_is_read_without_the_key_for_sse_c(server: LoopbackServer, tmp_path: Path) -> None:
    """No key is sent over plain HTTP: a request with it would be refused."""
    (tmp_path / "key").write_bytes(bytes(32))
    key = str(tmp_path / "key")
    lists, rows = server.buckets["lists"], csv_file([Row("set/a")])
    assert isinstance(lists, MemoryObjects)
    lists.put("index", index_bytes(made(server, PREFIX, IndexOrigin())))
    lists.put("manifest", manifest({"rows": rows}, sourceBucket="data"))
    lists.put("rows", rows)
    assert keys(made(server, PREFIX, IndexOrigin(saved=S3Uri("lists", "index")), key=key)) == SHOWN
    assert keys(made(server, PREFIX, IndexOrigin(inventory=S3Uri("lists", "manifest")), key=key)) == ["set/a"]


def test_a_limit_on_the_size_of_files_is_raised_for_an_index_or_named(server: LoopbackServer) -> None:
    with file_size_limit(100):
        assert keys(made(server, PREFIX, IndexOrigin())) == SHOWN
    snapshot = index_of({"a": 1})
    size_bytes = len(index_bytes(snapshot))
    with (
        file_size_limit(size_bytes - 1),
        pytest.raises(FastfuseError, match=f"the index has {size_bytes:,} bytes") as caught,
    ):
        index_bytes(snapshot)
    assert "ulimit -f" in caught.value.hint


def test_a_part_may_be_empty_and_its_source_may_not(server: LoopbackServer) -> None:
    shard = Shard(index=20, count=21)
    assert keys(made(server, PREFIX, IndexOrigin(shard=shard))) == []
    assert keys(made(server, MANIFEST, IndexOrigin(shard=shard, kind=SourceKind.MANIFEST))) == []
    with pytest.raises(EmptySourceError):
        made(server, S3Uri("data", "nothing/"), IndexOrigin(shard=shard))
    with pytest.raises(SourceError, match="2 keys of s3://data/set cannot be shown"):
        made(server, PREFIX, IndexOrigin(shard=shard, strict=True))


def test_the_parts_of_a_prefix_come_from_one_file(server: LoopbackServer, tmp_path: Path) -> None:
    origin = IndexOrigin(saved=tmp_path / "x.index", max_age_s=600)
    first = made(server, PREFIX, replace(origin, shard=Shard(index=0, count=2)))
    lists = server.count("ListObjectsV2")
    second = made(server, PREFIX, replace(origin, shard=Shard(index=1, count=2)))
    assert sorted(keys(first) + keys(second), key=str.encode) == SHOWN == keys(made(server, PREFIX, origin))
    assert server.count("ListObjectsV2") == lists


def test_a_saved_index_of_key_names_is_refused_where_nothing_can_be_shown(
    server: LoopbackServer, tmp_path: Path
) -> None:
    source = S3Uri("data", "set/bad")
    origin = IndexOrigin(saved=tmp_path / "x.index", max_age_s=600, is_key_name_prefix=True)
    assert keys(made(server, source, replace(origin, allow_empty=True))) == []
    with pytest.raises(EmptySourceError, match="holds no object that can be shown"):
        made(server, source, origin)


@pytest.mark.parametrize("content", [b"no index", b"\3", b"\2"], ids=["something else", "another source", "an old one"])
def test_a_file_that_is_no_index_of_the_source_is_not_replaced_however_old(
    server: LoopbackServer, tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "x.index"
    origin = IndexOrigin(saved=path, max_age_s=600)
    if len(content) == 1:  # the format
        made(server, S3Uri("data", "set/a"), origin)
        now = path.read_bytes()
        content = now[:8] + content + now[9:]
    path.write_bytes(content)
    with pytest.raises(ConfigurationError):
        made(server, PREFIX, replace(origin, max_age_s=0.0))
    assert path.read_bytes() == content


@pytest.mark.parametrize(("since_s", "lists"), [(50, 0), (70, 1), (-50, 0), (-70, 1)])
def test_a_file_is_as_old_as_its_listing(
    server: LoopbackServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, since_s: int, lists: int
) -> None:
    path = tmp_path / "x.index"
    path.touch()  # it is made where it is empty, too
    origin = IndexOrigin(saved=path, max_age_s=60)
    made(server, PREFIX, origin)
    one = server.count("ListObjectsV2")
    now_s = time.time() + since_s
    monkeypatch.setattr(time, "time", lambda: now_s)
    path.write_bytes(path.read_bytes())
    assert keys(made(server, PREFIX, origin)) == SHOWN
    assert server.count("ListObjectsV2") == one * (1 + lists)


def test_a_file_of_an_earlier_format_is_as_good_as_none_where_it_can_be_made(
    server: LoopbackServer, tmp_path: Path
) -> None:
    path = tmp_path / "x.index"
    origin = IndexOrigin(saved=path, max_age_s=600)
    made(server, PREFIX, origin)
    now = path.read_bytes()
    for version in (b"\2", b"\4"):
        path.write_bytes(now[:8] + version + now[9:])
        with pytest.raises(ConfigurationError, match="has format"):
            made(server, PREFIX, replace(origin, max_age_s=None))
        if version == b"\2":
            assert keys(made(server, PREFIX, origin)) == SHOWN
            assert path.read_bytes()[:9] == now[:9]
    with pytest.raises(ConfigurationError, match="has format 4"):
        made(server, PREFIX, origin)


def test_a_file_that_cannot_be_written_costs_a_warning(
    server: LoopbackServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "absent" / "x.index"
    assert keys(made(server, PREFIX, IndexOrigin(saved=path, max_age_s=600))) == SHOWN
    assert f"the index {path} cannot be written: No such file or directory" in caplog.text


def test_the_index_of_a_view_is_taken_for_that_view_and_no_other(server: LoopbackServer, tmp_path: Path) -> None:
    kinds = SourceKind
    part = Shard(index=1, count=2)
    views = {
        "part": (PREFIX, IndexOrigin(shard=part)),
        "empty": (PREFIX, IndexOrigin(shard=Shard(index=20, count=21))),
        "manifest": (MANIFEST, IndexOrigin(kind=kinds.MANIFEST)),
        "manifest's part": (MANIFEST, IndexOrigin(kind=kinds.MANIFEST, shard=part)),
        "lines": (AUGMENTED, IndexOrigin(kind=kinds.AUGMENTED_MANIFEST)),
        "labels": (AUGMENTED, IndexOrigin(kind=kinds.AUGMENTED_MANIFEST, attribute_names=("n",))),
    }
    for name, (source, origin) in views.items():
        path = tmp_path / name
        whole = made(server, source, origin, save=path)
        again = made(server, source, replace(origin, saved=path))
        assert (keys(again), again.view) == (keys(whole), origin.view)
        for other, (_, wanted) in views.items():
            if other != name:
                with pytest.raises(ConfigurationError, match=r"it is an index of .* as .*, not as ") as raised:
                    made(server, source, replace(wanted, saved=path))
                assert "--shard" in raised.value.hint


def test_a_long_listing_logs_its_figures_every_five_seconds(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now_s, counts = [100.0], list[int]()
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    caplog.set_level("INFO")
    report = listing_progress(PREFIX, counts.append)
    for now_s[0], objects in ((104.9, 1000), (105.0, 2000), (109.9, 3000), (110.0, 5000)):
        report(ListingProgress(objects, in_flight=3, throttled=1, share=objects / 10_000))
    assert counts == [1000, 2000, 3000, 5000]
    assert caplog.messages == [
        f"listing s3://data/set: {figures}, 3 requests in flight, 1 throttled"
        for figures in ("2,000 objects (about 20%), 400/s", "5,000 objects (about 50%), 500/s")
    ]


def test_no_two_origins_that_show_something_else_have_the_same_view() -> None:
    names = [(), ("a",), ("b",), ("a", "b"), ("b", "a"), ("a b",), ('a" "b',), ("part 1/1 by count",)]
    shards = [None, Shard(index=0, count=1), Shard(index=0, count=1, by_bytes=True), Shard(index=0, count=2)]
    origins = [
        IndexOrigin(kind=SourceKind.AUGMENTED_MANIFEST, attribute_names=one, shard=shard)
        for one in names
        for shard in shards
    ]
    origins += [
        IndexOrigin(kind=kind, shard=shard) for kind in (SourceKind.PREFIX, SourceKind.MANIFEST) for shard in shards
    ]
    origins += [IndexOrigin(is_key_name_prefix=True, shard=shard) for shard in shards]
    assert all(one.view != other.view for one, other in combinations(origins, 2))


def test_all_of_a_prefix_is_listed_and_only_the_part_of_a_manifest() -> None:
    shard = Shard(index=1, count=3)
    assert IndexOrigin(shard=shard).listed_view == ""
    assert IndexOrigin(is_key_name_prefix=True, shard=shard).listed_view == "key name prefix"
    assert IndexOrigin(kind=SourceKind.MANIFEST, shard=shard).listed_view == "ManifestFile part 2/3 by count"
