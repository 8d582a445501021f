"""Run commands of fastfuse that end by themselves as forks of a process that has loaded everything already.

Each command is a process of its own, with its own environment, streams and exit code. Only the start is saved: half a
second of CPU, in which an interpreter starts and loads the libraries of a mount. `python -m tests.forked FD` is the
process that is forked. It has one thread, and runs one command after another.
"""

import atexit
import ctypes
import gc
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from tests.mounting import ENVIRONMENT

__all__ = ["run_forked"]

_ROOT = Path(__file__).parents[1]
_LOADED = ("cli.main", "cli.index_command", "filesystem.supervisor", "filesystem.control")
_MOST_BYTES = 1 << 17
_PATIENCE_S = 60.0
_PR_SET_CHILD_SUBREAPER = 36  # <sys/prctl.h>


def run_forked(
    *words: str, environment: Mapping[str, str] = ENVIRONMENT, with_descendants: bool = False
) -> subprocess.CompletedProcess[str]:
    """Run ``fastfuse WORDS`` to its end, or `with_descendants` until every process that it started has ended, too."""
    answer, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with answer, theirs, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        request = {
            "words": words,
            "environment": dict(environment),
            "directory": str(Path.cwd()),
            "with_descendants": with_descendants,
        }
        fds = [theirs.fileno(), out.fileno(), err.fileno()]
        socket.send_fds(_server(), [json.dumps(request).encode()], fds)
        theirs.close()
        answer.settimeout(_PATIENCE_S)
        pid = int(answer.recv(_MOST_BYTES))
        try:
            code = int(answer.recv(_MOST_BYTES))
        except TimeoutError as error:
            os.kill(pid, signal.SIGKILL)
            raise subprocess.TimeoutExpired(list(words), _PATIENCE_S) from error
        texts = []
        for stream in (out, err):
            stream.seek(0)
            texts.append(stream.read().decode().replace("\r\n", "\n"))
    return subprocess.CompletedProcess(["fastfuse", *words], code, *texts)


@cache
def _server() -> socket.socket:
    """Start the process that is forked, once, and return the socket that takes its requests."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.forked", str(theirs.fileno())],
            pass_fds=[theirs.fileno()], cwd=_ROOT, stdin=subprocess.DEVNULL,
            env={**os.environ, "PYTHONWARNINGS": "error::ResourceWarning"},
        )  # fmt: skip

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


def _serve(control: socket.socket) -> dict[str, Any] | None:
    """Answer requests until the tests end; return the request of a command in the process that is to run it."""
    while True:
        data, fds, _, _ = socket.recv_fds(control, _MOST_BYTES, 3)
        if not data:
            return None
        request: dict[str, Any] = json.loads(data)
        adopts = int(request["with_descendants"])
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, adopts, 0, 0, 0)
        pid = os.fork()
        if pid == 0:
            return _as_command(request, *fds)
        os.write(fds[0], str(pid).encode())
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        with suppress(ChildProcessError):
            while adopts:
                os.waitpid(-1, 0)
        os.write(fds[0], str(code).encode())
        for fd in fds:
            os.close(fd)


def _as_command(request: dict[str, Any], answer_fd: int, out_fd: int, err_fd: int) -> dict[str, Any]:
    os.dup2(out_fd, 1)
    os.dup2(err_fd, 2)
    for fd in (answer_fd, out_fd, err_fd):
        os.close(fd)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["directory"])
    return request


def main() -> None:
    """Load what commands need, and run each command that is asked for in a fork."""
    from fastfuse.cli import startup

    startup.prepare()
    for name in _LOADED:
        importlib.import_module(f"fastfuse.{name}")
    gc.freeze()
    with socket.socket(fileno=int(sys.argv[1])) as control:
        request = _serve(control)
    if request is not None:
        from fastfuse.cli.main import main as fastfuse

        sys.argv = ["fastfuse", *request["words"]]
        sys.exit(fastfuse())


if __name__ == "__main__":
    main()
