"""Hit rates of the local tier's policy, beside LRU and the optimum, in simulation.

    python -m bench.tier_policy

The tier is simulated by its own catalog (SQLite, in memory) and its own policy; only the files are left out. A range
has 1 MiB and a segment 16 of them. The optimum knows the future (Belady, 1966).
"""

import random
import sqlite3
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from heapq import heappop, heappush

from fastfuse.cache.catalog import Extent, Index, create_in
from fastfuse.cache.policy import Returns, is_worth_it

MIB = 1 << 20
_SEGMENT = 16
# The ranges that a tier holds.
_CAPACITY = 640
_GOLDEN = 0x9E3779B97F4A7C15


class _Tier:
    """A tier of `capacity` ranges, as `cache.writer` and `cache.reader` use catalog and policy."""

    def __init__(self, capacity: int, connection: sqlite3.Connection) -> None:
        create_in(connection)
        self._index, self._returns = Index(connection), Returns(1 << 16)
        self._limit_bytes = capacity * MIB
        self._asked = self._now_bytes = 0
        self._pending: list[tuple[int, Extent]] = []
        self._hits: dict[int, int] = defaultdict(int)
        self._segment, self._filled = -1, _SEGMENT
        self._victim_bytes: int | None = None

    def get(self, name: int) -> bool:
        """Ask for a range; return whether it was kept."""
        self._asked += 1
        now_bytes = self._now_bytes + self._asked * MIB
        return_bytes = self._returns.ask(name * _GOLDEN % 2**64, now_bytes, MIB)
        found = self._index.find(name, 0, MIB)
        if found:
            self._hits[found[0].segment] += MIB
        elif self._victim_bytes is None or self._is_worth_it(return_bytes):
            self._keep(name, return_bytes)
        if self._asked >= 8:
            self._commit()
        return bool(found)

    def _keep(self, name: int, return_bytes: int | None) -> None:
        if self._filled == _SEGMENT and not self._roll(return_bytes):
            return
        self._pending.append((name, Extent(0, MIB, self._segment, self._filled * MIB, b"")))
        self._filled += 1

    def _roll(self, return_bytes: int | None) -> bool:
        self._commit()
        added = self._index.add(_SEGMENT * MIB, self._limit_bytes)
        if added is None:
            victim, self._victim_bytes = self._index.victims(1)[0]
            if not self._is_worth_it(return_bytes):
                return False
            self._index.evict(victim)
            added = self._index.add(_SEGMENT * MIB, self._limit_bytes)
        assert added is not None
        self._segment, self._filled = added.id, 0
        return True

    def _is_worth_it(self, return_bytes: int | None) -> bool:
        return is_worth_it(return_bytes, self._victim_bytes or 0, self._returns.long_bytes, self._limit_bytes)

    def _commit(self) -> None:
        filled = {self._segment: self._filled * MIB} if self._pending else {}
        self._now_bytes = self._index.commit(self._pending, filled, self._hits, self._asked * MIB)
        self._pending.clear()
        self._hits.clear()
        self._asked = 0
        if self._victim_bytes is not None:
            self._victim_bytes = self._index.victims(1)[0][1]


def tier(requests: Sequence[int], capacity: int = _CAPACITY) -> list[bool]:
    """Return which of `requests` the tier would have."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        simulated = _Tier(capacity, connection)
        return [simulated.get(name) for name in requests]


def lru(requests: Sequence[int], capacity: int = _CAPACITY) -> list[bool]:
    """Return which of `requests` a tier would have that evicts the least recently used range."""
    kept: OrderedDict[int, None] = OrderedDict()
    hits = []
    for name in requests:
        hits.append(name in kept)
        kept.pop(name, None)
        kept[name] = None
        if len(kept) > capacity:
            kept.popitem(last=False)
    return hits


def optimum(requests: Sequence[int], capacity: int = _CAPACITY) -> list[bool]:
    """Return which of `requests` a tier would have that evicts what is asked for again last, or does not keep it."""
    following: list[float] = [0.0] * len(requests)
    seen: dict[int, int] = {}
    for place in range(len(requests) - 1, -1, -1):
        following[place] = seen.get(requests[place], float("inf"))
        seen[requests[place]] = place
    kept: dict[int, float] = {}
    heap: list[tuple[float, int]] = []
    hits = []
    for name, again in zip(requests, following, strict=True):
        hits.append(name in kept)
        kept[name] = again
        heappush(heap, (-again, name))
        while len(kept) > capacity:
            last, victim = heappop(heap)
            if kept.get(victim) == -last:
                del kept[victim]
    return hits


def _scan(sizes: float, epochs: int, *, is_shuffled: bool = False) -> list[int]:
    names, chosen = list(range(int(sizes * _CAPACITY))), random.Random(1)
    return [name for _ in range(epochs) for name in (chosen.sample(names, len(names)) if is_shuffled else names)]


def _zipf(count: int, requests: int, exponent: float) -> list[int]:
    weights = [1 / rank**exponent for rank in range(1, count + 1)]
    return random.Random(2).choices(range(count), weights, k=requests)


def _next_set() -> list[int]:
    """Ten epochs of a set that fits, then ten of another."""
    return [*_scan(0.9, 10), *(name + 10**6 for name in _scan(0.9, 10))]


# The requests of each workload, and the request from which on hits are counted.
WORKLOADS: Mapping[str, Callable[[], tuple[list[int], int]]] = {
    "epochs of 0.9 sizes": lambda: (_scan(0.9, 6), int(0.9 * _CAPACITY)),
    "epochs of 1.2 sizes": lambda: (_scan(1.2, 8), int(1.2 * _CAPACITY)),
    "epochs of 2 sizes": lambda: (_scan(2, 8), 2 * _CAPACITY),
    "epochs of 2 sizes, shuffled": lambda: (_scan(2, 8, is_shuffled=True), 2 * _CAPACITY),
    "epochs of 5 sizes": lambda: (_scan(5, 8), 5 * _CAPACITY),
    "epochs of 5 sizes, shuffled": lambda: (_scan(5, 8, is_shuffled=True), 5 * _CAPACITY),
    "Zipf 0.8 of 8 sizes": lambda: (_zipf(8 * _CAPACITY, 60 * _CAPACITY, 0.8), 20 * _CAPACITY),
    "Zipf 1.0 of 8 sizes": lambda: (_zipf(8 * _CAPACITY, 60 * _CAPACITY, 1.0), 20 * _CAPACITY),
    "another set of 0.9 sizes after 10 epochs": lambda: (_next_set(), int(9 * _CAPACITY)),
}


def _rows() -> Iterator[str]:
    yield "| asked for | tier | LRU | optimum |\n|---|---:|---:|---:|"
    for name, make in WORKLOADS.items():
        requests, since = make()
        rates = [sum(hits[since:]) / len(hits[since:]) for hits in (tier(requests), lru(requests), optimum(requests))]
        yield f"| {name} | " + " | ".join(f"{rate:.2f}" for rate in rates) + " |"


if __name__ == "__main__":
    print(*_rows(), sep="\n")
