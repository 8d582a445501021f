"""Pages of listings. The fast parser and ElementTree's agree on every page that is XML."""

from xml.etree import ElementTree

from fastfuse.errors import ServiceError
from fastfuse.index.listing import page
from fastfuse.index.listing.page import Page, parse_page

_ROW = b'<Contents><Key>a/b</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>"e"</ETag><Size>1</Size>'
TOKENS = (
    *(b"<ListBucketResult>", b"</ListBucketResult>", b'<?xml version="1.0" encoding="UTF-8"?>', b"<Contents>"),
    *(b"</Contents>", b"<Key>", b"</Key>", b"<Key/>", b"<Size>", b"</Size>", b"<LastModified>", b"</LastModified>"),
    *(b"<ETag>", b"</ETag>", b"<StorageClass>", b"</StorageClass>", b"<Owner>", b"</Owner>", b"<ID>", b"</ID>"),
    *(b"<IsTruncated>true</IsTruncated>", b"<IsTruncated>false</IsTruncated>", b"<CommonPrefixes><Prefix>a/</Prefix>"),
    *(b"</CommonPrefixes>", b"<NextContinuationToken>", b"</NextContinuationToken>", b"<Prefix>", b"</Prefix>", b"<x>"),
    *(b"<EncodingType>url</EncodingType>", b"&amp;", b"&quot;", b"&#10;", b"&#x0;", b"&#xD800;", b"&#x110000;", b"%2F"),
    *(b"%", b"+", b"<!--", b"-->", b"<![CDATA[", b"]]>", b"<!DOCTYPE", b"<!ENTITY", b"<?x ", b"?>", b"\x00", b"\xff"),
    *(b"\r\n", b"\n", b"2026-02-30T00:00:00Z", b"0000-00-00T00:00:00Z", b"9999-12-31T23:59:59.999Z", b"+00:00"),
    *(b"</x>", _ROW + b"<StorageClass>STANDARD</StorageClass></Contents>", b"9223372036854775808", b"\xef\xbb\xbf"),
    b"\xc3\xa4",
)


def try_one(data: bytes) -> None:
    try:
        found = parse_page(data)
    except ServiceError:
        return
    assert found == parse_page(data)
    _check(found)
    if _is_xml(data):
        assert page._parse_any_order(data) == found


def _check(found: Page) -> None:
    columns = found.columns
    assert {len(column) for column in columns} == {len(found.keys)}
    assert all(0 <= size < 1 << 63 for size in columns.sizes)
    assert all(-(1 << 63) <= moment < 1 << 63 for moment in columns.mtimes_ns)
    assert not found.is_truncated or found.next_token or found.keys or found.common_prefixes


def _is_xml(data: bytes) -> bool:
    try:
        ElementTree.fromstring(data)
    except (ElementTree.ParseError, ValueError, LookupError):
        return False
    return True
