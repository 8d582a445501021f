"""Checkpoints are in S3 while the job runs, each whole, and there again when it starts elsewhere."""

import hashlib
import logging
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any, cast

import pytest
import trio
import trio.testing

from bench.s3server import ACCESS_DENIED, FaultRule, LoopbackServer, MemoryObjects, ServerConfig
from fastfuse.errors import AccessError, OutputError, RefusedError, SourceError
from fastfuse.filesystem.processes.children import STOP_ORDER, ended_children, wait_child
from fastfuse.filesystem.refresh import run_lister
from fastfuse.index.sources.uri import S3Uri
from fastfuse.s3.aws import S3Session
from fastfuse.s3.base import ConnectionConfig
from fastfuse.s3.upload import ObjectState, ObjectWriter, load_writer
from fastfuse.sagemaker.description.channel import SyncedDirectory
from fastfuse.sagemaker.files import JobPaths
from fastfuse.sagemaker.outputs import syncing as module
from fastfuse.sagemaker.outputs.sending import Tell
from fastfuse.sagemaker.outputs.syncing import sync_directories
from fastfuse.sagemaker.running import delivery, job_processes
from fastfuse.sagemaker.running.delivery import Sender
from fastfuse.sagemaker.running.phases import Phase, Phases
from tests.filesystem.waiting import wait_until
from tests.sagemaker.jobs import request as request_of
from tests.sagemaker.outputs.test_record import record_of
from tests.sagemaker.running.jobs import BUCKET, channel, running
from tests.servers import ACCESS_KEY, SECRET_KEY, S3Server


@dataclass(frozen=True)
class Synced:
    """A directory whose files go to a server that is not ours."""

    server: S3Server
    path: Path

    @property
    def prefix(self) -> str:
        """No key of another test begins with it."""
        return f"sync-{self.path.parent.name}/"

    def store(self, key: str, data: bytes) -> None:
        self.server.put(self.prefix + key, data)

    def objects(self) -> dict[str, bytes]:
        client, bucket = self.server.client, self.server.bucket
        listed = client.list_objects_v2(Bucket=bucket, Prefix=self.prefix).get("Contents", ())
        keys = [entry["Key"] for entry in listed]
        return {key.removeprefix(self.prefix): client.get_object(Bucket=bucket, Key=key)["Body"].read() for key in keys}

    def write(self, name: str, data: bytes, *, mtime_s: int | None = None) -> None:
        """Write into another file, which then takes the place, as careful frameworks do."""
        path = self.path / name
        path.parent.mkdir(exist_ok=True)
        hidden = path.with_name("writing")
        hidden.write_bytes(data)
        hidden.rename(path)
        if mtime_s is not None:
            os.utime(path, (mtime_s, mtime_s))

    @contextmanager
    def syncing(
        self,
        base: Path | None = None,
        *,
        are_checkpoints: bool = True,
        **begin: Any,  # noqa: ANN401 - as they are
    ) -> Iterator["Sync"]:
        """Look often in a process of its own until the end of the block; `begin` as of `sync_directories`."""
        sync = Sync(self, base or self.path.parent, are_checkpoints=are_checkpoints, begin=begin)
        try:
            yield sync
        finally:
            if sync.process.exit_code is None:
                sync.process.kill()
                os.waitpid(sync.process.pid, 0)

    def sent_files(self, *, began_ns: int | None = None) -> int:
        """Let a process send what there is to send, and end; return how many files that were."""
        with self.syncing(began_ns=began_ns) as sync:
            return sync.finish()


class Sync:
    """A process that looks often, and what it has told."""

    def __init__(self, of: Synced, base: Path, *, are_checkpoints: bool, begin: dict[str, Any]) -> None:
        self.objects = of.objects
        synced = SyncedDirectory(
            name="checkpoints",
            local_path=str(of.path),
            place=S3Uri(of.server.bucket, of.prefix),
            are_checkpoints=are_checkpoints,
        )
        session = S3Session(replace(of.server.config, force_path_style=True))
        self.phases = Phases(is_json=False)
        self.phases.enter(Phase.TRAINING, "")
        work = partial(sync_directories, (synced,), (), JobPaths(base), session, 8 << 20, look_every_s=0.05, **begin)
        self.process = Sender(work, {synced.name: ""})
        self._reap(lambda: self.process.is_ready)

    def wait_for(self, **objects: bytes) -> None:
        wait_until(lambda: self.objects() == objects, lambda: str({n: len(d) for n, d in self.objects().items()}))

    def end(self) -> None:
        self.process.stop()
        self._reap(lambda: False)

    def finish(self) -> int:
        """End without a failure; return how many files were sent in all."""
        self.end()
        assert self.process.failures() == []
        return int(self.process.artifacts["checkpoints"]["Files"])

    def _reap(self, condition: Callable[[], bool]) -> None:
        def is_over() -> bool:
            self.process.listen(self.phases)
            if self.process.exit_code is None:
                pid, status = os.waitpid(self.process.pid, os.WNOHANG)
                if pid:
                    self.process.ended(os.waitstatus_to_exitcode(status), self.phases)
            return self.process.exit_code is not None or condition()

        wait_until(is_over, str)


def settings_of_a_job(base: Path) -> Any:  # noqa: ANN401 - what `Delivery` takes of a `RunSettings`
    synced = SyncedDirectory(name="c", local_path="/c", place=S3Uri(BUCKET, "c/"), are_checkpoints=True)
    return SimpleNamespace(
        job=SimpleNamespace(synced=(synced,), output=None),
        cluster=SimpleNamespace(is_alone=True),
        paths=JobPaths(base),
        connection=ConnectionConfig(),
        part_size_bytes=1,
        command=(),
    )


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Path]:
    """The log of this process and of those that it forks."""
    handler = logging.FileHandler(tmp_path / "log")
    logging.getLogger("fastfuse").addHandler(handler)
    yield tmp_path / "log"
    logging.getLogger("fastfuse").removeHandler(handler)
    handler.close()


@pytest.fixture(scope="module", autouse=True)
def writer_is_loaded() -> None:
    """Load once what each process that is forked here would load."""
    trio.run(load_writer, S3Session(ConnectionConfig(sign_request=False)))


@pytest.fixture(autouse=True)
def parent(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Credentials, and no end by the signal that a child has said something."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGIO, before)


@pytest.fixture
def here(moto_server: S3Server, tmp_path: Path) -> Synced:
    (tmp_path / "checkpoints").mkdir()
    return Synced(moto_server, tmp_path / "checkpoints")


async def put_and_replace(writer: ObjectWriter, body: bytes, **options: Any) -> str:  # noqa: ANN401 - of `put`
    """Write as `ObjectWriter.put` does, and at once write what another host has."""
    etag = await put_object(writer, body, **options)
    await put_object(writer, b"another host's")
    return etag


put_object = ObjectWriter.put


def test_new_and_replaced_files_go_to_s3_while_the_job_runs(here: Synced) -> None:
    with here.syncing() as sync:
        here.write("a", b"first")
        sync.wait_for(a=b"first")
        status = (here.path / "a").stat()
        here.write("a", b"other")
        # The file has the same size and time: it is known by its inode.
        os.utime(here.path / "a", ns=(status.st_atime_ns, status.st_mtime_ns))
        sync.wait_for(a=b"other")
        # A file that is removed here stays there.
        (here.path / "a").unlink()
        here.write("b/c", b"")
        sync.wait_for(**{"a": b"other", "b/c": b""})
        assert sync.finish() == 2


def test_what_is_no_file_is_left_out_with_one_warning(here: Synced, log: Path) -> None:
    os.mkfifo(here.path / "pipe")
    with here.syncing() as sync:
        here.write("a", b"first")
        sync.wait_for(a=b"first")
        sync.end()
    assert log.read_text().count("/pipe' is neither a file, a directory nor a link, and is left out") == 1


def test_a_file_that_is_open_for_writing_waits_until_it_is_closed(here: Synced) -> None:
    with here.syncing() as sync:
        with (here.path / "open").open("wb") as file:
            file.write(b"half")
            file.flush()
            # Several looks pass until this one is there.
            for number in range(3):
                here.write("whole", b"%d" % number)
                sync.wait_for(whole=b"%d" % number)
            file.write(b" and half")
        sync.wait_for(whole=b"2", open=b"half and half")


def test_a_file_that_changes_between_two_looks_at_it_waits_until_it_is_complete(
    here: Synced, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The script begins to write just when nobody was found to write."""
    is_being_written = module._is_being_written
    begun: list[IO[bytes]] = []

    def begin_to_write(fd: int) -> bool:
        if is_being_written(fd):
            return True
        if not begun:
            begun.append((here.path / "state").open("wb", buffering=0))
            begun[0].write(b"half")
        return False

    monkeypatch.setattr(module, "_is_being_written", begin_to_write)
    here.write("state", b"first")
    with here.syncing() as sync:
        wait_until(lambda: (here.path / "state").read_bytes() == b"half", str)
        here.write("other", b"1")
        sync.wait_for(other=b"1")


def test_a_checkpoint_that_is_never_complete_is_told_once(
    here: Synced, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_UNFINISHED_S", 0.0)
    with here.syncing() as sync:
        with (here.path / "open").open("wb") as file:
            file.write(b"half")
            file.flush()
            wait_until(lambda: "/open' is not in S3 as it is now" in log.read_text(), log.read_text)
            here.write("whole", b"1")
            sync.wait_for(whole=b"1")
        sync.finish()
    assert log.read_text().count("/open' is not in S3 as it is now") == 1


def test_a_checkpoint_that_is_written_while_the_job_is_stopped_is_not_told_as_never_complete(
    here: Synced, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hours = SimpleNamespace(monotonic=partial(next, count(0.0, 3600.0)))
    monkeypatch.setattr(module, "time", hours)
    with here.syncing() as sync, (here.path / "open").open("wb"):
        # Several looks pass until this one is there.
        for number in range(3):
            here.write("whole", b"%d" % number)
            sync.wait_for(whole=b"%d" % number)
    assert "is not in S3 as it is now" not in log.read_text()


def test_a_log_is_sent_as_it_grows(here: Synced) -> None:
    with here.syncing(are_checkpoints=False) as sync, (here.path / "events").open("wb") as file:
        for text in (b"one", b"onetwo"):
            file.write(text[-3:])
            file.flush()
            sync.wait_for(events=text)


def test_a_large_log_is_sent_the_less_often_and_whole_at_the_end(
    here: Synced, monkeypatch: pytest.MonkeyPatch, log: Path
) -> None:
    monkeypatch.setattr(module, "_LOG_BYTES_PER_S", 1e-6)
    monkeypatch.setattr(module, "_UNFINISHED_S", 0.0)
    with here.syncing(are_checkpoints=False) as sync, (here.path / "events").open("wb") as file:
        file.write(b"one")
        file.flush()
        sync.wait_for(events=b"one")
        file.write(b"two")
        file.flush()
        # The look that sends the second of these has begun after that.
        (here.path / "other").write_bytes(b"1")
        sync.wait_for(events=b"one", other=b"1")
        (here.path / "third").write_bytes(b"1")
        sync.wait_for(events=b"one", other=b"1", third=b"1")
        sync.finish()
    assert here.objects()["events"] == b"onetwo"
    assert "is not in S3 as it is now" not in log.read_text()


def test_files_that_s3_cannot_have_keep_no_other_from_it(here: Synced) -> None:
    long = "/".join(["n" * 200] * 6)
    (here.path / long).parent.mkdir(parents=True)
    (here.path / long).touch()
    (here.path / os.fsdecode(b"b\xff")).touch()
    with here.syncing() as sync:
        here.write("z", b"last")
        sync.wait_for(z=b"last")
        sync.end()
        (failure,) = sync.process.failures()
    assert f"1 of 3 files are there, not 'b\\udcff', '{long}': the name " in str(failure)


def test_at_the_end_everything_is_sent_at_once(here: Synced) -> None:
    large = os.urandom(17 << 20)
    with here.syncing() as sync, (here.path / "open").open("wb") as file:
        file.write(large)
        file.flush()
        (here.path / "link").symlink_to("open")
        sync.finish()
        assert here.objects() == {"open": large}


@pytest.mark.parametrize("base", [".", "ml"], ids=["below the base", "apart from the job"])
def test_what_s3_has_is_brought_back_and_sent_again_if_it_changes(here: Synced, base: str) -> None:
    for key in ("epoch-1/model", "state"):
        here.store(key, b"older")
    with here.syncing(here.path.parent / base) as sync:
        assert (here.path / "epoch-1" / "model").read_bytes() == b"older"
        assert sorted(path.name for path in here.path.iterdir()) == ["epoch-1", "state"]
        here.write("state", b"newer")
        assert sync.finish() == 1
    assert here.objects() == {"epoch-1/model": b"older", "state": b"newer"}


@pytest.mark.parametrize("has_files", [True, False])
def test_no_listing_stays_in_memory(here: Synced, has_files: bool) -> None:
    here.store("a", b"a")
    if has_files:
        here.write("b", b"b")
    with here.syncing() as sync:
        for file in Path(f"/proc/{sync.process.pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # closed meanwhile
                assert not os.readlink(file).startswith("/memfd:fastfuse-index")
        assert (here.path / "a").exists() != has_files


def test_hosts_write_below_one_prefix_and_get_all_of_it(moto_server: S3Server, tmp_path: Path) -> None:
    hosts = [Synced(moto_server, tmp_path / name) for name in ("algo-1", "algo-2", "again")]
    for host in hosts:
        host.path.mkdir()
    with hosts[0].syncing() as first, hosts[1].syncing():
        hosts[0].write("rank-0", b"zero")
        hosts[1].write("rank-1", b"one")
        first.wait_for(**{"rank-0": b"zero", "rank-1": b"one"})
    with hosts[2].syncing():
        assert sorted(path.name for path in hosts[2].path.iterdir()) == ["rank-0", "rank-1"]


def test_a_checkpoint_that_another_host_replaces_at_once_is_no_failure(
    here: Synced, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ObjectWriter, "put", put_and_replace)
    with here.syncing(is_alone=False) as sync:
        here.write("last", b"ours")
        sync.finish()
    assert here.objects() == {"last": b"another host's"}


@pytest.mark.parametrize("is_deleted", [False, True])
def test_checkpoints_come_back_while_other_hosts_change_them(
    here: Synced, monkeypatch: pytest.MonkeyPatch, *, is_deleted: bool
) -> None:
    for key in ("last", "rank-0"):
        here.store(key, b"older")
    listers = iter((run_lister, run_lister))

    def list_and_change(*arguments: Any) -> tuple[int, Any]:  # noqa: ANN401 - of `run_lister`
        listed = next(listers)(*arguments)
        if is_deleted:
            here.server.delete(here.prefix + "last")
        else:
            here.store("last", b"newer")
        return listed

    monkeypatch.setattr(module, "run_lister", list_and_change)
    with here.syncing() as sync:
        found = {path.name: path.read_bytes() for path in here.path.iterdir()}
        assert found == {"rank-0": b"older"} | ({} if is_deleted else {"last": b"newer"})
        assert sync.finish() == 0


def test_checkpoints_that_change_in_every_try_end_the_job(here: Synced, monkeypatch: pytest.MonkeyPatch) -> None:
    versions = count()

    def list_and_change(*arguments: Any) -> tuple[int, Any]:  # noqa: ANN401 - of `run_lister`
        listed = run_lister(*arguments)
        here.store("last", b"%d" % next(versions))
        return listed

    here.store("last", b"first")
    monkeypatch.setattr(module, "run_lister", list_and_change)
    with here.syncing() as sync:
        assert isinstance(sync.process.failure, SourceError)
        assert here.objects() == {"last": b"%d" % (module._RESTORE_TRIES - 1)}


def test_files_that_are_there_are_kept_and_nothing_is_brought_back(
    here: Synced, capfd: pytest.CaptureFixture[str]
) -> None:
    here.store("model", b"older")
    here.write("model", b"newer")
    assert here.sent_files() == 1
    assert here.objects() == {"model": b"newer"}
    assert "has files: they are kept, and nothing comes from s3://" in capfd.readouterr().err


TRAIN = """
import hashlib, os, signal, sys
places = "BASE/checkpoints"
state, done = b"", 0
if os.path.exists(places + "/state"):
    state = open(places + "/state", "rb").read()
    done = len(os.listdir(places)) - 1
for epoch in range(done, 4):
    state = hashlib.sha256(state + open(os.environ["SM_CHANNEL_TRAIN"] + "/x", "rb").read()).digest()
    open(places + "/epoch-%d" % epoch, "w").close()
    open(places + "/.state", "wb").write(state)
    os.rename(places + "/.state", places + "/state")
    if epoch + 1 == STOP_AT:
        print("interrupted", flush=True)
        signal.pause()
open(os.environ["SM_MODEL_DIR"] + "/weights", "wb").write(state)
"""


@pytest.fixture(params=["moto", "rclone"])
def server(request: pytest.FixtureRequest, moto_server: S3Server, rclone_server: S3Server) -> S3Server:
    servers: dict[str, S3Server] = {"moto": moto_server, "rclone": rclone_server}
    return servers[request.param]


TRAINED_ON = channel("train", "File", "train/")


def test_an_interrupted_job_goes_on_elsewhere_and_ends_with_the_same_model(server: S3Server, tmp_path: Path) -> None:
    server.put("train/x", b"data")
    config = {"S3Uri": f"s3://{server.bucket}/{tmp_path.name}"}
    out = {"S3OutputPath": f"s3://{server.bucket}/models", "CompressionType": "NONE"}
    description = request_of(TRAINED_ON, CheckpointConfig=config, OutputDataConfig=out)
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    text = TRAIN.replace("BASE", str(here)).replace("STOP_AT", "2")
    with running(server.endpoint_url, description, base=here, command=text) as job:
        job.wait_for_output("interrupted")
        assert job.stop() == 128 + signal.SIGTERM, job.log
        assert record_of(job)["Artifacts"]["checkpoints"]["Files"] == 3
    text = TRAIN.replace("BASE", str(elsewhere)).replace("STOP_AT", "1")
    with running(server.endpoint_url, description, base=elsewhere, command=text, ends_with=0):
        pass
    state = b""
    for _ in range(4):
        state = hashlib.sha256(state + b"data").digest()
    stored = server.client.get_object(Bucket=server.bucket, Key="models/a-job/output/model/weights")
    assert stored["Body"].read() == state


WAIT = "import signal; print('made', flush=True); signal.pause()"


def checkpointed(place: str) -> dict[str, Any]:
    """Return a job with checkpoints at this place of the bucket, and no other output."""
    description = request_of(TRAINED_ON, CheckpointConfig={"S3Uri": f"s3://{BUCKET}/{place}"})
    del description["OutputDataConfig"]
    return description


def test_checkpoints_that_are_refused_are_told_in_the_end(tmp_path: Path) -> None:
    with LoopbackServer({BUCKET: MemoryObjects({"train/x": b""})}, ServerConfig(writes="unconditional")) as server:
        server.faults.add(FaultRule(action=ACCESS_DENIED, operation="PutObject"))
        text = f"open('{tmp_path}/checkpoints/model', 'w').close(); {WAIT}"
        with running(server.endpoint_url, checkpointed("checkpoints"), base=tmp_path, command=text) as job:
            job.wait_for_output("made")
            assert job.stop() == 6, job.log
            place = f"{tmp_path}/checkpoints"
            told = f"the checkpoints are not all in S3 at s3://{BUCKET}/checkpoints/, and still lie in {place}"
            assert told in job.log


async def test_a_failure_is_told_once_an_hour_and_again_after_a_look_that_sent_something(
    here: Synced, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    now_s = 100.0
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now_s))
    failure: Exception | None = AccessError("denied")

    class Writer(SimpleNamespace):
        def beside(self, _: str) -> "Writer":
            return self

        async def stream(self, _: object, *, is_checked: bool) -> None:
            assert is_checked
            if failure is not None:
                raise failure

    synced = SyncedDirectory(
        name="checkpoints", local_path=str(here.path), place=S3Uri(BUCKET, "c/"), are_checkpoints=True
    )
    looked = module._Directory(synced, JobPaths(here.path.parent), S3Session(ConnectionConfig()), lambda *_, **__: None)

    async def lines(looks: int) -> list[str]:
        caplog.clear()
        for _ in range(looks):
            await looked.look(cast(ObjectWriter, Writer()))
        return caplog.messages.copy()

    failed = "checkpoints: 0 of 1 files are there, not 'a': denied; it is tried again"
    here.write("a", b"first")
    assert await lines(5) == [failed]
    # One that has changed since the last look is not tried, which ends no failure.
    here.write("a", b"second")
    assert await lines(4) == []
    now_s += 3601
    assert await lines(2) == [failed]
    failure = None
    assert await lines(3) == ["checkpoints: files are sent again"]
    failure = AccessError("denied")
    here.write("a", b"third")
    assert await lines(4) == [failed]
    (here.path / "a").unlink()
    assert await lines(1) == ["checkpoints: files are sent again"]


def test_another_process_goes_on_in_the_place_of_one_that_is_lost(moto_server: S3Server, tmp_path: Path) -> None:
    server, prefix = moto_server, f"lost-{tmp_path.name}/"
    server.put("train/x", b"data")
    restored = {"Bucket": server.bucket, "Key": f"{prefix}earlier"}
    server.client.put_object(**restored, Body=b"0", Metadata={"put": "by the test"})
    text = f"""
import os, signal
place = "{tmp_path}/checkpoints/"
open(place + "first", "w").write("1")
print("made", flush=True)
signal.sigwait([signal.SIGTERM])
open(place + "second", "w").write("2")
"""
    mask = "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])\n"
    with running(server.endpoint_url, checkpointed(prefix), base=tmp_path, command=mask + text) as job:
        job.wait_for_output("made")
        # The last child before the command.
        os.kill(job.children()[-2], signal.SIGKILL)
        lost = "checkpoints are no longer uploaded: the process that uploads was killed by signal 9"
        job.wait_for_log(f"{lost}; another process goes on")
        assert job.stop() == 0, job.log
        assert job.log.count("no longer uploaded") == 1
    stored = server.client.list_objects_v2(Bucket=server.bucket, Prefix=prefix)["Contents"]
    assert [entry["Key"].removeprefix(prefix) for entry in stored] == ["earlier", "first", "second"]
    # What was brought back is not sent again.
    assert server.client.head_object(**restored)["Metadata"] == {"put": "by the test"}


@pytest.mark.parametrize(
    ("is_ready", "message"),
    [
        (False, "the process that checks the job's outputs was killed by signal 9"),
        (True, "checkpoints and tensorboard are no longer uploaded: the process that uploads was killed by signal 9"),
    ],
)
def test_a_lost_process_is_told_with_what_it_was_to_do(*, is_ready: bool, message: str) -> None:
    def work(tell: Tell) -> None:
        if is_ready:
            tell("", ready=True)
        os.kill(os.getpid(), signal.SIGKILL)

    process = Sender(work, {"checkpoints": "", "tensorboard": ""})
    process.ended(wait_child(process.pid), Phases(is_json=False))
    assert str(process.failure) == message


async def test_all_places_are_checked_at_once(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    checked: list[str] = []
    all_wait = trio.Event()

    async def deny(writer: ObjectWriter) -> None:
        checked.append(writer.key)
        if len(checked) == 3:
            all_wait.set()
        await all_wait.wait()
        raise AccessError("denied")

    monkeypatch.setattr(ObjectWriter, "check_access", deny)
    places = [("CheckpointConfig", S3Uri(BUCKET, f"{name}/"), "") for name in "abc"]
    with trio.fail_after(1), pytest.raises(AccessError, match="CheckpointConfig: denied"):
        await module.check_places(places, S3Session(ConnectionConfig(region="eu-west-1")))
    assert sorted(checked) == ["a/fastfuse", "b/fastfuse", "c/fastfuse"]


def test_a_killed_run_says_where_the_checkpoints_lie(moto_server: S3Server, tmp_path: Path) -> None:
    moto_server.put("train/x", b"data")
    description = checkpointed(f"killed-{tmp_path.name}")
    with running(moto_server.endpoint_url, description, base=tmp_path, command=WAIT) as job:
        job.wait_for_output("made")
        job.kill()
        assert f"killed: what the job has made may not be in S3, and lies in {tmp_path}/checkpoints" in job.log


@pytest.mark.parametrize("is_equal", [False, True])
def test_what_is_kept_does_not_replace_what_s3_has_stored_since(
    here: Synced, capfd: pytest.CaptureFixture[str], log: Path, *, is_equal: bool
) -> None:
    here.write("model", b"here", mtime_s=0)
    if is_equal:
        here.sent_files()
    else:
        here.store("model", b"newer")
    here.store("other", b"other")
    here.write("new", b"new")
    assert here.sent_files() == 1
    assert here.objects() == {"model": b"here" if is_equal else b"newer", "other": b"other", "new": b"new"}
    said = capfd.readouterr().err + log.read_text()
    told = f"model' does not replace '{here.prefix}model' in S3, which was stored after the file was"
    assert (told in said) != is_equal
    assert f"nothing comes from s3://{BUCKET}/{here.prefix}, where other files are: 1" in said


def test_what_is_kept_is_sent_also_where_s3_may_not_be_listed(here: Synced, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*_: object) -> None:
        raise AccessError("no list", hint="")

    monkeypatch.setattr(module, "run_lister", denied)
    here.write("model", b"kept")
    here.sent_files()
    assert here.objects() == {"model": b"kept"}


def test_what_was_renamed_or_copied_since_the_job_began_is_newer_whatever_its_time_says(here: Synced) -> None:
    began_ns = time.time_ns()
    here.store("model", b"older")
    here.write("model", b"newer", mtime_s=0)
    here.sent_files(began_ns=began_ns - 10**9)
    assert here.objects() == {"model": b"newer"}


def test_what_is_kept_does_not_replace_a_newer_object_after_an_error_either(
    here: Synced, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures, state = iter([MemoryError()]), ObjectWriter.state

    async def fail_once(writer: ObjectWriter) -> ObjectState | None:
        if (failure := next(failures, None)) is not None:
            raise failure
        return await state(writer)

    monkeypatch.setattr(ObjectWriter, "state", fail_once)
    here.write("model", b"older", mtime_s=0)
    here.store("model", b"newer")
    with here.syncing() as sync:
        here.write("z", b"sent after the failure")
        sync.wait_for(model=b"newer", z=b"sent after the failure")
        sync.finish()
    assert here.objects()["model"] == b"newer"


@pytest.mark.parametrize("is_again", [False, True])
def test_what_was_brought_back_is_not_sent_again_after_a_restart(here: Synced, *, is_again: bool) -> None:
    """Of the job, or of the process that sends."""
    here.store("state", b"older")
    assert here.sent_files() == 0
    began_ns = time.time_ns()
    here.write("new", b"new")
    assert here.sent_files(began_ns=began_ns if is_again else None) == 1


@pytest.mark.parametrize("is_again", [False, True])
@pytest.mark.parametrize("has_stamps", [False, True])
def test_one_file_that_was_brought_back_and_renamed_to_another_is_sent(
    here: Synced, monkeypatch: pytest.MonkeyPatch, *, is_again: bool, has_stamps: bool
) -> None:
    """Both are as large, and S3 has stored them within a second."""
    for key in ("last", "best"):
        here.store(key, key.encode())
    here.sent_files()
    (here.path / "best").rename(here.path / "last")
    if not has_stamps:
        monkeypatch.setattr(module, "read_stamp", lambda _: (b"", b""))
    here.sent_files(began_ns=time.time_ns() if is_again else None)
    assert here.objects() == {"best": b"best", "last": b"best"}


def test_what_was_brought_back_does_not_replace_what_another_host_has_stored_since(here: Synced, log: Path) -> None:
    """The process that sends was killed, and another one goes on."""
    here.store("state", b"older")
    here.sent_files()
    os.utime(here.path / "state", (0, 0))  # S3 had stored it long ago
    here.store("state", b"newer")
    here.sent_files(began_ns=time.time_ns())
    assert here.objects() == {"state": b"newer"}
    assert log.read_text().endswith("after the file was written: another host may have gone on from there\n")


def test_checkpoints_come_back_without_the_key_for_sse_c(here: Synced) -> None:
    """No key is sent over plain HTTP: a request with it would be refused."""
    key = here.path.with_name("key")
    key.write_bytes(bytes(32))
    settings, phases = settings_of_a_job(here.path.parent), Phases(is_json=False)
    settings.connection = replace(here.server.config, sse_c_key_file=str(key))
    settings.job.synced = (replace(settings.job.synced[0], local_path=str(here.path)),)
    phases.enter(Phase.TRAINING, "")
    here.server.put("c/state", b"kept")
    delivered = delivery.Delivery(settings, phases, lambda _: True)
    delivered.begin()
    process = delivered._syncer
    assert process is not None

    def is_told() -> bool:
        delivered.listen()
        return delivered.is_ready or bool(process.errors)

    try:
        wait_until(is_told)
    finally:
        process.kill()
        process.ended(wait_child(process.pid), phases)
    assert (here.path / "state").read_bytes() == b"kept"


def test_a_process_of_a_job_that_did_not_start_is_ended_and_not_replaced(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made: list[SimpleNamespace] = []

    class Sending(SimpleNamespace):
        def __init__(self, *_: object) -> None:
            super().__init__(is_over=False, failure=None, is_ready=True, listen=lambda _: None, stop=self._die)
            made.append(self)

        def _die(self) -> None:
            self.is_over, self.failure = True, OutputError("the process was killed")

    def take_signal(_: float) -> bool:
        delivered.listen()
        return False

    monkeypatch.setattr(delivery, "Sender", Sending)
    delivered = delivery.Delivery(settings_of_a_job(tmp_path), Phases(is_json=False), take_signal)
    delivered.begin()
    delivered.listen()
    delivered.give_up()
    delivered.listen()
    assert len(made) == 1
    assert caplog.messages == []


@pytest.mark.parametrize("is_check", [True, False])
def test_no_upload_stays_of_a_job_that_did_not_start(
    here: Synced, monkeypatch: pytest.MonkeyPatch, *, is_check: bool
) -> None:
    """It is told to stop while it checks that it can write, or while it sends what was kept."""
    request, begun = ObjectWriter._request, here.path.parent / "begun"

    async def wait_to_be_stopped(writer: ObjectWriter, operation: str, **arguments: Any) -> Any:  # noqa: ANN401
        if operation == "upload_part" and writer.key.endswith("/fastfuse") == is_check:
            begun.touch()
            while STOP_ORDER not in signal.sigpending():  # never, unless it is blocked
                await trio.lowlevel.checkpoint()
        return await request(writer, operation, **arguments)

    def take_signal(_: float) -> bool:
        for pid, exit_code in ended_children():
            delivered.ended(pid, exit_code)
        return False

    monkeypatch.setattr(ObjectWriter, "_request", wait_to_be_stopped)
    monkeypatch.setattr(delivery, "sync_directories", partial(sync_directories, look_every_s=0.05))
    here.write("kept", bytes(17 << 20))
    settings, phases = settings_of_a_job(here.path.parent), Phases(is_json=False)
    settings.connection, settings.command = replace(here.server.config, force_path_style=True), ("train",)
    place = S3Uri(BUCKET, here.prefix)
    settings.job.synced = (replace(settings.job.synced[0], local_path=str(here.path), place=place),)
    phases.enter(Phase.DOWNLOADING, "")
    delivered = delivery.Delivery(settings, phases, take_signal)
    delivered.begin()
    wait_until(begun.exists)
    delivered.give_up()
    left = here.server.client.list_multipart_uploads(Bucket=BUCKET, Prefix=here.prefix)
    assert left.get("Uploads", []) == []


def test_a_process_that_a_hanging_disk_holds_does_not_keep_the_run_from_its_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Here nobody sends it the signals."""
    phases = Phases(is_json=False)
    phases.enter(Phase.UPLOADING, "")
    delivered = delivery.Delivery(settings_of_a_job(tmp_path), phases, lambda _: True)
    process = delivered._uploader = Sender(lambda _: signal.pause(), {"model": "is not in S3"})
    with monkeypatch.context() as patched:
        patched.setattr(job_processes, "DIES_WITHIN_S", 0.0)
        patched.setattr(delivery, "_END_S", 0.0)
        patched.setattr(process, "send", lambda _: None)
        failures = delivered._end(process)
        delivered.give_up()
    process.kill()
    process.ended(wait_child(process.pid), phases)
    assert [str(failure) for failure in failures] == ["the model is not in S3: the upload was told to stop"]


def test_what_was_sent_before_is_known_again(here: Synced, log: Path) -> None:
    here.write("model", b"kept", mtime_s=10)
    assert [here.sent_files() for _ in range(2)] == [1, 0]
    assert log.read_text() == ""
    os.utime(here.path / "model", (20, 20))
    here.sent_files()
    assert "/model' does not replace " in log.read_text()


def test_what_is_kept_replaces_no_newer_object_that_cannot_be_looked_at_either(
    here: Synced, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(_: ObjectWriter) -> None:
        raise RefusedError("no metadata", hint="")

    monkeypatch.setattr(ObjectWriter, "state", refuse)
    here.write("model", b"kept")
    for files in (1, 0):
        with here.syncing() as sync:
            os.utime(here.path / "model", (0, 0))
            assert sync.finish() == files
