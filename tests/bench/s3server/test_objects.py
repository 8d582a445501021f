import os
from contextlib import closing
from pathlib import Path

from bench.s3server.buckets import DirectoryObjects, FileSpan, MemoryObjects, StoredObject


def _read(stored: StoredObject | None, start: int, end: int) -> bytes:
    assert stored is not None
    with closing(stored.content.spans(start, end)) as spans:
        pieces = [
            os.pread(span.fd, span.length_bytes, span.offset_bytes) if isinstance(span, FileSpan) else bytes(span)
            for span in spans
        ]
    return b"".join(pieces)


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


def test_files_of_a_directory_are_objects_by_their_path(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "b c").write_bytes(b"0123456789")
    (tmp_path / "a").write_bytes(b"x")
    os.symlink("nowhere", tmp_path / "dangling")
    view = DirectoryObjects(tmp_path).view()
    assert [view.key_at(index) for index in range(len(view))] == [b"a", b"sub/b c"]
    assert _read(view.lookup(b"sub/b c"), 2, 5) == b"234"


def test_a_file_changed_since_the_scan_has_another_etag_and_a_removed_one_is_gone(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / name).write_bytes(b"old")
    view = DirectoryObjects(tmp_path).view()
    listed = view.contents_xml(0, 3, url_encoded=True)

    def etags() -> list[str]:
        return [stored.etag for name in (b"a", b"b", b"c") if (stored := view.lookup(name))]

    before = etags()
    assert all(etag.strip('"').encode() in listed for etag in before)
    (tmp_path / "a").write_bytes(b"newer")
    os.utime(tmp_path / "b", ns=(1, 1))  # written in place with as many bytes
    (tmp_path / "c").unlink()
    assert len({*before, *etags()}) == 5
    assert view.lookup(b"c") is None
