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


@pytest.mark.parametrize(
    ("text", "message"),
    [
        *((text, "is not an S3 URI") for text in ("", "bucket/a", "/mnt", "s3:/bucket", "s3a://bucket/a", "://x")),
        (
            "http://b.s3.amazonaws.com/k?X-Amz-Signature=s",
            r"^'http://b\.s3\.amazonaws\.com/k\?\.\.\.' is not an S3 URI$",
        ),
        ("https://me:secret@host/b/k?X-Amz-Signature=s", r"^'https://\.\.\.@host/b/k\?\.\.\.' is not an S3 URI$"),
        ("x" * 10**6, r"^'x{119}\.\.\. is not an S3 URI$"),
        *((text, "names no bucket") for text in ("s3://", "s3:///a", "s3:///" + "x" * 10**6)),
        ("s3://bucket/a\0b", "NUL"),
        *((text, r"udcff.* is not UTF-8") for text in ("s3://bucket/\udcff", "s3://buck\udcffet/a")),
        ("s3://b/" + "\ud800" * 10**6, "is not UTF-8"),
    ],
    ids=lambda value: value[:30],
)
def test_what_is_no_s3_uri_is_refused_and_no_more_of_it_shown_than_may_be(text: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as caught:
        S3Uri.parse(text)
    assert len(str(caught.value)) < 160
    if "is not an S3 URI" in message:
        assert caught.value.hint == "write it as s3://BUCKET/PREFIX"
