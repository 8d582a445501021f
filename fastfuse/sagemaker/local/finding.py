"""Find the directory of a channel, and refuse one that is missing, empty, not mounted, or elsewhere than it seems."""

import os
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from fastfuse.errors import ConfigurationError, EmptySourceError, SourceError
from fastfuse.filesystem.mountpoint import mount_holding
from fastfuse.sagemaker.description.channel import LocalDirectory

__all__ = ["Found", "find_directory"]


class Found(NamedTuple):
    """The directory of a channel, and the one that nothing in it may lead out of; neither path has a link in it."""

    path: Path
    root: Path


def find_directory(source: LocalDirectory, place: Path, *, allow_empty: bool) -> Found:
    """Return where the directory is that a channel will show at `place`.

    Raises:
        ConfigurationError: `place` lies in the directory.
        SourceError: the directory cannot be used; the error says why, and what to do.
    """
    try:
        root = Path(os.path.realpath(source.mounted_at or source.path, strict=True))
        path = _below(root, source) if source.file_system else root
        with os.scandir(path) as entries:
            is_empty = not any(entries)
    except OSError as error:
        shown = f"{source.path!r} of {source.file_system}" if source.file_system else repr(source.path)
        raise SourceError(
            f"the directory {shown} cannot be used: {error.filename!r}: {error.strerror}",
            hint="is its file system mounted? Mount it, or name another directory",
        ) from error
    if is_empty and not allow_empty:
        raise EmptySourceError(
            f"the directory {str(path)!r} is empty",
            hint="is its file system mounted? With --allow-empty it is taken as it is",
        )
    if Path(os.path.realpath(place.parent), place.name).is_relative_to(path):
        raise ConfigurationError(
            f"the directory {str(path)!r} holds {str(place)!r}, where the channel belongs",
            hint="leave the channel out if its data are there already, or give another --base-dir",
        )
    return Found(path, root)


def _below(root: Path, source: LocalDirectory) -> Path:
    """Return the directory of a file system that is mounted at `root`."""
    mount = mount_holding(root)
    if mount.path == Path("/"):
        raise SourceError(
            f"nothing is mounted at {str(root)!r}, where --file-system says that {source.file_system} is",
            hint="mount the file system there, or name the place where it is mounted",
        )
    # An NFS or Lustre mount of HOST:/FOLDER shows that folder, and DirectoryPath begins at the file system's root: on
    # FSx for Lustre with the mount name.
    _, _, folder = mount.source.rpartition(":/")
    path = PurePosixPath(source.path)
    is_shown = mount.path == root and path.is_relative_to(f"/{folder}")
    place = root / path.relative_to(f"/{folder}" if is_shown else "/")
    found = Path(os.path.realpath(place, strict=True))
    if not found.is_relative_to(root):
        raise SourceError(
            f"the directory {str(place)!r} is a link to {str(found)!r}, outside of the file system",
            hint=f"give {found} as a channel of its own, or a directory without such a link",
        )
    return found
