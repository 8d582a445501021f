from collections import Counter

import pytest

from bench.s3server.buckets import FileSpan
from bench.soak.data import Kind, Objects, expected_bytes, is_size_right, version_of
from bench.soak.disturbances import Window
from bench.soak.judging import causes, percentiles, too_slow, unexpected, unsettled
from bench.soak.readers import SHORT, WRONG, Failure, Share, bucket_of, latency_of

WINDOWS = [Window("worker killed", 10, 12), Window("quiet", 12, 20), Window("length too long", 20, 22)]


def failure(name: str, when_s: float, key: str = "small/1", manner: str = "whole") -> Failure:
    return Failure(manner, name, key, when_s, when_s + 0.1)


@pytest.mark.parametrize(
    ("name", "when_s", "key", "is_allowed"),
    [
        ("EIO", 21, "small/1", True),
        ("EIO", 22.5, "small/1", True),
        (SHORT, 21, "small/1", True),
        ("EIO", 30, "small/1", False),
        (SHORT, 15, "small/1", False),
        ("EIO", 11, "small/1", False),
        ("EACCES", 21, "small/1", False),
        ("ESTALE", 15, "moving/1", True),
        (SHORT, 15, "moving/1", True),
        ("ENOENT", 15, "small/1", False),
        (WRONG, 21, "small/1", False),
        (WRONG, 21, "moving/1", False),
    ],
)
def test_an_error_is_allowed_while_something_allows_it(name: str, when_s: float, key: str, is_allowed: bool) -> None:
    found = unexpected([failure(name, when_s, key)], WINDOWS)
    assert (not found) == is_allowed


def test_a_death_of_the_worker_allows_no_error() -> None:
    failures = [failure("ENOTCONN", 11)]
    assert unexpected(failures, WINDOWS) == [(failures[0], ["worker killed"])]
    assert causes(failure("EIO", 16), WINDOWS) == []


def test_a_call_that_took_longer_than_it_may_is_told() -> None:
    shares = [Share("whole", slowest_s=14.9), Share("found", slowest_s=15.1)]
    assert too_slow(shares, 15.0) == ["a call of found took 15.1 s"]


def test_a_listing_may_be_stale_while_the_view_is_swapped() -> None:
    refresh = [Window("refresh", 1, 2)]
    assert not unexpected([failure("ESTALE", 1, manner="found")], refresh)
    assert unexpected([failure("ESTALE", 1, manner="whole")], refresh)


def test_what_has_grown_is_told_and_what_is_new_is_growth() -> None:
    before = {"threads": 4.0, "pipe": 2.0}
    assert unsettled(before, {"threads": 4, "pipe": 1}) == []
    grown = ["threads: 4 before, 5 after", "socket: 0 before, 1 after"]
    assert unsettled(before, {"threads": 5, "socket": 1}) == grown


def test_percentiles_are_at_most_a_tenth_too_high() -> None:
    latencies = [Counter({bucket_of(0.001): 990}), Counter({bucket_of(0.5): 10})]
    found = percentiles(latencies, slowest_s=0.6)
    assert 0.001 <= found["p50_s"] <= found["p99_s"] <= 0.0011
    assert 0.5 <= found["p999_s"] <= 0.55
    assert found["max_s"] == 0.6
    assert bucket_of(latency_of(7) * 0.999) == 7


def test_the_objects_of_a_generation_are_what_readers_expect_of_their_times() -> None:
    kinds = [Kind("small/", 20, 1, 900), Kind("moving/", 200, 1, 900)]
    objects = Objects(kinds)
    seen: dict[bytes, set[str]] = {}
    for generation in range(4):
        objects.generation = generation
        view = objects.view()
        keys = [view.key_at(index) for index in range(len(view))]
        assert keys == sorted(keys)
        assert 150 < len(keys) < 220
        for key in keys:
            stored = view.lookup(key)
            assert stored is not None
            version = version_of(stored.modified_s)
            seen.setdefault(key, set()).add(stored.etag)
            assert is_size_right(kinds, key.decode(), version, stored.size_bytes)
            (span,) = stored.content.spans(0, stored.size_bytes)
            assert isinstance(span, FileSpan)
            assert len(expected_bytes(key.decode(), version, 0, stored.size_bytes)) == stored.size_bytes
    assert all(len(etags) == 1 for key, etags in seen.items() if key.startswith(b"small/"))
    assert any(len(etags) > 1 for key, etags in seen.items() if key.startswith(b"moving/"))
