"""The record on disk about a file: the version of its object, and the boot that wrote it."""

from dataclasses import replace

import pytest

from fastfuse.objects import ObjectRef
from fastfuse.sagemaker.download.disk import Trust, version_of

REF = ObjectRef("bucket", "key", 3, '"etag"', 10**18)


@pytest.mark.parametrize(
    "change",
    [{"bucket": "b"}, {"key": "k"}, {"size_bytes": 4}, {"etag": '"other"'}, {"etag": ""}, {"modified_ns": 10**18 + 1}],
)
def test_whatever_changes_of_an_object_makes_it_another_version(change: dict[str, object]) -> None:
    assert version_of(replace(REF, **change)) != version_of(REF)  # type: ignore[arg-type]
    assert version_of(replace(REF)) == version_of(REF)


@pytest.mark.parametrize(
    ("boot", "settled_ns", "is_covered"), [(b"ours", 0, True), (b"other", 99, False), (b"other", 100, True)]
)
def test_a_file_of_another_boot_is_believed_in_if_the_disk_was_waited_for_since(
    boot: bytes, settled_ns: int, *, is_covered: bool
) -> None:
    assert Trust(boot=b"ours", settled_ns=settled_ns).covers(boot, 100) is is_covered
