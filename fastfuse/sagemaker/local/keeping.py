"""The work of a channel's process where the channel is a directory that the script itself reads."""

import logging
import signal
from collections.abc import Callable
from pathlib import Path

from fastfuse.index.sources.shard import Shard
from fastfuse.sagemaker.description.channel import Channel, LocalDirectory
from fastfuse.sagemaker.local.file_listing import list_files
from fastfuse.sagemaker.local.finding import find_directory
from fastfuse.sagemaker.local.placing import put_in_place, put_links, take_away, unmount_directory

__all__ = ["keep_in_place"]

_log = logging.getLogger(__name__)

_STOPPING = {signal.SIGTERM, signal.SIGINT}


def keep_in_place(
    channel: Channel, place: Path, base: Path, *, shard: Shard | None, allow_empty: bool, ready: Callable[[str], None]
) -> None:
    """Put the channel's directory, or this host's share of it, at `place`, and keep it there until told to stop.

    Raises:
        FastfuseError: the directory cannot be used, or cannot be put there.
    """
    source = channel.source
    assert isinstance(source, LocalDirectory)
    found = find_directory(source, place, allow_empty=allow_empty)
    if shard is None:
        refusal = put_in_place(found.path, place, base, is_writable=source.is_writable)
        what = str(found.path)
    else:
        table = list_files(found, shard, allow_empty=allow_empty)
        put_links(table, found.path, place, base)
        refusal, what = "file by file", f"{table.metadata.file_count:,} files of {found.path}"
    if refusal:
        access = f"linked ({refusal}; file permissions alone decide who may write)"
    else:
        access = "mounted writable" if source.is_writable else "mounted read-only"
    if channel.shuffle_seed is not None:
        _log.warning("channel %s: ShuffleConfig has an effect in Pipe mode only; shuffle in the script", channel.name)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # asks mounts to list again
    signal.pthread_sigmask(signal.SIG_BLOCK, _STOPPING)
    ready(f"{what} {access} at {place}")
    signal.sigwait(_STOPPING)
    if refusal:
        take_away(place, channel)
    else:
        unmount_directory(place)
