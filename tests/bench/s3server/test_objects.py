import hashlib
import os
from contextlib import closing
from pathlib import Path

import pytest

from bench.s3server.buckets import DirectoryObjects, FileSpan, MemoryObjects, StoredObject


def _read(stored: StoredObject | None, start: int, end: int) -> bytes:
    assert stored is not None
    data = b""
    with closing(stored.content.spans(start, end)) as spans:
        for span in spans:
            if isinstance(span, FileSpan):
                data += os.pread(span.fd, span.length_bytes, span.offset_bytes)
            else:
                data += span
    return data


def test_memory_objects_stand_in_byte_order_whatever_the_order_of_putting() -> None:
    view = MemoryObjects({"é": b"", "a": b"", "😀": b"", "\uffff": b"", "Z": b""}).view()
    keys = [view.key_at(index) for index in range(len(view))]
    assert keys == sorted(key.encode() for key in ("é", "a", "😀", "\uffff", "Z"))


def test_an_object_has_the_md5_of_its_bytes_unless_told_otherwise() -> None:
    objects = MemoryObjects()
    digest = hashlib.md5(b"data").hexdigest()
    assert objects.put("a", b"data").etag == f'"{digest}"'
    assert objects.put("a", b"data", etag='"own"').etag == '"own"'


def test_a_view_keeps_what_it_saw_when_the_set_changes() -> None:
    objects = MemoryObjects({"a": b"old", "b": b""})
    before = objects.view()
    objects.put(b"a", b"new")
    assert _read(before.lookup(b"a"), 0, 3) == b"old"
    assert _read(objects.view().lookup(b"a"), 1, 3) == b"ew"
    objects.delete("b")
    assert before.lookup(b"b") is not None
    assert objects.view().lookup(b"b") is None
    assert objects.view() is objects.view()


def test_deleting_a_key_that_is_not_there_is_an_error() -> None:
    with pytest.raises(KeyError):
        MemoryObjects().delete("a")


def test_files_of_a_directory_are_objects_by_their_path(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "b c").write_bytes(b"0123456789")
    (tmp_path / "a").write_bytes(b"x")
    os.symlink("nowhere", tmp_path / "dangling")
    view = DirectoryObjects(tmp_path).view()
    assert [view.key_at(index) for index in range(len(view))] == [b"a", b"sub/b c"]
    assert _read(view.lookup(b"sub/b c"), 2, 5) == b"234"


def test_a_key_that_the_scan_did_not_find_is_no_path(tmp_path: Path) -> None:
    (tmp_path / "public").mkdir()
    (tmp_path / "secret").write_bytes(b"x")
    view = DirectoryObjects(tmp_path / "public").view()
    assert view.lookup(b"../secret") is None


def test_a_file_changed_since_the_scan_has_another_etag_and_a_removed_one_is_gone(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"old")
    (tmp_path / "b").write_bytes(b"")
    view = DirectoryObjects(tmp_path).view()
    listed = view.contents_xml(0, 1, url_encoded=True)
    before = view.lookup(b"a")
    (tmp_path / "a").write_bytes(b"newer")
    (tmp_path / "b").unlink()
    after = view.lookup(b"a")
    assert before is not None
    assert after is not None
    assert before.etag.strip('"').encode() in listed
    assert before.etag != after.etag
    assert view.lookup(b"b") is None


def test_a_file_rewritten_in_place_with_as_many_bytes_has_another_etag(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"old")
    view = DirectoryObjects(tmp_path).view()
    before = view.lookup(b"a")
    os.utime(tmp_path / "a", ns=(1, 1))
    after = view.lookup(b"a")
    assert before is not None
    assert after is not None
    assert before.etag != after.etag
