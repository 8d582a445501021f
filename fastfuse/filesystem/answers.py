"""Answer the requests of the control socket that need no listing."""

import json
import socket
from collections.abc import Callable, Mapping
from typing import Any

from fastfuse.errors import MountError
from fastfuse.filesystem.children import error_message
from fastfuse.filesystem.control import STATUS, TOP, TRACE, send_answer
from fastfuse.filesystem.worker_process import WorkerProcess

__all__ = ["is_answered"]


def is_answered(
    asked: Mapping[str, Any], connection: socket.socket, worker: WorkerProcess, status: Callable[[], dict[str, Any]]
) -> bool:
    """Answer what a client `asked`, or pass it on to the worker; return False if it is neither's. Never wait."""
    if asked["request"] == STATUS:
        send_answer(connection, json.dumps(status()).encode())
    elif asked["request"] in {TRACE, TOP}:
        if worker.take_request(connection, asked):
            connection.close()
        else:
            send_answer(connection, error_message(MountError("no worker can answer now", hint="ask again")))
    else:
        return False
    return True
