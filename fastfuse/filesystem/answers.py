"""Answer the requests of the control socket that need no listing."""

import json
import logging
import os
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from fastfuse import log
from fastfuse.errors import FastfuseError, MountError
from fastfuse.filesystem.figures.status import Board, Recent
from fastfuse.filesystem.mounting.mount_places import Place
from fastfuse.filesystem.mounting.mount_settings import MountSettings
from fastfuse.filesystem.processes.children import Fork, error_message
from fastfuse.filesystem.processes.hang_report import hang_report
from fastfuse.filesystem.refresh import Refresher
from fastfuse.filesystem.talking.control import (
    INDEX,
    LOG_LEVEL,
    PROTOCOL,
    RECORD,
    STACK,
    STATUS,
    TASKS,
    TOP,
    TRACE,
    send_answer,
)
from fastfuse.filesystem.worker_process import WorkerProcess
from fastfuse.s3.aws import S3Session
from fastfuse.version import VERSION

_log = logging.getLogger(__name__)

# A client that takes nothing for so long has gone.
_SEND_WITHIN_S = 20.0


@dataclass(frozen=True, slots=True)
class Answers:
    """The parts of a mount that answers are made of."""

    settings: MountSettings
    place: Place
    recent: Recent
    board: Board
    worker: WorkerProcess
    fork: Fork
    session: S3Session
    refresher: Refresher

    def give(self, asked: Mapping[str, Any], connection: socket.socket) -> bool:
        """Answer what a client `asked`; return False if that is not answered here. Never wait."""
        request = asked["request"]
        try:
            if request == STATUS:
                send_answer(connection, json.dumps(self.status()).encode())
            elif request == LOG_LEVEL:
                send_answer(connection, json.dumps(self._log_level(asked.get("level"))).encode())
            elif request == INDEX:
                with connection, suppress(OSError):  # the client may have gone
                    socket.send_fds(connection, [b"{}"], [self.refresher.table_fd])
            elif request in {TRACE, TOP, TASKS}:
                if not self.worker.take_request(connection, asked):
                    raise MountError("no worker can answer now", hint="ask again")
                connection.close()
            elif request in {STACK, RECORD}:
                # They take longer than the supervisor may.
                told = {"fastfuse": PROTOCOL, "pid": os.getpid(), "worker_pid": self.worker.pid}
                status = self.status()
                make = self._threads if request == STACK else lambda: self.recent.record(status)
                self.fork(lambda: _send(connection, told, make))
                connection.close()
            else:
                return False
        except FastfuseError as error:
            send_answer(connection, error_message(error))
        return True

    def status(self) -> dict[str, Any]:
        """Return the status of the mount as JSON can carry it. Times are in seconds since 1970.

        ``state`` is ``ok``, ``in trouble`` (requests to S3 are being tried again, or reads fail), ``stopping`` or ``no
        worker``.
        """
        settings, counters, cache, shown = self.settings, self.recent.counters, self.settings.cache, self.board.read()
        trouble = shown.get("trouble")
        if counters.get("fastfuse_draining"):
            state = "stopping"
        elif not self.worker.pid:
            state = "no worker"
        else:
            state = "in trouble" if trouble else "ok"
        return {
            "fastfuse": PROTOCOL,
            "version": VERSION,
            "pid": os.getpid(),
            "worker_pid": self.worker.pid,
            "source": str(settings.source),
            "mountpoint": str(self.place.mountpoint),
            "mounted_at": self.recent.mounted_at,
            "state": state,
            "trouble": trouble,
            "errors": shown.get("errors", []),
            "refresh_failure": self.refresher.failure,
            "memory_target_bytes": settings.memory_target_bytes,
            "connection": asdict(settings.connection) | {"endpoint_url": self.session.endpoint_url},
            "cache": cache and asdict(cache) | {"directory": str(cache.directory)},
            "rates": self.recent.rates(),
            "summary": self.recent.summary(),
            "counters": counters.as_json(),
        }

    def _log_level(self, level: object) -> dict[str, Any]:
        if level is not None:
            if level not in log.LEVELS:
                raise MountError("there is no such log level", hint=f"one of {', '.join(log.LEVELS)}")
            log.set_level(str(level))
            _log.log(logging.getLogger("fastfuse").level, "lines are logged from the level %s on", level)
            self.worker.take_log_level()
        return {"fastfuse": PROTOCOL, "level": log.level()}

    def _threads(self) -> dict[str, Any]:
        return {"threads": hang_report(self.worker.pid, self.worker.dump_fd) if self.worker.pid else []}


def _send(connection: socket.socket, told: Mapping[str, Any], make: Callable[[], dict[str, Any]]) -> None:
    with connection, suppress(OSError):  # the client may have gone
        connection.settimeout(_SEND_WITHIN_S)
        connection.sendall(json.dumps({**told, **make()}).encode())
