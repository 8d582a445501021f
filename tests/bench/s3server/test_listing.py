"""Pages of a listing."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.s3server.buckets import MemoryObjects, ObjectView
from bench.s3server.pages import ListQuery, decode_token, encode_token, render_page, select_page

# Few letters, so that prefixes and delimiters meet; 0xff and NUL stand at the ends of the order.
_bytes = st.text(alphabet="ab/\x00", max_size=5).map(str.encode) | st.lists(
    st.sampled_from([b"a", b"/", b"\xff"]), max_size=4
).map(b"".join)
_keys = st.sets(_bytes.filter(bool), max_size=30)


def _view(keys: set[bytes]) -> ObjectView:
    return MemoryObjects(dict.fromkeys(keys, b"")).view()


def _model(keys: set[bytes], prefix: bytes, delimiter: bytes, after: bytes) -> list[bytes]:
    """All entries that a listing should show, in order."""
    entries = set()
    for key in keys:
        if key.startswith(prefix):
            head, found, _ = key[len(prefix) :].partition(delimiter) if delimiter else (key[len(prefix) :], b"", b"")
            entries.add(prefix + head + found)
    return sorted(entry for entry in entries if entry > after)


def _walk(view: ObjectView, query: ListQuery, limit: int) -> list[list[bytes]]:
    """The entries of all pages, following the token."""
    pages = []
    while True:
        page = select_page(view, query, limit)
        keys = [view.key_at(index) for start, end in page.runs for index in range(start, end)]
        assert page.key_count == len(keys) + len(page.prefixes) <= limit
        pages.append(sorted(keys + page.prefixes))
        if not page.truncated:
            return pages
        query = replace(query, token=encode_token(page.resume_after, 2))


@given(_keys, _bytes, st.sampled_from([b"", b"/", b"a", b"//"]), _bytes, st.integers(1, 7))
def test_pages_of_any_length_show_what_the_model_lists(
    keys: set[bytes], prefix: bytes, delimiter: bytes, after: bytes, limit: int
) -> None:
    query = ListQuery(prefix=prefix, delimiter=delimiter, start_after=after)
    pages = _walk(_view(keys), query, limit)
    entries = [entry for page in pages for entry in page]
    assert entries == _model(keys, prefix, delimiter, after)
    assert all(len(page) == limit for page in pages[:-1])


def test_no_two_pages_have_the_same_token() -> None:
    view = _view({b"a"})
    query, tokens = ListQuery(), set()
    for _ in range(3):
        body = render_page("data", view, query, select_page(view, query, 0))
        token = body.split(b"<NextContinuationToken>")[1].split(b"<")[0].decode()
        tokens.add(token)
        query = ListQuery(token=token)
    assert len(tokens) == 3


@pytest.mark.parametrize("token", ["nonsense", "", "AAAA", "é", "b3RoZXI6MTo=", "ZmFzdGZ1c2U6eDo="])
def test_a_token_of_another_server_is_refused(token: str) -> None:
    with pytest.raises(ValueError, match="token"):
        decode_token(token)
