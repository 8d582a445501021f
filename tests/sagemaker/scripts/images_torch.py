"""Reads many small files with PyTorch's DataLoader and its worker processes."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from torch.utils.data import DataLoader, Dataset, IterableDataset

from tests.sagemaker.scripts.contract import Channel, train
from tests.sagemaker.scripts.images import CONTEXT, WORKERS, hashed, images, read_file


class Files(Dataset[str]):
    def __init__(self, paths: list[Path]) -> None:
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> str:
        return read_file(self.paths[index])


class Stream(IterableDataset[str]):
    def __init__(self, fifo: Path) -> None:
        self.fifo = fifo

    def __iter__(self) -> Iterator[str]:
        with self.fifo.open("rb") as stream:
            yield from map(hashed, images(stream))


def loader(channel: Channel, epoch: int) -> Iterable[list[str]]:
    batches: Iterable[list[str]] = []
    if channel.is_pipe:  # which has one reader
        batches = DataLoader(Stream(channel.fifo(epoch)), batch_size=8, num_workers=1, multiprocessing_context=CONTEXT)
    elif paths := channel.files(".npy"):  # a host may have no share, and a random sampler wants one
        batches = DataLoader(
            Files(paths), batch_size=8, shuffle=True, num_workers=WORKERS, multiprocessing_context=CONTEXT
        )
    return batches


def read_epoch(channel: Channel, epoch: int) -> Iterator[str]:
    for batch in loader(channel, epoch):
        yield from batch


if __name__ == "__main__":
    train(read_epoch)
