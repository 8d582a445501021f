"""Refreshes that cannot be started or have to end, and what the kernel is told to forget. The rest is clause L6."""

import json
import logging
import os
import signal
import socket
import struct
from collections.abc import Callable, Iterator
from unittest.mock import Mock

import pytest

from fastfuse.errors import FastfuseError, SourceError
from fastfuse.filesystem.kernel.notices import OUT_HEADER, pack_notices
from fastfuse.filesystem.processes.children import Fork, fork_child, is_over_within, memory_fd, wait_child
from fastfuse.filesystem.refresh import Refresher
from fastfuse.index.inodes.changes import Changes, take_over
from fastfuse.index.make import IndexReport
from fastfuse.index.origin import IndexOrigin
from fastfuse.index.snapshot import save_snapshot
from fastfuse.index.sources.uri import S3Uri
from fastfuse.metrics import Counters
from fastfuse.s3.aws import S3Session
from fastfuse.s3.base import ConnectionConfig
from tests.descriptors import open_descriptors
from tests.filesystem.waiting import PATIENCE_S
from tests.index.indexes import index_bytes, index_of, memory_file


def refresher(fork: Fork) -> Refresher:
    made = Refresher(
        S3Uri("bucket", ""), IndexOrigin(), S3Session(ConnectionConfig()), Counters(), fork,
        take_table=lambda _: None, connection=lambda: -1,
    )  # fmt: skip
    made.table_fd = 0  # none of the children here looks at it
    return made


class Children:
    """Forks processes that do nothing instead of what they should."""

    def __init__(self) -> None:
        self.pids: list[int] = []

    def fork(self, _: Callable[[], object]) -> int:
        self.pids.append(fork_child(signal.pause))
        return self.pids[-1]

    def kill(self, pid: int) -> int:
        """Its exit code."""
        os.kill(pid, signal.SIGKILL)
        self.pids.remove(pid)
        return wait_child(pid)


@pytest.fixture
def children() -> Iterator[Children]:
    children = Children()
    yield children
    for pid in list(children.pids):
        children.kill(pid)


@pytest.fixture
def client() -> Iterator[tuple[socket.socket, socket.socket]]:
    """The connection of somebody who asks: the end of the mount, and his own."""
    ours, theirs = socket.socketpair()
    theirs.settimeout(60)
    with ours, theirs:
        yield ours, theirs


def test_a_refresh_for_which_there_is_no_descriptor_has_failed_and_the_next_one_may_not(
    children: Children, client: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    here = refresher(children.fork)
    asking, asked = client
    asking_fd, before = asking.fileno(), open_descriptors()
    with monkeypatch.context() as patch:
        patch.setattr(os, "memfd_create", Mock(side_effect=OSError(24, "Too many open files")))
        here.want(asking)
        here.go_on()
    told = json.loads(asked.recv(4096))["error"]
    assert told["kinds"][0] == "NoRoomError"
    assert "no process can be started: Too many open files" in told["message"]
    assert here._counters.get("fastfuse_refreshes", "failed") == 1
    del before[asking_fd]
    assert open_descriptors() == before


def test_whoever_waits_sees_the_end_of_his_connection_although_a_child_holds_a_copy_of_it(
    children: Children, client: tuple[socket.socket, socket.socket]
) -> None:
    here = refresher(children.fork)
    asking, asked = client
    here.want(asking)
    here.go_on()
    children.fork(lambda: None)
    here.child_ended(children.pids[0], children.kill(children.pids[0]))
    here.go_on()
    assert b"the lister was killed by signal 9" in asked.recv(4096)
    assert asked.recv(4096) == b""


class Listers:
    """Forks processes that fail as they begin to list, and waits for their end."""

    def __init__(self, error: FastfuseError, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(_: int) -> None:
            raise error

        self._pid = 0
        self.refresher = refresher(self._fork)
        monkeypatch.setattr(self.refresher, "_list", fail)

    def _fork(self, work: Callable[[], object]) -> int:
        self._pid = fork_child(work)
        return self._pid

    def end(self) -> bool:
        """Return whether it ended by itself, and have the refresh fail."""
        has_ended = is_over_within(self._pid, PATIENCE_S)
        os.kill(self._pid, signal.SIGKILL)
        self.refresher.child_ended(self._pid, wait_child(self._pid))
        self.refresher.go_on()
        return has_ended


@pytest.mark.parametrize("character", ["x", "\U0001f4be"])
def test_a_lister_whose_error_is_long_ends_and_what_it_says_is_cut(
    character: str, client: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    listers = Listers(SourceError(100_000 * character, hint=100_000 * character), monkeypatch)
    listers.refresher.want(client[0])
    listers.refresher.go_on()
    assert listers.end()
    told = json.loads(client[1].recv(1 << 16))["error"]
    assert (told["kinds"][0], set(told["message"])) == ("SourceError", {character})


def test_a_lister_that_is_killed_while_it_answers_has_failed(
    client: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.pwrite

    def write_some(fd: int, data: bytes, offset: int) -> None:
        write(fd, data[:10], offset)
        os.kill(os.getpid(), signal.SIGKILL)

    listers = Listers(SourceError("no such bucket"), monkeypatch)
    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", write_some)
        listers.refresher.want(client[0])
        listers.refresher.go_on()
    listers.end()
    assert "the lister was killed by signal 9" in json.loads(client[1].recv(4096))["error"]["message"]


def test_a_child_closes_the_ways_to_who_waits(children: Children, client: tuple[socket.socket, socket.socket]) -> None:
    asking_fd, before = client[0].fileno(), open_descriptors()
    here = refresher(children.fork)
    here.want(client[0])
    here.go_on()
    assert open_descriptors().items() > before.items()
    here.close_copies()
    here.close_files()
    del before[asking_fd]
    assert open_descriptors() == before


def test_what_a_refresh_was_to_be_followed_by_ends_with_it_and_clients_and_the_log_are_told(
    children: Children, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    here = refresher(children.fork)
    before = open_descriptors()
    pairs = [socket.socketpair() for _ in range(2)]
    for ours, _ in pairs:
        here.want(ours)
        here.go_on()
    here.close()
    for _, asked in pairs:
        with asked:
            assert b"the mount stops" in asked.recv(4096)
    assert "s3://bucket/ was not refreshed: its connection to the kernel ends" in caplog.text
    assert open_descriptors() == before
    here.go_on()
    assert len(children.pids) == 1, "one that was wanted of the connection before was started"
    here.want()
    here.go_on()
    assert len(children.pids) == 2
    here.child_ended(children.pids[1], children.kill(children.pids[1]))
    here.go_on()
    here.close()
    assert caplog.text.count("its connection to the kernel ends") == 1


def test_a_process_that_has_told_the_kernel_holds_its_connection_no_longer(children: Children) -> None:
    """Or the end of the mount would cut off who reads. A mount that drains goes on with no refresh."""
    here = refresher(children.fork)
    here._steps = here._tell_kernel(memory_fd("old"))
    here.go_on()
    before = here.is_sending
    here.child_ended(children.pids[0], children.kill(children.pids[0]))
    assert (before, here.is_sending) == (True, False)
    here.close()


@pytest.mark.parametrize("is_killed", [False, True], ids=["whole", "behind those of a lister that was killed"])
def test_all_notices_are_kept_and_sent_however_little_one_call_takes(
    monkeypatch: pytest.MonkeyPatch, *, is_killed: bool
) -> None:
    """Linux writes 2 GiB at most in one call."""
    before, now = index_of({f"d/{n}": 1 for n in range(20)}), index_of({"d/x": 1})
    write, pids = os.pwrite, list[int]()

    def fork(work: Callable[[], object]) -> int:
        pids.append(fork_child(work))
        return pids[-1]

    here = refresher(fork)

    def write_some(fd: int, data: bytes, offset: int) -> int:
        if fd != here._owed_fd:
            return write(fd, data, offset)
        written = write(fd, data[:7], offset)
        if is_killed and not pids:
            os.kill(os.getpid(), signal.SIGKILL)
        return written

    def list_now(fd: int) -> IndexReport:
        save_snapshot(now, fd)
        return IndexReport(1, 1, 1, 1.0, 1)

    def end_child() -> None:
        here.child_ended(pids[-1], wait_child(pids[-1]))
        here.go_on()

    monkeypatch.setattr(os, "pwrite", write_some)
    monkeypatch.setattr(here, "_list", list_now)
    with memory_file(index_bytes(before)) as old_fd, memory_file() as connection_fd:
        here.table_fd = os.dup(old_fd)
        monkeypatch.setattr(here, "_connection", lambda: connection_fd)
        for _ in range(1 + is_killed):
            here.want()
            here.go_on()
            end_child()
        end_child()
        sent = os.pread(connection_fd, 1 << 16, 0)
    assert here._counters.get("fastfuse_refreshes", "ok") == 1
    assert sent == pack_notices(take_over(before.table, now.table)[1])
    os.close(here.table_fd)
    here.close()
    here.close_files()


def test_notices_of_directories_come_before_those_of_names_and_again_after_them() -> None:
    packed = pack_notices(Changes(stale_names=[(1, b"gone")], stale_directories=[1, 7]))
    inodes = [OUT_HEADER.pack(OUT_HEADER.size + 24, 2, 0) + struct.pack("=Qqq", inode, 0, 0) for inode in (1, 7)]
    name = OUT_HEADER.pack(OUT_HEADER.size + 16 + 5, 3, 0) + struct.pack("=QII", 1, 4, 0) + b"gone\0"
    assert packed == b"".join((*inodes, name, *inodes))
