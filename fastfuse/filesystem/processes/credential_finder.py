"""Hand AWS credentials to processes that gave up the rights to find them.

The worker and the lister of a mount are nobody, so they cannot read a profile or run a ``credential_process``. Each has
one end of a socket, and asks there when its credentials expire or are refused. At the other end of the worker's is the
supervisor, which starts a process with its own rights for each question: no process waits for the next one. At the
other end of the lister's is the process that the lister was before it became nobody, which also saves the index.
"""

import gc
import json
import logging
import os
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from datetime import datetime
from typing import Any

import trio

from fastfuse.errors import AccessError, FastfuseError, ServiceError
from fastfuse.filesystem.processes.children import (
    Fork,
    Procedure,
    Steps,
    asking,
    die_with,
    error_message,
    fork,
    heard,
    message_of,
    wait_child,
)
from fastfuse.filesystem.processes.privileges import become_nobody, confine
from fastfuse.filesystem.processes.sockets import raise_sigio
from fastfuse.s3.aws import S3Session
from fastfuse.s3.base import ConnectionConfig
from fastfuse.s3.credentials import Credentials, CredentialSource, resolve_credentials

_log = logging.getLogger(__name__)

_ASK, _SAVE = b"ask", b"save"
_WHO = "The AWS credentials cannot be had: the process that finds them"
_LONGEST_BYTES = 64 << 10
# A program may ask a person. The Go SDK gives a credential_process as long.
_RESOLVE_WITHIN_S = 60.0
# A read that waits for credentials names the cause only if the search ends before its deadline.
_SHARE_OF_DEADLINE = 0.75
# Then the search is killed.
_KILL_AFTER_S = _RESOLVE_WITHIN_S + 5.0


def packed(credentials: Credentials) -> dict[str, Any]:
    """Return `credentials` as JSON can carry them, for `credentials_of`."""
    expires_at = credentials.expires_at and credentials.expires_at.isoformat()
    return asdict(credentials) | {"expires_at": expires_at}


def credentials_of(found: dict[str, Any]) -> Credentials:
    """Return the credentials that `packed` made into `found`."""
    expires_at = found["expires_at"] and datetime.fromisoformat(found["expires_at"])
    return Credentials(**found | {"expires_at": expires_at})


def ask_for_credentials(session: S3Session, end: socket.socket) -> None:
    """Have `session` ask at this `end` of a socket for credentials, other than those that it has."""

    async def ask() -> Credentials:
        with suppress(BlockingIOError):  # an answer to whoever asked here and was cancelled
            while end.recv(_LONGEST_BYTES, socket.MSG_DONTWAIT):
                pass
        with suppress(OSError):  # nobody is there any more: nor will the answer be
            end.send(_ASK)
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
        # A terminal's Ctrl-C ends a `credential_process` that hangs, though a daemon ignores it: a program starts with
        # the default of a signal that is handled, and ignores one that is ignored.
        signal.signal(signal.SIGINT, lambda *_: None)
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
    ask_for_credentials(session, ours)

    def ask_to_save() -> None:
        ours.setblocking(True)
        ours.send(_SAVE)
        ours.recv(1)

    return ask_to_save


def _serve(end: socket.socket, connection: ConnectionConfig, save: Callable[[], None]) -> None:
    while question := end.recv(len(_SAVE)):
        if question == _SAVE:
            save()
            end.send(b"+")
        else:
            end.send(message_of(lambda: _found(S3Session(connection))))


def _found(session: S3Session, within_s: float = _RESOLVE_WITHIN_S) -> dict[str, Any]:
    """Return the credentials that the new `session` finds, as `packed` makes them.

    Raises:
        FastfuseError: it finds none.
    """
    try:
        found = packed(trio.run(_resolve, session, within_s))
        if len(json.dumps(found)) <= _LONGEST_BYTES:
            return found
        failed: FastfuseError = AccessError("The AWS credentials are longer than any request may be.")
    except FastfuseError as error:
        failed = error
    except Exception as error:  # noqa: BLE001 - its text may be what a program printed
        failed = AccessError(f"The AWS credentials cannot be had ({type(error).__name__}).")
    if not os.path.exists(__file__):  # an upgrade has taken this program's files away, which is the likely cause
        message = f"{failed} The files of this fastfuse were removed since it started: mount again."
        failed = type(failed)(message, hint=failed.hint)
    raise failed


async def _resolve(session: S3Session, within_s: float) -> Credentials:
    with trio.move_on_after(within_s):
        return await resolve_credentials(session.aws)
    raise ServiceError(
        f"The AWS credentials did not come within {within_s:g} s.",
        hint="Look whether the profile's credential_process hangs, or the service that issues them.",
    )


class CredentialFinder(Procedure):
    """Answers one worker after the other for the supervisor, which never waits for an answer."""

    def __init__(self, session: S3Session, fork: Fork) -> None:
        """`session`, whose files are read, keeps the newest credentials: the next worker begins with them."""
        self._session = session
        self._fork = fork
        self.end: socket.socket | None = None
        super().__init__()

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

    def close(self) -> None:
        """Kill the process that runs, and close everything."""
        self._end()
        if self.end is not None:
            self.end.close()

    def _run(self) -> Steps[None]:
        """Answer each question: have a process find credentials, or the reason why there are none."""
        while True:
            while not self._take_questions():
                yield 0
            message = yield from self._answer()
            self._take_questions()  # this is the answer to those questions, too
            assert self.end is not None
            with suppress(OSError):  # the worker has died
                self.end.send(message)

    def _answer(self) -> Steps[bytes]:
        try:
            found = yield from asking(self._fork, self._find, _WHO)
        except FastfuseError as error:
            return error_message(error)
        if self._session.credentials is not None:
            self._session.credentials.take(credentials_of(found))
        return json.dumps(found).encode()

    def _find(self) -> dict[str, Any]:
        """Find credentials; call it in a process of its own."""
        # Whoever does not give up by itself is stuck in a library.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, _KILL_AFTER_S)
        session = S3Session(self._session.config)
        with suppress(FastfuseError):  # the answer is the same error
            confine(session)
        return _found(session, min(_RESOLVE_WITHIN_S, session.config.deadline_s * _SHARE_OF_DEADLINE))

    def _take_questions(self) -> bool:
        """Take all questions, and return whether there was one."""
        is_asked = False
        with suppress(OSError):  # no more, or no worker
            while self.end is not None and self.end.recv(len(_ASK)):
                is_asked = True
        return is_asked
