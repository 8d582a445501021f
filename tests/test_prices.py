"""The table of prices, against the figures that AWS's article on data sources gives."""

import pytest

from fastfuse.prices import FSX_LEAST_GB, PRICES, Item, dollars
from fastfuse.sagemaker.outputs.record import Usage


@pytest.mark.parametrize(
    ("found", "published"),
    [
        (dollars(Item.GET, 1_000_000), 0.4),
        (dollars(Item.LIST, 1_500), 0.0075),  # a listing of 1.5 million objects
        (dollars(Item.FSX, FSX_LEAST_GB), 168.0),  # the smallest FSx for Lustre, for a month
        (dollars(Item.FSX, 1000), 140.0),
    ],
)
def test_a_published_figure_is_reproduced(found: float, published: float) -> None:
    assert found == pytest.approx(published)


def test_a_run_reports_the_same_prices() -> None:
    usage = Usage(fetched_bytes=0, gets=12_345, lists=678)
    assert usage.cost_usd == pytest.approx(dollars(Item.GET, 12_345) + dollars(Item.LIST, 678))


def test_everything_that_is_paid_for_has_a_price() -> None:
    assert set(PRICES) == set(Item)
    assert min(PRICES.values()) > 0
