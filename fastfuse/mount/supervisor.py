"""The process that must not die: lists, mounts, keeps a worker alive, and takes everything down in order.

Small and single-threaded on purpose, because it forks for as long as it lives: no thread, no S3 client, no trio run
is alive in it when it does. Its signals are blocked and taken one at a time with ``sigtimedwait``, so there are no
handlers and no races between them.

States: listing -> mounting -> serving -> draining -> gone. A worker's death is handled in `serving` and `draining`
alike; the mount is given up only after five deaths in a minute without a single request answered in between.
"""

import contextlib
import logging
import os
import signal
import socket
import time
from collections import deque
from collections.abc import Callable

from fastfuse.errors import MountError, ServiceError
from fastfuse.metrics import Counters, bind_metrics, endpoint_url, serve_metrics
from fastfuse.mount.children import fork_child, heard, is_over_within, wait_child
from fastfuse.mount.indexing import run_lister
from fastfuse.mount.kernel import raise_readahead
from fastfuse.mount.mountpoint import BusyMountError, find_mount, prepare_mountpoint, unmount
from fastfuse.mount.operations import MountOperations
from fastfuse.mount.session import Session
from fastfuse.mount.settings import MountSettings
from fastfuse.mount.worker import READY, run_worker
from fastfuse.notify import Notifier
from fastfuse.readahead import ReadaheadConfig

__all__ = ["Supervisor", "run"]

_log = logging.getLogger(__name__)

_STOPPING = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
_SIGNALS = _STOPPING | {signal.SIGCHLD}

# Crash loop: this many deaths within this time, and no request answered between the first and the last.
_MAX_DEATHS = 5
_DEATHS_WITHIN_S = 60.0
# A worker that dies at once is not started again at once: 0, then 50 ms doubling, per death in the last minute.
_FIRST_BACKOFF_S = 0.05
_MAX_BACKOFF_S = 2.0
# While files are open the kernel says EBUSY; how often to ask again.
_UNMOUNT_RETRY_S = 0.2
# What the memory target also has to cover beside the parts: the S3 client's socket buffers and the allocator's slack.
# Measured with 64 connections and targets of 512 MiB and 1 GiB: 40 MB; twice that, for other sizes of chunks.
_CLIENT_OVERHEAD_BYTES = 80 << 20
# After the mount is gone its worker has nothing left to do.
_WORKER_EXIT_S = 5.0


def run(settings: MountSettings, *, ready: Callable[[], None] | None = None) -> int:
    """Mount, serve until told to stop or unmounted, and return the exit code (clause L5).

    `ready` is called once the first open would work (clause L1).

    Raises:
        FastfuseError: the mount could not be made; nothing is left behind.
    """
    return Supervisor(settings).run(ready or (lambda: None))


class Supervisor:
    """One mount, from its listing to its end."""

    def __init__(self, settings: MountSettings) -> None:
        self._settings = settings
        self._notifier = Notifier(settings.notify_socket)
        self._counters = Counters()
        self._operations = MountOperations(
            self._counters,
            uid=settings.uid,
            gid=settings.gid,
            umask=settings.umask,
        )
        self._readahead = _readahead_config(settings)
        self._mountpoint = settings.mountpoint
        self._session: Session | None = None
        self._snapshot_fd = -1
        self._worker_pid = 0
        self._worker_exit_code = 0
        # Where the worker takes newer tables from.
        self._tables: socket.socket | None = None
        self._metrics_pid = 0
        self._is_detached = False
        # (when, requests answered until then) of each death in the last minute
        self._deaths: deque[tuple[float, int]] = deque()

    def run(self, ready: Callable[[], None]) -> int:
        """See `run`."""
        settings = self._settings
        self._mountpoint = prepare_mountpoint(settings.mountpoint, create=settings.create_mountpoint)
        try:
            if settings.metrics_listen:
                self._start_metrics(*settings.metrics_listen)
            self._notifier.status(f"listing {settings.source}")
            self._index()
            # From here on there is something to take down again, so signals wait for `_serve`. They stay blocked after
            # it: the process is about to exit, and one signal too many must not turn its exit code into a death.
            signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
            try:
                self._mount()
                _log.info("mounted %s at %s", settings.source, self._mountpoint)
                self._notifier.ready()
                self._notifier.status(f"serving {settings.source} at {self._mountpoint}")
                ready()
                return self._serve()
            finally:
                self._take_down()
        finally:
            if self._metrics_pid:
                os.kill(self._metrics_pid, signal.SIGKILL)
                wait_child(self._metrics_pid)

    def _start_metrics(self, host: str, port: int) -> None:
        # Forked before the mount: it must not hold a copy of the connection to the kernel.
        with bind_metrics(host, port) as listener:
            _log.info("metrics are served at %s", endpoint_url(listener))
            self._metrics_pid = fork_child(lambda: serve_metrics(listener, self._counters))

    def _index(self) -> None:
        settings = self._settings
        self._snapshot_fd, report = run_lister(settings.source, settings.origin, settings.connection)
        _log.info("listed %s: %s", settings.source, report)
        self._counters.set(self._counters.slot("fastfuse_objects_listed"), report.files + report.refused)
        self._counters.set(self._counters.slot("fastfuse_table_files"), report.files)

    def _mount(self) -> None:
        settings = self._settings
        self._session = Session.mount(
            self._operations,
            self._mountpoint,
            source=str(settings.source),
            allow_other=settings.allow_other,
            options=settings.mount_options,
        )
        raise_readahead(self._session.device)
        if not self._session.can_resend:
            _log.info("this kernel cannot resend requests (Linux 6.9 can): reads that a worker's death interrupts fail")
        self._start_worker()

    def _start_worker(self) -> None:
        """Fork a worker and wait until it serves, or raise what it could not start with."""
        reading_fd, writing_fd = os.pipe()
        if self._tables is not None:
            self._tables.close()
        self._tables, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._worker_pid = fork_child(
            lambda: run_worker(
                self._operations,
                self._counters,
                self._settings.connection,
                self._readahead,
                snapshot_fd=self._snapshot_fd,
                ready_fd=writing_fd,
                tables=theirs,
            )
        )
        os.close(writing_fd)
        theirs.close()
        with os.fdopen(reading_fd, "rb") as pipe:
            told = pipe.read()
        if told == READY:
            return
        wait_child(self._worker_pid)
        self._worker_pid = 0
        if told:
            heard(told)
        raise ServiceError("the worker died before it could serve", hint="see the log")

    def _serve(self) -> int:
        """Wait for the end of the mount, and keep a worker alive until then."""
        while True:
            number = signal.sigwaitinfo(_SIGNALS).si_signo
            if number in _STOPPING:
                return self._drain()
            if self._worker_has_exited() and not self._replace_worker():
                return 0

    def _drain(self) -> int:
        """Clause L2: no more opens; wait for open files up to the grace period, unless a second signal comes."""
        _log.info("stopping: waiting up to %g s for open files", self._settings.grace_s)
        # First, so that whoever hears of the end finds no open taken after it.
        self._counters.set(self._counters.slot("fastfuse_draining"), 1)
        self._notifier.stopping()
        deadline_s = time.monotonic() + self._settings.grace_s
        is_over = False
        while not is_over:
            try:
                unmount(self._mountpoint)
                break
            except BusyMountError:
                is_over = time.monotonic() >= deadline_s
            except MountError:
                break  # unmounted by somebody else in the meantime
            caught = None if is_over else signal.sigtimedwait(_SIGNALS, _UNMOUNT_RETRY_S)
            if caught is not None and caught.si_signo in _STOPPING:
                is_over = True
            elif caught is not None and self._worker_has_exited() and not self._replace_worker():
                break
        if is_over:
            _log.warning("files are still open: detaching %s", self._mountpoint)
            with contextlib.suppress(MountError):  # somebody else may have been faster
                unmount(self._mountpoint, lazy=True)
            self._is_detached = True
        return 0

    def _worker_has_exited(self) -> bool:
        """Reap what has ended; True if the worker did."""
        has_exited = False
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return has_exited
            if pid == 0:
                return has_exited
            if pid == self._worker_pid:
                self._worker_pid, has_exited = 0, True
                self._worker_exit_code = os.waitstatus_to_exitcode(status)
            elif pid == self._metrics_pid:
                self._metrics_pid = 0
                _log.error("the metrics endpoint died; metrics are not served any more")

    def _replace_worker(self) -> bool:
        """Start another worker after a death; False if the mount is gone and none is needed.

        Raises:
            ServiceError: the workers die one after the other and nothing gets served.
        """
        if self._worker_exit_code == 0 and find_mount(self._mountpoint) is None:
            _log.info("%s was unmounted", self._mountpoint)
            return False
        code = self._worker_exit_code
        how = f"it was killed by signal {-code}" if code < 0 else f"it exited with {code}"
        while True:
            self._note_death(how)
            try:
                self._resume()
            except ServiceError as error:
                how = str(error)
            else:
                return True

    def _note_death(self, how: str) -> None:
        """Count a death and wait before the next attempt; raise if there is no point in one."""
        now_s, answered = time.monotonic(), self._counters.get("fastfuse_requests")
        self._deaths.append((now_s, answered))
        while self._deaths[0][0] < now_s - _DEATHS_WITHIN_S:
            self._deaths.popleft()
        if len(self._deaths) >= _MAX_DEATHS and answered == self._deaths[-_MAX_DEATHS][1]:
            raise ServiceError(
                f"the worker died {_MAX_DEATHS} times in a minute without serving anything; last, {how}",
                hint="the log has the reason; the mount is taken down",
            )
        _log.warning("the worker died: %s; starting another", how)
        self._counters.add(self._counters.slot("fastfuse_worker_respawns"))
        if len(self._deaths) > 1:
            # Waits for no signal at all, so it is a pause that misses none.
            signal.sigtimedwait((), min(_FIRST_BACKOFF_S * 2 ** (len(self._deaths) - 2), _MAX_BACKOFF_S))

    def _resume(self) -> None:
        """Go on with the connection, or with a new one if it was aborted or the kernel cannot ask again (< 6.9)."""
        # A worker ends by itself only when its connection has: ``umount -f``, or the connection's `abort` in fusectl.
        assert self._session is not None
        if self._session.can_resend and self._worker_exit_code != 0:
            try:
                # Before the new worker reads anything, or it would be sent its own requests a second time.
                self._session.resend()
            except OSError as error:
                _log.warning("the connection to the kernel was aborted (%s)", error.strerror)
            else:
                self._start_worker()
                return
        _log.warning("mounting %s again: files that are open now fail, new opens work", self._mountpoint)
        self._disconnect()
        self._mount()

    def _disconnect(self) -> None:
        """Detach the mount and end the connection; whoever still waits for an answer gets an error."""
        if self._session is not None:
            with contextlib.suppress(MountError):  # it may be gone already
                unmount(self._mountpoint, lazy=True)
            self._session.close(unmount=False)
            self._session = None

    def _take_down(self) -> None:
        """Leave nothing behind, however far the start had come."""
        if self._worker_pid:
            # Without a mount the worker ends by itself; with files open on a detached one it does not.
            has_ended = find_mount(self._mountpoint) is None and not self._is_detached
            if not has_ended or not is_over_within(self._worker_pid, _WORKER_EXIT_S):
                os.kill(self._worker_pid, signal.SIGKILL)
            wait_child(self._worker_pid)
        self._disconnect()
        if self._tables is not None:
            self._tables.close()
        os.close(self._snapshot_fd)


def _readahead_config(settings: MountSettings) -> ReadaheadConfig:
    default = ReadaheadConfig()
    target_bytes = settings.memory_target_bytes
    return ReadaheadConfig(
        part_size_bytes=settings.part_size_bytes,
        first_part_bytes=min(default.first_part_bytes, settings.part_size_bytes),
        memory_limit_bytes=max(target_bytes - _CLIENT_OVERHEAD_BYTES, target_bytes // 2),
        max_parts_in_flight=settings.connection.max_connections,
    )
