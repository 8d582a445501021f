"""All that the scripts beside this know of where they run: SageMaker's contract, and nothing of fastfuse.

Each is started as ``python -m tests.sagemaker.scripts.tfrecords CHANNEL`` and reads its channel for some epochs. It
writes a line of JSON with the short hashes of the records of each epoch, in the order in which it read them.
"""

import argparse
import hashlib
import json
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Channel:
    """A channel as a script sees it: a directory, or a FIFO for each epoch."""

    name: str
    # From SM_CHANNEL_<NAME>.
    path: Path
    is_pipe: bool

    @classmethod
    def find(cls, name: str) -> "Channel":
        config = json.loads((Path(os.environ["SM_INPUT_CONFIG_DIR"]) / "inputdataconfig.json").read_text())
        path = Path(os.environ[f"SM_CHANNEL_{name.upper()}"])
        return cls(name, path, config[name]["TrainingInputMode"] == "Pipe")

    def fifo(self, epoch: int) -> Path:
        return self.path.with_name(f"{self.path.name}_{epoch}")

    def files(self, suffix: str) -> list[Path]:
        paths = sorted(Path(top, name) for top, _, names in os.walk(self.path) for name in names)
        return [path for path in paths if path.suffix == suffix]


def digest(*pieces: bytes | bytearray | memoryview | str | int) -> str:
    hashed = hashlib.blake2b(digest_size=8)
    for piece in pieces:
        hashed.update(str(piece).encode() if isinstance(piece, str | int) else piece)
    return hashed.hexdigest()


def train(read_epoch: Callable[[Channel, int], Iterable[str]]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("channel")
    parser.add_argument("--epochs", type=int, default=2)
    arguments = parser.parse_args()
    channel = Channel.find(arguments.channel)
    epochs = [list(read_epoch(channel, epoch)) for epoch in range(arguments.epochs)]
    # One write: scripts of one job run side by side.
    os.write(1, json.dumps({"channel": channel.name, "epochs": epochs}).encode() + b"\n")
