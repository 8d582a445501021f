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
import socket
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from math import inf

from fastfuse.errors import FastfuseError, MountError, ServiceError
from fastfuse.filesystem.kernel.notices import pack_notices, send_notices
from fastfuse.filesystem.processes.children import (
    Fork,
    NoRoomError,
    Procedure,
    Steps,
    ask_child,
    asking,
    error_message,
    how_it_ended,
    memory_fd,
)
from fastfuse.filesystem.processes.credential_finder import credentials_of, give_up_rights, packed
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
    snapshot_fd = memory_fd("fastfuse-index")

    def make() -> dict[str, object]:
        report = _list(source, origin, session, counters, snapshot_fd)
        fcntl.fcntl(snapshot_fd, fcntl.F_ADD_SEALS, _SEALS)
        found = session.credentials.latest if session.credentials is not None else None
        return {"report": asdict(report), "credentials": found and packed(found)}

    try:
        answer = ask_child(make, "the lister")
    except BaseException:
        os.close(snapshot_fd)
        raise
    if session.credentials is not None and answer["credentials"]:
        session.credentials.take(credentials_of(answer["credentials"]))
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


class Refresher(Procedure):
    """The refreshes of one mount, one at a time, and the clients that wait for them."""

    # The memfd of the snapshot that is shown.
    table_fd = -1

    def __init__(
        self,
        source: S3Uri,
        origin: IndexOrigin,
        session: S3Session,
        counters: Counters,
        fork: Fork,
        *,
        take_table: Callable[[int], None],
        connection: Callable[[], int],
    ) -> None:
        """`session` is to go through `s3.routes.read_files` before the first refresh.

        `take_table` answers from another snapshot; `connection` returns the descriptor of the mount, or -1 if it ended.
        """
        self._source = source
        # A file of this mount is made anew. One of somebody else, and what hosts share, are read again; what they share
        # is made where there is none.
        if origin.max_age_s is not None:
            origin = replace(origin, max_age_s=0.0 if origin.is_own_file else inf)
        self._list = partial(_list, source, origin, session, counters)
        self._counters = counters
        self._fork = fork
        self._take_table = take_table
        self._connection = connection
        # Notices that the kernel did not get yet, and their bytes. The listing process adds those of its changes; what
        # one has added that was killed then lies behind them.
        self._owed_fd, self._owed_bytes = os.memfd_create("fastfuse-notices", os.MFD_CLOEXEC), 0
        # Clients of the running refresh and of the next one: the running one may have listed too early for them.
        self._waiting: list[socket.socket] = []
        self._waiting_for_next: list[socket.socket] = []
        self._is_wanted = False
        self._is_telling = False
        # Since when refreshes have failed, in seconds since 1970, and why the last one did; None once one succeeds.
        self.failure: dict[str, object] | None = None
        super().__init__()

    @property
    def is_sending(self) -> bool:
        """Return whether a process sends notices to the kernel; it may wait for readers."""
        return self._is_telling and self.pid != 0

    def want(self, asking: socket.socket | None = None) -> None:
        """Refresh, now or after the running refresh, and send `asking` the outcome."""
        self._is_wanted = True
        if asking is not None:
            self._waiting_for_next.append(asking)

    def close_copies(self) -> None:
        """Close the connections of clients in a child: a copy would keep them from seeing their end."""
        for connection in (*self._waiting, *self._waiting_for_next):
            connection.close()

    def close_files(self) -> None:
        super().close_files()
        os.close(self._owed_fd)

    def close(self) -> None:
        """End the running refresh, of whose connection to the kernel nothing is left, and tell every client so."""
        if self.pid:
            _log.warning("%s was not refreshed: its connection to the kernel ends", self._source)
        self._end()
        for waiting in (self._waiting, self._waiting_for_next):
            _answer(waiting, error_message(MountError("the mount stops")))
        self._owe_nothing()
        self._is_wanted = False

    def _owe_nothing(self) -> None:
        os.ftruncate(self._owed_fd, 0)
        self._owed_bytes = 0

    def _run(self) -> Steps[None]:
        while True:
            while not self._is_wanted:
                yield 0
            self._is_wanted = False
            self._waiting, self._waiting_for_next = self._waiting_for_next, []
            yield from self._refresh()

    def _refresh(self) -> Steps[None]:
        _log.info("refreshing %s", self._source)
        outcome, report = "failed", None
        try:
            report, old_fd = yield from self._list_anew()
            yield from self._tell_kernel(old_fd)
        except FastfuseError as error:
            answer = error_message(error)
            self.failure = (self.failure or {"since": time.time()}) | {"reason": str(error)}
            if report is None:
                _log.error("the view stays as it was: %s was not refreshed: %s", self._source, error)
            else:  # the next refresh sends the notices
                _log.error("%s was refreshed, but %s; %s", self._source, error, error.hint)
        else:
            self._owe_nothing()
            self.failure = None
            outcome, answer = "ok", json.dumps({"fastfuse": PROTOCOL, **asdict(report)}).encode()
            _log.info("refreshed %s: %s", self._source, report)
        self._counters.count("fastfuse_refreshes", value=outcome)
        _answer(self._waiting, answer)

    def _list_anew(self) -> Steps[tuple[RefreshReport, int]]:
        """Have a process list, and answer from the new table; return the changes, and the memfd of the old one."""
        new_fd = memory_fd("fastfuse-index")
        try:
            answer = yield from asking(self._fork, partial(self._make, self.table_fd, new_fd), "the lister")
        except BaseException:
            os.close(new_fd)
            raise
        old_fd, self.table_fd, self._owed_bytes = self.table_fd, new_fd, answer["owed_bytes"]
        count_table(self._counters, new_fd, IndexReport(**answer["made"]))
        self._take_table(new_fd)
        return RefreshReport(**answer["report"]), old_fd

    def _tell_kernel(self, old_fd: int) -> Steps[None]:
        """Have the kernel forget stale names and attributes: a new process writes the notices to its connection.

        If that dies, another one sends all of them again, five at most. The kernel keeps what it knows for as long as
        the mount lives, so it must be told of every change. Telling it twice does no harm.
        """
        reason: object = ""
        self._is_telling = True
        try:
            try:
                sender = self._fork(partial(self._send, self._connection()))
            finally:
                # Not earlier: the sender has a copy, so it, and not this process, frees gigabytes of the old table.
                os.close(old_fd)
            for others in reversed(range(_MAX_SENDERS)):
                exit_code = yield sender
                if not exit_code:
                    return
                reason = f"the process that tells it {how_it_ended(exit_code)}"
                if not others or self._connection() < 0:
                    break
                _log.warning("the process that tells the kernel what has changed died; another one does")
                sender = self._fork(partial(self._send, self._connection()))
        except NoRoomError as error:
            reason = error
        finally:
            self._is_telling = False
        raise ServiceError(
            f"the kernel was not told of every change, and may still show what it remembers: {reason}",
            hint="refresh again: it is told then",
        )

    def _send(self, connection_fd: int) -> None:
        """Write the notices to the kernel; call it in a process of its own."""
        become_nobody()
        if self._owed_bytes:
            # One read returns 2 GiB at most.
            with mmap.mmap(self._owed_fd, self._owed_bytes, prot=mmap.PROT_READ) as notices:
                send_notices(connection_fd, notices)

    def _make(self, old_fd: int, new_fd: int) -> dict[str, object]:
        """List, and save the new table and the notices of its changes; call it in a process of its own."""
        started_s = time.monotonic()
        fresh_fd = os.memfd_create("fastfuse-fresh", os.MFD_CLOEXEC)
        made = self._list(fresh_fd)
        fresh = open_snapshot(fresh_fd)
        table, changes = take_over(open_snapshot(old_fd).table, fresh.table)
        save_snapshot(replace(fresh, table=table), new_fd)
        fcntl.fcntl(new_fd, fcntl.F_ADD_SEALS, _SEALS)
        notices = pack_notices(changes)
        write_all(self._owed_fd, notices, self._owed_bytes)
        report = RefreshReport(
            added=changes.added,
            removed=changes.removed,
            replaced=changes.replaced,
            files=made.files,
            elapsed_s=time.monotonic() - started_s,
        )
        owed_bytes = self._owed_bytes + len(notices)
        return {"made": asdict(made), "report": asdict(report), "owed_bytes": owed_bytes}


def _answer(waiting: list[socket.socket], message: bytes) -> None:
    for connection in waiting:
        send_answer(connection, message)
    waiting.clear()
