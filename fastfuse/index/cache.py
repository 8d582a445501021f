"""The last listing of each source, one file each, in a directory of the user.

A cache only saves work: whatever goes wrong with it is logged and costs a listing.
"""

import hashlib
import logging
import os
import time
from pathlib import Path

from fastfuse.errors import ConfigurationError
from fastfuse.index.atomic_files import copy_into, open_file, replace_file
from fastfuse.index.snapshot import Snapshot
from fastfuse.index.sources.uri import S3Uri
from fastfuse.index.verified import verify_index

__all__ = ["IndexCache"]

_log = logging.getLogger(__name__)


class IndexCache:
    """Indexes below `directory`, which is made when the first one is kept."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def path(self, source: S3Uri, endpoint_url: str | None, view: str = "") -> Path:
        """The file of `source` in this view (`Snapshot.view`) as it is found at that service (None: AWS)."""
        # A name of fixed length that says nothing; the index itself says what it is of.
        identity = "\n".join([endpoint_url or "", str(source), *([view] if view else [])]).encode()
        return self._directory / f"{hashlib.sha256(identity).hexdigest()[:32]}.index"

    def find(self, path: Path, source: S3Uri, max_age_s: float, fd: int, view: str = "") -> Snapshot | None:
        """The index in `path`, copied into the empty file `fd`, if it is sound, ours and young enough."""
        try:
            with open_file(path) as file:
                if os.fstat(file.fileno()).st_uid != os.geteuid():
                    raise ConfigurationError("it belongs to another user")
                copy_into(fd, file)
            snapshot = verify_index(fd, source, {view})
        except FileNotFoundError:
            return None
        except (OSError, ConfigurationError) as error:
            _log.warning("the kept listing %s is not used: %s", path, error)
            os.ftruncate(fd, 0)
            return None
        age_s = (time.time_ns() - snapshot.listed_at_ns) / 1e9
        if not 0 <= age_s <= max_age_s:
            os.ftruncate(fd, 0)
            return None
        return snapshot

    def keep(self, path: Path, fd: int) -> None:
        """Put the index in `fd` into `path`, in one step."""
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_file(path, fd)
        except OSError as error:
            _log.warning("the listing is not kept: %s (--no-index-cache does without)", error)
