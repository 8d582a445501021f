"""Runs servers in processes of their own: workers that share one listening socket, and a handle to start them.

The kernel hands a new connection to a worker that waits for one, so workers share the load without a balancer.
"""

import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Self

from fastfuse.errors import FastfuseError
from fastfuse.testing.buckets import ObjectSet
from fastfuse.testing.server import LoopbackServer, bind_loopback
from fastfuse.testing.server_config import Pace, ServerConfig, TlsFiles

__all__ = ["ServerProcess", "Workers"]

# Ending takes milliseconds; a process that needs longer is killed.
_STOP_S = 10.0


def _work(
    buckets: Mapping[str, ObjectSet], config: ServerConfig, listener: socket.socket, life: tuple[int, int]
) -> None:
    alive, parents_end = life
    os.close(parents_end)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with LoopbackServer(buckets, config, listener=listener):
        # Nothing is ever written to this pipe. It ends when the parent ends, in whatever way.
        os.read(alive, 1)


class Workers:
    """`count` forks of this process that serve until they are closed. The caller has no threads yet."""

    def __init__(self, buckets: Mapping[str, ObjectSet], config: ServerConfig, count: int) -> None:
        self._life = os.pipe()
        context = multiprocessing.get_context("fork")
        with bind_loopback(config.port) as listener:
            self.port: int = listener.getsockname()[1]
            arguments = (buckets, config, listener, self._life)
            self._processes = [context.Process(target=_work, args=arguments) for _ in range(count)]
            for process in self._processes:
                process.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._life[1])
        for process in self._processes:
            process.join(_STOP_S)
            if process.is_alive():
                process.kill()
                process.join()
            process.close()
        os.close(self._life[0])


def _arguments(source: Path | str, bucket: str, workers: int, pace: Pace, tls: TlsFiles | None) -> list[str]:
    arguments = ["--synthetic", source] if isinstance(source, str) else ["--dir", str(source)]
    arguments += ["--bucket", bucket, "--workers", str(workers), "--until-stdin-closes"]
    arguments += ["--first-byte-delay-s", str(pace.first_byte_delay_s), "--list-delay-s", str(pace.list_delay_s)]
    arguments += ["--rate-bytes-per-s", str(pace.rate_bytes_per_s)]
    if tls is not None:
        arguments += ["--tls-cert", str(tls.certificate), "--tls-key", str(tls.key)]
    return arguments


class ServerProcess:
    """``python -m fastfuse.testing`` with `workers` processes, running between ``with`` and its end.

    `source` is a directory, or the description of synthetic objects (`fastfuse.testing.synthetic.parse_synthetic`).
    It ends with this process, even if that is killed. `FastfuseError` if it does not start.
    """

    def __init__(
        self,
        source: Path | str,
        *,
        bucket: str = "bench",
        workers: int = 2,
        pace: Pace | None = None,
        tls: TlsFiles | None = None,
    ) -> None:
        self.bucket = bucket
        self.endpoint_url = ""
        self._command = [sys.executable, "-m", "fastfuse.testing"]
        self._command += _arguments(source, bucket, workers, pace or Pace(), tls)

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        ready = self._process.stdout.readline()
        if not ready:
            self._stop()
            raise FastfuseError(
                f"the loopback server ended with status {self._process.returncode} before it was ready",
                hint="its standard error says why",
            )
        self.endpoint_url = json.loads(ready)["endpoint_url"]
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def _stop(self) -> None:
        with self._process:
            if self._process.stdin is not None:
                self._process.stdin.close()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_STOP_S)
            if self._process.poll() is None:
                self._process.kill()
