"""One data set, its server in a process of its own, and one mount of it for every test of reading."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from bench.server import Server
from tests.mounting import Mount, mounted
from tests.semantics.leftovers import nothing_is_left

__all__ = ["nothing_is_left"]

PAGE, FIRST_PART, PART = 4096, 1 << 20, 8 << 20
# Around every border that the kernel or the read engine knows.
BORDERS = (PAGE, 128 * 1024, FIRST_PART, FIRST_PART + PART, FIRST_PART + 2 * PART)
SIZES = sorted({0, 1, 511, 512, *(border + step for border in BORDERS for step in (-1, 0, 1)), (64 << 20) + 7})


@dataclass(frozen=True)
class DataSet:
    """The same files twice: as they were written, and through the mount."""

    source: Path
    mount: Mount
    endpoint_url: str

    @property
    def path(self) -> Path:
        return self.mount.path

    def pair(self, size_bytes: int) -> tuple[Path, Path]:
        return self.source / f"{size_bytes}.bin", self.path / f"{size_bytes}.bin"


@pytest.fixture(scope="session")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DataSet]:
    source = tmp_path_factory.mktemp("source")
    generator = random.Random(7)
    for size in SIZES:
        (source / f"{size}.bin").write_bytes(generator.randbytes(size))
    (source / "many").mkdir()
    for number in range(300):
        (source / "many" / f"{number:03}").write_bytes(generator.randbytes(generator.randrange(200_000)))
    with (
        Server(source) as server,
        mounted(f"s3://{server.bucket}", server.endpoint_url, "--memory-target", "128MiB") as mount,
    ):
        yield DataSet(source, mount, server.endpoint_url)
