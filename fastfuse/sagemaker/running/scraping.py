"""The metrics of all channels of a job, served by a process of its own."""

import logging
import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from fastfuse.filesystem.children import fork_child, wait_child
from fastfuse.filesystem.privileges import as_nobody
from fastfuse.metrics import Counters, bind_metrics, endpoint_url, serve_metrics

__all__ = ["serving_metrics"]

_log = logging.getLogger(__name__)


@contextmanager
def serving_metrics(address: tuple[str, int] | None, channels: Mapping[str, Counters]) -> Iterator[None]:
    """Serve the counters of each channel at `address`, if there is one, while the context lasts.

    Enter it before a channel is opened: the process keeps a copy of every descriptor until it dies with this one.

    Raises:
        ConfigurationError: the address cannot be listened on.
    """
    if address is None:
        yield
        return
    with bind_metrics(*address) as listener:
        _log.info("metrics are served at %s", endpoint_url(listener))

        def serve() -> None:
            os.setpgid(0, 0)  # the terminal's Ctrl-C is for the command
            serve_metrics(listener, channels)

        pid = fork_child(as_nobody(serve))
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        with suppress(ChildProcessError):  # it died, and the run has reaped it
            wait_child(pid)
