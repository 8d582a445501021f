"""Reads images with their labels, of an augmented manifest: the manifest and files, or records of a FIFO by turns."""

import json
import struct
from collections.abc import Iterator
from typing import BinaryIO
from urllib.parse import urlsplit

from tests.sagemaker.scripts.contract import Channel, digest, train


def read_epoch(channel: Channel, epoch: int) -> Iterator[str]:
    if channel.is_pipe:
        with channel.fifo(epoch).open("rb") as stream:
            pieces = records(stream)
            for image in pieces:
                yield digest(image, next(pieces))
    else:
        [manifest] = channel.path.glob("*.manifest")
        for line in manifest.read_text().splitlines():
            sample = json.loads(line)
            image = channel.path / urlsplit(sample["image-ref"]).path.lstrip("/")
            yield digest(image.read_bytes(), sample["label"])


def records(stream: BinaryIO) -> Iterator[bytes]:
    """RecordIO without records that were split: https://mxnet.apache.org/versions/1.9.1/api/architecture/note_data_loading"""
    while header := stream.read(8):
        magic, size = struct.unpack("<II", header)
        if magic != 0xCED7230A or size >> 29:
            raise ValueError("a record begins otherwise")
        data = stream.read(size)
        padding = stream.read(-size % 4)
        if len(data) < size or len(padding) < -size % 4:
            raise ValueError("a record is cut short")
        yield data


if __name__ == "__main__":
    train(read_epoch)
