"""What a mount says of itself: its source, its state, and its counters, with the rates of the last ten seconds."""

import logging
import os
import time
from collections import deque
from dataclasses import asdict
from typing import Any, Final

from fastfuse.filesystem.board import Board
from fastfuse.filesystem.kernel_readahead import readahead_kib
from fastfuse.filesystem.mount_settings import MountSettings
from fastfuse.filesystem.verdict import as_json, figures_of, summary_lines
from fastfuse.metrics import METRICS, Counters
from fastfuse.version import VERSION

__all__ = ["Recent", "status_of"]

_log = logging.getLogger(__name__)

# The counters whose rates are told.
_RATED: Final = (
    "fastfuse_read_served_bytes",
    "fastfuse_fetched_bytes",
    "fastfuse_requests",
    "fastfuse_blocked_seconds",
    "fastfuse_stalled_seconds",
)
_REQUESTS: Final = _RATED.index("fastfuse_requests")
_RATED_FOR_S: Final = 10.0


class Recent:
    """The counters of the last seconds, for rates."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._looks: deque[tuple[float, tuple[int, ...]]] = deque(maxlen=64)
        # The begin of the mount: in seconds since 1970, and on the monotonic clock.
        self.mounted_at = self._mounted_s = 0.0
        self._active_s = 0.0
        self._readahead_kib = 0

    def begin(self, device: str) -> None:
        """Note that the mount with the bdi `device` serves from now on."""
        self.mounted_at, self._mounted_s = time.time(), time.monotonic()
        self._readahead_kib = readahead_kib(device)

    def summary(self) -> dict[str, Any]:
        """Return what the mount did since it began, and whether readers waited for it."""
        elapsed_s = time.monotonic() - self._mounted_s
        figures = figures_of(
            self._counters, elapsed_s=elapsed_s, active_s=self._active_s, readahead_kib=self._readahead_kib
        )
        return as_json(figures)

    def tell_summary(self) -> None:
        """Log the summary of a mount that something was read from."""
        if self._counters.get("fastfuse_read_served_bytes"):
            for line in summary_lines(self.summary()):
                _log.info("%s", line)

    def look(self) -> None:
        """Note what the counters are now; call it about once a second."""
        now_s = time.monotonic()
        if not self._looks or now_s >= self._looks[-1][0] + 0.5:
            numbers = self._numbers()
            if self._looks and numbers[_REQUESTS] > self._looks[-1][1][_REQUESTS]:
                self._active_s += now_s - self._looks[-1][0]
            self._looks.append((now_s, numbers))

    def rates(self) -> dict[str, float]:
        """Return the seconds looked back on, and by how much each counter grew in one second of them."""
        now_s, numbers = time.monotonic(), self._numbers()
        first_s, first = next((look for look in self._looks if look[0] >= now_s - _RATED_FOR_S), (now_s, numbers))
        elapsed_s = now_s - first_s
        units = {metric.name: metric.unit for metric in METRICS}
        grown = zip(_RATED, numbers, first, strict=True)
        rates = {name: (now - then) * units[name] / elapsed_s if elapsed_s else 0.0 for name, now, then in grown}
        return {"seconds": elapsed_s, **rates}

    def _numbers(self) -> tuple[int, ...]:
        return tuple(self._counters.get(name) for name in _RATED)


def status_of(
    settings: MountSettings,
    endpoint_url: str | None,
    mountpoint: str,
    counters: Counters,
    recent: Recent,
    board: Board,
    *,
    worker_pid: int,
) -> dict[str, Any]:
    """Return the status of a mount as JSON can carry it. Times are in seconds since 1970.

    ``state`` is ``ok``, ``in trouble`` (requests to S3 are being tried again), ``stopping`` or ``no worker``.
    """
    shown, cache = board.read(), settings.cache
    trouble = shown.get("trouble")
    if counters.get("fastfuse_draining"):
        state = "stopping"
    elif not worker_pid:
        state = "no worker"
    else:
        state = "in trouble" if trouble else "ok"
    return {
        "fastfuse": 1,
        "version": VERSION,
        "pid": os.getpid(),
        "worker_pid": worker_pid,
        "source": str(settings.source),
        "mountpoint": mountpoint,
        "mounted_at": recent.mounted_at,
        "state": state,
        "trouble": trouble,
        "errors": shown.get("errors", []),
        "memory_target_bytes": settings.memory_target_bytes,
        "connection": asdict(settings.connection) | {"endpoint_url": endpoint_url},
        "cache": cache and asdict(cache) | {"directory": str(cache.directory)},
        "rates": recent.rates(),
        "summary": recent.summary(),
        "counters": counters.as_json(),
    }
