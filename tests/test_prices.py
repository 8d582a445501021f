"""The table of prices, against the figures that AWS's article on data sources gives."""

import pytest

from fastfuse.prices import FSX_LEAST_GB, PRICES, Item, dollars
from fastfuse.sagemaker.outputs.record import Usage


@pytest.mark.parametrize(
    ("found", "published"),
    [
        (dollars(Item.S3, 1000), 23.0),  # $23 for a TB in a month
        (dollars(Item.GET, 1_000_000), 0.4),
        (dollars(Item.LIST, 1_500), 0.0075),  # a listing of 1.5 million objects
        (dollars(Item.FSX, FSX_LEAST_GB), 168.0),  # the smallest FSx for Lustre, for a month
        (dollars(Item.FSX, 1000), 140.0),
    ],
)
def test_a_published_figure_is_reproduced(found: float, published: float) -> None:
    assert found == pytest.approx(published)


def test_an_hour_of_storage_is_the_published_one_rounded() -> None:
    assert round(dollars(Item.ML_STORAGE, 100, hours=1), 2) == 0.02


def test_a_run_reports_the_same_prices() -> None:
    usage = Usage(fetched_bytes=0, gets=12_345, lists=678)
    assert usage.cost_usd == pytest.approx(dollars(Item.GET, 12_345) + dollars(Item.LIST, 678))


def test_every_price_names_its_source_and_its_time() -> None:
    assert set(PRICES) == set(Item)
    for price in PRICES.values():
        assert price.dollars > 0
        assert price.source.startswith("https://aws.amazon.com/")
        assert 2022 <= int(price.as_of[:4]) <= 2026
