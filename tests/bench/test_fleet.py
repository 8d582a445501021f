"""The model of many hosts: what they ask for in all, who lists, and that the service's limit holds."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from bench.fleet import Fleet, simulate
from fastfuse.index.saved import EXPIRY_S

UNLIMITED = Fleet(
    hosts=1, spread_s=5, pages=20, page_s=0.1, index_parts=3, files=10, readers=4, latency_s=0.02, allowed_per_s=1e9
)  # fmt: skip


@given(st.integers(1, 40), st.just(0.0) | st.floats(0, 10), st.integers(1, 50))
@settings(max_examples=30)
def test_one_host_lists_and_each_reads_everything(hosts: int, spread_s: float, files: int) -> None:
    found = simulate(replace(UNLIMITED, hosts=hosts, spread_s=spread_s, files=files))
    assert found.requests["ListObjectsV2"] == 20
    assert found.requests["GetObject"] == hosts * (files + 1) + (hosts - 1) * 3
    assert len(found.ready_s) == len(found.done_s) == hosts
    assert found.refused == 0


def test_each_host_lists_where_none_shares() -> None:
    found = simulate(replace(UNLIMITED, hosts=7, shares_index=False))
    assert found.requests == {"ListObjectsV2": 140, "GetObject": 77}


def test_a_host_that_dies_while_it_lists_is_replaced_once_its_claim_has_expired() -> None:
    found = simulate(replace(UNLIMITED, hosts=7, spread_s=0, deaths=1))
    assert len(found.ready_s) == len(found.done_s) == 6
    assert found.requests["ListObjectsV2"] == 20
    assert EXPIRY_S < min(found.ready_s) < EXPIRY_S + 10


@given(st.integers(1, 12), st.floats(30, 200))
@settings(max_examples=10)
def test_the_service_answers_no_more_than_it_allows(hosts: int, per_s: float) -> None:
    found = simulate(replace(UNLIMITED, hosts=hosts, files=100, allowed_per_s=per_s))
    assert len(found.done_s) == hosts
    assert found.requests.total() - found.refused <= per_s * (max(found.done_s) + 1)
    assert found.refused < found.requests.total() / 2  # 0.40 of twelve hosts at 30 a second
