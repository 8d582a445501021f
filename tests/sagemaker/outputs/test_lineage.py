"""The hash of a channel's listing: the same for the same data, and no other."""

from collections.abc import Mapping

import pytest

from fastfuse.index.inodes.builder import TableBuilder
from fastfuse.sagemaker.outputs.record import listing_of

MD5 = '"0123456789abcdef0123456789abcdef"'
OBJECTS = {"a/x": (3, MD5), "a/y": (4, '"odd"'), "b": (5, '"older"'), "c": (0, MD5[:-1] + '-7"')}


def described(objects: Mapping[str, tuple[int, str]], bucket: str = "bucket", mtime_ns: int = 1) -> dict[str, object]:
    builder = TableBuilder(bucket, f"{bucket}/")
    for key, (size_bytes, etag) in objects.items():  # each a page of the listing
        builder.add([f"{bucket}/{key}".encode()], [size_bytes], [mtime_ns], [etag], ["STANDARD"])
    return listing_of(builder.build()[0])


def test_the_same_data_in_another_bucket_at_another_time_has_the_same_hash() -> None:
    first = described(OBJECTS)
    assert (first["Objects"], first["Bytes"]) == (4, 12)
    # Pages of a parallel listing come in any order.
    assert first == described(dict(reversed(OBJECTS.items())), bucket="copy", mtime_ns=7)


@pytest.mark.parametrize(
    "change",
    [
        {"a/x": (4, MD5)},
        {"a/x": (3, MD5.replace("0", "1"))},
        {"a/y": (4, '"older"'), "b": (5, '"odd"')},
        {"c": (0, MD5[:-1] + '-8"')},
        {"d": (0, MD5)},
    ],
)
def test_another_size_version_or_object_makes_another_hash(change: Mapping[str, tuple[int, str]]) -> None:
    assert described({**OBJECTS, **change})["ListingSha256"] != described(OBJECTS)["ListingSha256"]


def test_another_name_makes_another_hash() -> None:
    renamed = {"a/z" if key == "a/y" else key: value for key, value in OBJECTS.items()}
    assert described(renamed)["ListingSha256"] != described(OBJECTS)["ListingSha256"]
