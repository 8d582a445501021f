"""Sums up the reads of a worker in each interval, for `fastfuse top`."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Protocol

import trio

from fastfuse.filesystem.access import Access, InHand, process_name
from fastfuse.filesystem.get_record import RecordedReader

__all__ = ["EngineView", "StreamView"]

# A view counts so many files in an interval, and shows those with the longest waits.
_MOST_STREAMS = 4096
_SHOWN = 64


class EngineView(Protocol):
    """The part of the read engine that tells how files are read."""

    def pattern(self, inode: int) -> tuple[str, int]:
        """Return how a file is read, and how many bytes may be ahead of its reader."""
        ...

    def memory(self) -> Mapping[str, int]:
        """Return how many bytes each use of the memory has."""
        ...


@dataclass(slots=True)
class _Stream:
    """The reads of one file in one interval."""

    pid: int = 0
    position: int = 0
    reads: int = 0
    read_bytes: int = 0
    blocked_s: float = 0.0


class StreamView:
    """A watcher of reads that is told once in each interval which files were read, and how."""

    def __init__(
        self,
        engine: EngineView,
        gets: RecordedReader,
        path: Callable[[int], str],
        in_hand: InHand,
        *,
        every_s: float,
    ) -> None:
        self._engine = engine
        self._gets = gets
        self._path = path
        self._in_hand = in_hand
        self._every_s = every_s
        self._streams: dict[int, _Stream] = {}

    def note(self, access: Access) -> None:
        """Add a read to those of its file."""
        stream = self._streams.get(access.inode)
        if stream is None:
            if len(self._streams) >= _MOST_STREAMS:
                return
            stream = self._streams[access.inode] = _Stream()
        stream.pid = access.pid
        stream.position = access.offset + access.size_bytes
        stream.reads += 1
        stream.read_bytes += 0 if access.error else access.size_bytes
        # A read that began in an earlier interval has waited for all of this one at most.
        stream.blocked_s += min(access.took_s, self._every_s)

    async def next_lines(self) -> bytes:
        """Return a line of JSON at the end of the interval."""
        await trio.sleep(self._every_s)
        now_s, waiting = perf_counter(), dict[int, float]()
        for inode, pid, began_s in self._in_hand.values():
            stream = self._streams.setdefault(inode, _Stream())
            stream.pid = stream.pid or pid
            waiting[inode] = max(waiting.get(inode, 0.0), now_s - began_s)
            stream.blocked_s += min(now_s - began_s, self._every_s)
        streams, self._streams = self._streams, {}
        longest = sorted(streams, key=lambda inode: (streams[inode].blocked_s, streams[inode].read_bytes), reverse=True)
        shown = [self._shown(inode, streams[inode], waiting.get(inode, 0.0)) for inode in longest[:_SHOWN]]
        gets = [
            {"seconds": took_s, "key": key, "start": start, "end": end, "runs": runs}
            for took_s, key, start, end, runs in self._gets.slowest()
        ]
        line = {
            "every_s": self._every_s,
            "streams": shown,
            "stream_count": len(streams),
            "gets": gets,
            "gets_running": self._gets.running,
            "memory": dict(self._engine.memory()),
        }
        return json.dumps(line).encode() + b"\n"

    def _shown(self, inode: int, stream: _Stream, waiting_s: float) -> dict[str, Any]:
        pattern, window_bytes = self._engine.pattern(inode)
        return {
            "path": self._path(inode),
            "position": stream.position,
            "pid": stream.pid,
            "process": process_name(stream.pid),
            "pattern": pattern,
            "window": window_bytes,
            "reads": stream.reads,
            "bytes": stream.read_bytes,
            "blocked_s": stream.blocked_s,
            "waiting_s": waiting_s,
        }
