"""What a mount's processes hold, from proc(5) and the mount's metrics: descriptors, threads, sockets, memory."""

import os
import re
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from bench.processes import pss_bytes
from bench.soak.mounting import SoakMount
from fastfuse.demo.processes import process_tree

__all__ = ["holdings", "is_alive", "sample", "settled"]

_PROC = Path("/proc")
_SETTLE_S = 30.0
_POLL_S = 0.25
_SHARED_MEMORY = re.compile(r"\S+ \S+ \S+ \S+ (\d+)\s+(/memfd:\S+|/dev/shm/\S+)")


def is_alive(pid: int) -> bool:
    try:
        return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def holdings(mount: SoakMount) -> dict[str, float]:
    """Return what may not grow while nobody reads; connections to S3 are kept for the next reads, so are left out."""
    tree = process_tree(mount.pid)
    kinds: Counter[str] = Counter(
        f"descriptors: {kind}" for pid in tree for kind in _descriptor_kinds(pid) if kind != "TCP connection"
    )
    return {
        **kinds,
        "descriptors": sum(kinds.values()),
        "processes": len(tree),
        "threads": sum(_threads(pid) for pid in tree),
        "shared memory": len(set().union(*(_shared_memory(pid) for pid in tree))),
        "waiting reads": mount.metrics()["fastfuse_waiting_reads"],
    }


def sample(mount: SoakMount) -> dict[str, float]:
    """Return what a long run has to keep flat."""
    tree = process_tree(mount.pid)
    kinds = [kind for pid in tree for kind in _descriptor_kinds(pid)]
    return {
        "memory_bytes": pss_bytes(mount.pid),
        "descriptors": len(kinds),
        "connections": kinds.count("TCP connection"),
        "threads": sum(_threads(pid) for pid in tree),
        "processes": len(tree),
    }


def settled(mount: SoakMount, before: dict[str, float]) -> dict[str, float]:
    """Return the holdings once they are no more than `before`, or those of half a minute later."""
    until_s = time.monotonic() + _SETTLE_S
    while True:
        now = holdings(mount)
        if time.monotonic() > until_s or all(now.get(name, 0) <= before.get(name, 0) for name in {*now, *before}):
            return now
        time.sleep(_POLL_S)


def _threads(pid: int) -> int:
    with suppress(FileNotFoundError, ProcessLookupError):
        return len(os.listdir(_PROC / str(pid) / "task"))
    return 0


def _descriptor_kinds(pid: int) -> Iterator[str]:
    with suppress(FileNotFoundError, ProcessLookupError):
        tcp = _tcp_inodes(pid)
        for entry in os.listdir(_PROC / str(pid) / "fd"):
            with suppress(FileNotFoundError):
                target = os.readlink(_PROC / str(pid) / "fd" / entry)
                kind, _, rest = target.partition(":")
                if kind == "socket":
                    yield "TCP connection" if rest.strip("[]") in tcp else "socket"
                else:
                    yield kind if kind == "pipe" else target


def _tcp_inodes(pid: int) -> set[str]:
    """Return the inodes of established connections; not those of listening sockets."""
    lines = (_PROC / str(pid) / "net" / "tcp").read_text().splitlines()[1:]
    return {fields[9] for fields in map(str.split, lines) if fields[3] != "0A"}


def _shared_memory(pid: int) -> set[tuple[str, ...]]:
    with suppress(FileNotFoundError, ProcessLookupError):
        return set(_SHARED_MEMORY.findall((_PROC / str(pid) / "maps").read_text()))
    return set()
