"""The prices of us-east-1 in one table, each with its source and the time at which the source named it. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

__all__ = ["FSX_LEAST_GB", "HOURS_PER_MONTH", "PRICES", "Item", "dollars"]

# As AWS computes GB-months.
HOURS_PER_MONTH: Final = 730
# The smallest FSx for Lustre file system; AWS bills what was created, not what is filled.
FSX_LEAST_GB: Final = 1200


class Item(StrEnum):
    """What is paid for, with its unit."""

    GET = "S3 GET or HEAD request"
    LIST = "S3 LIST request"
    S3 = "S3 Standard, GB-month"
    EBS = "EBS gp3, GB-month"
    ML_STORAGE = "SageMaker instance storage, GB-month"
    EFS = "EFS Standard, GB-month"
    FSX = "FSx for Lustre scratch SSD, GB-month"


@dataclass(frozen=True, slots=True)
class Price:
    """Dollars in us-east-1 for one unit."""

    dollars: float
    as_of: str
    source: str


_ARTICLE = (
    "https://aws.amazon.com/blogs/machine-learning/choose-the-best-data-source-for-your-amazon-sagemaker-training-job/"
)

PRICES: Final[Mapping[Item, Price]] = {
    Item.GET: Price(0.0004 / 1000, "2025", "https://aws.amazon.com/s3/pricing/"),
    Item.LIST: Price(0.005 / 1000, "2025", "https://aws.amazon.com/s3/pricing/"),
    Item.S3: Price(0.023, "2022-02", _ARTICLE),
    Item.EBS: Price(0.08, "2025", "https://aws.amazon.com/ebs/pricing/"),
    # $0.02 for 100 GB in an hour, rounded there.
    Item.ML_STORAGE: Price(0.14, "2022-02", _ARTICLE),
    Item.EFS: Price(0.30, "2025", "https://aws.amazon.com/efs/pricing/"),
    Item.FSX: Price(0.14, "2022-02", _ARTICLE),
}


def dollars(item: Item, quantity: float, *, hours: float = HOURS_PER_MONTH) -> float:
    """Return the price of `quantity` requests, or of so many GB that are kept for `hours`."""
    share = 1.0 if item in (Item.GET, Item.LIST) else hours / HOURS_PER_MONTH
    return PRICES[item].dollars * quantity * share
