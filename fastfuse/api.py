"""Mounts for Python programs. A daemon serves each, so nothing of it runs in the program: no thread, no event loop."""

import fcntl
import json
import logging
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any, TypeAlias

from fastfuse.cli.startup import IS_TEMPORARY, PROGRAM_FD, environment_without
from fastfuse.errors import AccessError, ConfigurationError, FastfuseError, MountError, SourceError
from fastfuse.filesystem.mounting.mountpoint import bdi_number, is_mounted, unmount
from fastfuse.filesystem.talking.control import ask_status, entry_of

Option: TypeAlias = str | int | float | bool | os.PathLike[str] | Sequence[str] | None

_KINDS: dict[int, type[FastfuseError]] = {
    kind.exit_code: kind for kind in (ConfigurationError, AccessError, SourceError, MountError)
}
# As `log.command_text` and the formatter for people in `log` write it.
_SAID = re.compile(r"^(?:fastfuse: (error|warning)|\S+ WARNING \S+): (.*)\n(?:hint: (.*)\n)?", re.MULTILINE)
_OPTION = re.compile(r"[a-z][a-z_]*")
# They change who the mount belongs to or where it is, or make none.
_RESERVED = {"channel", "daemon", "fuse_fd", "fuse_socket", "help", "help_all"}

_log = logging.getLogger(__name__)


class Mount:
    """A mount that this program made, until `unmount`, the end of its `with` block, or the end of the program."""

    def __init__(self, source: str, path: Path, device: str, program_fd: int, *, is_temporary: bool) -> None:
        self.source = source
        self.path = path
        self._device = device
        # A later mount may get the device, and never this number.
        self._bdi_number = bdi_number(device)
        self._program_fd, self._program_pipe = program_fd, os.fstat(program_fd)
        self._is_temporary = is_temporary
        self._is_mounted = True
        # A worker process that was forked has a copy of this object; the mount is not its.
        self._owner_pid = os.getpid()
        # Not atexit: a process that multiprocessing has forked, as for a data loader, ends without it. The children are
        # joined before what is below 0.
        self._finalizer = Finalize(None, self.unmount, exitpriority=-1)

    def __enter__(self) -> "Mount":
        return self

    def __exit__(self, *_: object) -> None:
        self.unmount()

    def __fspath__(self) -> str:
        return str(self.path)

    def __str__(self) -> str:
        # It is the path, as with pathlib: f"{mnt}/*.parquet" is a pattern of files.
        return str(self.path)

    def __repr__(self) -> str:
        return f"<{'mount' if self._is_mounted else 'former mount'} of {self.source} at {self.path}>"

    def unmount(self) -> None:
        """Take the mount away; files that are still open can be read to their end. Idempotent.

        Raises:
            MountError: it may not be unmounted, and can be tried again. One that is gone already is none of that.
        """
        if not self._is_mounted or os.getpid() != self._owner_pid:
            return
        # A program that ignores SIGCHLD is given no exit code of fusermount3.
        failure = MountError(f"{self.path} is still mounted", hint=f"fusermount3 -u -z {self.path} may say why")
        try:
            if self._is_there():
                # This process does it, because fastfuse's own files may be gone by the end of a program.
                unmount(self.path, lazy=True, device=self._device)
        except MountError as error:
            failure = error
        if self._is_there():
            raise failure
        self._is_mounted = False
        self._finalizer.cancel()
        with suppress(OSError):  # the program may have closed it, and have another file of this number
            if os.path.samestat(os.fstat(self._program_fd), self._program_pipe):
                os.close(self._program_fd)
        if self._is_temporary:
            with suppress(OSError):  # somebody else may have put something there
                self.path.rmdir()

    def _is_there(self) -> bool:
        """Return whether this mount is at its path, even if another one covers it."""
        return is_mounted(self.path, self._device) and bdi_number(self._device) == self._bdi_number


def mount(source: str, path: str | os.PathLike[str] | None = None, **options: Option) -> Mount:
    """Mount `source`, ``s3://BUCKET/PREFIX``, at `path` (a new temporary directory if left out) and return it.

    `options` are those of ``fastfuse mount``: ``memory_target="4GiB"`` is ``--memory-target 4GiB``, ``training=True``
    is ``--training``, and a list repeats its option. One that is None or False is left out, and so is its
    variable, with those that refine it (``FASTFUSE_CACHE_SIZE``). A daemon serves the mount, and logs to ``log_file``
    or to syslog. It ends with the program, killed or not.

    Raises:
        ConfigurationError: an option is wrong, or there is no such option.
        AccessError: there are no credentials, or the source may not be read with them.
        SourceError: there is no such source.
        MountError: this machine does not permit the mount.
        FastfuseError: anything else, such as a service that does not answer.
    """
    words = [word for name, value in options.items() for word in _words(name, value)]
    left_out = [name for name, value in options.items() if value is None or value is False]
    place = (_temporary_directory() if path is None else Path(path)).absolute()
    # The daemon ends once nobody has the writing end: neither this process nor what it forks or becomes (exec).
    reading_fd, program_fd = _inheritable_pipe()
    variables = {PROGRAM_FD: str(reading_fd)} | ({IS_TEMPORARY: "1"} if path is None else {})
    command = error = None
    try:
        words = ["mount", "--daemon", *words, "--", source, str(place)]
        command = _started(words, left_out=left_out, variables=variables, fd=reading_fd)
        stderr = command.communicate()[1]
        error = _error_of(command.returncode, stderr)
        if error is not None:
            raise error
        made = Mount(source, place, entry_of(place).device, program_fd, is_temporary=path is None)
    except BaseException:  # Ctrl-C, or what a handler of another signal raises
        os.close(program_fd)
        if command is not None:
            with command, suppress(FastfuseError):
                if command.wait() == 0 and error is None:
                    unmount(place, lazy=True)
        if path is None:
            with suppress(OSError):
                place.rmdir()
        raise
    finally:
        os.close(reading_fd)
    for _, message, hint in _said(stderr):
        _log.warning("%s", f"{message} (hint: {hint})" if hint else message)
    return made


def stats(mnt: Mount | str | os.PathLike[str]) -> dict[str, Any]:
    """Return what a mount did and does, as ``fastfuse status --json`` shows it (docs/OPERATIONS.md).

    Raises:
        MountError: nothing of fastfuse is mounted there, or it does not answer.
    """
    return ask_status(entry_of(Path(mnt)))


def _inheritable_pipe() -> tuple[int, int]:
    """Make a pipe, with numbers beyond those of the standard streams: the program may have closed these."""
    ends = os.pipe()
    try:
        return fcntl.fcntl(ends[0], fcntl.F_DUPFD, 3), fcntl.fcntl(ends[1], fcntl.F_DUPFD, 3)
    finally:
        for fd in ends:
            os.close(fd)


def _temporary_directory() -> Path:
    """Make a directory to mount at."""
    try:
        return Path(tempfile.mkdtemp(prefix="fastfuse-"))
    except OSError as error:
        hint = "name a place with mount(source, path), or a writable directory with TMPDIR"
        raise MountError(f"no temporary directory can be made: {error.strerror}", hint=hint) from error


def _words(name: str, value: Option) -> list[str]:
    if not _OPTION.fullmatch(name) or name in _RESERVED:
        raise ConfigurationError(f"fastfuse.mount() has no option {name!r}", hint="'fastfuse mount --help-all' has all")
    option = "--" + name.replace("_", "-")
    if value is None or value is False:
        return []
    if value is True:
        return [option]
    if name == "umask" and isinstance(value, int):
        raise ConfigurationError(f"umask {value} is a number, and not written in octal", hint="write it as umask='022'")
    if isinstance(value, str | int | float | os.PathLike):
        return [f"{option}={os.fspath(value) if isinstance(value, os.PathLike) else value}"]
    return [f"{option}={one}" for one in value]


def _started(
    words: Sequence[str], *, left_out: Sequence[str], variables: Mapping[str, str], fd: int
) -> subprocess.Popen[str]:
    # -P: a file of the caller's directory must not take the place of a module.
    command = [sys.executable, "-P", "-m", "fastfuse", *words]
    without = {f"FASTFUSE_{name.upper()}" for name in (*_RESERVED, *left_out)}
    # PYTHONINSPECT: it would end with a prompt, and not with its code.
    environment = environment_without(without | {"PYTHONINSPECT", IS_TEMPORARY}) | dict(variables)
    try:
        return subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            text=True, errors="backslashreplace", pass_fds=[fd],
        )  # fmt: skip
    except OSError as error:
        hint = "see whether this program's Python is still there, and whether the machine has room for a process"
        raise MountError(f"fastfuse cannot be started: {error}", hint=hint) from error


def _error_of(exit_code: int, stderr: str) -> FastfuseError | None:
    """Return the error with which the command ended, or None if it has mounted."""
    refusal = next(((message, hint) for is_error, message, hint in _said(stderr) if is_error), None)
    # A program that ignores SIGCHLD is given no exit code of a child: each seems to be 0.
    if not exit_code and refusal is None:
        return None
    kind = _KINDS.get(exit_code, FastfuseError)
    if refusal is None:
        return kind(f"fastfuse ended with exit code {exit_code}: {stderr.strip()[-1000:]}")
    message, hint = refusal
    error = kind(message, hint=hint)
    if hint:
        error.add_note(f"hint: {hint}")  # a traceback shows it
    return error


def _said(stderr: str) -> Iterator[tuple[bool, str, str]]:
    """Yield message and hint of each warning, and of the error with which a command ended, with True."""
    for level, message, hint in _SAID.findall(stderr):
        yield level == "error", message, hint
    for line in re.findall("^{.*}$", stderr, re.MULTILINE):
        with suppress(ValueError, KeyError):
            record = json.loads(line)
            if record["level"] == "warning" or "exit_code" in record:
                yield "exit_code" in record, record["message"], record.get("hint", "")
