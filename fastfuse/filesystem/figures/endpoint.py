"""Keep a process alive that answers /metrics and /healthz.

It listens at one port for as long as the mount or the job lives: what comes while no process lives is answered by the
next one.
"""

import logging
import os
import signal
import socket
import time
from collections.abc import Mapping
from math import inf

from fastfuse.filesystem.processes.children import Fork, NoRoomError, how_it_ended, wait_child
from fastfuse.filesystem.processes.privileges import become_nobody
from fastfuse.metrics import Counters

_log = logging.getLogger(__name__)

# Between the starts of two processes. A liveness probe of Kubernetes fails 20 s after the last answer at the earliest.
_START_EVERY_S = 5.0


class MetricsEndpoint:
    """The metrics endpoint of a mount or a job, if it has one."""

    def __init__(self, address: tuple[str, int] | None, channels: Mapping[str, Counters], fork: Fork) -> None:
        """Prepare it. `channels` are a job's counters by channel; those of a mount are under an empty name."""
        self._address = address
        self._channels = channels
        self._fork = fork
        self.listener: socket.socket | None = None
        # 0 while no process lives.
        self.pid = 0
        self._started_s = -inf

    def open(self) -> None:
        """Listen, and start the process.

        Raises:
            MountError: the address cannot be listened on.
            NoRoomError: no process can be started.
        """
        if self._address is not None:
            from fastfuse.filesystem.figures.scrapes import bind_metrics, endpoint_url

            self.listener = bind_metrics(*self._address)
            _log.info("metrics are served at %s", endpoint_url(self.listener))
            self._start(self.listener)

    def child_ended(self, pid: int, exit_code: int) -> None:
        """Note that the caller reaped the process `pid`."""
        if pid == self.pid:
            self.pid = 0
            _log.error("the metrics endpoint %s; it is started again", how_it_ended(exit_code))

    def renew(self) -> None:
        """End the process: the next one logs to the log file of now, which nobody may not open."""
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
        self.pid, self._started_s = 0, -inf

    def look_after(self) -> None:
        """Start another process if none lives; call it every second."""
        if self.listener is None or self.pid or time.monotonic() < self._started_s + _START_EVERY_S:
            return
        try:
            self._start(self.listener)
        except NoRoomError as error:
            _log.warning("the metrics endpoint cannot be started again yet: %s", error)

    def close(self) -> None:
        """End the process, and listen no more."""
        if self.listener is not None:
            self.listener.close()
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            wait_child(self.pid)

    def _start(self, listener: socket.socket) -> None:
        from fastfuse.filesystem.figures.scrapes import serve_metrics

        self._started_s = time.monotonic()

        def serve() -> None:
            become_nobody()
            serve_metrics(listener, self._channels)

        self.pid = self._fork(serve)
