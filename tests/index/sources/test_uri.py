import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfuse.errors import ConfigurationError
from fastfuse.index.sources.uri import S3Uri


@pytest.mark.parametrize(
    ("text", "bucket", "path"),
    [
        ("s3://bucket", "bucket", ""),
        ("s3://bucket/", "bucket", ""),
        ("s3://bucket/a/b", "bucket", "a/b"),
        ("s3://bucket/a/", "bucket", "a/"),
        ("S3://bucket/a", "bucket", "a"),
        ("s3://bucket//a", "bucket", "/a"),
        ("s3://bucket/a%20b+c?x#y", "bucket", "a%20b+c?x#y"),
        ("s3://bucket/../a", "bucket", "../a"),
        ("s3://bucket/s3://other/x", "bucket", "s3://other/x"),
        ("s3://arn:aws:s3:::bucket/a", "arn:aws:s3:::bucket", "a"),  # no access point
    ],
)
def test_a_uri_is_a_bucket_and_the_rest_verbatim(text: str, bucket: str, path: str) -> None:
    assert S3Uri.parse(text) == S3Uri(bucket, path)


@pytest.mark.parametrize("path", ["", "a", "a/b", "/a", "a:b/c"])
@pytest.mark.parametrize(
    "point",
    [
        "arn:aws:s3:eu-west-1:123456789012:accesspoint/point",
        "arn:aws:s3:eu-west-1:123456789012:accesspoint:point",
        "arn:aws-cn:s3:cn-north-1:123456789012:accesspoint/point",
        "arn:aws:s3-object-lambda:eu-west-1:123456789012:accesspoint/point",
        "arn:aws:s3-outposts:eu-west-1:123456789012:outpost/op-1/accesspoint/point",
        "arn:aws:s3-outposts:eu-west-1:123456789012:outpost:op-1:accesspoint:point",
        "arn:aws:s3::123456789012:accesspoint/point.mrap",
    ],
)
def test_the_arn_of_an_access_point_stands_for_a_bucket(point: str, path: str) -> None:
    uri = S3Uri(point, path)
    assert S3Uri.parse(str(uri)) == uri
    assert S3Uri.parse(f"s3://{point}") == S3Uri(point, "")


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")))
def test_any_key_survives_being_written_as_a_uri(path: str) -> None:
    uri = S3Uri("bucket", path)
    assert S3Uri.parse(str(uri)) == uri


@pytest.mark.parametrize("text", ["", "bucket/a", "/mnt", "s3:/bucket", "http://bucket/a", "s3a://bucket/a", "://x"])
def test_what_is_no_s3_uri_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="is not an S3 URI") as caught:
        S3Uri.parse(text)
    assert caught.value.hint == "write it as s3://BUCKET/PREFIX"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://b.s3.amazonaws.com/k?X-Amz-Signature=secret", "'http://b.s3.amazonaws.com/k?...'"),
        ("https://me:secret@host/b/k?X-Amz-Signature=secret", "'https://...@host/b/k?...'"),
        ("x" * 10**6, f"'{'x' * 119}..."),
    ],
)
def test_of_another_address_no_more_is_shown_than_may_be(text: str, shown: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        S3Uri.parse(text)
    assert str(caught.value) == f"{shown} is not an S3 URI"


@pytest.mark.parametrize("text", ["s3:///" + "x" * 10**6, "s3://b/" + "\ud800" * 10**6])
def test_of_a_long_uri_only_the_beginning_is_shown(text: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        S3Uri.parse(text)
    assert len(str(caught.value)) < 160


@pytest.mark.parametrize("text", ["s3://", "s3:///a"])
def test_a_uri_without_a_bucket_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="names no bucket"):
        S3Uri.parse(text)


def test_a_nul_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="NUL"):
        S3Uri.parse("s3://bucket/a\0b")


@pytest.mark.parametrize("text", ["s3://bucket/\udcff", "s3://buck\udcffet/a"])
def test_bytes_of_the_command_line_that_are_not_utf8_are_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"udcff.* is not UTF-8"):
        S3Uri.parse(text)
