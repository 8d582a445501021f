"""Hand AWS credentials to processes that gave up the rights to find them.

The worker and the lister of a mount are nobody, so they cannot read a profile or run a ``credential_process``. Each has
one end of a socket, and asks there when its keys expire or are refused. At the other end of the worker's is the
supervisor, which starts a process with its own rights for each question: no process waits for the next one. At the
other end of the lister's is the process that the lister was before it became nobody, which also saves the index.
"""

import gc
import json
import logging
import os
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from datetime import datetime
from typing import Any

import trio

from fastfuse.errors import AccessError, FastfuseError, ServiceError
from fastfuse.filesystem.processes.children import (
    Fork,
    NoRoomError,
    die_with,
    error_message,
    fork,
    heard,
    how_it_ended,
    wait_child,
)
from fastfuse.filesystem.processes.privileges import become_nobody, confine
from fastfuse.filesystem.processes.sockets import raise_sigio
from fastfuse.s3.aws import S3Session
from fastfuse.s3.base import ConnectionConfig
from fastfuse.s3.credentials import Credentials, CredentialSource, resolve_credentials

_log = logging.getLogger(__name__)

_KEYS, _SAVE = b"keys", b"save"
_LONGEST_BYTES = 64 << 10
# A program may ask a person. The Go SDK gives a credential_process as long.
_RESOLVE_WITHIN_S = 60.0
# A read that waits for the keys names the cause only if the search ends before its deadline.
_SHARE_OF_DEADLINE = 0.75
# Whoever does not give up then is stuck in the kernel or in a library.
_KILL_AFTER_S = _RESOLVE_WITHIN_S + 5.0


def packed(credentials: Credentials) -> dict[str, Any]:
    """Return `credentials` as JSON can carry them, for `credentials_of`."""
    expires_at = credentials.expires_at and credentials.expires_at.isoformat()
    return asdict(credentials) | {"expires_at": expires_at}


def credentials_of(found: dict[str, Any]) -> Credentials:
    """Return the credentials that `packed` made into `found`."""
    expires_at = found["expires_at"] and datetime.fromisoformat(found["expires_at"])
    return Credentials(**found | {"expires_at": expires_at})


def ask_for_keys(session: S3Session, end: socket.socket) -> None:
    """Have `session` ask at this `end` of a socket for credentials, other than those that it has."""

    async def ask() -> Credentials:
        with suppress(BlockingIOError):  # an answer to whoever asked here and was cancelled
            while end.recv(_LONGEST_BYTES, socket.MSG_DONTWAIT):
                pass
        with suppress(OSError):  # nobody is there any more: nor will the answer be
            end.send(_KEYS)
        await trio.lowlevel.wait_readable(end)
        message = end.recv(_LONGEST_BYTES)
        if not message:
            raise AccessError("The AWS credentials cannot be had: the process that finds them has ended.")
        return credentials_of(heard(message))

    end.setblocking(False)
    if session.credentials is not None:
        latest = session.credentials.latest
        session.credentials = CredentialSource(ask)
        session.credentials.take(latest)


def give_up_rights(session: S3Session, save: Callable[[], None]) -> Callable[[], None]:
    """Go on as nobody in a new process. This one stays, with its rights, until that one ends, and ends alike.

    Return the function that has this one call `save`. `session` then asks this one for credentials.
    """
    theirs, ours = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    before = os.getpid()
    child = fork()
    if child:
        ours.close()
        try:
            with theirs, suppress(ConnectionError):
                confine(session)
                _serve(theirs, session.config, save)
        except Exception:  # noqa: BLE001 - there is no caller to raise it to
            _log.exception("credentials cannot be found, nor an index saved, for an unforeseen reason")
        finally:
            exit_code = wait_child(child)
            if exit_code < 0:
                os.kill(os.getpid(), -exit_code)
            os._exit(exit_code)
    theirs.close()
    die_with(before)
    become_nobody()
    ask_for_keys(session, ours)

    def ask_to_save() -> None:
        ours.setblocking(True)
        ours.send(_SAVE)
        ours.recv(1)

    return ask_to_save


def _serve(end: socket.socket, connection: ConnectionConfig, save: Callable[[], None]) -> None:
    while question := end.recv(len(_KEYS)):
        if question == _SAVE:
            save()
            end.send(b"+")
        else:
            end.send(_found(S3Session(connection)))


def _found(session: S3Session, within_s: float = _RESOLVE_WITHIN_S) -> bytes:
    """Return the message with the credentials that the new `session` finds, or with the reason why it finds none."""
    try:
        found = json.dumps(packed(trio.run(_resolve, session, within_s))).encode()
        if len(found) <= _LONGEST_BYTES:
            return found
        failed: FastfuseError = AccessError("The AWS credentials are longer than any request may be.")
    except FastfuseError as error:
        failed = error
    except Exception as error:  # noqa: BLE001 - its text may be what a program printed
        failed = AccessError(f"The AWS credentials cannot be had ({type(error).__name__}).")
    if not os.path.exists(__file__):  # an upgrade has taken this program's files away, which is the likely cause
        message = f"{failed} The files of this fastfuse were removed since it started: mount again."
        failed = type(failed)(message, hint=failed.hint)
    return error_message(failed)


async def _resolve(session: S3Session, within_s: float) -> Credentials:
    with trio.move_on_after(within_s):
        return await resolve_credentials(session.aws)
    raise ServiceError(
        f"The AWS credentials did not come within {within_s:g} s.",
        hint="Look whether the profile's credential_process hangs, or the service that issues them.",
    )


class KeyFinder:
    """Answers one worker after the other for the supervisor, which never waits for an answer."""

    def __init__(self, session: S3Session, fork: Fork) -> None:
        """`session`, whose files are read, keeps the newest credentials: the next worker begins with them."""
        self._session = session
        self._fork = fork
        self._pid = 0
        self._answer_fd = -1
        self._kill_at_s = 0.0
        self.end: socket.socket | None = None

    def new_end(self) -> socket.socket:
        """Return a new worker's end of the socket; the one before is closed."""
        if self.end is not None:
            self.end.close()
        self.end, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.end.setblocking(False)
        raise_sigio(self.end)
        return theirs

    def load(self) -> None:
        """Load now what the processes need to find credentials that expire: its files may not last as long as we do."""
        trio.run(self._session.load_renewal)
        # Forked processes share what is loaded, as they do after `Supervisor.run`.
        gc.freeze()

    def look_after(self) -> None:
        """Start a process if the worker asks and none runs; kill one that takes too long."""
        if self._pid:
            if time.monotonic() >= self._kill_at_s:
                os.kill(self._pid, signal.SIGKILL)
        elif self._is_asked():
            self._start()

    def child_ended(self, pid: int, exit_code: int) -> None:
        """Take the answer of the process `pid`, which the caller reaped, to the worker."""
        if pid != self._pid:
            return
        self._pid = 0
        with os.fdopen(self._answer_fd, "rb") as pipe:
            message = pipe.read()
        if not message:
            was_killed, is_late = exit_code == -signal.SIGKILL, time.monotonic() >= self._kill_at_s
            how = "did not end" if is_late else how_it_ended(exit_code)
            text = f"The AWS credentials cannot be had: the process that finds them {how}."
            hint = "out of memory?" if was_killed and not is_late else ""
            message = error_message((ServiceError if was_killed else AccessError)(text, hint=hint))
        self._is_asked()  # this is the answer to those questions, too
        self._answer(message)
        with suppress(FastfuseError):  # the worker logs it
            found = credentials_of(heard(message))
            if self._session.credentials is not None:
                self._session.credentials.take(found)

    def close(self) -> None:
        """Kill the process that runs, and close everything."""
        if self._pid:
            os.kill(self._pid, signal.SIGKILL)
            os.close(self._answer_fd)
            self._pid = 0
        if self.end is not None:
            self.end.close()

    def _start(self) -> None:
        try:
            self._answer_fd, writing_fd = os.pipe()
        except OSError as error:
            self._answer(
                error_message(NoRoomError(f"no process can be started: {error.strerror}", hint="see ulimit -n"))
            )
            return

        def find() -> None:
            session = S3Session(self._session.config)
            with suppress(FastfuseError):  # the answer is the same error
                confine(session)
            within_s = min(_RESOLVE_WITHIN_S, session.config.deadline_s * _SHARE_OF_DEADLINE)
            os.write(writing_fd, _found(session, within_s))

        try:
            self._pid = self._fork(find)
            self._kill_at_s = time.monotonic() + _KILL_AFTER_S
        except NoRoomError as error:
            os.close(self._answer_fd)
            self._answer(error_message(error))
        finally:
            os.close(writing_fd)

    def _is_asked(self) -> bool:
        """Take all questions, and return whether there was one."""
        assert self.end is not None
        is_asked = False
        with suppress(OSError):  # no more, or no worker
            while self.end.recv(len(_KEYS)):
                is_asked = True
        return is_asked

    def _answer(self, message: bytes) -> None:
        assert self.end is not None
        with suppress(OSError):  # the worker has died
            self.end.send(message)
