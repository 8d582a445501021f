"""What every implementation of `s3.base` does, against every server that we have."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import replace
from functools import partial
from urllib.parse import unquote_plus
from xml.etree import ElementTree

import pytest
import trio

from fastfuse.errors import BadReplyError, ObjectChangedError
from fastfuse.objects import Buffer, ObjectRef
from tests.s3.places import PLACES, Place, open_place

DATA = bytes(range(256)) * 5  # longer than 1 KiB, no two neighbouring ranges alike
NAMESPACE = "{http://s3.amazonaws.com/doc/2006-03-01/}"

ORDINARY_KEYS = (
    "a b", "a+b", "a%b", "a%20b", "a%2Fb", "a?b", "a#b", "a&b=c", "a~b", "a*b", "a'b", "a(b)", "a!b", "a:b", "a@b",
    "a;b", "a,b", "a$b", "a[b]", "a{b}", "a|b", "a^b", "a`b", "a<b>c", "ünïcode", "e\u0301", "日本/語", "emoji 🎉",
    "a/.hidden", "a/...", " leading", "trailing ", "x" * 200,
)  # fmt: skip
# What a path would not survive; S3 has no trouble with them.
ODD_KEYS = ("a//b", "/a", "a/b/", "./a", "a/../b", "..", "a\nb", "a\tb", "a\x7fb", 'a"b', "a\\b", "x" * 1000)


@pytest.fixture(params=PLACES)
async def place(request: pytest.FixtureRequest) -> AsyncIterator[Place]:
    with open_place(request.param, request) as place:
        yield place
        await place.reader.aclose()
        await place.pages.aclose()


async def test_a_range_is_exactly_the_bytes_asked_for_and_one_outside_the_object_an_error(place: Place) -> None:
    ref, size_bytes = place.put("range", DATA), len(DATA)
    for start, end in ((0, 1), (0, size_bytes), (size_bytes - 1, size_bytes), (100, 700), (0, 256), (1023, 1024)):
        got = memoryview(await place.reader.get(ref, start, end))
        assert got == DATA[start:end]
        assert got.readonly
        assert got.contiguous
    for start, end in ((-1, 1), (5, 5), (6, 5), (0, size_bytes + 1), (size_bytes, size_bytes + 1)):
        with pytest.raises(ValueError, match="range"):
            await place.reader.get(ref, start, end)


@pytest.mark.parametrize("data", [DATA + b"more", b"short", bytes(len(DATA))], ids=["longer", "shorter", "as long"])
async def test_an_object_replaced_between_two_reads_is_changed(place: Place, data: bytes) -> None:
    ref = place.put("changes", DATA)
    await place.reader.get(ref, 0, 100)
    place.put("changes", data)
    with pytest.raises(ObjectChangedError, match="'changes'"):
        await place.reader.get(ref, 1000, 1100)


async def test_a_deleted_object_is_changed_and_the_reader_stays_usable(place: Place) -> None:
    ref = place.put("deleted", DATA)
    other = place.put("other", DATA)
    place.delete("deleted")
    with pytest.raises(ObjectChangedError, match="'deleted'"):
        await place.reader.get(ref, 0, 100)
    assert bytes(await place.reader.get(other, 0, 100)) == DATA[:100]


async def test_an_object_without_a_listed_etag_is_read(place: Place) -> None:
    """D1: its time is compared, which a listing may tell to the millisecond and no reply does."""
    ref = place.put("no etag", DATA)
    # The replies' time: rclone lists that of the file, which may be in the second after.
    second_ns = ref.modified_ns // 10**9 * 10**9
    assert second_ns
    for listed_ns in (ref.modified_ns, second_ns + 123_000_000, second_ns + 999_000_000, 0):
        without = replace(ref, etag="", modified_ns=listed_ns)
        assert bytes(await place.reader.get(without, 3, 9)) == DATA[3:9]


async def test_an_object_without_a_listed_etag_of_another_time_than_its_listing_is_changed(place: Place) -> None:
    """D2: replaced by one of the same length, perhaps by a tool that keeps times.

    No server lets a test choose the time, so the listing is made older or younger.
    """
    ref = place.put("no etag", DATA)
    for age_s in (1, 3600, -3600):
        listed = replace(ref, etag="", modified_ns=(ref.modified_ns // 10**9 - age_s) * 10**9)
        with pytest.raises(ObjectChangedError, match="'no etag'"):
            await place.reader.get(listed, 3, 9)


async def test_an_etag_that_would_break_a_header_is_refused_and_one_without_quotes_gets_them(place: Place) -> None:
    ref = place.put("odd etag", DATA)
    for etag in ('"a\nb"', '"a"\r\nX-Injected: 1', '"\0"', '"\x7f"'):
        with pytest.raises(BadReplyError, match="'odd etag' with an ETag that holds control characters"):
            await place.reader.get(replace(ref, etag=etag), 3, 9)
    for etag in (ref.etag, ref.etag.strip('"')):
        assert bytes(await place.reader.get(replace(ref, etag=etag, modified_ns=0), 3, 9)) == DATA[3:9]


async def _keys_read_wrongly(place: Place, keys: Iterable[str]) -> list[str]:
    wrong = []
    for key in keys:
        data = key.encode() + DATA
        if await place.reader.get(place.put(key, data), 0, 100) != data[:100]:
            wrong.append(key)
    return wrong


@pytest.mark.parametrize("name", ["memory", "client-moto", "client-loopback"])
async def test_keys_that_no_path_can_have_are_read_too(name: str, request: pytest.FixtureRequest) -> None:
    keys = [key for key in ODD_KEYS if "\n" not in key or "moto" not in name]  # moto has no route for a newline
    with open_place(name, request) as place:
        assert await _keys_read_wrongly(place, keys) == []
        await place.reader.aclose()


async def test_many_reads_at_once_do_not_mix(place: Place) -> None:
    refs = [place.put(f"many/{number}", DATA[number:]) for number in range(20)]
    got: dict[str, Buffer] = {}

    async def read(ref: ObjectRef) -> None:
        got[ref.key] = await place.reader.get(ref, 0, 500)

    async with trio.open_nursery() as nursery:
        for ref in refs:
            nursery.start_soon(read, ref)
    assert [bytes(got[ref.key]) for ref in refs] == [DATA[number:][:500] for number in range(20)]


async def test_a_cancelled_read_leaves_the_reader_usable(place: Place) -> None:
    ref = place.put("cancelled", DATA)
    with trio.CancelScope() as scope:
        scope.cancel()
        await place.reader.get(ref, 0, 100)
    assert scope.cancelled_caught
    assert bytes(await place.reader.get(ref, 0, 100)) == DATA[:100]


async def test_closing_twice_is_closing_once(place: Place) -> None:
    await place.reader.get(place.put("closing", DATA), 0, 1)
    await place.reader.aclose()
    await place.reader.aclose()


async def _all_keys(list_page: Callable[..., Awaitable[bytes]]) -> tuple[list[str], list[int]]:
    """Every key, by following the tokens, and the number on each page."""
    keys: list[str] = []
    sizes: list[int] = []
    token = ""
    while True:
        root = ElementTree.fromstring(await list_page(continuation_token=token))
        page = [unquote_plus(element.text or "") for element in root.iterfind(f"{NAMESPACE}Contents/{NAMESPACE}Key")]
        keys += page
        sizes.append(len(page))
        if root.findtext(f"{NAMESPACE}IsTruncated") != "true":
            return keys, sizes
        token = root.findtext(f"{NAMESPACE}NextContinuationToken") or ""


async def test_pages_follow_one_another_until_the_listing_is_complete(place: Place) -> None:
    names = [f"pages/{number}" for number in range(5)]
    for name in names:
        place.put(name, DATA)
    assert await _all_keys(partial(place.pages.list, "bucket", prefix="pages/", max_keys=2)) == (names, [2, 2, 1])
    assert await _all_keys(partial(place.pages.list, "bucket", prefix="nothing/here/")) == ([], [0])


async def test_start_after_is_exclusive_and_need_not_exist(place: Place) -> None:
    for name in ("after/a", "after/b", "after/c"):
        place.put(name, DATA)
    for start_after, expected in (("after/b", ["after/c"]), ("after/aa", ["after/b", "after/c"])):
        list_page = partial(place.pages.list, "bucket", prefix="after/", start_after=start_after)
        assert (await _all_keys(list_page))[0] == expected


async def test_a_delimiter_folds_what_is_below_into_common_prefixes(place: Place) -> None:
    for name in ("fold/a/1", "fold/a/2", "fold/b"):
        ref = place.put(name, DATA)
    root = ElementTree.fromstring(await place.pages.list("bucket", prefix="fold/", delimiter="/"))
    prefixes = root.iterfind(f"{NAMESPACE}CommonPrefixes/{NAMESPACE}Prefix")
    assert [unquote_plus(prefix.text or "") for prefix in prefixes] == ["fold/a/"]
    keys = root.iterfind(f"{NAMESPACE}Contents/{NAMESPACE}Key")
    assert [unquote_plus(key.text or "") for key in keys] == ["fold/b"]
    facts = [root.findtext(f"{NAMESPACE}Contents/{NAMESPACE}{name}") for name in ("Size", "ETag")]
    assert facts == [str(len(DATA)), ref.etag]


async def test_any_name_that_a_file_system_has_can_be_read_and_listed(place: Place) -> None:
    names = sorted(f"names/{name}" for name in ORDINARY_KEYS)
    assert await _keys_read_wrongly(place, names) == []
    assert sorted((await _all_keys(partial(place.pages.list, "bucket", prefix="names/")))[0]) == names
