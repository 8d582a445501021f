"""What the process of one channel does: index, then mount, download or stream; and what it tells its parent.

A message is a line of JSON: ``{"ready": …}`` with what was made, ``{"progress": …}``, or an error as
`mount.children` writes it. What is counted is in memory that parent and child share.
"""

import json
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from fastfuse.errors import FastfuseError
from fastfuse.indexing.origin import IndexOrigin
from fastfuse.metrics import Counters
from fastfuse.mount import supervisor
from fastfuse.mount.children import error_message
from fastfuse.mount.indexing import run_lister
from fastfuse.mount.settings import MountSettings
from fastfuse.sagemaker.channel import Channel, InputMode
from fastfuse.sagemaker.settings import RunSettings

__all__ = ["ChannelTask", "serve_channel"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ChannelTask:
    """One channel of a run, and its part of the memory target."""

    channel: Channel
    settings: RunSettings
    memory_target_bytes: int

    @property
    def origin(self) -> IndexOrigin:
        """Where this host's index of the channel comes from."""
        channel, settings = self.channel, self.settings
        return replace(
            settings.origin,
            kind=channel.source_kind,
            attribute_names=channel.attribute_names,
            shard=settings.cluster.shard(channel, by_bytes=settings.shard_by_bytes),
            # A stream is shuffled by who streams; of files the reader chooses the order, and can look one up.
            shuffle_seed=channel.shuffle_seed if channel.input_mode is InputMode.FAST_FILE else None,
        )


def serve_channel(task: ChannelTask, counters: Counters, told_fd: int) -> int:
    """Serve the channel until it is done or told to stop; returns the exit code (clause L5)."""

    def tell(**message: Any) -> None:  # noqa: ANN401 -- whatever JSON can carry
        os.write(told_fd, json.dumps(message).encode() + b"\n")

    serve = {InputMode.FAST_FILE: _mount}[task.channel.input_mode]
    try:
        return serve(task, counters, tell)
    except FastfuseError as error:
        os.write(told_fd, error_message(error) + b"\n")
        return error.exit_code


def _mount(task: ChannelTask, counters: Counters, tell: Callable[..., None]) -> int:
    place = task.settings.data_dir / task.channel.name
    settings = MountSettings(
        source=task.channel.source,
        mountpoint=place,
        connection=task.settings.connection,
        origin=task.origin,
        memory_target_bytes=task.memory_target_bytes,
        part_size_bytes=task.settings.part_size_bytes,
        uid=os.getuid(),
        gid=os.getgid(),
        allow_other=task.settings.allow_other,
        create_mountpoint=True,
        grace_s=task.settings.grace_s,
    )

    def ready() -> None:
        files = counters.get("fastfuse_table_files")
        tell(ready=f"{files:,} objects at {place}")

    return supervisor.run(settings, ready=ready, counters=counters)
