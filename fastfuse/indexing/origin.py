"""Where the index of a source comes from, and what of it is acceptable."""

from dataclasses import dataclass
from pathlib import Path

from fastfuse.sources.uri import S3Uri

__all__ = ["IndexOrigin"]


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexOrigin:
    """At most one of `saved`, `inventory` and `keys_from`; with none of them the source is listed."""

    # An index that `fastfuse index` wrote: a file or an S3 object.
    saved: Path | S3Uri | None = None
    # The manifest.json of an S3 Inventory report.
    inventory: S3Uri | None = None
    # A file with the keys of the source, one on each line.
    keys_from: Path | None = None
    # Where the last listing of each source is kept; None: nowhere.
    cache: Path | None = None
    # A kept listing that is younger is taken instead of a new one.
    max_age_s: float = 0.0
    # Refuse keys that cannot be shown, instead of leaving them out (clauses N2-N4).
    strict: bool = False
    # Accept a source without objects.
    allow_empty: bool = False
