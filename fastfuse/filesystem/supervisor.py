"""Own one mount from its listing to its end: list, mount, keep a worker alive, and take everything down in order.

This process must not die. It is small and single-threaded because it forks for as long as it lives: no thread, no S3
client and no trio run is alive in it when it forks. Its signals are blocked and taken one at a time
(`processes.children`), so there are no handlers and no races between them; a connection is a signal, too (SIGIO).

States: listing -> mounting -> serving -> draining -> gone. A worker's death is handled alike in `serving` and
`draining`; the supervisor gives up only if they die without an answered request in between (`health`).
Refreshes run beside `serving`, in processes of their own.
"""

import gc
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from math import inf
from typing import TypeVar

from fastfuse import log
from fastfuse.cache.directory import prepare
from fastfuse.cache.settings import FLUSH_S
from fastfuse.errors import FastfuseError, MountError, ServiceError
from fastfuse.filesystem.answers import Answers
from fastfuse.filesystem.deaths import Deaths
from fastfuse.filesystem.figures.endpoint import MetricsEndpoint
from fastfuse.filesystem.figures.status import Board, Recent
from fastfuse.filesystem.kernel.in_hand import ReadsInHand
from fastfuse.filesystem.kernel.session import Session
from fastfuse.filesystem.mounting.mount_places import place_for
from fastfuse.filesystem.mounting.mount_settings import MountSettings
from fastfuse.filesystem.processes.children import (
    STOPPING,
    NoRoomError,
    Terminals,
    ended_children,
    error_message,
    fork_child,
    ignore_unheeded,
    next_signal,
)
from fastfuse.filesystem.processes.credential_finder import CredentialFinder
from fastfuse.filesystem.processes.health import BEAT_EVERY_S
from fastfuse.filesystem.processes.privileges import become_supervisor, worker_uid
from fastfuse.filesystem.refresh import Refresher, count_table, run_lister
from fastfuse.filesystem.serving.operations import MountOperations
from fastfuse.filesystem.serving.worker import WorkerTask, run_worker
from fastfuse.filesystem.talking.control import ControlSocket, send_answer
from fastfuse.filesystem.talking.hint_taker import listen_for_hints
from fastfuse.filesystem.talking.service_manager import Notifier
from fastfuse.filesystem.worker_process import WorkerProcess
from fastfuse.index.make import IndexReport
from fastfuse.metrics import Counters, mount_labels
from fastfuse.s3.aws import S3Session

_log = logging.getLogger(__name__)

# How often to look whether reads are under way, and how often in a row there must be none: one may have begun as the
# mount was told to stop.
_LOOK_EVERY_S = 0.02
_QUIET_LOOKS = 2
# A limit on processes or descriptors is often met for moments only; until then the kernel keeps the requests.
_ROOM_WITHIN_S = 60.0
_ROOM_RETRY_S = 1.0
# The code of a signal from a pipe, see `fastfuse.cli.startup`: POLL_IN of sigaction(2), which Python has no name for.
_OF_PIPE = 1

_T = TypeVar("_T")


def run(
    settings: MountSettings,
    *,
    ready: Callable[[int], None] | None = None,
    counters: Counters | None = None,
) -> int:
    """Mount, serve until told to stop or unmounted, and return the exit code (clause L5).

    `ready` is called once the first read would work (clause L1), with a descriptor of the index. A process that made
    `counters` before it forked this one can read them.

    Raises:
        FastfuseError: the mount could not be made; nothing is left behind.
    """
    return Supervisor(settings, counters).run(ready or (lambda _: None))


class Supervisor:
    """One mount, from its listing to its end."""

    def __init__(self, settings: MountSettings, counters: Counters | None = None) -> None:
        self._settings = settings
        self._signals = STOPPING | {signal.SIGHUP, signal.SIGCHLD, signal.SIGIO}
        self._notifier = Notifier(settings.notify_socket, settings.watchdog_s)
        # First: what is wrong with it is told before a mountpoint is made.
        self._s3 = S3Session(settings.connection)
        self._place = place_for(settings)
        self._counters = counters or Counters(labels=mount_labels(self._place.mountpoint, settings.source.bucket))
        self._counters.set("fastfuse_memory_target_bytes", settings.memory_target_bytes)
        self._worker = WorkerProcess(self._counters, self._every_second)
        self._in_hand = ReadsInHand()
        self._operations = MountOperations(self._counters, uid=settings.uid, gid=settings.gid, umask=settings.umask)
        self._session: Session | None = None
        self._endpoint = MetricsEndpoint(settings.metrics_listen, {"": self._counters}, self._fork_endpoint)
        self._terminals = Terminals()
        self._deaths = Deaths(self._worker, self._counters, self._in_hand, settings.connection.deadline_s)
        self._control: ControlSocket | None = None
        self._recent = Recent(self._counters)
        self._board = Board()
        self._stops_at_s = inf  # when the grace period ends
        # The worker accepts: a client that announces files while no worker lives waits for the next one.
        self._hints: socket.socket | None = None
        self._credentials = CredentialFinder(self._s3, self._fork)
        self._refresher = Refresher(
            settings.source, settings.origin, self._s3, self._counters, self._fork,
            take_table=self._worker.take_table, connection=self._connection,
        )  # fmt: skip
        self._answers = Answers(
            settings, self._place, self._recent, self._board, self._worker, self._fork, self._s3, self._refresher
        )

    def run(self, ready: Callable[[int], None]) -> int:
        """Mount and serve, as the function `run` says."""
        ignore_unheeded()
        for number in (STOPPING | {signal.SIGHUP}) - {signal.SIGINT}:  # which is an exception
            if signal.getsignal(number) != signal.SIG_IGN:  # nohup, or a parent that heeds it
                signal.signal(number, self._end_at_once)
        become_supervisor()
        # A search for garbage would write to each object that is there, and so copy pages that forked processes share.
        gc.freeze()
        settings = self._settings
        try:
            self._endpoint.open()
            prepare(settings.cache, worker_uid())
            self._notifier.status(f"listing {settings.source}")
            report = self._index()
            # There is something to take down from here on, so signals wait for `_serve`. They stay blocked after it:
            # a late signal must not replace the exit code.
            signal.pthread_sigmask(signal.SIG_BLOCK, self._signals)
            try:
                self._mount()
                self._start_worker()
                # /healthz says "ok" from here on: whoever waits for that finds the mount.
                count_table(self._counters, self._refresher.table_fd, report)
                self._counters.set("fastfuse_cache_wanted", int(settings.cache is not None))
                self._recent.begin()
                _log.info("mounted %s at %s", settings.source, self._place.mountpoint)
                self._notifier.ready()
                self._notifier.status(f"serving {settings.source} at {self._place.mountpoint}")
                ready(self._refresher.table_fd)
                self._credentials.load()
                self._serve()
            finally:
                exit_code = self._take_down()
            self._recent.tell_summary()
            if settings.is_temporary:
                self._place.abandon()
            return exit_code
        except BaseException:
            if not self._recent.mounted_at:
                self._place.abandon()
            raise
        finally:
            self._endpoint.close()
            self._place.close()

    def _end_at_once(self, number: int, _: object) -> None:
        """Handle a signal before the mount is made: remove what was created for it, and end by the signal."""
        self._place.abandon()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        os._exit(128 + number)  # the first process of a container does not end by it

    def _index(self) -> IndexReport:
        settings, origin = self._settings, replace(self._settings.origin, checks_reads=True)
        self._refresher.table_fd, report = run_lister(settings.source, origin, self._s3, self._counters)
        _log.info("listed %s: %s", settings.source, report)
        return report

    def _mount(self) -> None:
        settings = self._settings
        self._session = Session.mount(
            self._operations,
            self._place,
            source=str(settings.source),
            allow_other=settings.allow_other,
            options=settings.mount_options,
        )
        self._recent.device = self._session.device
        self._place.raise_readahead(self._session.device)
        try:
            self._control = ControlSocket(self._session.device)
            self._hints = listen_for_hints(self._session.device)
        except OSError as error:  # no descriptor is left
            _log.warning("'fastfuse refresh', 'status' or 'hint' will get no answer: no socket: %s", error)

    def _fork(
        self, work: Callable[[], object], *, kept: socket.socket | None = None, stops_at: Collection[int] | None = None
    ) -> int:
        """Fork a child that closes our sockets but one, `kept`: a copy would keep clients from seeing their end."""

        def without_sockets() -> None:
            if self._control is not None:
                self._control.close()
            # The next mount knows a child that outlives us by the socket of hints.
            for ours in (self._worker.messages, self._hints, self._credentials.end, self._endpoint.listener):
                if ours is not None and ours is not (kept or self._hints):
                    ours.close()
            self._refresher.close_copies()
            self._place.close()
            work()

        return fork_child(without_sockets, stops_at=stops_at)

    def _fork_endpoint(self, work: Callable[[], object]) -> int:
        """Fork a child that closes our files, too: it would keep the connection to the kernel, and old tables."""

        def without_files() -> None:
            os.setsid()
            for owner in (self._refresher, self._credentials):
                owner.close_files()
            for fd in (self._refresher.table_fd, self._session.fd if self._session is not None else -1):
                if fd >= 0:
                    os.close(fd)
            work()

        return self._fork(without_files, kept=self._endpoint.listener, stops_at=())

    def _start_worker(self) -> None:
        """Fork a worker and wait until it serves.

        Raises:
            ServiceError, NoRoomError: as `WorkerProcess.start`.
        """
        credentials = self._credentials.new_end()
        assert self._session is not None
        session, settings = self._session, self._settings
        if settings.cache is not None and self._worker.may_have_ended_by_cache:
            _log.warning("the next worker does not use the cache %s, in case that is why", settings.cache.directory)
            settings = replace(settings, cache=None)

        def work(messages: socket.socket) -> None:
            os.setsid()  # a daemon leaves the process group of its caller once this worker serves
            for owner in (self._refresher, self._credentials):
                owner.close_files()
            task = WorkerTask(
                settings=settings,
                operations=self._operations,
                counters=self._counters,
                board=self._board,
                in_hand=self._in_hand,
                session=self._s3,
                snapshot_fd=self._refresher.table_fd,
                session_fd=session.fd,
                requests=session.requests,
                messages=messages,
                credentials=credentials,
                hints=self._hints,
                hint_uids=frozenset({0, os.geteuid()}),
                dump_fd=self._worker.dump_fd,
            )
            run_worker(task)

        with credentials:
            self._worker.start(lambda messages: self._fork(partial(work, messages), stops_at=()))

    def _every_second(self) -> None:
        """Tell the service manager that this process lives, and look at what the worker does."""
        self._notifier.alive()
        self._deaths.look(self._session)

    def _serve(self) -> None:
        """Wait for the end of the mount; keep a worker alive and refresh the table until then."""
        assert self._session is not None
        while True:
            self._every_second()
            caught = next_signal(self._signals, BEAT_EVERY_S)
            number = caught.si_signo if caught is not None else 0
            is_of_pipe = caught is not None and (number, caught.si_code) == (signal.SIGTERM, _OF_PIPE)
            if is_of_pipe and not self._session.is_mounted():
                continue  # the program has unmounted, and what it has open can be read to its end
            has_hung_up = self._terminals.have_hung_up()  # then Ctrl-C cannot end a mount in the foreground any more
            if number in STOPPING or (number == signal.SIGHUP and has_hung_up):
                self._drain()
                return
            if number == signal.SIGHUP:
                self._refresher.want()
            self._recent.look()
            self._answer_requests()
            if self._worker_has_ended() and not self._replace_worker():
                return
            self._refresher.go_on()

    def _answer_requests(self) -> None:
        for asked, asking in self._control.requests() if self._control is not None else ():
            if self._session is None or not self._session.is_connected:
                asking.close()  # another mount may have the number of this one, and answers
            elif not self._answers.give(asked, asking):
                if self._stops_at_s < inf:
                    send_answer(asking, error_message(MountError("the mount stops")))
                else:
                    self._refresher.want(asking)

    def _connection(self) -> int:
        """Return the descriptor of the connection to the kernel, or -1 if that has ended."""
        return self._session.fd if self._session is not None and self._session.is_connected else -1

    def _drain(self) -> None:
        """Refuse new reads; let those under way end, for the grace period or until a second signal (clause L2)."""
        assert self._session is not None
        _log.info("stopping: waiting up to %g s for reads under way", self._settings.grace_s)
        self._stops_at_s = time.monotonic() + self._settings.grace_s
        # First: no read may begin after the end was reported.
        self._counters.set("fastfuse_draining", 1)
        self._notifier.stopping()
        owed, reads, quiet_looks = self._session.owed, 0, 0
        while quiet_looks < _QUIET_LOOKS and time.monotonic() < self._stops_at_s:
            caught = next_signal(self._signals, _LOOK_EVERY_S)
            if caught is not None and caught.si_signo in STOPPING:
                break
            # Other children end, too: those of a refresh.
            self._every_second()
            self._answer_requests()
            if self._worker_has_ended():
                # Its successor goes on with what it was reading, and cannot tell that from new reads.
                self._counters.set("fastfuse_draining", 0)
                if not self._replace_worker():
                    return
            before, owed = owed, self._session.owed
            # One that is refused is owed for a moment only. The count has those of killed readers, too.
            waiting = 0 if self._session.can_go_on else self._counters.get("fastfuse_waiting_reads")
            reads = max(len(owed & before), waiting)
            quiet_looks = 0 if reads else quiet_looks + 1
        if reads:
            _log.warning("%d reads under way fail: %s is unmounted now", reads, self._place.mountpoint)

    def _worker_has_ended(self) -> bool:
        """Reap every child that has ended, and kill a worker that hangs; return whether there is none now."""
        for pid, exit_code in ended_children():
            for owner in (self._worker, self._endpoint, self._credentials, self._refresher):
                owner.child_ended(pid, exit_code)
        self._credentials.go_on()
        if (log_fd := log.moved_file()) >= 0:
            self._worker.take_log_file(log_fd)
            self._endpoint.renew()
        self._endpoint.go_on()
        self._worker.kill_if_hung()
        return not self._worker.pid

    def _replace_worker(self) -> bool:
        """Start another worker after a death; return False if the mount is gone and none is needed.

        It continues the connection, or a new one if that was aborted (``umount -f``, or `abort` in fusectl).

        Raises:
            FastfuseError: one worker dies after the other and no request is served, or none can be started.
        """
        while True:
            session = self._session
            assert session is not None
            can_go_on = session.can_go_on
            if not can_go_on and not self._in_time(session.is_mounted):
                _log.info("%s was unmounted", self._place.mountpoint)
                return False
            self._pause(self._deaths.note(session))
            if not can_go_on:
                _log.warning("mounting %s again: open files fail, opened again they work", self._place.mountpoint)
                self._disconnect()
                self._mount()
            try:
                self._in_time(self._start_worker)
                return True
            except (ServiceError, NoRoomError) as error:
                if time.monotonic() >= self._stops_at_s:
                    return True  # too late for another one
                if isinstance(error, NoRoomError) or signal.sigpending() & STOPPING:
                    raise

    def _in_time(self, attempt: Callable[[], _T]) -> _T:
        """Call `attempt` until there is room for the process that it needs, and return its result.

        Raises:
            NoRoomError: there was no room for a minute, or a signal says to stop.
        """
        until_s = min(time.monotonic() + _ROOM_WITHIN_S, self._stops_at_s)
        while True:
            try:
                return attempt()
            except (NoRoomError, OSError) as error:
                if time.monotonic() >= until_s or signal.sigpending() & STOPPING:
                    raise NoRoomError(f"the mount cannot go on: {error}", hint=getattr(error, "hint", "")) from error
                _log.warning("no worker can be started yet: %s", error)
            self._pause(_ROOM_RETRY_S)

    def _pause(self, for_s: float) -> None:
        """Wait, but not beyond the grace period or a signal to stop; answer who asks meanwhile."""
        until_s = min(time.monotonic() + for_s, self._stops_at_s)
        while (left_s := until_s - time.monotonic()) > 0 and not signal.sigpending() & STOPPING:
            self._every_second()
            self._answer_requests()
            # The empty set makes it a pause that misses no signal.
            next_signal((), min(left_s, _LOOK_EVERY_S))

    def _disconnect(self) -> None:
        """Detach the mount and end the connection; readers that wait for an answer get an error.

        Raises:
            MountError: the mount may not be unmounted.
        """
        # First: processes that were forked since the mount hold copies of its connection.
        is_held = self._refresher.is_sending or self._worker.may_survive
        self._refresher.close()
        self._credentials.close()
        for ours in (self._control, self._hints):
            if ours is not None:
                ours.close()
        self._control = self._hints = None
        if self._session is not None:
            session, self._session = self._session, None
            try:
                if is_held:
                    session.abort()
                session.unmount()
            finally:
                session.close()

    def _take_down(self) -> int:
        """Remove everything, however far the start had come, and return the exit code."""
        exit_code = 0
        try:
            self._disconnect()
        except FastfuseError as error:
            _log.error("%s; to be rid of it: %s", error, error.hint)
            exit_code = error.exit_code
        self._worker.close(FLUSH_S if self._settings.cache else 0.0)
        os.close(self._refresher.table_fd)
        return exit_code
