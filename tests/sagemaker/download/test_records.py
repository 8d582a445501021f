"""The record on disk about a file: the version of its object, and the boot that wrote it."""

from dataclasses import replace

import pytest

from fastfuse.objects import ObjectRef
from fastfuse.sagemaker.download.disk import Trust, version_of

REF = ObjectRef("bucket", "key", 3, '"etag"', 10**18)
BOOT, OTHER_BOOT = b"b" * 16, b"o" * 16


@pytest.mark.parametrize(
    "change",
    [{"bucket": "b"}, {"key": "k"}, {"size_bytes": 4}, {"etag": '"other"'}, {"etag": ""}, {"modified_ns": 10**18 + 1}],
)
def test_whatever_changes_of_an_object_makes_it_another_version(change: dict[str, object]) -> None:
    assert version_of(replace(REF, **change)) != version_of(REF)  # type: ignore[arg-type]
    assert version_of(replace(REF)) == version_of(REF)


def test_fields_do_not_run_into_each_other() -> None:
    assert version_of(ObjectRef("a", "bc", 1, "")) != version_of(ObjectRef("ab", "c", 1, ""))


@pytest.mark.parametrize(
    ("boot", "settled_ns", "changed_ns", "is_covered"),
    [
        (BOOT, 0, 100, True),
        (OTHER_BOOT, 0, 100, False),
        (OTHER_BOOT, 99, 100, False),
        (OTHER_BOOT, 100, 100, True),
    ],
)
def test_a_file_of_another_boot_is_believed_in_if_the_disk_was_waited_for_since(
    boot: bytes, settled_ns: int, changed_ns: int, *, is_covered: bool
) -> None:
    trust = Trust(boot=BOOT, settled_ns=settled_ns)
    assert trust.covers(boot, changed_ns) is is_covered
