"""Reads TFRecord files of Examples: the library ``tfrecord`` where there are files, record after record from a FIFO."""

import struct
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

from tfrecord import example_pb2
from tfrecord.reader import extract_feature_dict, tfrecord_loader
from tfrecord.writer import TFRecordWriter

from tests.sagemaker.scripts.contract import Channel, digest, train

FEATURES = {"image": "byte", "label": "int"}
TYPES = {"byte": "bytes_list", "int": "int64_list"}


def read_epoch(channel: Channel, epoch: int) -> Iterator[str]:
    if channel.is_pipe:
        with channel.fifo(epoch).open("rb") as stream:
            for record in records(stream):
                example = example_pb2.Example.FromString(record)
                yield hashed(extract_feature_dict(example.features, FEATURES, TYPES))
    else:
        for path in channel.files(".tfrecord"):
            yield from map(hashed, tfrecord_loader(str(path), None, FEATURES))


def records(stream: BinaryIO) -> Iterator[bytes]:
    """What TensorFlow's PipeModeDataset does: length, its checksum, data, its checksum."""
    while header := stream.read(12):
        (size,) = struct.unpack("<Q", header[:8])
        data, checksum = stream.read(size), stream.read(4)
        if header[8:] != TFRecordWriter.masked_crc(header[:8]) or checksum != TFRecordWriter.masked_crc(data):
            raise ValueError("a record is damaged")
        yield data


def hashed(features: Mapping[str, Any]) -> str:
    return digest(bytes(features["image"]), int(features["label"][0]))


if __name__ == "__main__":
    train(read_epoch)
