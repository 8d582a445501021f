"""Answer the requests of the control socket that need no listing."""

import json
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from fastfuse.errors import MountError
from fastfuse.filesystem.children import error_message
from fastfuse.filesystem.control import INDEX, STATUS, TOP, TRACE, send_answer
from fastfuse.filesystem.worker_process import WorkerProcess

__all__ = ["is_answered"]


def is_answered(
    asked: Mapping[str, Any],
    connection: socket.socket,
    worker: WorkerProcess,
    status: Callable[[], dict[str, Any]],
    snapshot_fd: int,
) -> bool:
    """Answer what a client `asked`, or pass it on to the worker; return False if it is neither's. Never wait."""
    if asked["request"] == STATUS:
        send_answer(connection, json.dumps(status()).encode())
    elif asked["request"] == INDEX:
        with connection, suppress(OSError):  # the client may have gone
            socket.send_fds(connection, [b"{}"], [snapshot_fd])
    elif asked["request"] in {TRACE, TOP}:
        if worker.take_request(connection, asked):
            connection.close()
        else:
            send_answer(connection, error_message(MountError("no worker can answer now", hint="ask again")))
    else:
        return False
    return True
