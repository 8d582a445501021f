"""An index that was made elsewhere or earlier: sound, and of the source that it is wanted for."""

from collections.abc import Collection

from fastfuse.errors import ConfigurationError
from fastfuse.index.origin import KEY_NAME_PREFIX, SourceKind
from fastfuse.index.snapshot import Snapshot, verify_snapshot
from fastfuse.index.sources.uri import S3Uri

__all__ = ["verify_index"]

_MANIFESTS = (SourceKind.MANIFEST, SourceKind.AUGMENTED_MANIFEST)


def verify_index(fd: int, source: S3Uri, views: Collection[str] = ("",)) -> Snapshot:
    """The snapshot in `fd`, which is of `source` in one of `views`; of a prefix it holds keys of that and no others.

    Raises:
        ConfigurationError: it is damaged or no index, or not one of `source`.
    """
    snapshot = verify_snapshot(fd)
    if snapshot.source.rstrip("/") != str(source).rstrip("/"):
        raise ConfigurationError(f"it is an index of {snapshot.source}, not of {source}")
    if snapshot.view not in views:
        raise ConfigurationError(
            f"it is an index of {source} as {_described(snapshot.view)}, not as {_described(max(views, key=len))}",
            hint="give --source-type, --attribute-name, --shard and --shard-by as they were given to 'fastfuse index'",
        )
    if snapshot.view.startswith(_MANIFESTS):
        return snapshot  # whatever a manifest names
    metadata = snapshot.table.metadata
    if metadata.bucket != source.bucket or not _lies_in(snapshot, source.path):
        prefix = S3Uri(metadata.bucket, metadata.key_prefix)
        raise ConfigurationError(
            f"it says that it is an index of {source} and holds keys of {prefix}",
            hint="make it again with 'fastfuse index'",
        )
    return snapshot


def _described(view: str) -> str:
    return view or "a whole prefix"


def _lies_in(snapshot: Snapshot, path: str) -> bool:
    """Return whether all keys lie in the folder `path` or are the one object of that name (N1).

    In the view of a key name prefix, the keys may also begin with `path` in any other way.
    """
    table = snapshot.table
    prefix = table.metadata.key_prefix
    if not path:
        return not prefix
    if prefix in (path, path.rstrip("/") + "/"):
        return True
    begun = [prefix.encode() + name for _, name, _ in table.children(table.inode(0))]
    if snapshot.view.startswith(KEY_NAME_PREFIX):
        return all(name.startswith(path.encode()) for name in begun)
    return all(name == path.encode() for name in begun)
