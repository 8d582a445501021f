"""Reads records of one size through a buffer of 16 MiB, as AWS's articles on Pipe mode do."""

from collections.abc import Iterator
from pathlib import Path

from tests.sagemaker.scripts.contract import Channel, digest, train

BUFFER_BYTES = 16777216
# A label and 32 × 32 × 3 pixels: https://www.cs.toronto.edu/~kriz/cifar.html
RECORD_BYTES = 1 + 3072


def read_epoch(channel: Channel, epoch: int) -> Iterator[str]:
    buffer = bytearray(BUFFER_BYTES)
    for path in [channel.fifo(epoch)] if channel.is_pipe else channel.files(".bin"):
        yield from records(path, buffer)


def records(path: Path, buffer: bytearray) -> Iterator[str]:
    view = memoryview(buffer)
    held = 0
    with path.open("rb", buffering=0) as stream:
        while size := stream.readinto(view[held:]):
            held += size
            whole = held - held % RECORD_BYTES
            for start in range(0, whole, RECORD_BYTES):
                yield digest(view[start : start + RECORD_BYTES])
            view[: held - whole] = view[whole:held]
            held -= whole
    if held:
        raise ValueError("a record is cut short")


if __name__ == "__main__":
    train(read_epoch)
