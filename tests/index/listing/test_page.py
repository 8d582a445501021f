"""LIST pages: parsed as they were rendered, and requested as fast as the service accepts."""

from dataclasses import dataclass, field
from urllib.parse import quote, unquote_plus
from xml.sax.saxutils import escape

import boto3
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from fastfuse.errors import ServiceError
from fastfuse.index.listing import page as page_module
from fastfuse.index.listing.page import MAX_IN_FLIGHT, Page, Pager, parse_page
from fastfuse.objects import ObjectColumns
from fastfuse.s3.failures import Failure, Kind
from fastfuse.s3.retries import Retries, RetryableError
from tests.index.listing.test_lister import page_body
from tests.servers import S3Server

_HEAD = '<?xml version="1.0" encoding="UTF-8"?>\n<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
_TIME = "2024-01-01T00:00:00.000Z"
_TIME_NS = 1_704_067_200 * 10**9

# Everything that XML 1.0 can say raw; CR is left out, because parsers make it LF.
_xml_text = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\ufffe\uffff\r").filter(
        lambda c: c >= " " or c in "\t\n"
    ),
    min_size=1,
)
_any_text = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)
_etags = st.sampled_from(['"0123456789abcdef0123456789abcdef"', '"0123456789abcdef0123456789abcdef-12"', "plain", ""])
_classes = st.sampled_from(["STANDARD", "GLACIER", "DEEP_ARCHIVE", "NEW & <ODD>"])


@dataclass(frozen=True)
class Row:
    key: str
    size: int = 1
    etag: str = '"0123456789abcdef0123456789abcdef"'
    storage_class: str = "STANDARD"
    modified: str = _TIME

    def fields(self, *, is_url: bool) -> dict[str, str]:
        return {
            "Key": quote(self.key, safe="/").replace("%20", "+") if is_url else escape(self.key),
            "LastModified": self.modified,
            "ETag": escape(self.etag, {'"': "&quot;"}),
            "Size": str(self.size),
            "StorageClass": escape(self.storage_class),
        }


def body_of(rows: list[Row], *, is_url: bool = True, truncated: bool = False, token: str = "", more: str = "") -> bytes:
    contents = "".join(
        "<Contents>" + "".join(f"<{k}>{v}</{k}>" for k, v in row.fields(is_url=is_url).items()) + "</Contents>"
        for row in rows
    )
    return wrapped(contents + more, is_url=is_url, truncated=truncated, token=token)


def wrapped(contents: str, *, is_url: bool = True, truncated: bool = False, token: str = "") -> bytes:
    encoding = "<EncodingType>url</EncodingType>" if is_url else ""
    next_token = f"<NextContinuationToken>{escape(token)}</NextContinuationToken>" if token else ""
    return (
        f"{_HEAD}<Name>b</Name>{encoding}<IsTruncated>{str(truncated).lower()}</IsTruncated>{next_token}"
        f"{contents}</ListBucketResult>"
    ).encode()


def rows_of(keys: st.SearchStrategy[str]) -> st.SearchStrategy[list[Row]]:
    sizes = st.integers(0, (1 << 63) - 1)
    return st.lists(st.builds(Row, key=keys, size=sizes, etag=_etags, storage_class=_classes), max_size=6)


_rows, _raw_rows = rows_of(_any_text), rows_of(_xml_text)


def check(page: Page, rows: list[Row]) -> None:
    assert page.keys == [row.key.encode() for row in rows]
    assert page.columns.sizes == [row.size for row in rows]
    assert page.columns.etags == [row.etag for row in rows]
    assert page.columns.storage_classes == [row.storage_class for row in rows]
    assert page.columns.mtimes_ns == [_TIME_NS] * len(rows)


@given(_rows, _raw_rows)
def test_keys_of_any_characters_come_back_exactly(url_rows: list[Row], raw_rows: list[Row]) -> None:
    for rows, is_url in ((url_rows, True), (raw_rows, False)):
        body = body_of(rows, is_url=is_url)
        check(parse_page(body), rows)
        assert page_module._parse_any_order(body) == parse_page(body)


@given(st.lists(st.binary(min_size=1), max_size=5))
def test_bytes_that_are_not_utf8_come_back_exactly(keys: list[bytes]) -> None:
    contents = "".join(
        f"<Contents><Key>{quote(key, safe='/')}</Key><LastModified>{_TIME}</LastModified><ETag/>"
        "<Size>1</Size></Contents>"
        for key in keys
    )
    assert parse_page(wrapped(contents)).keys == keys


def test_raw_bytes_that_are_not_utf8_are_kept_for_the_name_rules() -> None:
    body = body_of([Row("a_b"), Row("c")], is_url=False).replace(b"a_b", b"a\xff&amp;b")
    assert parse_page(body).keys == [b"a\xff&b", b"c"]


@given(_rows, st.permutations(["Key", "LastModified", "ETag", "Size", "StorageClass", "ChecksumAlgorithm", "Owner"]))
def test_elements_in_any_order_with_owner_and_checksum_are_understood(rows: list[Row], order: list[str]) -> None:
    extra = {
        "ChecksumAlgorithm": "CRC32",
        "Owner": "<ID>1</ID><DisplayName>x</DisplayName>",
        "RestoreStatus": "<IsRestoreInProgress>false</IsRestoreInProgress>",
    }
    contents = ""
    for row in rows:
        fields = row.fields(is_url=True) | extra
        contents += "<Contents>" + "".join(f"<{k}>{fields[k]}</{k}>" for k in [*order, "RestoreStatus"]) + "</Contents>"
    check(parse_page(wrapped(contents)), rows)


_AWS_WITH_EVERYTHING = (
    f"<Contents><Key>a</Key><LastModified>{_TIME}</LastModified><ETag>&quot;e&quot;</ETag>"
    "<ChecksumAlgorithm>CRC64NVME</ChecksumAlgorithm><ChecksumType>FULL_OBJECT</ChecksumType><Size>7</Size>"
    "<Owner><ID>x</ID><DisplayName>y</DisplayName></Owner><StorageClass>STANDARD</StorageClass></Contents>"
)


def test_pages_as_aws_writes_them_never_reach_elementtree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(page_module, "_parse_any_order")
    page = parse_page(wrapped(_AWS_WITH_EVERYTHING * 3, truncated=True, token="t&<"))
    columns = ObjectColumns([b"a"] * 3, [7] * 3, [_TIME_NS] * 3, ['"e"'] * 3, ["STANDARD"] * 3)
    assert page == Page(columns, True, "t&<")


@pytest.mark.parametrize("namespace", ["", ' xmlns="urn:other"'])
def test_a_pretty_printed_page_is_understood_in_any_namespace(namespace: str) -> None:
    body = f"""<?xml version='1.0'?>
<ListBucketResult{namespace}>
  <IsTruncated> true </IsTruncated>
  <Contents>
    <Size> 5 </Size>
    <Key> spaced </Key>
    <LastModified> {_TIME} </LastModified>
  </Contents>
  <NextContinuationToken>t</NextContinuationToken>
  <CommonPrefixes><Prefix>p/</Prefix></CommonPrefixes>
</ListBucketResult>"""
    columns = ObjectColumns([b" spaced "], [5], [_TIME_NS], [""], ["STANDARD"])
    assert parse_page(body.encode()) == Page(columns, True, "t", common_prefixes=[b"p/"])


def test_without_an_encoding_type_percent_and_plus_are_ordinary_characters() -> None:
    assert parse_page(body_of([Row("a%20b+c")], is_url=False)).keys == [b"a%20b+c"]


@pytest.mark.parametrize(
    ("written", "key"),
    [("&#65;&#x42;", b"AB"), ("&amp;amp;", b"&amp;"), ("&#x1;&#x1f;", b"\x01\x1f"), ("&lt;&gt;&quot;&apos;", b"<>\"'"),
     ("&#xD800;", b"&#xD800;"), ("&nbsp;", b"&nbsp;"), ("&#x110000;", b"&#x110000;")],
)  # fmt: skip
def test_entities_are_xmls_own_and_nothing_else(written: str, key: bytes) -> None:
    body = body_of([Row("KEY")], is_url=False).replace(b"KEY", written.encode())
    assert parse_page(body).keys == [key]


def test_what_looks_like_an_object_in_a_comment_or_cdata_is_none() -> None:
    body = body_of(
        [Row("real")], more=f"<!-- {_AWS_WITH_EVERYTHING} --><Other><![CDATA[{_AWS_WITH_EVERYTHING}]]></Other>"
    )
    assert parse_page(body).keys == [b"real"]


def test_a_nul_in_an_etag_does_not_make_two_of_it() -> None:
    body = body_of([Row("a", etag="TAG"), Row("b")])
    assert parse_page(body.replace(b"TAG", b"x&#0;y")).columns.etags == ["x\0y", Row("b").etag]
    with pytest.raises(ServiceError, match="not XML"):
        parse_page(body.replace(b"TAG", b"x\0y"))


_BOMB = (
    '<?xml version="1.0"?><!DOCTYPE x [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]><ListBucketResult>&b;</ListBucketResult>'
)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "cp037"])
def test_a_document_type_is_refused_in_whichever_encoding(encoding: str) -> None:
    with pytest.raises(ServiceError, match="document type"):
        parse_page(_BOMB.encode())
    declared = f'<?xml version="1.0" encoding="{encoding}"?>'
    is_ebcdic = encoding == "cp037"
    body = (declared.encode() if is_ebcdic else declared.encode(encoding)) + _BOMB.partition("?>")[2].encode(encoding)
    with pytest.raises(ServiceError, match="not XML"):
        parse_page(body)


@pytest.mark.parametrize(
    "body",
    [b"", b"not xml", b"<html><body>login</body></html>", b"<ListBucketResult/>", b"<ListVersionsResult/>",
     bytes(range(256)) * 100, body_of([Row("a")])[:-30],
     wrapped("<Contents><Size>1</Size></Contents>"),
     b"<Error><Code>SlowDown</Code></Error>", b"<ListBucketResult><IsTruncated>maybe</IsTruncated></ListBucketResult>"],
)  # fmt: skip
def test_what_is_no_listing_is_refused(body: bytes) -> None:
    with pytest.raises(ServiceError, match="LIST reply"):
        parse_page(body)


@pytest.mark.parametrize("size", [str(1 << 63), "9" * 19, "9" * 5000, "-1", "1.5", "", "x"])
def test_a_size_that_no_column_can_hold_is_refused(size: str) -> None:
    body = body_of([Row("a", size=777)]).replace(b"777", size.encode())
    with pytest.raises(ServiceError, match="LIST reply"):
        parse_page(body)


@pytest.mark.parametrize(
    ("written", "expected_ns"),
    [
        ("2024-01-01T00:00:00Z", _TIME_NS),
        ("2024-01-01T00:00:00.123Z", _TIME_NS + 123_000_000),
        ("2024-01-01T00:00:00.123+00:00", _TIME_NS + 123_000_000),
        ("2024-01-01T01:00:00+01:00", _TIME_NS),
        ("2024-01-01T00:00:00", _TIME_NS),
        ("2024-01-01T00:00:00.123456789Z", _TIME_NS + 123_000_000),
        ("1969-12-31T23:59:59.500Z", -500_000_000),
    ],
)
def test_times_are_read_to_the_millisecond(written: str, expected_ns: int) -> None:
    assert parse_page(body_of([Row("a", modified=written)])).columns.mtimes_ns == [expected_ns]


def test_one_odd_time_among_usual_ones_is_read_too() -> None:
    body = body_of([Row("a"), Row("b", modified="2024-01-01T00:00:01+00:00"), Row("c")])
    assert parse_page(body).columns.mtimes_ns == [_TIME_NS, _TIME_NS + 10**9, _TIME_NS]


@pytest.mark.parametrize(
    "written",
    ["", "yesterday", "2024-13-01T00:00:00.000Z", "9999-12-31T23:59:59.000Z", "0001-01-01T00:00:00Z",
     "NaT" + " " * 16 + "Z", "2024-01-01T00:00:00.000!"],
)  # fmt: skip
def test_a_time_that_is_none_or_that_no_column_can_hold_is_refused(written: str) -> None:
    with pytest.raises(ServiceError, match="unreadable time"):
        parse_page(body_of([Row("a", modified=written)]))


def test_a_truncated_page_that_does_not_say_how_to_go_on_is_refused() -> None:
    with pytest.raises(ServiceError, match="how to go on"):
        parse_page(body_of([], truncated=True))


_REAL_KEYS = ["a", "a b", "a+b", "a%20b", "d/é", "d/<&>", "d/日本", "e/f/g"]


@pytest.mark.parametrize("server_name", ["moto_server", "rclone_server"])
@pytest.mark.parametrize("delimiter", ["", "/"])
def test_pages_of_real_servers_are_read_as_botocore_reads_them(
    request: pytest.FixtureRequest, server_name: str, delimiter: str
) -> None:
    server: S3Server = request.getfixturevalue(server_name)
    for key in _REAL_KEYS:
        server.put(f"page/{key}", key.encode())
    bodies: list[bytes] = []
    client = boto3.client(
        "s3", endpoint_url=server.endpoint_url, region_name="us-east-1",
        aws_access_key_id="AKIATESTTESTTESTTEST", aws_secret_access_key="secret-secret-secret-secret-secret-secret",
    )  # fmt: skip
    client.meta.events.register(
        "before-parse.s3.ListObjectsV2", lambda response_dict, **_: bodies.append(response_dict["body"])
    )
    reply = client.list_objects_v2(Bucket=server.bucket, Prefix="page/", Delimiter=delimiter, EncodingType="url")
    page = parse_page(bodies[-1])
    listed = reply["Contents"]
    assert page.keys == [unquote_plus(item["Key"]).encode() for item in listed]
    assert page.columns.sizes == [item["Size"] for item in listed]
    assert page.columns.etags == [item["ETag"] for item in listed]
    assert page.columns.mtimes_ns == [int(item["LastModified"].timestamp() * 1000) * 10**6 for item in listed]
    assert page.common_prefixes == [unquote_plus(item["Prefix"]).encode() for item in reply.get("CommonPrefixes", [])]
    assert bool(page.common_prefixes) == bool(delimiter)


BUSY_PAGE = page_body([b"p/a"])


@dataclass
class Busy:
    """Throttles the requests that `throttles` counts down; each page takes a second on trio's clock."""

    throttles: int = 0
    in_flight: int = 0
    most_in_flight: list[int] = field(default_factory=list)

    async def list(self, bucket: str, **_: object) -> bytes:
        self.in_flight += 1
        self.most_in_flight.append(self.in_flight)
        try:
            await trio.sleep(1)
        finally:
            self.in_flight -= 1
        if self.throttles > 0:
            self.throttles -= 1
            failure = Failure(kind=Kind.THROTTLED, detail="503 SlowDown", request_id="4442587FB7D0A2F9")
            raise RetryableError(ServiceError("503 SlowDown"), failure)
        return BUSY_PAGE

    async def aclose(self) -> None:
        raise AssertionError("the pager does not own the source")


async def pages(pager: Pager, count: int) -> None:
    async with trio.open_nursery() as nursery:
        for _ in range(count):
            nursery.start_soon(pager.page, "p/")


async def test_a_burst_of_throttling_halves_the_requests_in_flight_once(autojump_clock: object) -> None:
    pager = Pager(Busy(throttles=MAX_IN_FLIGHT), "bucket", Retries())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pages, pager, MAX_IN_FLIGHT)
        await trio.sleep(1.0001)  # the whole first round has been throttled, and nothing of the second is back
        assert pager.throttled_count == MAX_IN_FLIGHT
        assert pager.capacity == MAX_IN_FLIGHT // 2
    assert pager.request_count == 2 * MAX_IN_FLIGHT


async def test_a_page_that_is_throttled_is_told_with_code_and_request_id(
    autojump_clock: object, caplog: pytest.LogCaptureFixture
) -> None:
    await Pager(Busy(throttles=1), "bucket", Retries()).page("p/")
    (line,) = caplog.messages
    assert line == (
        "page 1 of the listing of 's3://bucket/p/': 503 SlowDown, request 4442587FB7D0A2F9; "
        "trying again (attempt 1 failed, 1.0 s so far)"
    )


async def test_a_service_that_goes_on_throttling_is_left_one_request(autojump_clock: object) -> None:
    source = Busy(throttles=10**6)
    pager = Pager(source, "bucket", Retries())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pages, pager, MAX_IN_FLIGHT)
        await trio.sleep(100)
        assert pager.capacity == 1
        assert source.most_in_flight[-1] == 1
        nursery.cancel_scope.cancel()


async def test_requests_in_flight_recover_by_one_a_round(autojump_clock: object) -> None:
    pager = Pager(Busy(throttles=1), "bucket", Retries())
    await pager.page("p/")
    assert pager.capacity == MAX_IN_FLIGHT // 2
    await pages(pager, MAX_IN_FLIGHT // 2 - 1)
    assert pager.capacity == MAX_IN_FLIGHT // 2 + 1
    await pages(pager, MAX_IN_FLIGHT**2)
    assert pager.capacity == MAX_IN_FLIGHT


async def test_a_page_without_a_reply_is_told_and_in_the_end_given_up(
    autojump_clock: object, caplog: pytest.LogCaptureFixture
) -> None:
    class Silent(Busy):
        async def list(self, bucket: str, **_: object) -> bytes:
            await trio.sleep_forever()
            raise AssertionError

    with trio.fail_after(400), pytest.raises(ServiceError, match="no LIST page of 'bucket' arrived within 300 s"):
        await Pager(Silent(), "bucket", Retries()).page("p/")
    told = "page 1 of the listing of 's3://bucket/p/': no reply for {} s"
    assert caplog.messages == [told.format(seconds) for seconds in range(10, 300, 30)]


async def test_a_page_that_is_throttled_for_minutes_is_given_up(autojump_clock: object) -> None:
    with trio.fail_after(400), pytest.raises(ServiceError, match="503 SlowDown"):
        await Pager(Busy(throttles=10**6), "bucket", Retries()).page("p/")
