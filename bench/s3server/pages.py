"""Selects the objects of a ListObjectsV2 page, and renders it as XML. Pure; positions come by bisection.

A listing is a sequence of entries in byte order: keys, and with a delimiter the common prefixes that stand for all
keys below them. A page holds the entries greater than `after`, so a common prefix is not repeated when it, or a key
below it, is where the last page ended. (Ceph and moto treat StartAfter the same way.)
"""

import base64
from dataclasses import dataclass

from bench.s3server.buckets import ObjectView
from bench.s3server.xml import DECLARATION, element, escape, text

_TOKEN_MARK = b"fastfuse"


@dataclass(frozen=True, slots=True, kw_only=True)
class ListQuery:
    """One request. `token` is None where none was sent; it takes precedence over `start_after`."""

    prefix: bytes = b""
    delimiter: bytes = b""
    start_after: bytes = b""
    token: str | None = None
    max_keys: int = 1000
    url_encoded: bool = False

    @property
    def after(self) -> bytes:
        """The entry after which the page begins; `ValueError` if the token is not one of ours."""
        return self.start_after if self.token is None else decode_token(self.token)[0]

    @property
    def next_page_number(self) -> int:
        """The number of the page after this one; `ValueError` as `after`."""
        return 2 if self.token is None else decode_token(self.token)[1] + 1


@dataclass(frozen=True, slots=True)
class ListPage:
    """`runs` are half-open ranges of positions in the view; `resume_after` is the last entry shown."""

    runs: list[tuple[int, int]]
    prefixes: list[bytes]
    truncated: bool
    resume_after: bytes

    @property
    def key_count(self) -> int:
        return sum(end - start for start, end in self.runs) + len(self.prefixes)


def encode_token(after: bytes, page_number: int) -> str:
    """Return a token that resumes after this entry.

    It holds the page number: boto3 refuses to see one token twice, and an empty page resumes where it began.
    """
    return base64.urlsafe_b64encode(b"%b:%d:%b" % (_TOKEN_MARK, page_number, after)).decode()


def decode_token(token: str) -> tuple[bytes, int]:
    """Return the entry after which the token resumes and its page number; `ValueError` if it is not one of ours."""
    try:
        mark, number, after = base64.b64decode(token, altchars=b"-_", validate=True).split(b":", 2)
        if mark == _TOKEN_MARK:
            return after, int(number)
    except ValueError as error:
        raise ValueError("not a continuation token") from error
    raise ValueError("not a continuation token")


def _position_past(view: ObjectView, prefix: bytes) -> int:
    """Return the position of the first key beyond all that start with `prefix`."""
    stem = prefix.rstrip(b"\xff")
    return view.position(stem[:-1] + bytes([stem[-1] + 1])) if stem else len(view)


def _common_prefix(key: bytes, query: ListQuery) -> bytes | None:
    found = key.find(query.delimiter, len(query.prefix)) if query.delimiter else -1
    return key[: found + len(query.delimiter)] if found >= 0 else None


def _first_position(view: ObjectView, query: ListQuery) -> int:
    after = query.after
    if after < query.prefix:
        return view.position(query.prefix)
    if after.startswith(query.prefix) and (prefix := _common_prefix(after, query)):
        return _position_past(view, prefix)
    position = view.position(after)
    return position + 1 if position < len(view) and view.key_at(position) == after else position


def select_page(view: ObjectView, query: ListQuery, limit: int) -> ListPage:
    """Return a page of at most `limit` entries. If more entries match, it is truncated, even if it is empty.

    Only ``max-keys=0`` ends a listing without having shown all, as on S3.
    """
    limit = min(limit, query.max_keys)
    position, stop = _first_position(view, query), _position_past(view, query.prefix)
    if not query.delimiter:
        end = max(position, min(position + limit, stop))
        resume_after = view.key_at(end - 1) if end > position else query.after
        return ListPage([(position, end)], [], query.max_keys > 0 and end < stop, resume_after)
    runs: list[tuple[int, int]] = []
    prefixes: list[bytes] = []
    resume_after = query.after
    run_start = position
    for _ in range(limit):
        if position >= stop:
            break
        resume_after = view.key_at(position)
        prefix = _common_prefix(resume_after, query)
        if prefix is None:
            position += 1
            continue
        runs.append((run_start, position))
        prefixes.append(prefix)
        resume_after = prefix
        run_start = position = _position_past(view, prefix)
    runs.append((run_start, position))
    return ListPage(runs, prefixes, query.max_keys > 0 and position < stop, resume_after)


def _head_elements(bucket: str, query: ListQuery, page: ListPage) -> list[bytes]:
    encoded = query.url_encoded
    elements = [
        element("Name", escape(bucket.encode())),
        element("Prefix", text(query.prefix, encoded)),
        element("KeyCount", b"%d" % page.key_count),
        element("MaxKeys", b"%d" % query.max_keys),
        element("IsTruncated", b"true" if page.truncated else b"false"),
    ]
    if query.delimiter:
        elements.append(element("Delimiter", text(query.delimiter, encoded)))
    if query.start_after:
        elements.append(element("StartAfter", text(query.start_after, encoded)))
    if query.token is not None:
        elements.append(element("ContinuationToken", escape(query.token.encode())))
    if page.truncated:
        elements.append(
            element("NextContinuationToken", encode_token(page.resume_after, query.next_page_number).encode())
        )
    if encoded:
        elements.append(element("EncodingType", b"url"))
    return elements


def render_page(bucket: str, view: ObjectView, query: ListQuery, page: ListPage) -> bytes:
    """Return the body of the reply."""
    encoded = query.url_encoded
    return b"".join(
        (
            DECLARATION,
            b'<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">',
            *_head_elements(bucket, query, page),
            *(view.contents_xml(start, end, url_encoded=encoded) for start, end in page.runs if start < end),
            *(element("CommonPrefixes", element("Prefix", text(prefix, encoded))) for prefix in page.prefixes),
            b"</ListBucketResult>",
        )
    )
