"""Clause L3: the worker may die, and its readers do not notice."""

import errno
import os
import re
import signal
import time
from collections.abc import Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from bench.s3server import FaultRule, Limit, Stall
from bench.s3server.faults import SLOW_DOWN
from fastfuse.filesystem.talking.control import ask_status, entry_of
from tests.filesystem.waiting import PATIENCE_S, wait_until
from tests.mounting import Mount, run_fastfuse
from tests.semantics.places import Place, block_bytes, direct_read, forget, place
from tests.semantics.test_lifecycle import stopping
from tests.semantics.test_metrics import Scrape

MIB = 1 << 20


def read_half(path: Path, read_bytes: list[int]) -> bytes:
    data = b""
    with path.open("rb", buffering=0) as file:
        while len(data) < path.stat().st_size // 2:
            data += (chunk := file.read(MIB // 4))
            read_bytes.append(len(chunk))
    return data


def kill_worker(mount: Mount, killed: Collection[int] = (), number: signal.Signals = signal.SIGKILL) -> int:
    """Kill it with a signal and return the pid that it had; `killed` are those of its predecessors."""
    # A worker that was just killed may not have been replaced, nor even been reaped.
    wait_until(lambda: bool(set(mount.children()) - set(killed)))
    (pid,) = set(mount.children()) - set(killed)
    os.kill(pid, number)
    return pid


def test_readers_go_on_although_the_worker_is_killed_three_times_and_nothing_is_left_of_their_reads() -> None:
    """L3"""
    size = 8 * MIB
    data = {f"file{number}": block_bytes(number, size) for number in range(4)}
    options = ("--part-size", "1MiB", "--metrics-listen", "0")
    with ThreadPoolExecutor(4) as threads, place(data, *options) as here:
        # Slow enough that every kill finds readers at work, whatever the kernel reads ahead.
        rule = here.server.faults.add(FaultRule(action=Limit(4 * MIB), operation="GetObject"))
        port, read_bytes = here.mount.metrics_port(), list[int]()
        readers = [threads.submit(read_half, here.path / name, read_bytes) for name in data]
        others = {here.mount.children()[0]}  # the metrics' server
        for quarter in range(1, 4):  # of what the readers want
            wait_until(lambda fewest=quarter * size // 2 - 2 * MIB: sum(read_bytes) >= fewest)  # type: ignore[misc]
            others.add(kill_worker(here.mount, others))
        here.server.faults.remove(rule)
        assert [reader.result(PATIENCE_S) for reader in readers] == [content[: size // 2] for content in data.values()]
        wait_until(lambda: Scrape(port)["worker_respawns_total",] == 3 and Scrape(port)["streams",] > 0)

        def left() -> dict[str, int]:
            forget(here.path)
            now = Scrape(port)
            return {name: now[name,] for name in ("streams", "pool_bytes", "gets_in_flight", "waiting_reads")}

        wait_until(lambda: not any(left().values()), lambda: str(left()))
        assert [(here.path / name).read_bytes() for name in data] == [*data.values()]
        assert here.mount.log.count("; starting another") == 3


def test_files_and_directories_opened_before_a_death_go_on_after_it() -> None:
    """L3"""
    names = [f"{number:04}" for number in range(1000)]
    with place({"big": block_bytes(1, 4 * MIB), **{f"folder/{name}": b"" for name in names}}) as here:
        with (here.path / "big").open("rb", buffering=0) as file, os.scandir(here.path / "folder") as entries:
            first = next(entries).name
            assert file.read(MIB) == block_bytes(1, 4 * MIB)[:MIB]
            kill_worker(here.mount)
            assert sorted([first, *(entry.name for entry in entries)]) == names
            assert file.readall() == block_bytes(1, 4 * MIB)[MIB:]
        assert (here.path / "folder" / "0999").read_bytes() == b""


def test_a_read_that_is_under_way_when_its_worker_dies_in_the_last_moments_is_answered() -> None:
    """L3, L2"""
    data = block_bytes(1, 9 * MIB)
    with place({"file": data}, "--grace-s", "60") as here, ThreadPoolExecutor(1) as threads:
        rule = here.server.faults.add(FaultRule(action=Stall(0), operation="GetObject"))
        read = threads.submit(direct_read, here.path / "file", 4096, 8 * MIB)
        here.wait_for_gets(1)
        stopping(here)
        kill_worker(here.mount)
        here.server.faults.remove(rule)
        assert read.result(60) == data[8 * MIB : 8 * MIB + 4096]
        assert here.mount.wait() == 0


def test_a_worker_that_hangs_is_replaced_and_the_log_says_what_it_was_doing() -> None:
    """L3"""
    data = {"file": block_bytes(1, 8 * MIB), "other": block_bytes(2, 1000)}
    with place(data, "--part-size", "1MiB") as here, ThreadPoolExecutor(1) as threads:
        rule = here.server.faults.add(FaultRule(action=Stall(0), operation="GetObject", key="file"))
        reader = threads.submit((here.path / "file").read_bytes)
        wait_until(lambda: here.server.faults.hits(rule) > 0)
        (pid,) = here.mount.children()
        os.kill(pid, signal.SIGSTOP)
        here.server.faults.clear()
        assert reader.result(PATIENCE_S) == data["file"]
        assert (here.path / "other").read_bytes() == data["other"]
        # The worker counted nothing of this wait.
        status = ask_status(entry_of(here.path))
        counted = status["counters"]
        assert 2.0 < counted["fastfuse_unserved_seconds"] <= counted["fastfuse_stalled_seconds"]
        assert counted["fastfuse_unserved_seconds"] <= counted["fastfuse_blocked_seconds"]
        assert status["summary"]["verdict"]["name"] == "workers died"
        # The supervisor looks once a second, or less often on a busy machine.
        assert re.search(r"the worker does not answer: it hung for \d+ s \(state T\); it is killed", here.mount.log)
        # Threads that were stopped at the same place are told once.
        assert re.search(rf"hung worker {pid}: thread {pid}( and \d+ more)?: state T, in ", here.mount.log)
        assert here.mount.log.count("; starting another") == 1


def test_a_mount_that_is_stopped_for_longer_than_a_deadline_goes_on_with_its_reads() -> None:
    """L3"""
    data = {"file": block_bytes(1, 1000)}
    with place(data, "--read-deadline-s", "8") as here, ThreadPoolExecutor(1) as threads:
        rule = here.server.faults.add(FaultRule(action=SLOW_DOWN, operation="GetObject"))
        reader = threads.submit((here.path / "file").read_bytes)
        wait_until(lambda: here.server.faults.hits(rule) > 1)
        processes = [here.mount.process.pid, *here.mount.children()]
        for pid in processes:
            os.kill(pid, signal.SIGSTOP)
        here.server.faults.clear()
        time.sleep(9.0)
        for pid in reversed(processes):
            os.kill(pid, signal.SIGCONT)
        assert reader.result(PATIENCE_S) == data["file"]
        assert here.mount.children() == processes[1:]


def has_hits(here: Place, rule: int, count: int) -> bool:
    return here.server.faults.hits(rule) >= count


POISON = {"good": block_bytes(1, 8 * MIB), "poison": block_bytes(2, 1000)}


@contextmanager
def reading_poison(here: Place, deaths: int, number: signal.Signals) -> Iterator[tuple[Future[bytes], int]]:
    """A read, and the rule that stalls it, at which so many workers were killed; another file was read each time."""
    rule = here.server.faults.add(FaultRule(action=Stall(0), operation="GetObject", key="poison"))
    with ThreadPoolExecutor(2) as threads:
        poisoned = threads.submit((here.path / "poison").read_bytes)
        killed: set[int] = set()
        for death in range(1, deaths + 1):
            # The service is asked for it again, by each worker.
            wait_until(partial(has_hits, here, rule, death))
            good = threads.submit((here.path / "good").read_bytes)
            killed.add(kill_worker(here.mount, killed, number))
            assert good.result(PATIENCE_S) == POISON["good"]
        yield poisoned, rule


def test_a_read_that_is_under_way_whenever_workers_are_killed_from_outside_is_answered() -> None:
    """L3"""
    with place(POISON, "--part-size", "1MiB") as here, reading_poison(here, 7, signal.SIGKILL) as (read, rule):
        wait_until(partial(has_hits, here, rule, 8))
        here.server.faults.clear()
        assert read.result(PATIENCE_S) == POISON["poison"]
        assert "workers die of" not in here.mount.log


def test_a_read_that_kills_workers_fails_and_the_mount_goes_on() -> None:
    """L3"""
    data = POISON
    with place(data, "--part-size", "1MiB") as here, reading_poison(here, 2, signal.SIGSEGV) as (read, rule):
        error = read.exception(PATIENCE_S)
        assert isinstance(error, OSError)
        assert error.errno == errno.EIO
        assert here.server.faults.hits(rule) == here.mount.log.count("; starting another") == 2
        assert "workers die of the read of inode " in here.mount.log
        assert " s: 'poison' is not read: workers died of it." in here.mount.log
        # The part of the file that it asked for stays unread; nothing else does.
        assert (here.path / "good").read_bytes() == data["good"]
        # The file keeps its inode at a refresh, and so its read is refused by the next worker, too.
        assert run_fastfuse("refresh", str(here.path)).returncode == 0
        os.kill(ask_status(entry_of(here.path))["worker_pid"], signal.SIGKILL)
        with pytest.raises(OSError, match="Input/output"):
            (here.path / "poison").read_bytes()
        assert here.server.faults.hits(rule) == 2
