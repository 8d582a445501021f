"""Where the index of a source comes from, and what of it is acceptable."""

import json
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from fastfuse.index.sources.shard import Shard
from fastfuse.index.sources.uri import S3Uri

__all__ = ["IndexOrigin", "SourceKind"]


class SourceKind(StrEnum):
    """What a source's URI names; the values are those of ``S3DataType``."""

    # A folder or one object (clause N1).
    PREFIX = "S3Prefix"
    # A JSON array of keys below a common prefix.
    MANIFEST = "ManifestFile"
    # JSON Lines whose ``*-ref`` attributes are S3 URIs.
    AUGMENTED_MANIFEST = "AugmentedManifestFile"


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
    kind: SourceKind = SourceKind.PREFIX
    # Of an augmented manifest: the attributes that are kept of each line, in this order. Empty: all.
    attribute_names: tuple[str, ...] = ()
    # Show this part of the objects only; a part without objects is no failure.
    shard: Shard | None = None

    @property
    def view(self) -> str:
        """`Snapshot.view` of the index: how the source is taken, and which part of it is shown."""
        kind = "" if self.kind is SourceKind.PREFIX else self.kind
        names = (json.dumps(name) for name in self.attribute_names)
        return " ".join(filter(None, (kind, *names, str(self.shard or ""))))
