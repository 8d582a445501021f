"""Reads tar shards of samples with ``webdataset``, which takes members of one name for one sample."""

import tarfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import webdataset

from tests.sagemaker.scripts.contract import Channel, digest, train


def read_epoch(channel: Channel, epoch: int) -> Iterator[str]:
    if channel.is_pipe:
        samples: Iterable[Mapping[str, Any]] = webdataset.tariterators.group_by_keys(members(channel.fifo(epoch)))
    else:
        urls = [str(path) for path in channel.files(".tar")]
        # A host may have no share.
        samples = webdataset.WebDataset(urls, shardshuffle=False, empty_check=False) if urls else ()
    for sample in samples:
        yield digest(sample["__key__"], sample["bin"], sample["cls"])


def members(fifo: Path) -> Iterator[Mapping[str, Any]]:
    """The members of all archives of a stream, as webdataset's own reader yields those of one."""
    with fifo.open("rb") as stream:
        if not stream.peek(1):  # tarfile takes an empty stream for a damaged one
            return
        # What ends one archive is not the end.
        with tarfile.open(fileobj=stream, mode="r|", ignore_zeros=True) as archive:
            for member in archive:
                content = archive.extractfile(member)
                assert content is not None
                yield {"fname": member.name, "data": content.read(), "__url__": str(fifo)}


if __name__ == "__main__":
    train(read_epoch)
