"""What a channel took from S3, and what S3 takes for it. Pure."""

from dataclasses import dataclass

from fastfuse.sizes import format_size

__all__ = ["Usage"]

# S3 Standard in us-east-1, the cheapest of the large regions: https://aws.amazon.com/s3/pricing/, "Requests and data
# retrievals": $0.0004 for 1,000 GET or HEAD and $0.005 for 1,000 LIST. Bytes that leave S3 for the same region are
# free.
_GET_USD = 0.0004 / 1000
_LIST_USD = 0.005 / 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Bytes and requests of one channel; requests that were repeated within the client count once."""

    fetched_bytes: int
    # GETs and HEADs.
    gets: int
    lists: int

    @property
    def cost_usd(self) -> float:
        return self.gets * _GET_USD + self.lists * _LIST_USD

    def __str__(self) -> str:
        return (
            f"{format_size(self.fetched_bytes)}, {self.gets:,} GET, {self.lists:,} LIST, "
            f"${self.cost_usd:.{2 if self.cost_usd >= 0.1 else 6}f} at the prices of us-east-1"
        )
