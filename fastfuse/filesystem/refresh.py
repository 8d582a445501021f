"""List the source in processes of their own: once before the mount, and again for each refresh (clause L6).

A lister makes the index in a memfd, reports in another, and exits with its garbage. A refresh takes two
short-lived processes, one after the other. The first makes the new index, gives unchanged files their old inode
numbers, and writes down the changes. Then the supervisor hands the new table to the worker. The second process sends
the kernel the notices: they wait for locks of directories that readers hold until the worker has answered them. If it
dies, another one sends them all again; what five did not live to send is sent with those of the next refresh.
"""

import fcntl
import json
import logging
import mmap
import os
import signal
import socket
import time
from dataclasses import asdict, replace
from functools import partial
from math import inf

from fastfuse.errors import FastfuseError, MountError, ServiceError
from fastfuse.filesystem.kernel.notices import pack_notices, send_notices
from fastfuse.filesystem.processes.children import Fork, answer_on, ask_child, error_message, how_it_ended, result_of
from fastfuse.filesystem.processes.key_finder import credentials_of, give_up_rights, packed
from fastfuse.filesystem.processes.privileges import become_nobody, keep_memory_private
from fastfuse.filesystem.talking.control import PROTOCOL, RefreshReport, send_answer
from fastfuse.index.inodes.changes import take_over
from fastfuse.index.make import IndexReport, make_index
from fastfuse.index.origin import IndexOrigin
from fastfuse.index.snapshot import open_snapshot, save_snapshot
from fastfuse.index.sources.uri import S3Uri
from fastfuse.metrics import Counters
from fastfuse.s3.aws import S3Session
from fastfuse.s3.routes import read_files
from fastfuse.s3.whole import write_all

_log = logging.getLogger(__name__)

# A process that sends notices and dies is followed by another, but not for ever.
_MAX_SENDERS = 5
# Clients of the mount get the index, too, and nobody may change it under its worker.
_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


def run_lister(
    source: S3Uri, origin: IndexOrigin, session: S3Session, counters: Counters | None = None
) -> tuple[int, IndexReport]:
    """List in a new process; return the memfd with the snapshot, which the caller closes, and the report.

    `counters`, whose memory the process inherits, count objects, and requests that were tried again. `session` has its
    files read, and the lister's credentials, after it.

    Raises:
        FastfuseError: the lister raised it, or did not live to answer.
    """
    read_files(session)
    snapshot_fd = os.memfd_create("fastfuse-index", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)

    def make() -> dict[str, object]:
        report = _list(source, origin, session, counters, snapshot_fd)
        fcntl.fcntl(snapshot_fd, fcntl.F_ADD_SEALS, _SEALS)
        found = session.credentials.latest if session.credentials is not None else None
        return {"report": asdict(report), "keys": found and packed(found)}

    try:
        answer = ask_child(make, "the lister")
    except BaseException:
        os.close(snapshot_fd)
        raise
    if session.credentials is not None and answer["keys"]:
        session.credentials.take(credentials_of(answer["keys"]))
    return snapshot_fd, IndexReport(**answer["report"])


def _list(source: S3Uri, origin: IndexOrigin, session: S3Session, counters: Counters | None, fd: int) -> IndexReport:
    """Make the index in `fd`, and become nobody before the first request; call it in a process of its own."""
    keep_memory_private()
    return make_index(source, origin, session, fd, counters, before_network=partial(give_up_rights, session))


def count_table(counters: Counters, snapshot_fd: int, made: IndexReport) -> None:
    """Note the figures of the table that is shown from now on."""
    counters.count("fastfuse_index_requests", made.requests)
    counters.set("fastfuse_table_files", made.files)
    counters.set("fastfuse_table_memory_bytes", os.fstat(snapshot_fd).st_size)
    counters.set("fastfuse_listed_timestamp_seconds", made.listed_at_ns // 10**9)


class Refresher:
    """The refreshes of one mount, one at a time, and the clients that wait for them."""

    def __init__(self, source: S3Uri, origin: IndexOrigin, session: S3Session, counters: Counters, fork: Fork) -> None:
        """`session` is to go through `s3.routes.read_files` before the first refresh."""
        self._source = source
        # A file of this mount is made anew. One of somebody else, and what hosts share, are read again; what they share
        # is made where there is none.
        if origin.max_age_s is not None:
            origin = replace(origin, max_age_s=0.0 if origin.is_own_file else inf)
        self._list = partial(_list, source, origin, session, counters)
        self._fork = fork
        # Notices that the kernel did not get yet. The listing process adds those of its changes.
        self._owed_fd = os.memfd_create("fastfuse-notices", os.MFD_CLOEXEC)
        # Clients of the running refresh and of the next one: the running one may have listed too early for them.
        self._waiting: list[socket.socket] = []
        self._waiting_for_next: list[socket.socket] = []
        self._is_next_wanted = False
        self._new_fd = self._answer_fd = -1
        # The process that runs now, or 0.
        self._pid = 0
        self._reset()

    def _reset(self) -> None:
        self._is_running = False
        # How the last process ended, and how many died that sent notices.
        self._exit_code = self._dead_senders = 0
        # Set once the listing has succeeded: the table is swapped.
        self._report: RefreshReport | None = None
        self._error: FastfuseError | None = None

    @property
    def is_sending(self) -> bool:
        """Return whether a process sends notices to the kernel; it may wait for readers."""
        return self._pid != 0 and self._report is not None

    def want(self, snapshot_fd: int, asking: socket.socket | None = None) -> None:
        """Refresh the table in `snapshot_fd`, now or after the running refresh; send `asking` the outcome."""
        if asking is not None:
            (self._waiting_for_next if self._is_running else self._waiting).append(asking)
        if self._is_running:
            self._is_next_wanted = True
        else:
            self._start(snapshot_fd)

    def child_ended(self, pid: int, exit_code: int) -> None:
        """Note that the caller reaped the process `pid`."""
        if pid == self._pid:
            self._pid, self._exit_code = 0, exit_code

    def new_table(self) -> tuple[int, IndexReport] | None:
        """Return the memfd of a listing that has just ended, and its report; to be swapped in before `send_notices`."""
        if self._pid or self._error or self._answer_fd < 0:
            return None
        with os.fdopen(self._answer_fd, "rb") as file:
            message = file.read()
        self._answer_fd = -1
        try:
            answer = result_of(message, "the lister", self._exit_code)
        except FastfuseError as error:
            self._error = error
            return None
        self._report = RefreshReport(**answer["report"])
        new_fd, self._new_fd = self._new_fd, -1
        return new_fd, IndexReport(**answer["made"])

    def send_notices(self, session_fd: int) -> None:
        """Have the kernel forget stale names and attributes: a new process writes the notices to its connection."""
        self._exit_code = 0

        def send() -> None:
            become_nobody()
            self._send(session_fd)

        try:
            self._pid = self._fork(send)
        except FastfuseError as error:
            self._error = _untold(error)

    def send_notices_again(self, session_fd: int) -> None:
        """Start another process that sends the notices if the one that did has died, five at most.

        The kernel keeps what it knows for as long as the mount lives, so it must be told of every change. Telling it
        twice does no harm.
        """
        if self._pid or self._report is None or self._error or not self._exit_code:
            return
        self._dead_senders += 1
        if self._dead_senders < _MAX_SENDERS:
            _log.warning("the process that tells the kernel what has changed died; another one does")
            self.send_notices(session_fd)

    def outcome(self, snapshot_fd: int) -> str:
        """Finish the refresh that has just ended and start the next; return ok or failed, or "" if none has ended."""
        if not self._is_running or self._pid:
            return ""
        error, report = self._error, self._report
        if error is None and self._exit_code:
            error = _untold(f"the process that tells it {how_it_ended(self._exit_code)}")
        if error is None:
            assert report is not None
            os.ftruncate(self._owed_fd, 0)
            outcome, answer = "ok", json.dumps({"fastfuse": PROTOCOL, **asdict(report)}).encode()
            _log.info("refreshed %s: %s", self._source, report)
        else:
            outcome, answer = "failed", error_message(error)
            if report is None:
                _log.error("the view stays as it was: %s was not refreshed: %s", self._source, error)
            else:  # the next refresh sends the notices
                _log.error("%s was refreshed, but %s; %s", self._source, error, error.hint)
        _answer(self._waiting, answer)
        self._end()
        if self._is_next_wanted:
            self._is_next_wanted = False
            self._waiting, self._waiting_for_next = self._waiting_for_next, []
            self._start(snapshot_fd)
        return outcome

    def close_connections(self) -> None:
        """Close every client's connection in a child: a copy would keep the client from seeing its end."""
        for connection in (*self._waiting, *self._waiting_for_next):
            connection.close()

    def close_files(self) -> None:
        """Close every file in a child that does not refresh: a copy would keep its memory."""
        self._close_listing()
        os.close(self._owed_fd)

    def close(self) -> None:
        """End the running refresh, of whose connection to the kernel nothing is left, and tell every client so."""
        if self._is_running:
            _log.warning("%s was not refreshed: its connection to the kernel ends", self._source)
        for waiting in (self._waiting, self._waiting_for_next):
            _answer(waiting, error_message(MountError("the mount stops")))
        self._end()
        os.ftruncate(self._owed_fd, 0)
        self._is_next_wanted = False

    def _start(self, snapshot_fd: int) -> None:
        """Start a refresh. One that cannot start has failed, and `outcome` returns that."""
        _log.info("refreshing %s", self._source)
        self._is_running = True
        try:
            self._new_fd = os.memfd_create("fastfuse-index", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            self._answer_fd = os.memfd_create("fastfuse-answer")
            self._pid = self._fork(lambda: answer_on(self._answer_fd, lambda: self._make(snapshot_fd)))
        except (FastfuseError, OSError) as error:
            self._error = ServiceError(f"the lister cannot be started: {error}")

    def _end(self) -> None:
        if self._pid:
            # Not waited for: a notice may wait for a reader, and the reader for the end of the mount.
            os.kill(self._pid, signal.SIGKILL)
            self._pid = 0
        self._close_listing()
        self._reset()

    def _close_listing(self) -> None:
        for fd in (self._new_fd, self._answer_fd):
            if fd >= 0:
                os.close(fd)
        self._new_fd = self._answer_fd = -1

    def _owed_bytes(self) -> int:
        return os.fstat(self._owed_fd).st_size

    def _send(self, session_fd: int) -> None:
        if size_bytes := self._owed_bytes():
            with mmap.mmap(self._owed_fd, size_bytes, prot=mmap.PROT_READ) as notices:  # one read returns 2 GiB at most
                send_notices(session_fd, notices)

    def _make(self, old_fd: int) -> dict[str, object]:
        """List, and save the new table and the notices of its changes; call it in a process of its own."""
        started_s = time.monotonic()
        fresh_fd = os.memfd_create("fastfuse-fresh", os.MFD_CLOEXEC)
        made = self._list(fresh_fd)
        fresh = open_snapshot(fresh_fd)
        table, changes = take_over(open_snapshot(old_fd).table, fresh.table)
        save_snapshot(replace(fresh, table=table), self._new_fd)
        fcntl.fcntl(self._new_fd, fcntl.F_ADD_SEALS, _SEALS)
        write_all(self._owed_fd, pack_notices(changes), self._owed_bytes())
        report = RefreshReport(
            added=changes.added,
            removed=changes.removed,
            replaced=changes.replaced,
            files=made.files,
            elapsed_s=time.monotonic() - started_s,
        )
        return {"made": asdict(made), "report": asdict(report)}


def _untold(reason: object) -> ServiceError:
    return ServiceError(
        f"the kernel was not told of every change, and may still show what it remembers: {reason}",
        hint="refresh again: it is told then",
    )


def _answer(waiting: list[socket.socket], message: bytes) -> None:
    for connection in waiting:
        send_answer(connection, message)
    waiting.clear()
