"""The options that say where an index comes from and what of it is shown, as one `IndexOrigin`.

Every check that needs no network is made here, before anything is listed, and fails with one sentence.
"""

import re
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

from fastfuse.cli.options import setting
from fastfuse.errors import ConfigurationError
from fastfuse.index.origin import IndexOrigin, SourceKind
from fastfuse.index.sources.shard import Shard
from fastfuse.index.sources.uri import S3Uri

INDEX_PANEL = "Index"
_SOURCE = "What the source is"
_UNITS_S: Final = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


class ShardBy(StrEnum):
    COUNT = "count"
    BYTES = "bytes"


# fmt: off
IndexMaxAge = Annotated[str | None, setting("--index-max-age TIME", INDEX_PANEL,
    "Where the index of --index is missing or older (90s, 15m, 12h, 7d), list, and write it there.")]
Strict = Annotated[bool, setting("--strict", INDEX_PANEL,
    "Fail if any key cannot be shown as a file, instead of leaving it out.")]
AllowEmpty = Annotated[bool, setting("--allow-empty", INDEX_PANEL,
    "Take a prefix without objects as an empty directory, instead of failing.")]
# fmt: on


def origin(
    index: Annotated[str | None, setting("--index FILE|S3_URI", INDEX_PANEL,
        "Take the index that 'fastfuse index' wrote there, instead of listing. With --index-max-age it is made "
        "where it is missing or older; of an object in S3 one host does so, and the others wait for it.")] = None,
    inventory: Annotated[str | None, setting("--inventory S3_URI", INDEX_PANEL,
        "Take the objects from this manifest.json of an S3 Inventory report (CSV or Parquet), instead of listing.",
    )] = None,
    keys_from: Annotated[Path | None, setting("--keys-from FILE", INDEX_PANEL,
        "Show the keys in this file only, one on each line, instead of listing. Each is asked for its size.")] = None,
    index_max_age: IndexMaxAge = None,
    strict: Strict = False,
    allow_empty: AllowEmpty = False,
    source_type: Annotated[SourceKind, setting("--source-type", _SOURCE,
        "What S3_URI names: a prefix, or a manifest of SageMaker, whose objects are shown under their whole keys "
        "(below the names of their buckets if there are several). An augmented manifest is shown beside what its "
        "lines refer to, under its own name. SageMaker's FastFile mode takes prefixes only: manifests are an "
        "extension of fastfuse.")] = SourceKind.PREFIX,
    attribute_name: Annotated[list[str] | None, setting("--attribute-name NAME", _SOURCE,
        "Keep this attribute of each line of an augmented manifest; repeat it for several, in their order (left out, "
        "all are kept). Case-sensitive; in the environment separated by spaces.")] = None,
    shard: Annotated[str | None, setting("--shard I/N", _SOURCE,
        "Show shard I of N, counted from 1: of the objects, or of the lines of an augmented manifest. The N shards "
        "have nothing in common and are everything together, as SageMaker's ShardedByS3Key promises; which shard has "
        "what is fastfuse's own rule. A shard may be empty.")] = None,
    shard_by: Annotated[ShardBy | None, setting("--shard-by", _SOURCE,
        "Make shards of as many objects each ('count', the default), or of about as many bytes.")] = None,
) -> IndexOrigin:  # fmt: skip
    """Return where an index comes from and what of it is shown.

    Raises:
        ConfigurationError: an option that cannot be right, or two that contradict each other.
    """
    from fastfuse.index.sources.manifests import check_attribute_names  # help does without

    saved = None if index is None else parse_index_place(index)
    max_age_s = None if index_max_age is None else parse_duration_s("--index-max-age", index_max_age)
    given = {"--index": index, "--inventory": inventory, "--keys-from": keys_from}
    named = [name for name, value in given.items() if value is not None]
    if len(named) > 1:
        raise ConfigurationError(f"{named[0]} and {named[1]} contradict each other", hint="an index has one origin")
    if max_age_s is not None and (saved is None or not max_age_s):
        raise ConfigurationError(
            "--index-max-age goes with --index only, and is above 0s",
            hint="give --index FILE too, or --index s3://BUCKET/KEY, which many hosts share",
        )
    if source_type is not SourceKind.PREFIX and (inventory is not None or keys_from is not None):
        raise ConfigurationError(
            f"{named[0]} and --source-type {source_type} contradict each other: the manifest says what there is",
            hint="give one of them",
        )
    is_part = shard is not None and Shard.parse(shard).count > 1 and source_type is not SourceKind.PREFIX
    if is_part and max_age_s and isinstance(saved, S3Uri):
        raise ConfigurationError(
            f"hosts share one listing at {index}, and each lists only its shard of a {source_type}",
            hint="give --index a file of this host, or leave --shard (S3DataDistributionType) out",
        )
    if attribute_name and source_type is not SourceKind.AUGMENTED_MANIFEST:
        raise ConfigurationError(
            "--attribute-name picks attributes of an augmented manifest",
            hint=f"give --source-type {SourceKind.AUGMENTED_MANIFEST} too",
        )
    if shard is None and shard_by is not None:
        raise ConfigurationError("--shard-by says how to divide what --shard divides", hint="give --shard I/N too")
    return IndexOrigin(
        saved=saved,
        inventory=None if inventory is None else S3Uri.given(inventory),
        # A daemon changes to the root directory.
        keys_from=None if keys_from is None else keys_from.absolute(),
        max_age_s=max_age_s,
        strict=strict,
        allow_empty=allow_empty,
        kind=source_type,
        attribute_names=check_attribute_names(attribute_name or ()),
        shard=None if shard is None else Shard.parse(shard, by_bytes=shard_by is ShardBy.BYTES),
    )


def by_channel(option: str, values: Sequence[str], channels: Sequence[str]) -> dict[str, str]:
    """Return the values of an option that are each ``[CHANNEL=]VALUE``, by name of channel.

    Raises:
        ConfigurationError: a value without a name, for several channels; or two for one channel.
    """
    found: dict[str, str] = {}
    for text in values:
        name, separator, value = text.partition("=")
        if not separator or name not in channels:
            name, value = channels[0] if len(channels) == 1 else "", text
        if not name:
            raise ConfigurationError(
                f"{option} {text!r} names no channel whose objects are listed",
                hint=f"write it as {option} CHANNEL=..., for one of {', '.join(channels)}"
                if channels
                else "channels that are directories of this host need none",
            )
        if name in found:
            raise ConfigurationError(f"{option} is given twice for the channel {name}", hint="give it once")
        found[name] = value
    return found


def parse_index_place(text: str) -> Path | S3Uri:
    """Return the file or the object of S3 that `text` names.

    Raises:
        ConfigurationError: an S3 URI that names no object.
    """
    if "://" not in text:
        return Path(text).absolute()
    uri = S3Uri.given(text)
    if not uri.path or uri.path.endswith("/"):
        raise ConfigurationError(f"{text!r} names no object", hint="write it as s3://BUCKET/KEY")
    return uri


def parse_duration_s(option: str, text: str) -> float:
    """Parse ``90``, ``90s``, ``15m``, ``12h`` or ``7d`` as seconds.

    Raises:
        ConfigurationError: `text` is none of these.
    """
    match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)([smhd]?)", text, re.ASCII)
    if match is None:
        raise ConfigurationError(f"{option} {text!r} is not a time", hint="write it as 90s, 15m, 12h or 7d")
    return float(match[1]) * _UNITS_S[match[2]]
