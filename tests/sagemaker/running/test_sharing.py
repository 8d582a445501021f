"""Several runs of one job on one host (--share), as a launcher starts one for each of its tasks."""

import json
import os
import re
import signal
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, Mock

import pytest

from bench.s3server import FaultRule, LoopbackServer, MemoryObjects, ServerConfig, Stall
from fastfuse.errors import ConfigurationError, MountError
from fastfuse.filesystem.mounting.mountpoint import fastfuse_mounts
from fastfuse.filesystem.processes.children import NoRoomError, fork_child, wait_child
from fastfuse.sagemaker.files import LIBC, JobPaths, claim_base_dir
from fastfuse.sagemaker.running import sharing
from fastfuse.sagemaker.running.phases import Outcome, Phase, worst
from fastfuse.sagemaker.running.run import _Run
from tests.filesystem.waiting import PATIENCE_S, wait_until
from tests.sagemaker.jobs import request
from tests.sagemaker.outputs.test_record import record_of
from tests.sagemaker.running.jobs import BUCKET, Job, Run, Script, channel, running, script

pytestmark = pytest.mark.fuse

NOBODY = 65534

OBJECTS = {f"data/{number:02}": b"%d" % number * 1000 for number in range(24)}
CHANNELS = [channel("data", "FastFile", "data/")]

# Reads the files of its rank, and lives until the gate is closed, which may say how it ends.
RANK = """
import json, os, pathlib, sys
place = pathlib.Path(os.environ["SM_CHANNEL_DATA"])
rank, count, gate = int(sys.argv[1]), int(sys.argv[2]), open(sys.argv[3], "rb")
names = sorted(os.listdir(place))[rank::count]
print(json.dumps({name: len((place / name).read_bytes()) for name in names}), flush=True)
code = gate.read()
sys.exit(int(code or len(os.listdir(place)) != 24))
"""


@pytest.fixture
def server() -> Iterator[LoopbackServer]:
    config = ServerConfig(writes="conditional", clock_s=time.time)
    with LoopbackServer({BUCKET: MemoryObjects(OBJECTS)}, config) as running_server:
        yield running_server


class Gate:
    """Keeps the commands that read the FIFO alive until it is closed."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.path = path
        self._fd = os.open(path, os.O_RDWR)

    def close(self, exit_code: int = 0) -> None:
        if exit_code:
            os.write(self._fd, b"%d" % exit_code)
        os.close(self._fd)


@contextmanager
def ranks(
    run: Run,
    directory: Path,
    *gates: Gate,
    hosts: Sequence[Sequence[str]] = ((),),
    description: Sequence[Mapping[str, Any]] | Mapping[str, Any] = CHANNELS,
) -> Iterator[list[Job]]:
    """Start a run for each of the gates, all at once; each host has as many of them, and its options."""
    with ExitStack() as exits:
        jobs = []
        for rank, gate in enumerate(gates):
            host = rank % len(hosts)
            command = (*script(RANK), str(rank), str(len(gates)), str(gate.path))
            job = run(description, "--share", *hosts[host], command=command, base=directory / f"ml{host}")
            jobs.append(exits.enter_context(job))
        yield jobs


def up(jobs: Sequence[Job]) -> tuple[Job, list[Job]]:
    """Wait until every command has read; return the run that prepared the channels, and the others."""
    for job in jobs:
        job.wait_for_output("}")
    (owner,) = [job for job in jobs if "Downloading" in job.log]
    return owner, [job for job in jobs if job is not owner]


def mounts(directory: Path) -> int:
    return sum(path.is_relative_to(directory) for path in fastfuse_mounts())


def test_two_hosts_of_two_ranks_list_once_and_mount_once_each(server: LoopbackServer, run: Run, tmp_path: Path) -> None:
    gate = Gate(tmp_path / "gate")
    shared = ("--index", f"s3://{BUCKET}/data.index", "--index-max-age", "1h", "--metrics-listen", "0")
    with ranks(run, tmp_path, *[gate] * 4, hosts=[shared] * 2) as jobs:
        for job in jobs:
            job.wait_for_output("}")
        assert mounts(tmp_path) == 2
        assert server.count("ListObjectsV2") == 1
        owners = [job for job in jobs if "Downloading" in job.log]
        assert len(owners) == 2
        for owner in owners:
            assert re.search(r'^fastfuse_table_files{.*channel="data",.*} 24.0$', owner.metrics(), re.MULTILINE)
        assert sum("serves the metrics" in job.log for job in jobs) == 2
        gate.close()
        assert [job.wait() for job in jobs] == [0] * 4, [job.log for job in jobs]
        read = [json.loads(job.output) for job in jobs]
    assert mounts(tmp_path) == 0
    assert sum(map(len, read)) == len(OBJECTS)
    union = {name: size_bytes for part in read for name, size_bytes in part.items()}
    assert union == {key.removeprefix("data/"): len(data) for key, data in OBJECTS.items()}


def test_channels_stay_up_until_the_last_has_ended(run: Run, tmp_path: Path) -> None:
    gates = [Gate(tmp_path / name) for name in "ab"]
    with ranks(run, tmp_path, *gates) as jobs:
        owner, (member,) = up(jobs)
        gates[jobs.index(owner)].close()
        owner.wait_for_log("Keeping the channels up")
        assert mounts(tmp_path) == 1
        gates[jobs.index(member)].close()
        assert (member.wait(), owner.wait()) == (0, 0), member.log + owner.log
    assert mounts(tmp_path) == 0


def test_a_host_ends_as_the_worst_of_its_commands_and_with_its_own_exit_code_unless_that_is_0() -> None:
    completed, failed = Outcome(Phase.COMPLETED, "completed", 0), Outcome(Phase.FAILED, "failed", 3)
    stopped, late = Outcome(Phase.STOPPED, "stopped", 143), Outcome(Phase.MAX_RUNTIME_EXCEEDED, "late", 9)
    assert worst(completed, [completed, late, failed]) == failed
    assert worst(completed, [completed, late]) == late
    assert worst(stopped, [late, completed]) == stopped
    assert worst(stopped, [failed]) == failed._replace(exit_code=143)
    assert worst(completed, []) == completed


def test_a_command_that_fails_fails_the_job_of_the_host(run: Run, tmp_path: Path) -> None:
    gates = [Gate(tmp_path / name) for name in "ab"]
    with ranks(run, tmp_path, *gates) as jobs:
        owner, (member,) = up(jobs)
        gates[jobs.index(member)].close(3)
        assert member.wait() == 3
        gates[jobs.index(owner)].close()
        assert owner.wait() == 3, owner.log
        assert_has_failed(owner, "another task of this host: the command exited with 3")


def test_a_member_that_is_killed_fails_the_job_of_the_host(run: Run, tmp_path: Path) -> None:
    gates = [Gate(tmp_path / name) for name in "ab"]
    with ranks(run, tmp_path, *gates) as jobs:
        owner, (member,) = up(jobs)
        member.kill()
        for gate in gates:
            gate.close()
        assert owner.wait() == 1, owner.log
        assert_has_failed(owner, "another task of this host: its run ended, and not by its command")


def assert_has_failed(owner: Job, reason: str) -> None:
    assert f"Failed - {reason}" in owner.log
    record = record_of(owner)
    assert (record["TrainingJobStatus"], record["FailureReason"]) == ("Failed", reason)


def test_members_end_with_an_owner_that_is_killed(run: Run, tmp_path: Path) -> None:
    gate = Gate(tmp_path / "gate")
    description = request(CHANNELS[0], OutputDataConfig={"S3OutputPath": f"s3://{BUCKET}/models"})
    with ranks(run, tmp_path, gate, gate, description=description) as jobs:
        owner, (member,) = up(jobs)
        owner.kill()
        assert member.wait() == MountError.exit_code
        assert "the run that prepared the channels has ended: what the job has made may not be in S3" in member.log
        assert f"lies in {tmp_path}/ml0/model and {tmp_path}/ml0/output/data" in member.log
        assert mounts(tmp_path) == 0
    gate.close()


def test_a_member_becomes_the_owner_when_the_first_dies(server: LoopbackServer, run: Run, tmp_path: Path) -> None:
    stalled = FaultRule(action=Stall(0), operation="ListObjectsV2", times=1)
    gate = Gate(tmp_path / "gate")
    server.faults.add(stalled)
    with ranks(run, tmp_path, gate, gate) as jobs:
        wait_until(lambda: any("waiting for the run" in job.log for job in jobs))
        server.wait_until(lambda now: now.requests.get("ListObjectsV2", 0) == 1, PATIENCE_S)
        (first,) = [job for job in jobs if "Downloading" in job.log]
        (other,) = [job for job in jobs if job is not first]
        first.kill()
        assert up([other]) == (other, [])
        gate.close()
        assert other.wait() == 0, other.log


@pytest.fixture
def members(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[sharing.Members]:
    monkeypatch.setattr(sharing, "raise_sigio", lambda _: None)
    monkeypatch.setattr(sharing, "_digest", lambda _: b"greeting")
    input_fd = os.open(tmp_path, os.O_RDONLY)
    yield sharing.Members(MagicMock(), input_fd)
    os.close(input_fd)


def test_what_takes_the_place_of_the_socket_keeps_its_mode(
    tmp_path: Path, members: sharing.Members, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown, place = tmp_path / "shown", tmp_path / ".fastfuse-shared"
    shown.touch(0o644)
    bind = socket.socket.bind

    def bind_and_lose(end: socket.socket, path: str) -> None:
        bind(end, path)
        assert place.stat().st_mode & 0o777 == 0o600
        place.unlink()
        place.symlink_to(shown)

    monkeypatch.setattr(socket.socket, "bind", bind_and_lose)
    members.welcome()
    members.close()
    assert shown.stat().st_mode & 0o777 == 0o644


def test_members_learn_of_the_end_though_a_process_of_the_owner_holds_copies(
    tmp_path: Path, members: sharing.Members
) -> None:
    members.welcome()
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as member,
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as late,
    ):
        for end in (member, late):
            end.settimeout(PATIENCE_S)
            end.connect(str(tmp_path / ".fastfuse-shared"))
            if end is member:
                assert members.look()
        copying = fork_child(signal.pause)
        members.close()
        assert (member.recv(100), member.recv(100), late.recv(100)) == (b"greeting", b"", b"")
        os.kill(copying, signal.SIGKILL)
        wait_child(copying)


def test_nobody_is_let_in_while_the_channels_of_a_run_that_fails_are_taken_down(
    tmp_path: Path, members: sharing.Members
) -> None:
    begin_fd = os.eventfd(0)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as late:

        def fail(*_: object) -> None:
            late.connect(str(tmp_path / ".fastfuse-shared"))
            (tmp_path / ".fastfuse-shared").rename(tmp_path / "away")
            (tmp_path / ".fastfuse-shared").mkdir()  # which is in the way of its removal
            raise NoRoomError("no process can be started")

        def take_down() -> None:
            assert late.recv(100, socket.MSG_DONTWAIT) == b""

        run = MagicMock(_members=members, _get_ready=lambda: None, _train=fail, _take_down=Mock(side_effect=take_down))
        assert _Run._run_to_the_end(run, "", MagicMock(), begin_fd).phase is Phase.FAILED
        run._take_down.assert_called_once()
    os.close(begin_fd)


@pytest.mark.skipif(os.geteuid() != 0, reason="takes root, to be another user")
@pytest.mark.parametrize("uid", [0, NOBODY], ids=["root made the lock", "root runs where another user did"])
def test_a_run_of_another_user_is_refused(
    tmp_path: Path, members: sharing.Members, monkeypatch: pytest.MonkeyPatch, uid: int
) -> None:
    def join() -> None:
        os.setresuid(NOBODY, NOBODY, NOBODY)
        LIBC.prctl(4, 1)  # PR_SET_DUMPABLE: /proc/self is this user's again
        with pytest.raises(ConfigurationError, match="the channels are those of another user"):
            sharing.claim_or_join(MagicMock(paths=paths))

    tmp_path.chmod(0o755)
    monkeypatch.chdir(tmp_path)  # whatever lies above is root's alone
    paths = JobPaths(Path())
    paths.input = paths.base
    claimed = claim_base_dir(paths)
    os.chown(".fastfuse-lock", uid, -1)
    members.welcome()
    assert wait_child(fork_child(join)) == 0
    members.close()
    os.close(claimed)


@pytest.mark.parametrize(
    ("channels", "options"),
    [
        ([channel("data", "FastFile", "data/0")], ()),
        (CHANNELS, ("--strict",)),
        (CHANNELS, ("--index", f"s3://{BUCKET}/other.index")),
    ],
)
def test_a_run_of_another_job_or_index_is_refused(
    run: Run, channels: Sequence[Mapping[str, Any]], options: Sequence[str], tmp_path: Path
) -> None:
    gate = Gate(tmp_path / "gate")
    with ranks(run, tmp_path, gate) as jobs:
        up(jobs)
        code = ConfigurationError.exit_code
        with run(channels, "--share", *options, command=("true",), base=tmp_path / "ml0", ends_with=code) as second:
            assert "has another job, index or endpoint" in second.log
        gate.close()
        assert jobs[0].wait() == 0


# Takes the endpoint out of the command line, and into the environment.
ENDPOINT_OF_ENVIRONMENT = """
import os, sys
at = sys.argv.index("--endpoint-url")
_, os.environ["AWS_ENDPOINT_URL"] = sys.argv[at : at + 2]
del sys.argv[at : at + 2]
"""


def test_the_endpoint_of_the_environment_counts_as_one_of_the_command_line_does(run: Run, tmp_path: Path) -> None:
    gate, base, code = Gate(tmp_path / "gate"), tmp_path / "ml", ConfigurationError.exit_code
    command = (*script(RANK), "0", "1", str(gate.path))
    with run(CHANNELS, "--share", command=command, base=base, change=ENDPOINT_OF_ENVIRONMENT) as owner:
        owner.wait_for_output("}")
        with run(CHANNELS, "--share", command=("true",), base=base, ends_with=0):
            pass
        with running(
            "http://127.0.0.1:9", CHANNELS, "--share", command=("true",), base=base, change=ENDPOINT_OF_ENVIRONMENT,
            ends_with=code,
        ) as other:  # fmt: skip
            assert "has another job, index or endpoint" in other.log
        gate.close()
        assert owner.wait() == 0


@pytest.mark.parametrize(("mode", "command"), [("Pipe", ("true",)), ("FastFile", ())])
def test_what_cannot_be_shared_is_refused(run: Run, mode: str, command: Script) -> None:
    code = ConfigurationError.exit_code
    with run([channel("data", mode, "data/")], "--share", command=command, ends_with=code) as job:
        assert "--share" in job.log
