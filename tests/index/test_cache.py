"""The last listing of each source: used if it is sound, ours and young; in the way of nothing if it is not."""

import os
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fastfuse.index.cache import IndexCache
from fastfuse.index.snapshot import Snapshot, open_snapshot
from fastfuse.index.sources.uri import S3Uri
from tests.index.indexes import index_bytes, index_of, memfd

SOURCE = S3Uri("bucket", "")


@pytest.fixture
def fd() -> Iterator[int]:
    fd = memfd()
    yield fd
    os.close(fd)


@pytest.fixture
def cache(tmp_path: Path) -> IndexCache:
    return IndexCache(tmp_path / "made" / "when" / "needed")


def kept(cache: IndexCache, *, age_s: float = 0.0, source: str = "s3://bucket/") -> Path:
    return keep(cache, index_of({"a": 1}, source=source, age_s=age_s))


def keep(cache: IndexCache, snapshot: Snapshot, source: S3Uri = SOURCE) -> Path:
    path = cache.path(source, None)
    fd = memfd(index_bytes(snapshot))
    cache.keep(path, fd)
    os.close(fd)
    return path


def test_a_kept_listing_is_found_again(cache: IndexCache, fd: int) -> None:
    path = kept(cache, age_s=50)
    found = cache.find(path, SOURCE, 60, fd)
    assert found is not None
    assert found.table.metadata.file_count == 1
    assert open_snapshot(fd).listed_at_ns == found.listed_at_ns
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize(
    ("age_s", "source"),
    [(70, "s3://bucket/"), (-70, "s3://bucket/"), (0, "s3://another/")],
    ids=["old", "from the future", "of another source"],
)
def test_a_listing_that_does_not_fit_is_passed_over(cache: IndexCache, fd: int, age_s: float, source: str) -> None:
    path = kept(cache, age_s=age_s, source=source)
    assert cache.find(path, SOURCE, 60, fd) is None
    assert os.fstat(fd).st_size == 0


def test_a_damaged_listing_is_passed_over_with_a_line_in_the_log(
    cache: IndexCache, fd: int, caplog: pytest.LogCaptureFixture
) -> None:
    path = kept(cache)
    path.write_bytes(path.read_bytes()[:-1])
    assert cache.find(path, SOURCE, 60, fd) is None
    assert os.fstat(fd).st_size == 0
    assert "is not used: the index is damaged" in caplog.text


def test_a_listing_with_an_impossible_time_is_passed_over(
    cache: IndexCache, fd: int, caplog: pytest.LogCaptureFixture
) -> None:
    path = keep(cache, replace(index_of({"a": 1}), listed_at_ns=10**30))
    assert cache.find(path, SOURCE, 60, fd) is None
    assert os.fstat(fd).st_size == 0
    assert "is not used: the index is damaged" in caplog.text


def test_a_listing_that_holds_keys_of_another_bucket_is_passed_over(
    cache: IndexCache, fd: int, caplog: pytest.LogCaptureFixture
) -> None:
    source = S3Uri("other", "")
    path = keep(cache, index_of({"a": 1}, source="s3://other/"), source)
    assert cache.find(path, source, 60, fd) is None
    assert os.fstat(fd).st_size == 0
    assert "is not used: it says that it is an index of s3://other/ and holds keys of s3://bucket/" in caplog.text


def test_a_file_of_another_user_is_passed_over(cache: IndexCache, fd: int, caplog: pytest.LogCaptureFixture) -> None:
    path = kept(cache)
    os.chown(path, os.geteuid() + 1, -1)
    assert cache.find(path, SOURCE, 60, fd) is None
    assert "another user" in caplog.text


def test_nothing_kept_is_nothing_to_tell(cache: IndexCache, fd: int, caplog: pytest.LogCaptureFixture) -> None:
    assert cache.find(cache.path(SOURCE, None), SOURCE, 60, fd) is None
    assert not caplog.records


def test_a_cache_that_cannot_be_written_is_a_line_in_the_log(
    tmp_path: Path, fd: int, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_bytes(b"")
    cache = IndexCache(tmp_path / "file" / "below")
    cache.keep(cache.path(SOURCE, None), fd)
    assert "the listing is not kept" in caplog.text


def test_each_source_of_each_service_has_a_file_of_its_own(cache: IndexCache) -> None:
    paths = {
        cache.path(S3Uri(bucket, path), endpoint)
        for bucket in ("b", "c")
        for path in ("", "p", "p/", "../../etc")
        for endpoint in (None, "http://h:1")
    }
    assert len(paths) == 16
    assert len({path.parent for path in paths}) == 1
