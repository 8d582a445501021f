"""Manifests, augmented manifests and lists of keys: each input is tried as all of them."""

import io
import json
from collections.abc import Iterable, Sequence

from fastfuse.errors import ConfigurationError
from fastfuse.index.listing.named import parse_keys
from fastfuse.index.sources.manifests import (
    AugmentedLine,
    Reference,
    filtered_manifest,
    read_augmented_manifest,
    read_manifest,
)
from fastfuse.index.sources.uri import S3Uri
from fastfuse.objects import MAX_KEY_BYTES

TOKENS = (
    *(b'{"prefix": "s3://bucket/a/"}', b'{"source-ref": "s3://bucket/a", "class": 0}', b'"source-ref"', b'"label-ref"'),
    *(b'"s3://bucket/a"', b'"s3://"', b"s3://bucket/", b"s3://other/", b"arn:aws:s3:eu-west-1:1:accesspoint/a", b"["),
    *(b"]", b"{", b"}", b",", b":", b'"', b"\\", b"\\u0000", b"\\ud800", b"\\n", b"\n", b"\r\n", b" ", b"\t", b"\xff"),
    *(b"null", b"true", b"NaN", b"Infinity", b"-1", b"1e999", b"1" * 50, b"\xef\xbb\xbf", b"\xc3\xa4", b"\x00"),
    *(b"\x85", b"[" * 64, b"]" * 64, b'{"a":' * 64, b"\xe2\x80\xa8", b"\x0c", b"?", b"@", b"#"),
)

_SOURCE = S3Uri("bucket", "a")


def try_one(data: bytes) -> None:
    _try_manifest(data)
    for names in ((), ("source-ref",), ("source-ref", "class")):
        _try_augmented(data, names)
    try:
        found = parse_keys(io.BytesIO(data), _SOURCE, "keys")
    except ConfigurationError:
        return
    _check(found)
    keys = [reference.key for reference in found]
    assert keys == sorted(set(keys))
    assert all(key == "a" or key.startswith("a/") for key in keys)


def _try_manifest(data: bytes) -> None:
    try:
        found = read_manifest(data, "manifest")
    except ConfigurationError:
        return
    _check(found)
    assert not any("\0" in reference.key for reference in found)
    assert len({reference.bucket for reference in found}) <= 1
    # Python's own parser accepts whatever is a manifest.
    assert len(json.loads(data.decode("utf-8-sig"))) == 1 + len(found)


def _try_augmented(data: bytes, names: tuple[str, ...]) -> None:
    try:
        lines = read_augmented_manifest(data, "manifest", names)
    except ConfigurationError:
        return
    for line in lines:
        _check(line.references)
        assert "\n" not in line.text
        members = json.loads(line.text)
        assert not names or tuple(members) == names
        assert sum(name.endswith("-ref") for name in members) == len(line.references)
    # The file that is made of the lines means the same.
    again = read_augmented_manifest(filtered_manifest(lines), "made", names)
    assert [line.text for line in again] == [line.text for line in lines]
    assert _named(again) == _named(lines)


def _named(lines: Sequence[AugmentedLine]) -> list[tuple[str, str]]:
    return [(reference.bucket, reference.key) for line in lines for reference in line.references]


def _check(references: Iterable[Reference]) -> None:
    for reference in references:
        assert reference.bucket
        assert 0 < len(reference.key.encode()) <= MAX_KEY_BYTES
        assert reference.line >= 1
