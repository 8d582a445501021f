"""Which mode is recommended, rule by rule."""

from dataclasses import replace

import pytest

from fastfuse.advise.model import Access, Advice, Job, Mode, Network, Shape, estimates, recommend
from tests.advise.shapes import many, shape_of_sizes

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
