"""The lines that a run begins with: what it prepares, and what it does not do as SageMaker does. Pure."""

from collections.abc import Iterator

from fastfuse.sagemaker.description.channel import Channel, TrainingJob
from fastfuse.sagemaker.description.fields import Handling

__all__ = ["opening_lines"]


def opening_lines(job: TrainingJob, channels: tuple[Channel, ...]) -> Iterator[str]:
    """Yield the lines for `job`, of which this host gets `channels`."""
    names = ", ".join(f"{channel.name} ({channel.input_mode})" for channel in channels)
    yield f"Preparing {len(channels)} channel{'s' * (len(channels) != 1)}: {names}"
    yield from (str(field) for field in job.fields if field.handling is not Handling.DONE)
    if assumed := [channel for channel in channels if channel.is_mode_assumed]:
        names = ", ".join(channel.name for channel in assumed)
        yield f"No InputMode is given for {names}: {assumed[0].input_mode} is taken"
