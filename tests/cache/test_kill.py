"""A process that is killed at any moment leaves a tier that serves no wrong byte and can be used."""

import os
import random
import select
import signal
from contextlib import closing
from functools import partial
from pathlib import Path

import trio

from fastfuse.cache.catalog import Index, connect
from fastfuse.filesystem.processes.children import fork_child, wait_child
from fastfuse.metrics import Counters
from tests.cache.node import MIB, CountingStore, content, get_begun, settings_of, tier
from tests.filesystem.waiting import wait_until

# `FASTFUSE_TEST_KILLS=200` is what a release is tried with.
KILLS = int(os.environ.get("FASTFUSE_TEST_KILLS", "20"))
SIZE_BYTES = 16 * MIB
# More than the tier holds, small ones and large ones.
OBJECTS = {f"{n}": (3 * MIB // 2 - n if n % 10 == 0 else 60_000 + 9 * n) for n in range(160)}


def test_no_moment_to_be_killed_costs_a_byte(tmp_path: Path) -> None:
    data = {key: content(key, size_bytes) for key, size_bytes in OBJECTS.items()}
    store, directory = CountingStore(data), tmp_path / "cache"
    chosen = random.Random(7)
    for turn in range(KILLS):
        reading, writing = os.pipe()
        pid = fork_child(partial(trio.run, read_for_ever, store, directory, turn, writing))
        os.close(writing)
        assert os.read(reading, 1) == b"r"
        if turn == KILLS - 1:  # on a busy machine none may have come so far
            wait_until(lambda: kept_bytes(directory) > 0)
        select.select([], [], [], chosen.uniform(0, 0.06))
        os.kill(pid, signal.SIGKILL)
        assert wait_child(pid) == -signal.SIGKILL
        os.close(reading)
        assert sum(path.stat().st_size for path in directory.iterdir()) <= SIZE_BYTES
    counters, served_bytes = Counters(), [0]

    async def read_all() -> None:
        async with tier(store, settings_of(directory, size_bytes=SIZE_BYTES), counters) as reader:
            for _ in range(2):
                for key, expected in data.items():
                    assert bytes(await reader.get(store.ref(key), 0, len(expected))) == expected
                served_bytes.append(counters.get("fastfuse_cache_bytes", "served") - sum(served_bytes))

    trio.run(read_all)
    # Not one of the killed processes has left a row whose bytes it had not written.
    assert counters.get("fastfuse_cache_failures", "corrupt") == 0
    # What they left is used, and the tier takes more.
    assert served_bytes[1] > 0
    assert served_bytes[2] > SIZE_BYTES / 2


def kept_bytes(directory: Path) -> int:
    with closing(connect(str(directory / "index.db"))) as connection:
        return Index(connection).totals()["kept_bytes"]


async def read_for_ever(store: CountingStore, directory: Path, seed: int, ready_fd: int) -> None:
    chosen, keys = random.Random(seed), [*OBJECTS]
    async with tier(store, settings_of(directory, size_bytes=SIZE_BYTES)) as reader:
        os.write(ready_fd, b"r")
        while True:
            async with trio.open_nursery() as nursery:
                for key in chosen.sample(keys, 8):
                    ref = store.ref(key)
                    start = chosen.randrange(ref.size_bytes) if seed % 2 else 0
                    nursery.start_soon(get_begun, reader, ref, start, ref.size_bytes, store)
