"""``python -m bench.fleet``: what hosts that start at once ask of S3, and when each of them can read.

`simulate` is a model of hosts that share an index and then read small files, a GET each, from a service that allows so
many requests a second. Its hosts keep the rate and the pauses of the real client (`s3.rate`, `s3.retry_policy`) and the
protocol of `index.saved`, on a clock of its own. ``--real`` compares it with real mounts of the loopback server.
"""

import argparse
import heapq
import os
import random
import statistics
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from math import inf
from pathlib import Path
from typing import TypeVar

from bench.machine import describe
from bench.mount_process import MountProcess
from bench.mounting import ENVIRONMENT
from bench.s3server import FaultRule, LoopbackServer, MemoryObjects, Pace, ServerConfig
from bench.s3server.faults import SLOW_DOWN
from fastfuse.index import saved
from fastfuse.s3.rate import RequestRate
from fastfuse.s3.retry_policy import RetryBudget, longest_pause_s

# Between two looks of a request whether its turn has come.
_LOOK_S = 0.001
T = TypeVar("T")
# A host at work: it yields the seconds until it goes on.
Steps = Generator[float, None, T]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """The hosts, what each of them does, and the service."""

    hosts: int
    # They start within this time.
    spread_s: float = 0.0
    # The time of a process until its first request, and from the index to a mount that is ready.
    start_s: float = 0.0
    mount_s: float = 0.0
    # The listing: its pages, which come at this rate however many are asked for at once.
    pages: int
    page_s: float
    shares_index: bool = True
    index_parts: int = 1
    # The number of hosts that die half-way through their listing.
    deaths: int = 0
    # GETs of each host, and how many of them it makes at once.
    files: int
    readers: int
    latency_s: float
    # Requests of any kind, from a bucket that holds those of one second.
    allowed_per_s: float


@dataclass(slots=True)
class Outcome:
    """Requests by operation, those that were refused, and when each host was ready to read and had read everything."""

    requests: Counter[str] = field(default_factory=Counter)
    refused: int = 0
    ready_s: list[float] = field(default_factory=list)
    done_s: list[float] = field(default_factory=list)
    in_second: Counter[int] = field(default_factory=Counter)

    @property
    def refused_share(self) -> float:
        return self.refused / self.requests.total()

    def used_share(self, allowed_per_s: float) -> float:
        """The requests that were answered while hosts read, of those that the service allows."""
        answered = self.requests["GetObject"] * (1 - self.refused_share)
        return answered / (max(self.done_s) - min(self.ready_s)) / allowed_per_s


class _Client:
    """The retries and the rate of one process, as `s3.client` has them."""

    def __init__(self) -> None:
        self.rate = RequestRate()
        self.budget = RetryBudget()
        self.is_troubled = False
        self.waiting = 0
        # The requests that wait for a turn, by number, the first of which has it, and when that comes.
        self.turns: deque[int] = deque()
        self.turn_s = 0.0

    def failed(self, now_s: float, failures: int) -> None:
        if failures == 1:
            self.rate.throttled(now_s)
        self.is_troubled = True
        self.waiting += failures == 1

    def answered(self, now_s: float, failures: int) -> None:
        self.waiting -= failures > 0
        if self.is_troubled or self.rate.is_limited:
            self.rate.answered(now_s)
        if self.is_troubled:
            self.budget.answered()
            self.is_troubled = self.waiting > 0


class _Simulation:
    def __init__(self, fleet: Fleet, seed: int) -> None:
        self.outcome = Outcome()
        self._fleet = fleet
        self._random = random.Random(seed)
        self._now_s = 0.0
        self._number = count()
        self._due: list[tuple[float, int, Steps[None]]] = []
        self._tokens, self._filled_s = fleet.allowed_per_s, 0.0
        # The objects that hosts share: whether there is an index, and the version and the end of the claim.
        self._has_index = False
        self._claim, self._claimed_until_s = 0, -inf
        self._deaths_left = fleet.deaths

    def run(self) -> None:
        for _ in range(self._fleet.hosts):
            self._start(self._host(), self._random.uniform(0, self._fleet.spread_s))
        while self._due:
            self._now_s, number, steps = heapq.heappop(self._due)
            if (pause_s := next(steps, None)) is not None:
                heapq.heappush(self._due, (self._now_s + pause_s, number, steps))

    def _start(self, steps: Steps[None], after_s: float = 0.0) -> None:
        heapq.heappush(self._due, (self._now_s + after_s, next(self._number), steps))

    def _host(self) -> Steps[None]:
        fleet = self._fleet
        yield fleet.start_s
        if not fleet.shares_index:
            yield from self._list(_Client())
        elif not (yield from self._share()):
            return
        yield fleet.mount_s
        self.outcome.ready_s.append(self._now_s)
        client, left = _Client(), [fleet.files]
        for _ in range(fleet.readers):
            self._start(self._read(client, left))

    def _read(self, client: _Client, left: list[int]) -> Steps[None]:
        """Read files until none is `left` to begin; the reader of the last one ends the host's work."""
        while left[0] > 0:
            left[0] -= 1
            yield from self._ask("GetObject", client)
        left[0] -= 1
        if left[0] == -self._fleet.readers:
            self.outcome.done_s.append(self._now_s)

    def _share(self) -> Steps[bool]:
        """List for all hosts, or wait for the index and load it; return False if the host dies meanwhile."""
        client, pause_s = _Client(), saved.FIRST_PAUSE_S
        while not (yield from self._head(client)):
            seen, is_free = yield from self._ask("HeadObject", client, self._see)
            if is_free and (yield from self._ask("PutObject", client, partial(self._take, seen))):
                # Conditions are tried, of which the service refuses two, and the index is looked for again.
                for _ in range(3):
                    yield from self._ask("PutObject", client)
                if not (yield from self._head(client)):
                    return (yield from self._list_for_all(client))
                yield from self._release(client)
                break
            yield self._random.uniform(pause_s / 2, pause_s)
            pause_s = min(2 * pause_s, saved.LONGEST_PAUSE_S)
        yield from self._ask("HeadObject", client)
        for _ in range(self._fleet.index_parts):
            yield from self._ask("GetObject", client)
        yield from self._ask("GetObject", client)  # a byte of an object
        return True

    def _head(self, client: _Client) -> Steps[bool]:
        return (yield from self._ask("HeadObject", client, lambda: self._has_index))

    def _see(self) -> tuple[int, bool]:
        return self._claim, self._now_s >= self._claimed_until_s

    def _take(self, seen: int) -> bool:
        if self._claim != seen:
            return False
        self._claim, self._claimed_until_s = seen + 1, inf
        return True

    def _list_for_all(self, client: _Client) -> Steps[bool]:
        if self._deaths_left:
            self._deaths_left -= 1
            yield self._fleet.pages * self._fleet.page_s / 2
            self._claimed_until_s = self._now_s + saved.EXPIRY_S
            return False
        yield from self._list(client)
        yield from self._ask("PutObject", client)
        self._has_index = True
        yield from self._release(client)
        return True

    def _release(self, client: _Client) -> Steps[None]:
        yield from self._ask("PutObject", client)
        self._claimed_until_s = -inf

    def _list(self, client: _Client) -> Steps[None]:
        for _ in range(self._fleet.pages):
            yield from self._ask("ListObjectsV2", client)
        yield from self._ask("GetObject", client)  # a byte of an object

    def _ask(self, operation: str, client: _Client, act: Callable[[], T | None] = lambda: None) -> Steps[T]:
        """Return what `act` finds at the service once it answers the request."""
        for failures in count():
            if operation == "GetObject" and client.rate.is_limited:
                yield from self._take_turn(client)
            self.outcome.requests[operation] += 1
            self.outcome.in_second[int(self._now_s)] += 1
            is_allowed = self._is_allowed()
            found = act() if is_allowed else None
            yield self._fleet.page_s if operation == "ListObjectsV2" else self._fleet.latency_s
            if is_allowed:
                client.answered(self._now_s, failures)
                return found  # type: ignore[return-value]  # as `act` has it
            self.outcome.refused += 1
            client.failed(self._now_s, failures + 1)
            yield max(self._random.random() * longest_pause_s(failures + 1), client.budget.wait_s(self._now_s))
        raise AssertionError

    def _take_turn(self, client: _Client) -> Steps[None]:
        number = next(self._number)
        client.turns.append(number)
        while client.turns[0] != number:
            yield max(client.turn_s - self._now_s, _LOOK_S)
        client.turn_s = client.rate.turn_s(self._now_s)
        yield client.turn_s - self._now_s
        client.rate.sent(client.turn_s)
        client.turns.popleft()

    def _is_allowed(self) -> bool:
        per_s = self._fleet.allowed_per_s
        self._tokens = min(max(1.0, per_s), self._tokens + (self._now_s - self._filled_s) * per_s)
        self._filled_s = self._now_s
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True


def simulate(fleet: Fleet, seed: int = 1) -> Outcome:
    """Return what becomes of `fleet`. Pure."""
    simulation = _Simulation(fleet, seed)
    simulation.run()
    return simulation.outcome


_BUCKET, _OBJECTS = "fleet", 4000


def measure(fleet: Fleet) -> Outcome:
    """Return what real mounts do, which this machine serves, and which all start at once."""
    objects = MemoryObjects({f"set/{number:05}": b"x" * 4096 for number in range(_OBJECTS)})
    pace = Pace(first_byte_delay_s=fleet.latency_s, list_delay_s=fleet.page_s)
    config = ServerConfig(pace=pace, writes="conditional", clock_s=time.time, log_limit=0)
    rule = FaultRule(action=SLOW_DOWN, spared_per_s=fleet.allowed_per_s)
    outcome = Outcome()
    with (
        tempfile.TemporaryDirectory(prefix="fastfuse-fleet-") as place,
        LoopbackServer({_BUCKET: objects}, config) as server,
        ExitStack() as exits,
        ThreadPoolExecutor(fleet.hosts) as pool,
    ):
        limit = server.faults.add(rule)
        started_s = time.monotonic()

        def start(host: int) -> Path:
            root = Path(place, str(host))
            root.mkdir()
            arguments = ["--endpoint-url", server.endpoint_url, "--region", "us-east-1", "--force-path-style"]
            arguments += ["--memory-target", "128MiB"]
            arguments += ["--index", f"s3://{_BUCKET}/set.index", "--index-max-age", "1h"] * fleet.shares_index
            log = Path(place, f"log{host}")
            exits.enter_context(
                MountProcess(f"s3://{_BUCKET}/set/", root, log_path=log, environment=ENVIRONMENT, arguments=arguments)
            )
            outcome.ready_s.append(time.monotonic() - started_s)
            return root

        def read(host: int) -> None:
            root = start(host)
            names = random.Random(host).sample(sorted(os.listdir(root)), fleet.files)
            with ThreadPoolExecutor(fleet.readers) as readers:
                for _ in readers.map(lambda name: (root / name).read_bytes(), names):
                    pass
            outcome.done_s.append(time.monotonic() - started_s)

        list(pool.map(read, range(fleet.hosts)))
        outcome.requests.update(server.statistics().requests)
        outcome.refused = server.faults.hits(limit)
    return outcome


def _calibrated(fleet: Fleet, real: Outcome) -> Fleet:
    """Return `fleet` as one real mount has it: its LIST requests, and its start beyond the time of its requests."""
    listing = replace(fleet, pages=real.requests["ListObjectsV2"])
    return replace(listing, start_s=max(0.0, real.ready_s[0] - simulate(listing).ready_s[0]))


def _row(name: str, fleet: Fleet, outcome: Outcome) -> str:
    asked, ready = outcome.requests, outcome.ready_s
    used, refused = outcome.used_share(fleet.allowed_per_s), outcome.refused_share
    busiest = max(outcome.in_second.values(), default=0)
    cells = [
        *(
            name,
            str(asked["ListObjectsV2"]),
            f"{asked['HeadObject'] + asked['PutObject']:,}",
            f"{asked['GetObject']:,}",
        ),
        *(f"{statistics.median(ready):.1f}", f"{max(ready):.1f}", f"{max(outcome.done_s) - min(ready):.1f}"),
        *(f"{used:.2f}", f"{refused:.1%}", f"{busiest:,}" if busiest else "–"),
    ]
    return f"| {' | '.join(cells)} |"


_HEAD = (
    "| hosts | LIST | HEAD, PUT | GET | ready, median s | last s | reading, s | used | refused | busiest second |\n"
    "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|"
)
# Real mounts: a service that is slow enough for this machine.
_SMALL = Fleet(hosts=1, pages=4, page_s=0.1, files=600, readers=8, latency_s=0.02, allowed_per_s=150)
# S3: a million objects, listed as docs/MEASUREMENTS.md has it, and an index of 56 MB.
_LARGE = Fleet(
    hosts=1, spread_s=10, start_s=0.6, mount_s=0.1, pages=1078, page_s=0.0055, index_parts=7, files=0, readers=16,
    latency_s=0.03, allowed_per_s=5500,
)  # fmt: skip
_READ_S = 30.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Simulate, and measure what can be measured."""
    parser = argparse.ArgumentParser(
        "python -m bench.fleet", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hosts", type=int, nargs="*", default=[1, 10, 100, 1000], help="of the simulation")
    parser.add_argument("--real", type=int, nargs="*", default=[], metavar="N", help="mounts, beside their simulation")
    options = parser.parse_args(arguments)
    print(", ".join(f"{name} {value}" for name, value in describe().items()))
    if options.real:
        print(f"\n{_SMALL}\n\n{_HEAD}", flush=True)
        measure(_SMALL)  # the first start of all reads modules from the disk
        model, cores = _calibrated(_SMALL, measure(_SMALL)), len(os.sched_getaffinity(0))
        for hosts in options.real:
            fleet = replace(model, hosts=hosts, start_s=model.start_s * max(1.0, hosts / cores))
            print(_row(f"{hosts} real", fleet, measure(fleet)), flush=True)
            print(_row(f"{hosts} simulated", fleet, simulate(fleet)), flush=True)
    if options.hosts:
        print(f"\n{_LARGE}\n\n{_HEAD}", flush=True)
        for hosts in options.hosts:
            fleet = replace(_LARGE, hosts=hosts, files=round(_READ_S * _LARGE.allowed_per_s / hosts))
            ways = {
                "": fleet,
                ", one dies": replace(fleet, deaths=1),
                ", each lists": replace(fleet, shares_index=False),
            }
            for name, each in ways.items():
                if hosts > each.deaths:
                    print(_row(f"{hosts:,}{name}", each, simulate(each)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
