"""The process that trains: the names of a job's hosts resolve for it alone; what it leaves running is ended."""

import math
import os
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from fastfuse.errors import ConfigurationError
from fastfuse.filesystem.processes.children import fork_child, wait_child
from fastfuse.sagemaker import training
from fastfuse.sagemaker.description.channel import Cluster
from fastfuse.sagemaker.files import LIBC
from fastfuse.sagemaker.training import CommandProcess, HostNames, parse_addresses

HAS_NAMESPACES = subprocess.run(["unshare", "--user", "--mount", "true"], check=False).returncode == 0
PAIR = Cluster(current_host="algo-1", hosts=("algo-1", "algo-2"))
# Of a real host, which resolves without us.
NO_NAMES = HostNames(Cluster(current_host="host", hosts=("host",)), {})
NOBODY = 65534


@pytest.fixture
def hosts_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "hosts"
    place.write_text("127.0.0.1 localhost\n")
    monkeypatch.setattr(training, "HOSTS_FILE", place)
    return place


def entered(cluster: Cluster, given: dict[str, str], looked_up: str, uid: int | None = None) -> tuple[str, bool]:
    """Return the address that a process finds which has entered, and whether the toolkit is to do without look-ups."""
    reading, writing = os.pipe()

    def work() -> None:
        if uid is not None:
            # A process that only changes its user could not write the maps of its namespace: it is not dumpable.
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            LIBC.prctl(4, 1)  # PR_SET_DUMPABLE
        environment: dict[str, str] = {}
        HostNames(cluster, given).enter(environment)
        try:
            found = socket.getaddrinfo(looked_up.encode(), None, socket.AF_INET)[0][4][0]
        except OSError:
            found = ""
        os.write(writing, f"{found} {environment.get('SM_STUDIO_LOCAL_MODE', '')}".encode())

    assert wait_child(fork_child(work)) == 0
    os.close(writing)
    with open(reading) as pipe:
        found, is_told = pipe.read().split(" ")
    return found, is_told == "true"


@pytest.mark.skipif(not HAS_NAMESPACES, reason="no namespaces may be made here")
@pytest.mark.parametrize("uid", [None, NOBODY])
def test_names_resolve_in_a_namespace(uid: int | None) -> None:
    if uid is not None and os.geteuid() != 0:
        pytest.skip("takes root, to be another user")
    before = training.HOSTS_FILE.read_bytes()
    assert entered(PAIR, {"algo-2": "10.1.2.3"}, "algo-2", uid) == ("10.1.2.3", False)
    assert training.HOSTS_FILE.read_bytes() == before


@pytest.mark.skipif(not HAS_NAMESPACES, reason="no namespaces may be made here")
def test_the_toolkit_does_not_wait_for_a_host_without_an_address() -> None:
    trio = Cluster(current_host="algo-1", hosts=("algo-1", "algo-2", "algo-3"))
    assert entered(trio, {"algo-2": "10.1.2.3"}, "algo-2") == ("10.1.2.3", True)


@pytest.mark.skipif(os.geteuid() != 0, reason="takes root, to be another user")
def test_without_root_and_without_addresses_the_toolkit_does_not_look_up() -> None:
    assert entered(PAIR, {}, "localhost", NOBODY) == ("127.0.0.1", True)


@pytest.mark.skipif(not HAS_NAMESPACES or os.geteuid() != 0, reason="takes root and namespaces")
@pytest.mark.parametrize(("tags", "is_made"), [(" shared:1", True), (" master:2 shared:1", True), ("", False)])
def test_of_private_mounts_no_namespace_is_made_unasked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tags: str, is_made: bool
) -> None:
    mounts = tmp_path / "mountinfo"
    # The kernel escapes little of a path: no byte that UTF-8 does not have, and no end of a line but \n.
    other = b"5 1 0:5 / /mnt/\xff\r\x85/x rw shared:9 - cifs //host/\xe4 rw\n"
    mounts.write_bytes(other + f"1 0 8:1 / / rw{tags} - ext4 /dev/sda1 rw\n".encode())
    monkeypatch.setattr(training, "_MOUNTS", mounts)
    alone = Cluster(current_host="algo-1", hosts=("algo-1",))
    # The look-up of a name that nobody knows may take long.
    assert entered(alone, {}, "algo-1" if is_made else "localhost") == ("127.0.0.1", not is_made)


def test_where_no_file_of_hosts_is_the_toolkit_does_not_look_up(hosts_file: Path) -> None:
    hosts_file.unlink()
    assert entered(PAIR, {"algo-2": "10.1.2.3"}, "localhost")[1]


def test_a_host_that_resolves_already_is_left_alone_and_one_without_an_address_is_told(hosts_file: Path) -> None:
    (line,) = HostNames(PAIR, {}).lines()
    assert "--address algo-2=10.0.0.2" in line
    alone = HostNames(Cluster(current_host="algo-1", hosts=("algo-1",)), {})
    assert (alone._addresses, [*alone.lines()]) == ({"algo-1": "127.0.0.1"}, [])
    hosts_file.write_text("10.0.0.1 algo-1 other # algo-2\n")
    named = Cluster(current_host="node-1", hosts=("node-1", "node-2"))
    for cluster, unknown in ((PAIR, ["algo-2"]), (named, [])):
        names = HostNames(cluster, {})
        assert (names.unknown, names._addresses) == (unknown, {})


def test_addresses_are_checked_and_names_looked_up() -> None:
    assert parse_addresses(["algo-2=::1", "algo-1=10.0.0.1"], PAIR.hosts) == {"algo-2": "::1", "algo-1": "10.0.0.1"}
    assert parse_addresses(["algo-2=localhost"], PAIR.hosts)["algo-2"] in {"127.0.0.1", "::1"}
    for wrong in ("algo-1", "algo-1=", "algo-1=no.invalid", "algo-1=..", "algo-3=10.0.0.1", "algo-1=10.0.0.1\nx"):
        with pytest.raises(ConfigurationError, match="--address"):
            parse_addresses([wrong], PAIR.hosts)


def test_only_what_the_command_left_running_is_told_to_end() -> None:
    """A shell that has started something may have become this process: ``tensorboard & exec fastfuse run ...``."""
    with subprocess.Popen(["sleep", "600"]) as earlier:
        command = CommandProcess("/bin/true", ["true"], {}, NO_NAMES)
        os.waitpid(command.pid, 0)
        assert not command.press_leftovers(600.0)
        with subprocess.Popen(["sleep", "600"]) as later:
            assert command.press_leftovers(600.0)
            assert later.wait() == -15
        assert earlier.poll() is None
        earlier.kill()


def test_a_command_that_not_even_sigkill_ends_is_waited_for_in_peace_and_not_for_ever(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A process that waits for a device would fill the log, and use a core, and keep the model from S3."""
    monkeypatch.setattr(training, "DIES_WITHIN_S", math.inf)
    command = CommandProcess("/bin/sleep", ["sleep", "600"], {}, NO_NAMES)
    command.stop(signal.SIGTERM, 0.0, has_it=True)
    assert command.left_s == 0.0
    command.enforce()
    assert command.left_s == math.inf
    command.enforce()
    assert caplog.text.count("the command did not end in time and is killed") == 1
    assert not command.is_over
    monkeypatch.setattr(training, "DIES_WITHIN_S", 0.0)
    command.enforce()
    assert (command.is_over, command.exit_code) == (True, 128 + signal.SIGKILL)
    assert "SIGKILL does not end the command" in caplog.text
    assert os.waitstatus_to_exitcode(os.waitpid(command.pid, 0)[1]) == -signal.SIGKILL


@pytest.mark.parametrize(
    ("exit_code", "kills", "told"),
    [
        (
            -9,
            (5, 6),
            "killed by SIGKILL; memory ran out, and the kernel killed processes of its control group: 1",
        ),
        (1, (5, 7), "exited with 1; memory ran out, and the kernel killed processes of its control group: 2"),
        (-9, (5, 5), "killed by SIGKILL"),
        (-9, (None, None), "killed by SIGKILL"),
        (0, (5, 6), "exited with 0"),
    ],
)
def test_memory_that_ran_out_is_told_of_a_command_that_failed(
    exit_code: int, kills: tuple[int | None, int | None], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = iter(kills)
    monkeypatch.setattr(training, "oom_kills", lambda: next(counts))
    command = CommandProcess("/bin/true", ["true"], {}, NO_NAMES)
    os.waitpid(command.pid, 0)
    command.ended(exit_code)
    command.ended(3)  # an orphan that got its pid
    assert command.describe_end().endswith(told)
