"""The settings of a tier, for all who pass them on; it imports no library."""

from dataclasses import dataclass
from pathlib import Path

__all__ = ["CacheSettings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSettings:
    """The tier that a command uses; `directory` is absolute."""

    directory: Path
    # The most that index and segments may take.
    size_bytes: int
    # The room that stays free in the file system, whoever fills it.
    min_free_bytes: int
