"""A refresh (clause L6): list again in the background, and tell the kernel what it has to forget.

Two short-lived processes, one after the other. The first makes the new index, gives whatever has not changed its old
inode number, and writes down what has. In between the supervisor hands the new table to the worker. The second sends
the kernel the notices: they wait for locks of directories that readers hold until the worker has answered them.
"""

import json
import logging
import os
import signal
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

from fastfuse.errors import FastfuseError, ServiceError
from fastfuse.indexing.make import make_index
from fastfuse.indexing.origin import IndexOrigin
from fastfuse.inodes.changes import take_over
from fastfuse.listing.snapshot import open_snapshot, save_snapshot
from fastfuse.mount.children import fork_child, heard, tell_error, wait_child
from fastfuse.mount.control import RefreshReport
from fastfuse.mount.notices import pack_notices
from fastfuse.sources.uri import S3Uri
from fastfuse.store.base import ConnectionConfig

__all__ = ["NewTable", "Refresh"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class NewTable:
    """A finished listing: the snapshot's memfd, and how it differs from the one before."""

    snapshot_fd: int
    listed_at_ns: int
    report: RefreshReport


class Refresh:
    """One refresh under way. Its two processes are its own; whoever reaps them tells it of their end."""

    def __init__(self, source: S3Uri, origin: IndexOrigin, connection: ConnectionConfig, snapshot_fd: int) -> None:
        """Start to list. `snapshot_fd` is the table of today; it stays the caller's."""
        # A listing that was kept is what the mount has already.
        self._origin = replace(origin, max_age_s=0.0)
        self._source = source
        self._connection = connection
        self._old_fd = snapshot_fd
        self._new_fd = os.memfd_create("fastfuse-index", os.MFD_CLOEXEC)
        self._notices_fd = os.memfd_create("fastfuse-notices", os.MFD_CLOEXEC)
        self._told_fd, self._telling_fd = os.pipe()
        self.pid = fork_child(self._list)
        os.close(self._telling_fd)

    def listed(self, exit_code: int) -> NewTable:
        """What the first process has made; to be called after its end.

        Raises:
            FastfuseError: what kept it from a complete listing.
        """
        self.pid = 0
        with os.fdopen(self._told_fd, "rb") as pipe:
            told = pipe.read()
        self._told_fd = -1
        if not told:
            how = f"was killed by signal {-exit_code}" if exit_code < 0 else "failed (see the log)"
            raise ServiceError(f"the lister {how}")
        answer = heard(told)
        new = NewTable(self._new_fd, answer["listed_at_ns"], RefreshReport(**answer["report"]))
        self._new_fd = -1
        return new

    def send_notices(self, send: Callable[[bytes], None]) -> None:
        """Start the second process, which gives the notices to `send`."""
        notices = os.pread(self._notices_fd, os.fstat(self._notices_fd).st_size, 0)
        self.pid = fork_child(lambda: send(notices))

    def close(self) -> None:
        """End what is still under way; nobody wants its result any more."""
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            wait_child(self.pid)
            self.pid = 0
        for fd in (self._new_fd, self._notices_fd, self._told_fd):
            if fd >= 0:
                os.close(fd)
        self._new_fd = self._notices_fd = self._told_fd = -1

    def _list(self) -> None:
        try:
            os.write(self._telling_fd, json.dumps(self._make()).encode())
        except FastfuseError as error:
            tell_error(self._telling_fd, error)

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
        return {"report": asdict(report), "listed_at_ns": made.listed_at_ns}
