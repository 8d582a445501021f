"""The memory that each channel of a job may use, and the cost of its requests to S3. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from fastfuse.errors import ConfigurationError
from fastfuse.filesystem.mount_settings import MINIMUM_MEMORY_BYTES
from fastfuse.prices import Item, dollars
from fastfuse.sagemaker.description.channel import Channel, InputMode
from fastfuse.sizes import format_size

__all__ = ["MINIMUM_CHANNEL_BYTES", "Usage", "divide_memory", "minimum_job_bytes"]

# The same as for one mount.
MINIMUM_CHANNEL_BYTES = MINIMUM_MEMORY_BYTES

# Modes that need memory at the same time: downloads end before the command reads mounts; streams begin at once.
_AT_ONCE = (frozenset({InputMode.FILE, InputMode.PIPE}), frozenset({InputMode.FAST_FILE, InputMode.PIPE}))


def minimum_job_bytes(channels: Sequence[Channel]) -> int:
    """Return the least memory target that these channels can work with."""
    return MINIMUM_CHANNEL_BYTES * max(len(_sharing(channels, modes)) for modes in _AT_ONCE)


def divide_memory(total_bytes: int, channels: Sequence[Channel]) -> dict[str, int]:
    """Divide the memory target by weight among the channels that work at the same time; return bytes by channel name.

    Raises:
        ConfigurationError: it is less than `minimum_job_bytes`.
    """
    if total_bytes < minimum_job_bytes(channels):
        raise ConfigurationError(
            f"a memory target of {format_size(total_bytes)} is too little for {len(channels)} channels, each of which "
            f"needs {format_size(MINIMUM_CHANNEL_BYTES)}",
            hint=f"give --memory-target {format_size(minimum_job_bytes(channels)).replace(' ', '')} or more, or fewer "
            "channels; channels of mode File need none while others are read",
        )
    shares: dict[str, int] = {}
    for modes in _AT_ONCE:
        for name, share_bytes in _divide(total_bytes, _sharing(channels, modes)).items():
            shares[name] = min(share_bytes, shares.get(name, share_bytes))
    return shares


def _sharing(channels: Sequence[Channel], modes: frozenset[InputMode]) -> list[Channel]:
    return [channel for channel in channels if channel.input_mode in modes and not channel.is_put_in_place]


def _divide(total_bytes: int, channels: list[Channel]) -> dict[str, int]:
    """Divide by weight; a channel gets the minimum at least, at the cost of the others."""
    shares: dict[str, int] = {}
    while channels:
        left_bytes = total_bytes - sum(shares.values())
        weights = sum(channel.memory_weight for channel in channels)
        wanted = {channel.name: int(left_bytes * channel.memory_weight / weights) for channel in channels}
        small = [channel for channel in channels if wanted[channel.name] < MINIMUM_CHANNEL_BYTES]
        if not small:
            return shares | wanted
        shares |= {channel.name: MINIMUM_CHANNEL_BYTES for channel in small}
        channels = [channel for channel in channels if channel not in small]
    return shares


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Bytes and requests of one channel; requests that the client repeated count once."""

    fetched_bytes: int
    # GETs and HEADs.
    gets: int
    lists: int

    @property
    def cost_usd(self) -> float:
        return dollars(Item.GET, self.gets) + dollars(Item.LIST, self.lists)

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            fetched_bytes=self.fetched_bytes + other.fetched_bytes,
            gets=self.gets + other.gets,
            lists=self.lists + other.lists,
        )

    def __str__(self) -> str:
        return (
            f"{format_size(self.fetched_bytes)}, {self.gets:,} GET, {self.lists:,} LIST, "
            f"${self.cost_usd:.{2 if self.cost_usd >= 0.1 else 6}f} at the prices of us-east-1"
        )
