"""Reads many small files with worker processes, as PyTorch's DataLoader does, and needs no PyTorch.

Where there are files, each worker gets its share of the shuffled ones; of a FIFO there is one reader.
"""

import multiprocessing
import random
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from tests.sagemaker.scripts.contract import Channel, digest, train

WORKERS = 3
# What starts workers best is another method in each version of Python.
CONTEXT = multiprocessing.get_context("fork")


def read_epoch(channel: Channel, epoch: int) -> Iterator[str]:
    if channel.is_pipe:
        with ProcessPoolExecutor(1, CONTEXT) as pool:
            yield from pool.submit(read_stream, channel.fifo(epoch)).result()
    else:
        paths = channel.files(".npy")
        random.Random(epoch).shuffle(paths)
        with ProcessPoolExecutor(WORKERS, CONTEXT) as pool:
            yield from pool.map(read_file, paths, chunksize=4)


def read_file(path: Path) -> str:
    return hashed(np.load(path))


def read_stream(fifo: Path) -> list[str]:
    with fifo.open("rb") as stream:
        return [hashed(image) for image in images(stream)]


def images(stream: BinaryIO) -> Iterator[npt.NDArray[Any]]:
    """The arrays of ``.npy`` files one behind the other: each tells its shape."""
    while magic := stream.read(len(np.lib.format.magic(1, 0))):
        if magic != np.lib.format.magic(1, 0):
            raise ValueError("an image begins otherwise")
        shape, _, dtype = np.lib.format.read_array_header_1_0(stream)
        size = int(np.prod(shape)) * dtype.itemsize
        data = stream.read(size)
        if len(data) < size:
            raise ValueError("an image is cut short")
        yield np.frombuffer(data, dtype).reshape(shape)


def hashed(image: npt.NDArray[Any]) -> str:
    return digest(str(image.shape), image.tobytes())


if __name__ == "__main__":
    train(read_epoch)
