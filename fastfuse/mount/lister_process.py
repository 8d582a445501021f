"""The lister process: makes the index in a memfd, says how it went, and is gone with its garbage.

It tells its parent through a pipe, one JSON object: a report, or the error that stopped it.
"""

import json
import os
import signal
from dataclasses import asdict

from fastfuse.errors import FastfuseError, ServiceError
from fastfuse.index.make import IndexReport, make_index
from fastfuse.index.origin import IndexOrigin
from fastfuse.index.sources.uri import S3Uri
from fastfuse.mount.children import error_message, fork_child, heard, wait_child
from fastfuse.s3.base import ConnectionConfig

__all__ = ["IndexReport", "run_lister"]


def run_lister(source: S3Uri, origin: IndexOrigin, connection: ConnectionConfig) -> tuple[int, IndexReport]:
    """Index in a process of its own; returns the memfd with the snapshot (the caller's to close) and the report.

    Raises:
        FastfuseError: what stopped the lister, as it was raised there.
    """
    snapshot_fd = os.memfd_create("fastfuse-index", os.MFD_CLOEXEC)
    reading_fd, writing_fd = os.pipe()

    def work() -> None:
        try:
            report = make_index(source, origin, connection, snapshot_fd)
            os.write(writing_fd, json.dumps(asdict(report)).encode())
        except FastfuseError as error:
            os.write(writing_fd, error_message(error))

    child = fork_child(work)
    os.close(writing_fd)
    try:
        with os.fdopen(reading_fd, "rb") as pipe:
            told = pipe.read()
        exit_code, child = wait_child(child), 0
        if not told:
            how = f"was killed by signal {-exit_code}" if exit_code < 0 else "failed (see the log)"
            raise ServiceError(f"the lister {how}", hint="out of memory?" if exit_code == -signal.SIGKILL else "")
        return snapshot_fd, IndexReport(**heard(told))
    except BaseException:
        os.close(snapshot_fd)
        if child:  # interrupted: nobody wants its result any more
            os.kill(child, signal.SIGKILL)
            wait_child(child)
        raise
