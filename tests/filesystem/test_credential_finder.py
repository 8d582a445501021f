"""Nobody's processes get credentials, and all else that they may not read or write themselves."""

import errno
import os
import select
import signal
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import aclosing, closing, contextmanager
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import trio

from bench.s3server import FaultRule, LoopbackServer, MemoryObjects, ServerConfig, create_chain
from bench.s3server.faults import ACCESS_DENIED, EXPIRED_TOKEN, Stall
from fastfuse.errors import AccessError, FastfuseError, ServiceError
from fastfuse.filesystem.processes import children, credential_finder
from fastfuse.filesystem.processes.children import NoRoomError, ask_child, fork_child, wait_child
from fastfuse.filesystem.processes.credential_finder import (
    CredentialFinder,
    ask_for_credentials,
    credentials_of,
    give_up_rights,
    packed,
)
from fastfuse.objects import ObjectRef
from fastfuse.s3.aws import S3Session
from fastfuse.s3.base import ConnectionConfig
from fastfuse.s3.client import S3Client
from fastfuse.s3.credentials import Credentials
from tests.descriptors import open_descriptors
from tests.filesystem.test_privileges import NOBODYS, RUNS_PROGRAM, rights_of
from tests.filesystem.test_supervisor import kill
from tests.filesystem.waiting import PATIENCE_S, wait_until
from tests.mounting import ENVIRONMENT, mounted
from tests.s3.test_credentials import process_reply, write_process_profile
from tests.servers import ACCESS_KEY, SECRET_KEY, configure

pytestmark = pytest.mark.usefixtures("aws_environment", "no_sigio")


class Desk:
    """The supervisor's part, and that of a worker in another thread."""

    def __init__(self, connection: ConnectionConfig) -> None:
        self.session = S3Session(connection)
        self.worker = S3Session(connection)
        self.pids: list[int] = []
        self.end: socket.socket | None = None
        self.finder = CredentialFinder(self.session, self._fork)
        self.new_worker()

    def new_worker(self) -> None:
        if self.end is not None:
            self.end.close()
        self.end = self.finder.new_end()
        ask_for_credentials(self.worker, self.end)

    def _fork(self, work: Callable[[], object]) -> int:
        self.pids.append(fork_child(work))
        return self.pids[-1]

    def reap(self) -> None:
        """Wait for the last process, and have its answer taken to the worker."""
        self.finder.child_ended(self.pids[-1], wait_child(self.pids[-1]))
        self.finder.go_on()

    def wait_for_question(self) -> None:
        assert self.finder.end is not None
        assert select.select([self.finder.end], [], [], PATIENCE_S)[0]

    async def resolve(self) -> Credentials:
        assert self.worker.credentials is not None
        return await self.worker.credentials._resolve()

    def ask(self) -> Credentials:
        """Return the answer to one question, which one process has."""
        with ThreadPoolExecutor(1) as threads:
            asked: Future[Credentials] = threads.submit(trio.run, self.resolve)
            before = len(self.pids)
            while len(self.pids) == before:
                self.wait_for_question()
                self.finder.go_on()
            self.reap()
            return asked.result(PATIENCE_S)


@contextmanager
def desk(profile: str | None = None, endpoint_url: str | None = None, *, deadline_s: float = 60.0) -> Iterator[Desk]:
    config = ConnectionConfig(profile=profile, endpoint_url=endpoint_url, region="us-east-1", deadline_s=deadline_s)
    made = Desk(config)
    yield made
    assert made.end is not None
    made.end.close()
    made.finder.close()


def test_keys_come_as_they_are_and_an_error_as_its_own_kind(aws_environment: Path, tmp_path: Path) -> None:
    with desk() as found:
        assert found.ask() == Credentials(access_key=ACCESS_KEY, secret_key=SECRET_KEY)
    reply = tmp_path / "reply"
    write_process_profile(aws_environment, reply, calls=tmp_path / "calls")
    configure(reply, process_reply("AKIAFIRST", timedelta(hours=1)))
    with desk("process") as found:
        credentials = found.ask()
        assert (credentials.access_key, credentials.token) == ("AKIAFIRST", "token")
        assert credentials.expires_at is not None
        assert found.session.credentials is not None
        assert found.session.credentials.latest == credentials  # the next worker's
        found.new_worker()
        configure(reply, process_reply("AKIASECOND", timedelta(hours=1)))
        assert found.ask().access_key == "AKIASECOND"
        configure(reply, "leaked-secret")
        with pytest.raises(AccessError) as caught:
            found.ask()
        assert "leaked-secret" not in str(caught.value) + caught.value.hint


def test_a_slow_program_is_given_up_before_the_deadline_of_a_read_and_not_before_a_mount(
    aws_environment: Path, tmp_path: Path
) -> None:
    configure(tmp_path / "reply", process_reply("AKIASLOW", timedelta(hours=1)))
    program = f"""sh -c 'sleep 0.3; cat "{tmp_path}/reply"'"""
    configure(aws_environment, f"[profile process]\ncredential_process = {program}\n")
    with desk("process", deadline_s=0.2) as found:
        for _ in range(2):
            with pytest.raises(ServiceError, match=r"did not come within 0\.15 s"):
                found.ask()
        assert credentials_of(credential_finder._found(found.session)).access_key == "AKIASLOW"


def test_the_program_of_a_daemon_heeds_a_terminals_ctrl_c(
    aws_environment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The daemon ignores it, and leaves to its parent what it means."""
    configure(tmp_path / "reply", process_reply("AKIAPROGRAM", timedelta(hours=1)))
    program = f"sh -c 'grep SigIgn: /proc/self/status >{tmp_path}/signals; cat {tmp_path}/reply'"
    configure(aws_environment, f"[profile process]\ncredential_process = {program}\n")
    monkeypatch.setattr(children, "UNHEEDED", children.UNHEEDED | {signal.SIGINT})
    with desk("process") as found:
        session = found.session

        def ask() -> dict[str, Any]:
            give_up_rights(session, lambda: None)
            assert session.credentials is not None
            return packed(trio.run(session.credentials.current))

        assert ask_child(ask, "it")["access_key"] == "AKIAPROGRAM"
    ignored = int((tmp_path / "signals").read_text().split()[1], 16)
    assert not ignored >> signal.SIGINT - 1 & 1


@pytest.mark.parametrize(
    ("end", "how"),
    [
        (signal.pause, "did not end in time"),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "was killed by signal 9"),
        (lambda: os.kill(os.getpid(), signal.SIGTERM), "was killed by signal 15"),
    ],
)
def test_a_search_that_is_killed_as_one_that_does_not_give_up_is_tried_again(
    end: Callable[[], object], how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(credential_finder, "_KILL_AFTER_S", 1e-3 if end == signal.pause else PATIENCE_S)
    monkeypatch.setattr(credential_finder, "_found", lambda *_: end())
    with desk() as found, ThreadPoolExecutor(1) as threads:
        asked = threads.submit(trio.run, found.resolve)
        found.wait_for_question()
        found.finder.go_on()
        found.reap()
        with pytest.raises(ServiceError, match=f"the process that finds them {how}"):
            asked.result(PATIENCE_S)


def test_one_process_answers_all_questions_that_came_before_its_end() -> None:
    with desk() as found:
        for _ in range(3):
            assert found.end is not None
            found.end.send(b"ask")
            found.finder.go_on()
        found.reap()
        found.finder.go_on()
        assert len(found.pids) == 1
        assert found.ask().access_key == ACCESS_KEY


def test_a_child_that_is_forked_during_a_search_keeps_no_copy_of_the_answer() -> None:
    def answers() -> list[str]:
        return [name for name in open_descriptors(os.getpid()).values() if "fastfuse-answer" in name]

    with desk() as found:
        assert found.end is not None
        found.end.send(b"ask")
        found.finder.go_on()
        assert len(answers()) == 1

        def look() -> None:
            found.finder.close_files()
            if answers():
                os._exit(1)

        assert wait_child(fork_child(look)) == 0
        found.reap()


def test_an_answer_to_whoever_has_gone_is_not_taken_for_a_later_one(aws_environment: Path, tmp_path: Path) -> None:
    reply = tmp_path / "reply"
    write_process_profile(aws_environment, reply, calls=tmp_path / "calls")
    configure(reply, process_reply("AKIAFIRST", timedelta(hours=1)))

    async def ask_and_go(found: Desk) -> None:
        with trio.move_on_after(0):
            await found.resolve()

    with desk("process") as found:
        trio.run(ask_and_go, found)
        found.finder.go_on()
        found.reap()
        configure(reply, process_reply("AKIASECOND", timedelta(hours=1)))
        assert found.ask().access_key == "AKIASECOND"


def test_a_limit_of_processes_or_files_and_a_dead_supervisor_are_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    with desk() as found, ThreadPoolExecutor(1) as threads, closing(found.finder):
        for place, name, error, told in (
            (found.finder, "_fork", NoRoomError("no process can be started"), "no process can be started"),
            (os, "memfd_create", OSError(errno.EMFILE, "EMFILE"), "no process can be started: EMFILE"),
        ):
            monkeypatch.setattr(place, name, Mock(side_effect=error))
            asked = threads.submit(trio.run, found.resolve)
            found.wait_for_question()
            found.finder.go_on()
            with pytest.raises(FastfuseError, match=told):
                asked.result(PATIENCE_S)
        found.finder.close()
        with pytest.raises(AccessError, match="has ended"):
            trio.run(found.resolve)


def test_a_read_waits_for_room_for_the_process_that_finds_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    async def read(session: S3Session) -> bytes:
        async with aclosing(S3Client(session)) as client:
            return bytes(await client.get(ObjectRef("bucket", "key", 4, ""), 0, 4))

    with (
        LoopbackServer({"bucket": MemoryObjects({"key": b"data"})}) as server,
        desk(endpoint_url=server.endpoint_url) as found,
        ThreadPoolExecutor(1) as threads,
    ):
        no_room = count()

        def fork(work: Callable[[], object]) -> int:
            if next(no_room) < 3:
                raise NoRoomError("no process can be started: Resource temporarily unavailable")
            return found._fork(work)

        monkeypatch.setattr(found.finder, "_fork", fork)
        reading = threads.submit(trio.run, read, found.worker)
        while not found.pids:
            found.wait_for_question()
            found.finder.go_on()
        found.reap()
        assert reading.result(PATIENCE_S) == b"data"


# --- real mounts


def profile_environment(config: Path, **variables: str) -> dict[str, str]:
    environment = {name: value for name, value in ENVIRONMENT.items() if "_KEY" not in name}
    return environment | {"AWS_CONFIG_FILE": str(config), "AWS_PROFILE": "process"} | variables


def refuse_once(server: LoopbackServer) -> None:
    server.faults.add(FaultRule(action=EXPIRED_TOKEN, operation="GetObject", times=1))


@pytest.mark.fuse
def test_keys_are_renewed_by_a_program_that_only_root_may_run(tmp_path: Path) -> None:
    """Nor may anybody else read the profile. Keys are due when the test says so."""
    place = tmp_path / "roots"
    place.mkdir(mode=0o700)
    config, program, reply, calls, waits, go, due = (
        place / name for name in ("config", "program", "reply", "calls", "waits", "go", "due")
    )
    due.touch()
    change = f"""
    import os
    from fastfuse.s3.credentials import CredentialSource
    due_fd = os.open({str(due)!r}, os.O_RDONLY)
    CredentialSource._is_due = lambda self: os.fstat(due_fd).st_size > 0
    """
    os.mkfifo(go)
    configure(program, f"#!/bin/sh\nid -u >>{calls}\n[ -e {waits} ] && cat {go}\ncat {reply}\n")
    program.chmod(0o700)
    configure(config, f"[profile process]\ncredential_process = {program}\n")
    config.chmod(0o600)
    configure(reply, process_reply("AKIAFIRST", timedelta(hours=1)))
    # Too large for the threads that read small files: a request that they are refused is made again, with the old keys.
    contents = {name: name.encode() * (300 << 10) for name in "abcde"}
    objects = {f"data/{name}": content for name, content in contents.items()}

    environment = profile_environment(config)

    def asked() -> int:
        return len(calls.read_text().split())

    with (
        LoopbackServer({"bucket": MemoryObjects(objects)}) as server,
        mounted("s3://bucket/data", server.endpoint_url, environment=environment, change=change) as mount,
        ThreadPoolExecutor(1) as threads,
    ):

        @contextmanager
        def waiting_finder() -> Iterator[int]:
            with go.open("w"):  # once the program runs
                (finder,) = [pid for pid in mount.children() if not rights_of(pid).uid]
                yield finder
                waits.unlink()

        worker = mount.worker()
        assert (mount.path / "a").read_bytes() == contents["a"]
        # The service refuses the keys.
        before = asked()
        configure(reply, process_reply("AKIASECOND", timedelta(hours=1)))
        waits.touch()
        refuse_once(server)
        reading = threads.submit((mount.path / "b").read_bytes)
        with waiting_finder() as finder:
            assert rights_of(finder) == RUNS_PROGRAM
            assert rights_of(worker) == NOBODYS
        assert reading.result(PATIENCE_S) == contents["b"]
        assert "refused the AWS credentials; using those that were resolved anew" in mount.log
        assert asked() > before

        # The next worker begins with the newest keys; they get old.
        before = asked()
        kill(worker)
        assert (mount.path / "c").read_bytes() == contents["c"]
        assert asked() == before
        waits.touch()
        due.write_text("now")
        reading = threads.submit((mount.path / "d").read_bytes)
        with waiting_finder():
            assert reading.result(PATIENCE_S) == contents["d"]
            due.write_text("")
        assert asked() > before
        wait_until(lambda: len(mount.children()) == 1)

        # Who looks for others dies. The read is tried again with the old ones.
        waits.touch()
        refuse_once(server)
        reading = threads.submit((mount.path / "e").read_bytes)
        with waiting_finder() as finder:
            kill(finder)
            assert reading.result(PATIENCE_S) == contents["e"]
        assert "there are no others: The AWS credentials cannot be had: the process that finds them was" in mount.log
        assert rights_of(mount.worker()) == NOBODYS
        assert set(calls.read_text().split()) == {"0"}
        assert mount.stop() == 0
        assert SECRET_KEY not in mount.log


@pytest.mark.fuse
def test_a_mount_uses_files_that_only_root_may_use_while_its_worker_is_nobody(tmp_path: Path) -> None:
    """The certificates to trust, the key of the objects, a saved listing, and a log file that is rotated."""
    authority, issued = create_chain(tmp_path)
    key, saved, log = (tmp_path / name for name in ("key", "saved/index", "log"))
    saved.parent.mkdir()
    key.write_bytes(bytes(32))
    key.chmod(0o600)
    assert tmp_path.stat().st_mode & 0o777 == 0o700
    options = {"ca-bundle": authority, "sse-c-key-file": key, "index": saved, "index-max-age": "1h", "log-file": log}
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    objects = {f"data/{name}": name.encode() for name in "abc"}
    with (
        LoopbackServer({"bucket": MemoryObjects(objects)}, ServerConfig(tls=issued)) as server,
        mounted("s3://bucket/data", server.endpoint_url, *words) as mount,
    ):
        first = saved.stat()
        assert (first.st_uid, first.st_mode & 0o777) == (0, 0o600)
        mount.process.send_signal(signal.SIGHUP)
        wait_until(lambda: saved.stat().st_ino != first.st_ino)
        wait_until(lambda: "refreshed s3://bucket/data" in log.read_text())
        assert (mount.path / "a").read_bytes() == b"a"
        kill(mount.worker())
        assert (mount.path / "b").read_bytes() == b"b"

        log.rename(tmp_path / "log.1")
        worker = mount.worker()
        wait_until(lambda: str(log) in open_descriptors(worker).values())
        server.faults.add(FaultRule(action=ACCESS_DENIED, operation="GetObject"))
        with pytest.raises(PermissionError):
            (mount.path / "c").read_bytes()
        assert "AccessDenied" in log.read_text()
        assert str(tmp_path / "log.1") not in open_descriptors(worker).values()
        assert (log.stat().st_uid, log.stat().st_mode & 0o777) == (0, 0o640)


@pytest.mark.fuse
def test_a_shared_index_is_made_with_files_only_root_may_use(tmp_path: Path) -> None:
    """Credentials are refused as the claim is taken, and as the source is listed. The claim is renewed in between."""
    authority, issued = create_chain(tmp_path)
    config, program, reply, calls = (tmp_path / name for name in ("config", "program", "reply", "calls"))
    configure(program, f"#!/bin/sh\nid -u >>{calls}\nsed s/AKIA/AKIA$(wc -l <{calls})/ {reply}\n")
    program.chmod(0o700)
    configure(config, f"[profile process]\ncredential_process = {program}\nca_bundle = {authority}\n")
    configure(reply, process_reply("AKIA", timedelta(hours=1)))
    assert tmp_path.stat().st_mode & 0o777 == 0o700
    lists = MemoryObjects({})
    words = ("--index", "s3://lists/index", "--index-max-age", "1h")
    buckets = {"bucket": MemoryObjects({"data/a": b"a"}), "lists": lists}
    with (
        LoopbackServer(buckets, ServerConfig(tls=issued, writes="conditional")) as server,
        ThreadPoolExecutor(1) as threads,
    ):
        server.faults.add(FaultRule(action=EXPIRED_TOKEN, operation="PutObject", times=1))
        server.faults.add(FaultRule(action=EXPIRED_TOKEN, operation="ListObjectsV2", times=1))
        listing = server.faults.add(FaultRule(action=Stall(0), operation="ListObjectsV2"))

        def let_it_list_after_two_renewals() -> None:
            server.wait_until(lambda now: now.requests.get("ListObjectsV2", 0) > 0, PATIENCE_S)
            puts = server.statistics().requests["PutObject"]
            server.wait_until(lambda now: now.requests["PutObject"] >= puts + 2, PATIENCE_S)
            server.faults.remove(listing)

        renewing = threads.submit(let_it_list_after_two_renewals)
        environment, change = profile_environment(config), "from fastfuse.index import saved\nsaved.RENEWAL_S = 0.05"
        with mounted("s3://bucket/data", server.endpoint_url, *words, environment=environment, change=change) as mount:
            assert (mount.path / "a").read_bytes() == b"a"
            assert mount.log.count("using those that were resolved anew") == 1  # of both refusals within a second
            assert "CA bundle" not in mount.log  # nobody cannot see it, and needs it no more
            assert "was not written anew" not in mount.log
        renewing.result()
        made, claim = (lists.view().lookup(key) for key in (b"index", b"index.claim"))
        assert made is not None
        assert claim is not None
        assert claim.size_bytes == 0
    assert set(calls.read_text().split()) == {"0"}
