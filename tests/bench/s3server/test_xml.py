from urllib.parse import unquote_plus
from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st

from bench.s3server.xml import contents_element, error_document, escape, text


@given(st.binary())
def test_an_url_encoded_key_is_plain_ascii_and_decodes_to_itself(key: bytes) -> None:
    encoded = text(key, True)
    assert escape(encoded) == encoded
    assert unquote_plus(encoded.decode("ascii"), errors="surrogateescape").encode(errors="surrogateescape") == key


@given(st.text(alphabet=st.characters(min_codepoint=32, exclude_categories=["Cs", "Cn"], exclude_characters="￾￿")))
def test_an_escaped_key_survives_an_xml_parser(key: str) -> None:
    assert (ElementTree.fromstring(b"<k>%b</k>" % escape(key.encode())).text or "") == key


def test_a_control_character_becomes_a_reference() -> None:
    assert text(b"a\x01\n", False) == b"a&#x1;&#xA;"


def test_an_object_without_an_etag_is_listed_without_one() -> None:
    listed = contents_element(b"k", 7, "", 0, "GLACIER", True)
    assert listed == (
        b"<Contents><Key>k</Key><LastModified>1970-01-01T00:00:00.000Z</LastModified>"
        b"<Size>7</Size><StorageClass>GLACIER</StorageClass></Contents>"
    )


def test_an_error_document_escapes_what_the_client_sent() -> None:
    document = error_document("NoSuchKey", "gone", {"Key": "<a>"})
    assert document.endswith(b"<Error><Code>NoSuchKey</Code><Message>gone</Message><Key>&lt;a&gt;</Key></Error>")
