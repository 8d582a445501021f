"""The shape of a listing, what must hold of every estimate for it, published figures, and which mode is the advice."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfuse.advise.model import PART_BYTES, Access, Advice, Estimate, Job, Mode, Network, Shape, estimates, recommend
from fastfuse.advise.probe import shape_of
from fastfuse.prices import Item, dollars
from tests.advise.shapes import many, shape_of_sizes
from tests.index.indexes import MD5, index_of, table_of

_listed_sizes = st.one_of(st.sampled_from([0, 1, PART_BYTES, PART_BYTES + 1, (1 << 63) - 1]), st.integers(0, 1 << 40))


@given(st.lists(_listed_sizes, max_size=20))
def test_the_figures_are_those_of_the_objects(sizes: list[int]) -> None:
    found = shape_of(index_of({f"{at}": size for at, size in enumerate(sizes)}).table)
    expected = shape_of_sizes(sizes)
    assert found == replace(expected, directories=found.directories)


def test_archived_objects_are_counted() -> None:
    classes = ["STANDARD", "GLACIER", "GLACIER_IR", "DEEP_ARCHIVE"]
    assert shape_of(table_of({name: (1, 10**18, MD5, name) for name in classes})).archived_objects == 2


_sizes = st.lists(st.one_of(st.integers(0, 1 << 20), st.integers(0, 1 << 34)), max_size=20)
_jobs = st.builds(
    Job,
    hosts=st.integers(1, 1000),
    epochs=st.integers(1, 100),
    hours=st.floats(0, 1000),
    readers=st.integers(1, 128),
    access=st.sampled_from(Access),
    memory_bytes=st.integers(1, 1 << 36),
    region_factor=st.floats(0, 3),
)
_networks = st.builds(
    Network,
    latency_s=st.floats(1e-5, 1),
    connection_bytes_per_s=st.floats(1e5, 1e9),
    total_bytes_per_s=st.floats(1e6, 1e10),
)


def by_mode(shape: Shape, network: Network, job: Job) -> dict[Mode, Estimate]:
    return {each.mode: each for each in estimates(shape, network, job)}


@given(_sizes, _sizes, _networks, _jobs)
def test_more_objects_never_start_faster(sizes: list[int], more: list[int], network: Network, job: Job) -> None:
    fewer = by_mode(shape_of_sizes(sizes), network, job)
    for mode, after in by_mode(shape_of_sizes([*sizes, *more]), network, job).items():
        if mode in fewer:
            before = fewer[mode]
            tolerance = 1 + 1e-9
            assert before.start_s <= after.start_s * tolerance
            assert before.first_batch_s <= after.first_batch_s * tolerance
            assert before.job_gets <= after.job_gets
            assert before.job_lists <= after.job_lists


@given(_sizes, _networks, _jobs)
def test_every_figure_is_finite_and_a_job_costs_its_parts(sizes: list[int], network: Network, job: Job) -> None:
    shape = shape_of_sizes(sizes)
    for each in estimates(shape, network, job):
        times_s = (each.start_s, each.epoch_s, each.later_epoch_s, each.job_s)
        figures = (*times_s, each.mb_per_s, each.files_per_s, each.job_dollars)
        assert all(math.isfinite(figure) and figure >= 0 for figure in figures)
        assert each.start_s <= each.first_batch_s
        requests = dollars(Item.GET, each.job_gets) + dollars(Item.LIST, each.job_lists)
        assert each.job_dollars >= job.region_factor * requests * (1 - 1e-9)
        if not each.disk_bytes:
            assert each.job_dollars == pytest.approx(job.region_factor * requests)
        assert each.job_s >= each.start_s + job.hours * 3600 * (1 - 1e-9)


@given(_sizes, _jobs)
def test_requests_are_those_of_every_host_and_epoch(sizes: list[int], job: Job) -> None:
    found = by_mode(shape_of_sizes(sizes), Network(), job)
    shape = shape_of_sizes(sizes)
    asked = shape.random_gets if job.access is Access.RANDOM else shape.mounted_gets
    assert found[Mode.FAST_FILE].job_gets == job.hosts * job.epochs * asked
    if Mode.PIPE in found:
        assert found[Mode.PIPE].epoch_gets == job.hosts * shape.gets
    assert found[Mode.FILE].job_gets == job.hosts * shape.gets
    assert found[Mode.FSX].job_gets == found[Mode.EFS].job_gets == shape.gets


@pytest.mark.parametrize("sizes", [[], [0], [1], [1 << 40]])
def test_nothing_and_one_object_have_estimates(sizes: list[int]) -> None:
    found = by_mode(shape_of_sizes(sizes), Network(), Job())
    assert set(found) == set(Mode) - {Mode.PAGE_CACHED, Mode.TIERED}
    assert found[Mode.FAST_FILE].job_lists == 1
    assert (found[Mode.FAST_FILE].job_gets == 0) == (sum(sizes) == 0)


def test_modes_that_cannot_serve_a_job_are_left_out() -> None:
    shape = shape_of_sizes([1000])
    assert Mode.PIPE not in by_mode(shape, Network(), Job(access=Access.RANDOM))
    assert Mode.HINTED not in by_mode(shape, Network(), Job(access=Access.LISTED))
    assert Mode.PAGE_CACHED in by_mode(shape, Network(), Job(epochs=2))
    assert Mode.PAGE_CACHED not in by_mode(shape, Network(), Job(epochs=2, memory_bytes=1000))
    assert Mode.TIERED not in by_mode(shape, Network(), Job(epochs=2))
    assert Mode.TIERED not in by_mode(shape, Network(), Job(memory_bytes=1000))


def test_the_tier_asks_s3_once_and_then_is_as_fast_as_the_disk() -> None:
    job = Job(epochs=10, hosts=2, memory_bytes=1 << 30, disk_bytes_per_s=1e9)
    found = by_mode(many(500, 100_000_000), Network(total_bytes_per_s=100e6), job)
    tier, fast = found[Mode.TIERED], found[Mode.FAST_FILE]
    assert (tier.epoch_s, tier.job_gets) == (fast.epoch_s, fast.job_gets // 10)
    assert (tier.start_s, tier.disk_bytes) == (fast.start_s, 50_000_000_000)
    assert tier.later_epoch_s == pytest.approx(50)
    assert tier.job_dollars > found[Mode.FILE].job_dollars / 2


def test_more_cores_serve_more_up_to_sixteen() -> None:
    network, large = Network(total_bytes_per_s=1e12), many(1_000, 110_000_000)
    rates = [by_mode(large, network, Job(cores=cores))[Mode.FAST_FILE].mb_per_s for cores in (0.5, 4, 16, 192)]
    assert rates == pytest.approx([275, 2_200, 8_800, 8_800])


def test_the_host_is_paid_while_it_downloads() -> None:
    shape = many(1_500_000, 39_000)
    free, paid = (by_mode(shape, Network(), Job(host_dollars_per_hour=price))[Mode.FILE] for price in (0.0, 3.825))
    assert paid.job_dollars - free.job_dollars == pytest.approx(paid.job_s / 3600 * 3.825)


# The article's host: 8 readers, 61 GB, a disk of 250 MB/s.
_P3 = Job(readers=8, memory_bytes=61_000_000_000)
_SMALL, _LARGE = many(1_530_350, 39_000), many(500, 110_000_000)


def test_the_article_s_modes_come_in_the_published_order() -> None:
    """Small files: FSx reads faster than FastFile, which starts long before File. Large ones: all read alike."""
    small, large = (by_mode(shape, Network(), _P3) for shape in (_SMALL, _LARGE))
    assert small[Mode.FSX].epoch_s < small[Mode.FAST_FILE].epoch_s
    assert 60 * small[Mode.FAST_FILE].start_s < small[Mode.FILE].start_s
    assert large[Mode.FAST_FILE].start_s < 2
    assert large[Mode.FAST_FILE].mb_per_s > 1000


FEW_LARGE, MANY_SMALL, ONE = many(20, 110_000_000), many(1_000_000, 39_000), shape_of_sizes([5_000_000_000])


def advice(shape: Shape, job: Job, network: Network | None = None) -> Advice:
    return recommend(shape, estimates(shape, network or Network(), job), job)


@pytest.mark.parametrize(
    ("shape", "job", "mode"),
    [
        (FEW_LARGE, Job(), Mode.FAST_FILE),
        (ONE, Job(), Mode.FAST_FILE),
        (FEW_LARGE, Job(epochs=10), Mode.PAGE_CACHED),
        (MANY_SMALL, Job(), Mode.HINTED),
        (MANY_SMALL, Job(access=Access.LISTED), Mode.FAST_FILE),
        (many(20_000, 39_000), Job(), Mode.FAST_FILE),  # all of them fit ahead of their readers
        (many(1000, 110_000_000), Job(epochs=10, access=Access.RANDOM), Mode.FILE),
        (shape_of_sizes([]), Job(), None),
    ],
)
def test_the_mode_is(shape: Shape, job: Job, mode: Mode | None) -> None:
    assert advice(shape, job).mode is mode


def test_a_slow_network_and_many_epochs_are_for_a_disk() -> None:
    job = Job(epochs=20, memory_bytes=1 << 30, disk_bytes_per_s=2e9)
    found = advice(FEW_LARGE, job, Network(total_bytes_per_s=50e6))
    assert found.mode is Mode.TIERED
    assert "--cache DIR" in found.text
    assert advice(FEW_LARGE, replace(job, access=Access.RANDOM), Network(total_bytes_per_s=50e6)).mode is Mode.FILE


def test_a_network_that_the_probe_cannot_fill_is_as_fast_for_s3_as_for_a_file_system() -> None:
    large = many(100_000, 1_000_000_000)
    assert advice(large, Job(), Network(total_bytes_per_s=1.8e9)).mode is Mode.FAST_FILE
    assert advice(large, Job(), Network(total_bytes_per_s=100e6)).mode is Mode.FSX


@pytest.mark.parametrize(
    ("shape", "job", "words"),
    [
        (MANY_SMALL, Job(), "1,000,000 files are small: about 248 shards of 150 MiB"),
        (shape_of_sizes([5] * 10_000), Job(), "10,000 files are small: one shard reads faster."),
        (MANY_SMALL, Job(), "Announce the order"),
        (MANY_SMALL, Job(hosts=4), "S3 may throttle"),
        (FEW_LARGE, Job(access=Access.RANDOM), "Random ranges take a GET each"),
        (FEW_LARGE, Job(epochs=3), "The page cache holds all of it"),
        (replace(FEW_LARGE, archived_objects=3), Job(), "3 objects are archived"),
        (shape_of_sizes([]), Job(), "Nothing to read: The source has no objects."),
    ],
)
def test_a_reason_is_given(shape: Shape, job: Job, words: str) -> None:
    assert words in advice(shape, job).text


def test_what_is_no_reason_is_not_given() -> None:
    assert len(advice(FEW_LARGE, Job()).reasons) == 1
