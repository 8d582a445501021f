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

from fastfuse.filesystem.processes.children import Fork, NoRoomError, Procedure, Steps, how_it_ended, wait_child
from fastfuse.filesystem.processes.privileges import become_nobody
from fastfuse.metrics import Counters

_log = logging.getLogger(__name__)

# Between the starts of two processes. A liveness probe of Kubernetes fails 20 s after the last answer at the earliest.
_START_EVERY_S = 5.0


class MetricsEndpoint(Procedure):
    """The metrics endpoint of a mount or a job, if it has one."""

    def __init__(self, address: tuple[str, int] | None, channels: Mapping[str, Counters], fork: Fork) -> None:
        """Prepare it. `channels` are a job's counters by channel; those of a mount are under an empty name."""
        self._address = address
        self._channels = channels
        self._fork = fork
        self.listener: socket.socket | None = None
        super().__init__()

    def open(self) -> None:
        """Listen, and start the process.

        Raises:
            MountError: the address cannot be listened on.
        """
        if self._address is not None:
            from fastfuse.filesystem.figures.scrapes import bind_metrics, endpoint_url

            self.listener = bind_metrics(*self._address)
            _log.info("metrics are served at %s", endpoint_url(self.listener))
            self.go_on()

    def renew(self) -> None:
        """End the process: the next one logs to the log file of now, which nobody may not open."""
        self._end()

    def close(self) -> None:
        """End the process, and listen no more."""
        if self.listener is not None:
            self.listener.close()
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            wait_child(self.pid)

    def _run(self) -> Steps[None]:
        while self.listener is None:
            yield 0
        while True:
            next_s = time.monotonic() + _START_EVERY_S
            try:
                exit_code = yield self._fork(self._serve)
                _log.error("the metrics endpoint %s; it is started again", how_it_ended(exit_code))
            except NoRoomError as error:
                _log.warning("the metrics endpoint cannot be started yet: %s", error)
            while time.monotonic() < next_s:
                yield 0

    def _serve(self) -> None:
        from fastfuse.filesystem.figures.scrapes import serve_metrics

        become_nobody()
        assert self.listener is not None
        serve_metrics(self.listener, self._channels)
