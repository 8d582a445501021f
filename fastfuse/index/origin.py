"""The origin of a source's index, and what is acceptable in it."""

import json
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from fastfuse.errors import ConfigurationError
from fastfuse.index.sources.shard import Shard
from fastfuse.index.sources.uri import S3Uri

# Begins the view of a prefix that is taken as the beginning of key names.
KEY_NAME_PREFIX: Final = "key name prefix"


class SourceKind(StrEnum):
    """The kind of thing that a source's URI names; the values are those of ``S3DataType``."""

    # A folder or one object (clause N1), or the beginning of key names (`IndexOrigin.is_key_name_prefix`).
    PREFIX = "S3Prefix"
    # A JSON array of keys below a common prefix.
    MANIFEST = "ManifestFile"
    # JSON Lines whose ``*-ref`` attributes are S3 URIs.
    AUGMENTED_MANIFEST = "AugmentedManifestFile"


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexOrigin:
    """The origin of an index: at most one of `saved`, `inventory` and `keys_from`, or else a listing."""

    # An index that `fastfuse index` wrote: a file or an S3 object.
    saved: Path | S3Uri | None = None
    # The manifest.json of an S3 Inventory report.
    inventory: S3Uri | None = None
    # A file with the keys of the source, one on each line.
    keys_from: Path | None = None
    # `saved` is made where it is missing or older. None: it is taken whatever its age.
    max_age_s: float | None = None
    # Refuse keys that cannot be shown, instead of leaving them out (clauses N2-N4).
    strict: bool = False
    # Accept a source without objects.
    allow_empty: bool = False
    kind: SourceKind = SourceKind.PREFIX
    # List every key that begins with the prefix, as File and Pipe mode do. FastFile mode lists a folder or one object.
    is_key_name_prefix: bool = False
    # The attributes that each line of an augmented manifest keeps, in this order. Empty: all.
    attribute_names: tuple[str, ...] = ()
    # Read a byte of an object, of the first page of a listing: a mount would learn too late that reads are denied.
    checks_reads: bool = False
    # Show only this part of the objects; a part without objects is no failure.
    shard: Shard | None = None

    @property
    def is_own_file(self) -> bool:
        """True if `saved` is a file that this mount makes itself, at a refresh too."""
        return isinstance(self.saved, Path) and self.max_age_s is not None

    def check_place(self, option: str, place: Path | S3Uri | None, source: S3Uri) -> None:
        """Raise `ConfigurationError` if the index of `source` that is written to `place` would be an object of it."""
        begin = source.path if self.is_key_name_prefix else source.folder
        if isinstance(place, S3Uri) and place.bucket == source.bucket and place.path.startswith(begin):
            raise ConfigurationError(
                f"{option} {place} lies in the source {source}, whose files it would be among",
                hint="name an object elsewhere",
            )

    @property
    def view(self) -> str:
        """The `Snapshot.view` of the index: how the source is listed, and which part of it is shown."""
        return " ".join(filter(None, (self._taken_as, str(self.shard or ""))))

    @property
    def listed_view(self) -> str:
        """The `Snapshot.view` of the listing that is saved: all of a prefix, but only the part of a manifest."""
        return self._taken_as if self.kind is SourceKind.PREFIX else self.view

    @property
    def _taken_as(self) -> str:
        if self.kind is SourceKind.PREFIX:
            return KEY_NAME_PREFIX if self.is_key_name_prefix else ""
        return " ".join((self.kind, *(json.dumps(name) for name in self.attribute_names)))
