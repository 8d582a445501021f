"""Orders of epochs through a real mount: what they say, and that whoever opens one finds its files fetched."""

import os
import random
import signal
from pathlib import Path

import pytest

from fastfuse.index.sources.shuffle import shuffled
from tests.mount.waiting import wait_until
from tests.mounting import run_fastfuse
from tests.semantics.places import Place, block_bytes, gets, place
from tests.semantics.test_metrics import Scrape

COUNT = 400
DATA = {f"{index // 100}/{index % 100:03}": block_bytes(index, 39_000) for index in range(COUNT)}
NAMES = sorted(DATA)
SEED = ("--shuffle-seed", "-11")
METRICS = ("--metrics-listen", "0")


def order(here: Place, epoch: int) -> list[str]:
    return (here.path / ".fastfuse" / f"order-{epoch}.txt").read_text().splitlines()


def documented(names: list[str], epoch: int) -> list[str]:
    return [names[at] for at in shuffled(len(names), -11, epoch)]


def keys(here: Place) -> list[str]:
    return [record.key for record in gets(here.server)]


def taken(here: Place) -> int:
    return Scrape(here.mount.metrics_port())["hints_total", "taken"]


def test_each_epoch_has_its_documented_order() -> None:
    """N6, A1"""
    files = {"a": b"", "a!/x": b"", "a/é": b"1", "line\nfeed": b"", "z z": b""}
    with place(files, *SEED) as here:
        lines = sorted((name for name in files if "\n" not in name), key=str.encode)
        folder = here.path / ".fastfuse"
        assert sorted(os.listdir(folder)) == sorted(f"order-{epoch}.txt" for epoch in range(100))
        # "a" is hidden by the directory.
        lines.remove("a")
        for epoch in (0, 1, 99):
            assert order(here, epoch) == documented(lines, epoch)
        sizes = {path.stat().st_size for path in folder.iterdir()}
        assert sizes == {sum(len(line.encode()) + 1 for line in lines)}
        assert os.listxattr(folder / "order-0.txt") == []
        assert "1 objects are in no order of an epoch" in here.mount.log
        assert here.mount.stop() == 0


def test_without_a_seed_there_are_no_orders() -> None:
    with place({"a": b""}) as here:
        assert os.listdir(here.path) == ["a"]


def test_the_files_of_an_order_that_is_opened_are_fetched_before_any_of_them_is_opened_and_once() -> None:
    with place(DATA, *SEED, *METRICS) as here:
        names = order(here, 3)
        assert names == documented(NAMES, 3)
        here.server.wait_until(lambda now: now.requests.get("GetObject", 0) >= 256)
        assert set(keys(here)) == set(names[:256])
        wait_until(lambda: taken(here) == COUNT)
        for name in names:
            assert (here.path / name).read_bytes() == DATA[name]
        assert sorted(keys(here)) == NAMES


def test_an_order_that_many_open_is_announced_once() -> None:
    with place(DATA, *SEED, *METRICS) as here:
        for _ in range(5):
            order(here, 0)
        wait_until(lambda: taken(here) >= COUNT)
        order(here, 0)
        order(here, 1)
        wait_until(lambda: taken(here) >= 2 * COUNT)
        assert taken(here) == 2 * COUNT


def test_an_order_is_announced_again_to_who_opens_it_after_the_death_of_a_worker() -> None:
    """L3"""
    with place(DATA, *SEED, *METRICS) as here:
        order(here, 0)
        wait_until(lambda: taken(here) == COUNT)
        os.kill(here.mount.worker(), signal.SIGKILL)
        assert order(here, 0) == documented(NAMES, 0)
        wait_until(lambda: taken(here) == 2 * COUNT)


@pytest.mark.parametrize("io", ["cached", "direct"])
def test_orders_follow_a_refresh(io: str) -> None:
    """L6"""
    files = {f"{number:0250}": b"" for number in range(6000)}  # an order of more than a part: opening fetches nothing
    with place(files, *SEED, "--io", io, "--part-size", "1MiB") as here:
        before = {epoch: (here.path / ".fastfuse" / f"order-{epoch}.txt").stat() for epoch in (0, 1)}
        assert order(here, 0) == documented(sorted(files), 0)
        assert run_fastfuse("refresh", str(here.path)).stdout.startswith("0 added, 0 removed, 0 replaced")
        assert (here.path / ".fastfuse" / "order-0.txt").stat() == before[0]
        with (here.path / ".fastfuse" / "order-1.txt").open("rb") as held:
            here.objects.put("new", b"")
            assert run_fastfuse("refresh", str(here.path)).stdout.startswith("1 added, 0 removed, 0 replaced")
            assert os.fstat(held.fileno()).st_size == before[1].st_size
            with pytest.raises(OSError, match="Stale file handle"):
                held.read()
        assert order(here, 0) == documented(sorted([*files, "new"]), 0)
        assert order(here, 1) == documented(sorted([*files, "new"]), 1)


def test_what_the_source_has_in_the_place_of_the_orders_is_hidden_by_them() -> None:
    with place({"a": b"", ".fastfuse/order-0.txt": b"another", ".fastfuse/x/y": b""}, *SEED) as here:
        assert order(here, 0) == ["a"]
        assert not (here.path / ".fastfuse" / "x").exists()


def test_what_is_not_in_s3_has_no_attributes_of_s3() -> None:
    """A3"""
    with place({"a": b""}, *SEED) as here:
        assert os.listxattr(here.path / ".fastfuse") == os.listxattr(here.path / ".fastfuse/order-0.txt") == []
        assert "user.s3.key" in os.listxattr(here.path)
        assert "user.s3.key" in os.listxattr(here.path / "a")


def test_orders_of_parts_name_the_files_of_their_part(tmp_path: Path) -> None:
    options = [f"--shard={number}/3" for number in (1, 2, 3)]
    orders = []
    for option in options:
        with place(dict.fromkeys(NAMES, b""), *SEED, option) as here:
            orders.append(order(here, 0))
            shown = {str(path.relative_to(here.path)) for path in here.path.glob("[0-9]/*")}
            assert set(orders[-1]) == shown
    assert sorted(name for names in orders for name in names) == NAMES


def test_an_empty_source_has_empty_orders() -> None:
    with place({}, *SEED, "--allow-empty") as here:
        assert order(here, 0) == []


def test_files_can_be_read_in_any_order_while_an_order_stands() -> None:
    """D1"""
    with place(DATA, *SEED) as here:
        order(here, 0)
        for name in random.Random(1).sample(NAMES, 100):
            assert (here.path / name).read_bytes() == DATA[name]
