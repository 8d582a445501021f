"""Lists what a file names: asks S3 for the attributes of each key, many at a time."""

from collections.abc import Sequence
from pathlib import Path

from fastfuse.errors import ConfigurationError
from fastfuse.index.inodes.builder import TableBuilder
from fastfuse.index.listing.acceptance import Listing
from fastfuse.index.listing.heads import add_found, head_all
from fastfuse.index.listing.sweep import ProgressCallback
from fastfuse.index.sources.key_list import ListedKey, parse_keys
from fastfuse.index.sources.located import Reference
from fastfuse.index.sources.uri import S3Uri
from fastfuse.s3.base import ObjectSource

__all__ = ["list_keys"]


async def list_keys(
    objects: ObjectSource, path: Path, source: S3Uri, *, progress: ProgressCallback = lambda _: None
) -> Listing:
    """The objects of `source` that the file `path` names.

    Raises:
        ConfigurationError: the file cannot be read, or a line of it is no key of `source`.
        SourceError, AccessError: some of the keys are not there, or not to be seen.
        ServiceError: as `ObjectSource.head`; so do the other errors that end it at once, bad credentials, say.
    """
    try:
        with path.open("rb") as file:
            keys = parse_keys(file, source, str(path))
    except OSError as error:
        raise ConfigurationError(f"the list of keys {path} cannot be read: {error.strerror}") from error
    named = [Reference(source.bucket, listed.key, listed.line) for listed in keys]
    builder = TableBuilder(source.bucket, _key_prefix(source, keys))
    add_found(builder, await head_all(objects, named, str(path), progress))
    table, refusals = builder.build()
    return Listing(table, refusals, len(keys))


def _key_prefix(source: S3Uri, keys: Sequence[ListedKey]) -> str:
    """What stands before every path: the folder, or that of the one object that `source` names (N1)."""
    if [listed.key for listed in keys] == [source.path]:
        return source.path[: source.path.rfind("/") + 1]
    return f"{source.path.rstrip('/')}/" if source.path else ""
