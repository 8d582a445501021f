"""Runs ``fastfuse mount`` as a process of its own, as a user would start it."""

import http.client
import os
import re
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from fastfuse.errors import FastfuseError
from fastfuse.filesystem.mounting.mountpoint import find_mount, unmount

# The mount is detached if files are still open after this time.
_GRACE_S = 5.0
# Ending takes a second more. A mount that needs longer than this is killed.
_STOP_S = 15.0
_METRICS = re.compile(r"metrics are served at http://(\S+)/metrics")


class MountProcess:
    """A mount of `uri` at `mountpoint` between ``with`` and its end; entering waits until it is ready.

    Its log goes to `log_path`. A mount that does not start is a `FastfuseError` with its message and exit code.
    """

    def __init__(
        self,
        uri: str,
        mountpoint: Path,
        *,
        log_path: Path,
        environment: Mapping[str, str],
        arguments: Sequence[str] = (),
    ) -> None:
        self.mountpoint = mountpoint
        self.log_path = log_path
        self._environment = environment
        self._command = [sys.executable, "-m", "fastfuse", "mount", uri, str(mountpoint), *arguments]
        self._command += ["--grace-s", str(_GRACE_S), "--metrics-listen", "0"]

    @property
    def pid(self) -> int:
        return self.process.pid

    def __enter__(self) -> Self:
        self._notifications = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._notifications.bind("")  # a free abstract name, unix(7)
        name = "@" + self._notifications.getsockname()[1:].decode()
        with self.log_path.open("wb") as log:
            # A session of its own keeps Ctrl-C away from the mount; the bench then ends it in good order.
            self.process = subprocess.Popen(
                self._command,
                env={**self._environment, "NOTIFY_SOCKET": name},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            self._wait_ready()
        except BaseException:
            self._clean_up()
            raise
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._clean_up()

    @property
    def metrics_address(self) -> str:
        """``host:port`` of the metrics, which the mount chose and logged."""
        match = _METRICS.search(self.log_path.read_text())
        assert match is not None
        return match[1]

    def samples(self) -> Iterator[Sample]:
        """Scrape the metrics."""
        # urllib would ask a proxy.
        connection = http.client.HTTPConnection(self.metrics_address, timeout=_STOP_S)
        try:
            connection.request("GET", "/metrics")
            text = connection.getresponse().read().decode()
        finally:
            connection.close()
        return (sample for family in text_string_to_metric_families(text) for sample in family.samples)

    def _wait_ready(self) -> None:
        exited_fd = os.pidfd_open(self.process.pid)
        try:
            while True:
                readable, _, _ = select.select([self._notifications.fileno(), exited_fd], [], [])
                if self._notifications.fileno() not in readable:
                    raise self._start_error()
                if self._notifications.recv(4096) == b"READY=1":
                    return
        finally:
            os.close(exited_fd)

    def _start_error(self) -> FastfuseError:
        exit_code = self.process.wait()
        told = self.log_path.read_text().strip()
        message, _, hint = told.rpartition("fastfuse: error: ")[2].partition("\nhint: ")
        error = FastfuseError(message or f"the mount ended with status {exit_code} before it was ready", hint=hint)
        error.exit_code = exit_code
        return error

    def stop(self) -> int | None:
        """Send SIGTERM and return the exit code, or None if the mount does not end."""
        # Or the mount would wait for room to say that it stops.
        with suppress(OSError):
            while self._notifications.recv(4096, socket.MSG_DONTWAIT):
                pass
        self.process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            return self.process.wait(_STOP_S)
        return None

    def _clean_up(self) -> None:
        with self._notifications, self.process:
            if self.stop() is None:
                self.process.kill()
        if find_mount(self.mountpoint) is not None:
            unmount(self.mountpoint, lazy=True)
