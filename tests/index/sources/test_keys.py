"""A list of keys, line by line."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfuse.errors import ConfigurationError
from fastfuse.index.listing.keys import parse_keys
from fastfuse.index.sources.manifests import Reference
from fastfuse.index.sources.uri import S3Uri

SOURCE = S3Uri("bucket", "train")
_names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n\r"), min_size=1, max_size=8)


def parse(text: bytes, source: S3Uri = SOURCE) -> list[Reference]:
    return parse_keys(text.splitlines(keepends=True), source, "keys.txt")


@given(st.lists(_names, max_size=20), st.booleans(), st.sampled_from(["\n", "\r\n"]), st.booleans())
def test_every_key_comes_back_once_in_order_with_its_first_line(
    names: list[str], as_uris: bool, end: str, is_ended: bool
) -> None:
    keys = [f"train/{name}" for name in names]
    lines = [(f"s3://bucket/{key}" if as_uris else key) + end for key in keys]
    if lines and not is_ended:
        lines[-1] = lines[-1].removesuffix(end)
    found = parse_keys([line.encode() for line in lines], SOURCE, "keys.txt")
    assert [listed.key for listed in found] == sorted(set(keys))
    assert all(keys.index(listed.key) == listed.line - 1 for listed in found)


def test_empty_lines_are_skipped_and_nothing_else_is_special() -> None:
    assert [listed.key for listed in parse(b"\n# not a comment\n\n train\n", S3Uri("bucket", ""))] == [
        " train",
        "# not a comment",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"train/a\ntest/b\n", r"keys.txt:2: 'test/b' does not lie in s3://bucket/train"),
        (b"train-2/a\n", r"keys.txt:1: 'train-2/a' does not lie in"),
        (b"train/a\ns3://bucket/\n", r"keys.txt:2: 's3://bucket/' names no object"),
        (b"train/a\ntrain/\xff\n", r"keys.txt:2: the key is not UTF-8"),
        (b"s3://other/train/a\n", r"keys.txt:1: 's3://other/train/a' is not in the bucket 'bucket'"),
        (b"train/a\ntrain\n", r"keys.txt:2: 'train' is an object beside the folder of the same name"),
    ],
)
def test_a_line_that_is_no_key_of_the_source_is_named(text: bytes, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        parse(text)


def test_a_carriage_return_is_part_of_a_key_where_lines_do_not_end_in_one() -> None:
    assert [listed.key for listed in parse_keys([b"train/a\n", b"train/b\r\n"], SOURCE, "")] == ["train/a", "train/b\r"]


def test_the_source_may_be_the_one_object() -> None:
    assert parse(b"train\n") == [Reference("bucket", "train", 1)]
