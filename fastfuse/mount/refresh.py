"""A refresh (clause L6): list again in the background, and tell the kernel what it has to forget.

Two short-lived processes, one after the other. The first makes the new index, gives whatever has not changed its old
inode number, and writes down what has. In between the supervisor hands the new table to the worker. The second sends
the kernel the notices: they wait for locks of directories that readers hold until the worker has answered them.
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
from fastfuse.indexing.make import make_index
from fastfuse.indexing.origin import IndexOrigin
from fastfuse.inodes.changes import take_over
from fastfuse.listing.snapshot import open_snapshot, save_snapshot
from fastfuse.mount.children import error_message, fork_child, heard
from fastfuse.mount.control import RefreshReport
from fastfuse.mount.notices import pack_notices
from fastfuse.sources.uri import S3Uri
from fastfuse.store.base import ConnectionConfig

__all__ = ["NewTable", "Refresher"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class NewTable:
    """A finished listing: the snapshot's memfd, and how it differs from the one before."""

    snapshot_fd: int
    listed_at_ns: int
    refused: int
    report: RefreshReport


class _Refresh:
    """One refresh under way."""

    def __init__(self, source: S3Uri, origin: IndexOrigin, connection: ConnectionConfig, snapshot_fd: int) -> None:
        """Start to list. `snapshot_fd` is the table of today; it stays the caller's."""
        self._origin = origin
        self._source = source
        self._connection = connection
        self._old_fd = snapshot_fd
        self._new_fd = os.memfd_create("fastfuse-index", os.MFD_CLOEXEC)
        self._notices_fd = os.memfd_create("fastfuse-notices", os.MFD_CLOEXEC)
        self._told_fd, self._telling_fd = os.pipe()
        self.exit_code = 0
        self.pid = fork_child(self._list)
        os.close(self._telling_fd)

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
            how = f"was killed by signal {-self.exit_code}" if self.exit_code < 0 else "failed (see the log)"
            raise ServiceError(f"the lister {how}")
        answer = heard(told)
        new = NewTable(self._new_fd, answer["listed_at_ns"], answer["refused"], RefreshReport(**answer["report"]))
        self._new_fd = -1
        return new

    def send_notices(self, send: Callable[[bytes], None]) -> None:
        """Start the second process."""
        notices = os.pread(self._notices_fd, os.fstat(self._notices_fd).st_size, 0)
        self.pid = fork_child(lambda: send(notices))

    def close(self) -> None:
        """End what is still under way; nobody wants its result any more."""
        if self.pid:
            # Not waited for: a notice may wait for a reader, and that one for the end of the mount.
            os.kill(self.pid, signal.SIGKILL)
            self.pid = 0
        for fd in (self._new_fd, self._notices_fd, self._told_fd):
            if fd >= 0:
                os.close(fd)
        self._new_fd = self._notices_fd = self._told_fd = -1

    def _list(self) -> None:
        try:
            os.write(self._telling_fd, json.dumps(self._make()).encode())
        except FastfuseError as error:
            os.write(self._telling_fd, error_message(error))

    def _make(self) -> dict[str, object]:
        started_s = time.monotonic()
        fresh_fd = os.memfd_create("fastfuse-fresh", os.MFD_CLOEXEC)
        made = make_index(self._source, self._origin, self._connection, fresh_fd)
        fresh = open_snapshot(fresh_fd)
        table, changes = take_over(open_snapshot(self._old_fd).table, fresh.table)
        save_snapshot(replace(fresh, table=table), self._new_fd)
        with os.fdopen(os.dup(self._notices_fd), "wb") as file:
            file.write(pack_notices(changes))
        report = RefreshReport(
            added=changes.added,
            removed=changes.removed,
            replaced=changes.replaced,
            files=made.files,
            elapsed_s=time.monotonic() - started_s,
        )
        return {"report": asdict(report), "listed_at_ns": made.listed_at_ns, "refused": made.refused}


class Refresher:
    """The refreshes of one mount, one at a time, and who waits for them."""

    def __init__(self, source: S3Uri, origin: IndexOrigin, connection: ConnectionConfig) -> None:
        self._source = source
        # A listing that was kept is what the mount has already.
        self._origin = replace(origin, max_age_s=0.0)
        self._connection = connection
        self._running: _Refresh | None = None
        self._report: RefreshReport | None = None
        self._error: FastfuseError | None = None
        # Whoever waits for the refresh that runs, and for the one after it: what runs may have listed too early.
        self._waiting: list[socket.socket] = []
        self._waiting_for_next: list[socket.socket] = []
        self._is_next_wanted = False

    def want(self, snapshot_fd: int, asking: socket.socket | None = None) -> None:
        """Refresh the table in `snapshot_fd`, now or after the refresh that runs; tell `asking` how it went."""
        if self._running is None:
            self._running = _Refresh(self._source, self._origin, self._connection, snapshot_fd)
            waiting = self._waiting
            _log.info("refreshing %s", self._source)
        else:
            self._is_next_wanted = True
            waiting = self._waiting_for_next
        if asking is not None:
            waiting.append(asking)

    def child_ended(self, pid: int, exit_code: int) -> None:
        """Somebody reaped the process `pid`."""
        if self._running is not None and pid == self._running.pid:
            self._running.ended(exit_code)

    def new_table(self) -> NewTable | None:
        """The table of a listing that has just ended; to be swapped in before `send_notices`."""
        if self._running is None:
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
        self._running.send_notices(send)

    def outcome(self, snapshot_fd: int) -> str:
        """How the refresh ended that has just ended: ok or failed; empty if none has. The next one is started."""
        if self._running is None or self._running.pid:
            return ""
        if self._error is None and self._running.exit_code:
            self._error = ServiceError("the kernel could not be told what has changed", hint="see the log")
        if self._error is not None:
            _log.error("%s was not refreshed: %s; the view stays as it was", self._source, self._error)
            outcome, answer = "failed", error_message(self._error)
        else:
            _log.info("refreshed %s: %s", self._source, self._report)
            assert self._report is not None
            outcome, answer = "ok", json.dumps(asdict(self._report)).encode()
        _answer(self._waiting, answer)
        self._forget()
        if self._is_next_wanted:
            self._is_next_wanted = False
            self._waiting, self._waiting_for_next = self._waiting_for_next, []
            self.want(snapshot_fd)
        return outcome

    def close(self) -> None:
        """End the refresh that runs; whoever waits is told nothing any more."""
        self._forget()
        _answer(self._waiting_for_next, b"")

    def _forget(self) -> None:
        if self._running is not None:
            self._running.close()
        _answer(self._waiting, b"")
        self._running = self._report = self._error = None


def _answer(waiting: list[socket.socket], message: bytes) -> None:
    for connection in waiting:
        with connection, suppress(OSError):  # whoever asked may have gone
            connection.setblocking(False)
            connection.send(message)
    waiting.clear()
