"""What is streamed, and how far it has come: values."""

from dataclasses import dataclass
from pathlib import Path

from fastfuse.errors import FastfuseError

__all__ = ["PipeProgress", "PipeSettings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PipeSettings:
    """One channel in Pipe mode."""

    # The channel's name: its FIFOs are `directory`/`channel`_0, `directory`/`channel`_1 ...
    channel: str
    directory: Path = Path("/opt/ml/input/data")
    # ``CompressionType`` ``Gzip``: what is streamed is what was compressed.
    is_gzip: bool = False
    # ``RecordWrapperType`` ``RecordIO``: each object, or each attribute of a line, is one record.
    wraps_records: bool = False
    # ``ShuffleConfig``: another order in each epoch. Of a sharded channel it is this host's share that is shuffled, the
    # same objects in every epoch; SageMaker deals them out anew.
    shuffle_seed: int | None = None
    # The source is an augmented manifest: its lines are streamed, with the bytes of the objects that they name.
    is_augmented: bool = False
    # Of an augmented manifest: what is streamed of each line, in this order. Empty: all, as the line has them.
    attribute_names: tuple[str, ...] = ()
    memory_target_bytes: int = 1 << 30
    part_size_bytes: int = 8 << 20
    # The epoch to begin with.
    first_epoch: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PipeProgress:
    """Sums since the channel began, over all epochs."""

    # The one that is read, or waits for its reader.
    epoch: int
    # Streamed to the end; an object counts in every epoch.
    objects: int
    # That readers have taken, or that lie in the FIFO.
    written_bytes: int
    fetched_bytes: int
    requests: int
    # Why this epoch will have no end: its reader waits until somebody stops it. None while all is well.
    failure: FastfuseError | None = None
