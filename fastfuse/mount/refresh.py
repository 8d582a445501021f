"""A refresh (clause L6): list again in the background, and tell the kernel what it has to forget.

Two short-lived processes, one after the other. The first makes the new index, gives whatever has not changed its old
inode number, and writes down what has. In between the supervisor hands the new table to the worker. The second sends
the kernel the notices: they wait for locks of directories that readers hold until the worker has answered them. Notices
that it did not live to send are sent again with those of the next refresh.
"""

import json
import logging
import os
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace

from fastfuse.errors import FastfuseError, ServiceError
from fastfuse.index.inodes.changes import take_over
from fastfuse.index.make import make_index
from fastfuse.index.origin import IndexOrigin
from fastfuse.index.snapshot import open_snapshot, save_snapshot
from fastfuse.index.sources.uri import S3Uri
from fastfuse.mount.children import Fork, error_message, heard
from fastfuse.mount.control import RefreshReport
from fastfuse.mount.notices import pack_notices
from fastfuse.s3.base import ConnectionConfig

__all__ = ["NewTable", "Refresher"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class NewTable:
    """A finished listing: the snapshot's memfd, and how it differs from the one before."""

    snapshot_fd: int
    listed_at_ns: int
    refused: int
    requests: int
    report: RefreshReport


class _Refresh:
    """One refresh under way."""

    def __init__(self, source: S3Uri, origin: IndexOrigin, connection: ConnectionConfig, unsent_fd: int) -> None:
        self._source = source
        self._origin = origin
        self._connection = connection
        # Notices of an earlier refresh, or -1; they stay the caller's.
        self._unsent_fd = unsent_fd
        # All that are to be sent, those of before first.
        self.notices_fd = -1
        self._new_fd = self._told_fd = -1
        # Of the process of the moment; 0 when there is none.
        self.pid = 0
        self.exit_code = 0

    def start(self, fork: Fork, snapshot_fd: int) -> None:
        """Start the first process. `snapshot_fd` is the table of today; it stays the caller's.

        Raises:
            FastfuseError, OSError: there is no room for it.
        """
        self._new_fd = os.memfd_create("fastfuse-index", os.MFD_CLOEXEC)
        self.notices_fd = os.memfd_create("fastfuse-notices", os.MFD_CLOEXEC)
        self._told_fd, telling_fd = os.pipe()
        try:
            self.pid = fork(lambda: self._list(snapshot_fd, telling_fd))
        finally:
            os.close(telling_fd)

    def ended(self, exit_code: int) -> None:
        """The process of the moment is over."""
        self.pid = 0
        self.exit_code = exit_code

    def listed(self) -> NewTable | None:
        """What the first process has made, once, after its end.

        Raises:
            FastfuseError: what kept it from a complete listing.
        """
        if self.pid or self._told_fd < 0:
            return None
        with os.fdopen(self._told_fd, "rb") as pipe:
            told = pipe.read()
        self._told_fd = -1
        if not told:
            raise ServiceError(f"the lister {self.how_it_ended()}")
        answer = heard(told)
        report = RefreshReport(**answer.pop("report"))
        new = NewTable(snapshot_fd=self._new_fd, report=report, **answer)
        self._new_fd = -1
        return new

    def send_notices(self, fork: Fork, send: Callable[[bytes], None]) -> None:
        """Start the second process.

        Raises:
            NoRoomError: there is no room for it.
        """
        self.pid = fork(lambda: send(_content(self.notices_fd)))

    def how_it_ended(self) -> str:
        """In words, of a process that failed."""
        return f"was killed by signal {-self.exit_code}" if self.exit_code < 0 else "failed (see the log)"

    def end(self) -> None:
        """End what is still under way; nobody wants its result any more."""
        if self.pid:
            # Not waited for: a notice may wait for a reader, and that one for the end of the mount.
            os.kill(self.pid, signal.SIGKILL)
            self.pid = 0
        self.close()

    def close(self) -> None:
        """Close what it has open."""
        for fd in (self._new_fd, self.notices_fd, self._told_fd):
            if fd >= 0:
                os.close(fd)
        self._new_fd = self.notices_fd = self._told_fd = -1

    def _list(self, old_fd: int, telling_fd: int) -> None:
        try:
            os.write(telling_fd, json.dumps(self._make(old_fd)).encode())
        except FastfuseError as error:
            os.write(telling_fd, error_message(error))

    def _make(self, old_fd: int) -> dict[str, object]:
        started_s = time.monotonic()
        fresh_fd = os.memfd_create("fastfuse-fresh", os.MFD_CLOEXEC)
        made = make_index(self._source, self._origin, self._connection, fresh_fd)
        fresh = open_snapshot(fresh_fd)
        table, changes = take_over(open_snapshot(old_fd).table, fresh.table)
        save_snapshot(replace(fresh, table=table), self._new_fd)
        with os.fdopen(os.dup(self.notices_fd), "wb") as file:
            if self._unsent_fd >= 0:
                file.write(_content(self._unsent_fd))
            file.write(pack_notices(changes))
        report = RefreshReport(
            added=changes.added,
            removed=changes.removed,
            replaced=changes.replaced,
            files=made.files,
            elapsed_s=time.monotonic() - started_s,
        )
        return {
            "report": asdict(report),
            "listed_at_ns": made.listed_at_ns,
            "refused": made.refused,
            "requests": made.requests,
        }


class Refresher:
    """The refreshes of one mount, one at a time, and who waits for them."""

    def __init__(self, source: S3Uri, origin: IndexOrigin, connection: ConnectionConfig, fork: Fork) -> None:
        self._source = source
        # A listing that was kept is what the mount has already.
        self._origin = replace(origin, max_age_s=0.0)
        self._connection = connection
        self._fork = fork
        self._running: _Refresh | None = None
        # Of a listing that ended well: the table is swapped.
        self._report: RefreshReport | None = None
        self._error: FastfuseError | None = None
        # Notices that the kernel has not been given, because the process that was to do it died.
        self._unsent_fd = -1
        # Whoever waits for the refresh that runs, and for the one after it: what runs may have listed too early.
        self._waiting: list[socket.socket] = []
        self._waiting_for_next: list[socket.socket] = []
        self._is_next_wanted = False

    @property
    def is_sending(self) -> bool:
        """Whether the kernel is being told what to forget, in a process that may wait for readers."""
        return self._running is not None and self._running.pid != 0 and self._report is not None

    def want(self, snapshot_fd: int, asking: socket.socket | None = None) -> None:
        """Refresh the table in `snapshot_fd`, now or after the refresh that runs; tell `asking` how it went."""
        if asking is not None:
            (self._waiting if self._running is None else self._waiting_for_next).append(asking)
        if self._running is None:
            self._start(snapshot_fd)
        else:
            self._is_next_wanted = True

    def child_ended(self, pid: int, exit_code: int) -> None:
        """Somebody reaped the process `pid`."""
        if self._running is not None and pid == self._running.pid:
            self._running.ended(exit_code)

    def new_table(self) -> NewTable | None:
        """The table of a listing that has just ended; to be swapped in before `send_notices`."""
        if self._running is None or self._error is not None:
            return None
        try:
            new = self._running.listed()
        except FastfuseError as error:
            self._error = error
            return None
        if new is not None:
            self._report = new.report
        return new

    def send_notices(self, send: Callable[[bytes], None]) -> None:
        """Have the kernel forget what is stale, in a process of its own that gives `send` the notices."""
        assert self._running is not None
        try:
            self._running.send_notices(self._fork, send)
        except FastfuseError as error:
            self._error = _untold(error)

    def outcome(self, snapshot_fd: int) -> str:
        """How the refresh ended that has just ended: ok or failed; empty if none has. The next one is started."""
        if self._running is None or self._running.pid:
            return ""
        if self._error is None and self._running.exit_code:
            self._error = _untold(f"the process that tells it {self._running.how_it_ended()}")
        if self._error is not None:
            outcome, answer = "failed", error_message(self._error)
        else:
            assert self._report is not None
            outcome, answer = "ok", json.dumps(asdict(self._report)).encode()
        self._log_outcome()
        if self._report is not None:
            self._keep_unsent()
        _answer(self._waiting, answer)
        self._forget()
        if self._is_next_wanted:
            self._is_next_wanted = False
            self._waiting, self._waiting_for_next = self._waiting_for_next, []
            self._start(snapshot_fd)
        return outcome

    def close_connections(self) -> None:
        """For a child: a copy of a connection would keep whoever waits from seeing its end."""
        for connection in (*self._waiting, *self._waiting_for_next):
            connection.close()

    def close_files(self) -> None:
        """For a child that has no part in refreshes: a copy would keep memory that they have done with."""
        if self._running is not None:
            self._running.close()
        self._close_unsent()

    def close(self) -> None:
        """End the refresh that runs; whoever waits is told nothing any more."""
        if self._running is not None:
            _log.warning("%s was not refreshed: its connection to the kernel ends", self._source)
        self._forget()
        self._close_unsent()
        _answer(self._waiting_for_next, b"")
        self._is_next_wanted = False

    def _start(self, snapshot_fd: int) -> None:
        """Start a refresh; one that cannot be started has failed, and `outcome` says so."""
        _log.info("refreshing %s", self._source)
        refresh = _Refresh(self._source, self._origin, self._connection, self._unsent_fd)
        try:
            refresh.start(self._fork, snapshot_fd)
        except (FastfuseError, OSError) as error:
            self._error = ServiceError(f"the lister cannot be started: {error}")
        self._running = refresh

    def _log_outcome(self) -> None:
        if self._error is None:
            _log.info("refreshed %s: %s", self._source, self._report)
        elif self._report is None:
            _log.error("%s was not refreshed: %s; the view stays as it was", self._source, self._error)
        else:
            _log.error("%s was refreshed, but %s; %s", self._source, self._error, self._error.hint)

    def _keep_unsent(self) -> None:
        """After the notices: keep all for the next refresh if not all were sent, and none that were."""
        assert self._running is not None
        self._close_unsent()
        if self._error is not None:
            self._unsent_fd, self._running.notices_fd = self._running.notices_fd, -1

    def _close_unsent(self) -> None:
        if self._unsent_fd >= 0:
            os.close(self._unsent_fd)
            self._unsent_fd = -1

    def _forget(self) -> None:
        if self._running is not None:
            self._running.end()
        _answer(self._waiting, b"")
        self._running = self._report = self._error = None


def _untold(reason: object) -> ServiceError:
    return ServiceError(
        f"the kernel was not told of every change, and may still show what it remembers: {reason}",
        hint="refresh again: it is told then",
    )


def _content(fd: int) -> bytes:
    return os.pread(fd, os.fstat(fd).st_size, 0)


def _answer(waiting: list[socket.socket], message: bytes) -> None:
    for connection in waiting:
        with connection, suppress(OSError):  # whoever asked may have gone
            connection.setblocking(False)
            connection.send(message)
            connection.shutdown(socket.SHUT_RDWR)  # even if a child still holds a copy
    waiting.clear()
