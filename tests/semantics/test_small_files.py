"""Small files through a real mount: how many GETs an epoch costs, in which order, and that the bytes are right."""

import os
import random
import signal
import subprocess
from pathlib import Path

import pytest

from bench.s3server import FaultRule
from bench.s3server.faults import Delay
from fastfuse.hints import order
from tests.filesystem.waiting import wait_until
from tests.semantics.places import Place, block_bytes, gets, place
from tests.semantics.test_metrics import Scrape

COUNT = 400
DATA = {f"{index // 100}/{index % 100:03}": block_bytes(index, 39_000) for index in range(COUNT)}
NAMES = sorted(DATA)
# The kernel may drop a page of what it has.
FORGOTTEN = 40


def read(here: Place, names: list[str]) -> None:
    for name in names:
        assert Path(here.path, name).read_bytes() == DATA[name]


def keys(here: Place) -> list[str]:
    return [record.key for record in gets(here)]


def assert_fetched(here: Place, names: list[str]) -> None:
    """Check that these files alone were fetched, each once but for what the kernel dropped and asked for again."""
    assert set(keys(here)) == set(names)
    assert len(keys(here)) <= len(names) + FORGOTTEN


def assert_kept(here: Place, names: list[str]) -> None:
    """Check that the kernel keeps what it was given; what else runs may have it drop all, but not each time."""

    def fetched() -> int:
        before = len(gets(here))
        read(here, names)
        return len(gets(here)) - before

    assert any(fetched() <= FORGOTTEN for _ in range(3))


@pytest.mark.parametrize("order", ["listed", "shuffled"])
def test_a_cold_epoch_is_one_get_a_file_and_a_warm_one_none(order: str) -> None:
    names = NAMES if order == "listed" else random.Random(0).sample(NAMES, COUNT)
    with place(DATA) as here:
        read(here, names)
        assert_fetched(here, NAMES)
        assert_kept(here, names)
        assert_kept(here, names[::-1])


def test_gets_run_ahead_of_a_reader_in_the_order_of_the_listing() -> None:
    with place(DATA) as here:
        read(here, NAMES[:50])
        read(here, NAMES[50:51])
        ahead = set(keys(here)) - set(NAMES[:51])
        assert ahead
        assert ahead <= set(NAMES[51:153])


def test_gets_run_ahead_of_processes_that_read_a_file_each() -> None:
    with place(DATA) as here:
        here.server.faults.add(FaultRule(action=Delay(0.02), operation="GetObject"))
        for name in NAMES[:150]:
            assert subprocess.check_output(["cat", here.path / name]) == DATA[name]
        here.wait_for_gets(COUNT - 10)  # all but a few samples of how long a GET takes


def test_files_of_an_announced_order_are_fetched_before_anything_is_read_and_once() -> None:
    names = random.Random(0).sample(NAMES, COUNT)
    # Before anything is read, a sixteenth of the memory for parts is filled, which has room for 256 files then.
    with place(DATA, "--memory-target", "512MiB") as here, order(names, here.path):
        here.wait_for_gets(256)
        assert set(keys(here)) == set(names[:256])
        read(here, names)
        assert_fetched(here, NAMES)


def asked_for(here: Place, names: list[str], served: int) -> int:
    """What the kernel asks while these files are read that were fetched before, after `served` others were read."""
    port = here.mount.metrics_port()

    def requests(served: int) -> int:
        """What the kernel has asked, once all reads until now are counted: those of threads are within a second."""
        wait_until(lambda: Scrape(port)["read_served_bytes_total",] >= served * 39_000)
        return Scrape(port)["requests_total",]

    for name in names:
        Path(here.path, name).stat()
    fetched = len(gets(here)) + len(names)
    with order(names, here.path):
        wait_until(lambda: Scrape(port)["fetch_requests_total", "ok"] == fetched)
        before = requests(served)
        read(here, names)
        return requests(served + len(names)) - before


def test_a_small_file_is_read_with_one_request_of_the_kernel() -> None:
    groups = [NAMES[first:COUNT:14] for first in range(0, 12, 2)]
    with place(DATA, "--metrics-listen", "0") as here:
        read(here, NAMES[1:2])
        seen = [NAMES[1]]

        def is_one_each(names: list[str]) -> bool:
            asked = asked_for(here, names, len(seen))
            seen.extend(names)
            return asked <= len(names) + FORGOTTEN // 2

        # As in `assert_kept`.
        assert any(is_one_each(names) for names in groups[:3])
        os.kill(here.mount.worker(), signal.SIGKILL)
        assert any(is_one_each(names) for names in groups[3:])
        assert set(keys(here)) == {*seen}
