from pathlib import Path

import pytest

from bench.readers import Manner, RawAccess, Span, in_turns, read_mount, read_raw
from bench.server import PROFILES, Server


def test_concurrent_readers_ask_in_turns() -> None:
    tasks = [[Span("a", 0, 1), Span("a", 1, 2)], [Span("b", 0, 1)]]
    assert in_turns(tasks) == [Span("a", 0, 1), Span("b", 0, 1), Span("a", 1, 2)]


def test_readers_time_each_span_and_the_first_byte_of_each_file(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(bytes(100))
    (tmp_path / "y").write_bytes(bytes(100))
    tasks = [[Span("x", 0, 50), Span("x", 50, 100), Span("y", 0, 100)], [Span("y", 10, 20)]]
    outcomes = read_mount(tmp_path, tasks, Manner(read_bytes=30))
    found = sorted((done.size_bytes, len(done.times.first_bytes_s), len(done.times.spans_s)) for done in outcomes)
    assert found == [(10, 1, 1), (200, 2, 3)]
    assert all(done.started_s < done.ended_s for done in outcomes)


def test_a_file_that_is_too_short_is_an_error_of_the_run(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(bytes(100))
    with pytest.raises(EOFError, match="x ends at 100, not at 101"):
        read_mount(tmp_path, [[Span("x", 0, 101)]], Manner())


@pytest.mark.parametrize("profile", ["fast", "fast-tls"])
def test_the_raw_client_gets_parts_and_the_server_counts_them(profile: str) -> None:
    with Server("count=2,size=1000", profile=PROFILES[profile], workers=2) as server:
        access = RawAccess(
            endpoint_url=server.endpoint_url, bucket=server.bucket, ca_bundle=server.ca_bundle, part_bytes=400,
            requests_in_flight=4,
        )  # fmt: skip
        before = server.traffic()
        (outcome,) = read_raw(access, [[Span("0000", 0, 1000)], [Span("0001", 0, 1000)]])
        after = server.traffic()
        assert server.cpu_s() > 0
    assert (outcome.size_bytes, len(outcome.times.spans_s)) == (2000, 6)
    # And a HEAD for each file, without a byte of it.
    assert (after.requests - before.requests, after.sent_bytes - before.sent_bytes) == (8, 2000)
