"""Start ``fastfuse`` as a fork of a process that has loaded everything already.

Each command is a process of its own, with its own environment, streams and exit code, and a child of the tests. Only
the start is saved: half a second of CPU, in which an interpreter starts, loads the libraries of a mount, and makes the
options of all commands.
`python -m tests.forked FD` is the process that is forked. It has one thread. A command is forked twice: the fork
between ends at once, and the tests adopt the command as the nearest subreaper. It gets SIGTERM if they are killed.

Tests of the start itself, and commands that another program runs, start an interpreter as ever.
"""

import atexit
import ctypes
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, AnyStr, NoReturn

_ROOT = Path(__file__).parents[1]
_LOADED = (
    *("fastfuse.cli.main", "fastfuse.cli.source_output", "fastfuse.cli.status_command"),
    *("fastfuse.filesystem.supervisor", "fastfuse.filesystem.talking.control"),
    "fastfuse.sagemaker.description.cluster",
    *("fastfuse.sagemaker.description.job", "fastfuse.sagemaker.running.run"),
    # What typer converts a variable of the environment with, and what else a mount loads late.
    *("anycrc", "pydantic.fields", "pydantic.types", "pydantic.type_adapter", "zoneinfo", "encodings.idna"),
    "encodings.utf_8_sig",
)
_MOST_BYTES = 1 << 17
_PATIENCE_S = 60.0
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 1, 36, 37  # <sys/prctl.h>
_ADOPTED = b"adopted"
_forking = threading.Lock()


class Forked(subprocess.Popen[AnyStr]):
    """A `Popen` that forks ``python -m MODULE WORDS`` and ``python -c PROGRAM WORDS`` from a loaded process.

    Everything else is started as `Popen` does, and so is a command whose interpreter has other settings.
    """

    # Popen's own hook, with its own order of arguments.
    def _execute_child(
        self,
        args: Sequence[str],
        executable: str | None,
        preexec_fn: object,
        close_fds: bool,
        pass_fds: Sequence[int],
        cwd: Path | None,
        env: Mapping[str, str] | None,
        startupinfo: None,
        creationflags: int,
        shell: bool,
        *others: Any,  # noqa: ANN401
    ) -> None:
        fds, has_session = others[:6], others[-2]
        if preexec_fn or pass_fds or not _can_fork(args, env or os.environ):
            super()._execute_child(  # type: ignore[misc]
                args, executable, preexec_fn, close_fds, pass_fds, cwd, env,
                startupinfo, creationflags, shell, *others,
            )  # fmt: skip
            return
        request = {
            "words": list(args[1:]),
            "environment": dict(env or os.environ),
            "directory": str(cwd or Path.cwd()),
            "has_session": has_session,
        }
        streams = [fd if fd != -1 else number for number, fd in enumerate((fds[0], fds[3], fds[5]))]
        self.pid = _fork(request, streams)
        self._child_created = True
        self._close_pipe_fds(*fds)  # type: ignore[attr-defined]


def run_forked(command: Sequence[str], environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, and until no process of it has its output open."""
    with Forked(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            output, errors = process.communicate(timeout=_PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    return subprocess.CompletedProcess(command, process.returncode, output, errors)


def _can_fork(command: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Return whether an interpreter of the tests, with the settings of the loaded one, is to run the command."""
    asked = {name: value for name, value in environment.items() if name.startswith("PYTHON")}
    return command[0] == sys.executable and command[1] in ("-c", "-m") and asked.items() <= _settings().items()


def _settings() -> dict[str, str]:
    """Return the environment of the process that is forked, without the machine's own AWS configuration."""
    others = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    nowhere = {"AWS_CONFIG_FILE": "/nonexistent", "AWS_SHARED_CREDENTIALS_FILE": "/nonexistent"}
    return {**others, **nowhere, "PYTHONWARNINGS": "error::ResourceWarning"}


def _fork(request: Mapping[str, object], streams: list[int]) -> int:
    """Return the pid of a new child that runs the request."""
    answer, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with answer, theirs, _adopting():
        socket.send_fds(loaded(), [json.dumps(request).encode()], [theirs.fileno(), *streams])
        theirs.close()
        pid = int(answer.recv(_MOST_BYTES))
        assert answer.recv(_MOST_BYTES) == _ADOPTED
    return pid


@contextmanager
def _adopting() -> Iterator[None]:
    """Make this process the parent of what its descendants leave behind, which it may be already."""
    prctl = ctypes.CDLL(None).prctl
    before = ctypes.c_int()
    with _forking:
        prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0)
        prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        try:
            yield
        finally:
            prctl(_PR_SET_CHILD_SUBREAPER, before.value, 0, 0, 0)


@cache
def loaded() -> socket.socket:
    """Return the socket that takes the requests of the process that is forked, which the first call starts."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.forked", str(theirs.fileno())],
            pass_fds=[theirs.fileno()], cwd=_ROOT, stdin=subprocess.DEVNULL, env=_settings(),
        )  # fmt: skip

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


def _serve(control: socket.socket) -> dict[str, Any] | None:
    """Answer requests until the tests end; return the request of a command in the process that is to run it."""
    while True:
        data, fds, _, _ = socket.recv_fds(control, _MOST_BYTES, 4)
        if not data:
            return None
        between = os.fork()
        if between == 0:
            ours_fd = os.pidfd_open(os.getpid())
            pid = os.fork()
            if pid:
                os.write(fds[0], str(pid).encode())
                os._exit(0)
            select.select([ours_fd], [], [])  # from then on the tests are its parent
            os.close(ours_fd)
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
            for number, fd in enumerate(fds[1:]):
                os.dup2(fd, number)
        else:
            os.waitpid(between, 0)
            os.write(fds[0], _ADOPTED)
        for fd in fds:
            os.close(fd)
        if between == 0:
            request: dict[str, Any] = json.loads(data)
            return request


def _run(request: Mapping[str, Any]) -> None:
    """Be the command, from its settings to its exit."""
    # The streams are other files or pipes than when the loaded process began.
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    if request["has_session"]:
        os.setsid()
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["directory"])
    option, program, *words = request["words"]
    sys.argv = [option, *words]
    code: object = None
    try:
        if option == "-c":
            exec(program, {"__name__": "__main__"})
        else:
            runpy.run_module(program, run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        code = ended.code
    _end(code)


def _end(code: object) -> NoReturn:
    """Exit as the interpreter does, but leave the loaded modules as they are.

    To take them apart is to copy all that holds them: 70 ms of CPU. Tests with an interpreter of their own see it done.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        sys.exit(code)  # type: ignore[arg-type]
    if isinstance(code, int | None):
        os._exit(code or 0)
    sys.exit(code)  # type: ignore[arg-type]


def _make_once() -> None:
    """Make what each command would make anew, whatever it is: the options of all commands, and botocore's data."""
    import trio
    import typer

    from fastfuse.cli.main import app
    from fastfuse.s3.aws import S3Session
    from fastfuse.s3.base import ConnectionConfig
    from fastfuse.s3.endpoints import load_rules
    from fastfuse.s3.upload import load_writer

    typer.main.get_group = cache(typer.main.get_group)
    typer.main.get_group(app)
    session = S3Session(ConnectionConfig(sign_request=False))
    load_rules(session)
    trio.run(load_writer, session)


def main() -> None:
    """Load what commands need, and run each command that is asked for in a fork."""
    from fastfuse.cli import startup

    startup.prepare()
    for name in _LOADED:
        importlib.import_module(name)
    _make_once()
    gc.freeze()
    with socket.socket(fileno=int(sys.argv[1])) as control:
        request = _serve(control)
    if request is not None:
        _run(request)


if __name__ == "__main__":
    main()
