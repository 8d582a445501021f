"""The places where the file systems of a job's channels are mounted, from the values of ``--file-system``. Pure."""

from collections.abc import Sequence
from dataclasses import replace

from fastfuse.errors import ConfigurationError
from fastfuse.sagemaker.description.channel import Channel, LocalDirectory, TrainingJob

__all__ = ["located"]


def located(job: TrainingJob, options: Sequence[str]) -> TrainingJob:
    """Return `job` with the place of each file system; `options` are ``ID=/DIRECTORY``.

    Raises:
        ConfigurationError: an option has another form, or a channel's file system is in none of them.
    """
    places: dict[str, str] = {}
    for option in options:
        name, _, place = option.partition("=")
        if not name or not place.startswith("/"):
            raise ConfigurationError(
                f"--file-system {option!r} does not say where a file system is mounted",
                hint="write it as in --file-system fs-0123456789abcdef0=/mnt/efs",
            )
        if places.setdefault(name, place) != place:
            raise ConfigurationError(
                f"--file-system {name} is given with {places[name]} and with {place}", hint="name one place"
            )
    return replace(job, channels=tuple(_located(channel, places) for channel in job.channels))


def _located(channel: Channel, places: dict[str, str]) -> Channel:
    source = channel.source
    if not isinstance(source, LocalDirectory) or not source.file_system:
        return channel
    place = places.get(source.file_system)
    if place is None:
        raise ConfigurationError(
            f"channel {channel.name} lies in the file system {source.file_system}, and nothing says where that is "
            "mounted",
            hint=f"mount it, and add --file-system {source.file_system}=/DIRECTORY",
        )
    return replace(channel, source=replace(source, mounted_at=place))
