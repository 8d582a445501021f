"""Turns the options that say where an index comes from into an `IndexOrigin`.

Every check that needs no network is made here, before anything is listed, and fails with one sentence.
"""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from fastfuse.errors import ConfigurationError
from fastfuse.index.origin import IndexOrigin, SourceKind
from fastfuse.index.sources.shard import Shard
from fastfuse.index.sources.uri import S3Uri

__all__ = ["by_channel", "index_origin", "parse_duration_s", "parse_index_place"]

_UNITS_S: Final = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


def index_origin(
    *,
    index: str | None = None,
    inventory: str | None = None,
    keys_from: Path | None = None,
    index_cache: Path | None = None,
    no_index_cache: bool = False,
    index_max_age: str | None = None,
    strict: bool = False,
    allow_empty: bool = False,
    source_type: SourceKind = SourceKind.PREFIX,
    attribute_names: Sequence[str] = (),
    shard: str | None = None,
    shard_by: str | None = None,
    environ: Mapping[str, str] = os.environ,
) -> IndexOrigin:
    """Return where an index comes from and what of it is shown; `environ` is asked for the user's cache directory.

    Raises:
        ConfigurationError: an option that cannot be right, or two that contradict each other.
    """
    from fastfuse.index.sources.manifests import check_attribute_names  # help does without

    if no_index_cache:
        index_cache, index_max_age = _without_environment(index, index_cache, index_max_age, environ)
    saved = None if index is None else parse_index_place(index)
    max_age_s = 0.0 if index_max_age is None else parse_duration_s("--index-max-age", index_max_age)
    given = {"--index": index, "--inventory": inventory, "--keys-from": keys_from, "--index-max-age": index_max_age}
    named = [name for name, value in given.items() if value is not None]
    is_shared = named == ["--index", "--index-max-age"] and isinstance(saved, S3Uri) and max_age_s > 0
    if len(named) > 1 and not is_shared:
        raise ConfigurationError(f"{named[0]} and {named[1]} contradict each other", hint="an index has one origin")
    other = "--index-cache" if index_cache is not None else "--index-max-age"
    if no_index_cache and (index_cache is not None or (max_age_s and not is_shared)):
        raise ConfigurationError(f"--no-index-cache and {other} contradict each other", hint="give one of them")
    if source_type is not SourceKind.PREFIX and (inventory is not None or keys_from is not None):
        raise ConfigurationError(
            f"{named[0]} and --source-type {source_type} contradict each other: the manifest says what there is",
            hint="give one of them",
        )
    if attribute_names and source_type is not SourceKind.AUGMENTED_MANIFEST:
        raise ConfigurationError(
            "--attribute-name picks attributes of an augmented manifest",
            hint=f"give --source-type {SourceKind.AUGMENTED_MANIFEST} too",
        )
    if shard is None and shard_by is not None:
        raise ConfigurationError("--shard-by says how to divide what --shard divides", hint="give --shard I/N too")
    return IndexOrigin(
        saved=saved,
        inventory=None if inventory is None else S3Uri.parse(inventory),
        # A daemon changes to the root directory.
        keys_from=None if keys_from is None else keys_from.absolute(),
        cache=None if no_index_cache else _index_cache(index_cache, environ),
        max_age_s=max_age_s,
        strict=strict,
        allow_empty=allow_empty,
        kind=source_type,
        attribute_names=check_attribute_names(attribute_names),
        shard=None if shard is None else Shard.parse(shard, by_bytes=shard_by == "bytes"),
    )


def _without_environment(
    index: str | None, index_cache: Path | None, index_max_age: str | None, environ: Mapping[str, str]
) -> tuple[Path | None, str | None]:
    """Return what the command line says of kept listings: --no-index-cache there beats the environment."""
    has_age = index is not None or index_max_age != environ.get("FASTFUSE_INDEX_MAX_AGE")
    has_cache = str(index_cache) != environ.get("FASTFUSE_INDEX_CACHE")
    return index_cache if has_cache else None, index_max_age if has_age else None


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


def _index_cache(given: Path | None, environ: Mapping[str, str]) -> Path | None:
    """Return the directory of kept listings; None for a user without a home."""
    if given is not None:
        return given.absolute()
    # systemd.exec(5), CacheDirectory=; then the XDG base directory specification, which ignores relative paths.
    for variable, below in (("CACHE_DIRECTORY", "index"), ("XDG_CACHE_HOME", "fastfuse/index")):
        if environ.get(variable, "").startswith("/"):
            return Path(environ[variable].partition(":")[0], below)
    home = environ.get("HOME", "")
    return Path(home, ".cache/fastfuse/index") if home.startswith("/") else None


def parse_index_place(text: str) -> Path | S3Uri:
    """Return the file or the object of S3 that `text` names.

    Raises:
        ConfigurationError: an S3 URI that names no object.
    """
    if "://" not in text:
        return Path(text).absolute()
    uri = S3Uri.parse(text)
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
