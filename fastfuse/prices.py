"""The prices of us-east-1 in one table, each with its source and the time at which the source named it. Pure."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

# As AWS computes GB-months.
HOURS_PER_MONTH: Final = 730
# The smallest FSx for Lustre file system; AWS bills what was created, not what is filled.
FSX_LEAST_GB: Final = 1200


class Item(StrEnum):
    """What is paid for, with its unit."""

    GET = "S3 GET or HEAD request"
    LIST = "S3 LIST request"
    EBS = "EBS gp3, GB-month"
    EFS = "EFS Standard, GB-month"
    FSX = "FSx for Lustre scratch SSD, GB-month"


# Dollars for one unit, the time at which the source named them, and the source.
PRICES: Final[Mapping[Item, float]] = {
    Item.GET: 0.0004 / 1000,  # 2025, https://aws.amazon.com/s3/pricing/
    Item.LIST: 0.005 / 1000,  # 2025, the same
    Item.EBS: 0.08,  # 2025, https://aws.amazon.com/ebs/pricing/
    Item.EFS: 0.30,  # 2025, https://aws.amazon.com/efs/pricing/
    # 2022-02,
    # https://aws.amazon.com/blogs/machine-learning/choose-the-best-data-source-for-your-amazon-sagemaker-training-job/
    Item.FSX: 0.14,
}


def dollars(item: Item, quantity: float, *, hours: float = HOURS_PER_MONTH) -> float:
    """Return the price of `quantity` requests, or of so many GB that are kept for `hours`."""
    share = 1.0 if item in (Item.GET, Item.LIST) else hours / HOURS_PER_MONTH
    return PRICES[item] * quantity * share
