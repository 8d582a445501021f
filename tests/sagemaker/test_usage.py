import pytest

from fastfuse.sagemaker.outputs.record import Usage


def test_requests_cost_what_the_price_list_says() -> None:
    assert Usage(fetched_bytes=0, gets=1_000_000, lists=0).cost_usd == pytest.approx(0.4)
    assert Usage(fetched_bytes=0, gets=0, lists=1_000_000).cost_usd == pytest.approx(5)


def test_small_costs_are_told_to_the_digit_that_counts() -> None:
    assert str(Usage(fetched_bytes=3 << 20, gets=10, lists=1)) == (
        "3 MiB, 10 GET, 1 LIST, $0.000009 at the prices of us-east-1"
    )
    assert ", $4.00 at" in str(Usage(fetched_bytes=0, gets=10_000_000, lists=0))
