"""`--daemon` in real processes, around a mount that is a few lines of Python."""

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.forked import Forked, run_forked

WAIT_S = 60

# Stands in for fastfuse.filesystem.supervisor; `MOUNT` is its body, and `release` a FIFO that ends what reads it.
DRIVER = """
import logging, os, pathlib, signal, sys, types
import fastfuse.filesystem
from fastfuse.errors import AccessError

def await_release():
    fifo = os.open(sys.argv[1], os.O_RDONLY | os.O_NONBLOCK)  # to open it takes no other end
    os.set_blocking(fifo, True)
    os.read(fifo, 1)
    os.close(fifo)

def run(settings, *, ready):
    logger = logging.getLogger("fastfuse.filesystem")
MOUNT

supervisor = types.ModuleType("fastfuse.filesystem.supervisor")
supervisor.run = run
sys.modules[supervisor.__name__] = fastfuse.filesystem.supervisor = supervisor
import fastfuse.log
from fastfuse.cli.main import main
fastfuse.log.SYSLOG = pathlib.Path("/absent")
sys.exit(main(["mount", "--daemon", "s3://b/p", "/mnt/data", *sys.argv[2:]]))
"""


class Daemon:
    def __init__(self, folder: Path) -> None:
        self.release_fifo = folder / "release"
        self.log_file = folder / "log"
        os.mkfifo(self.release_fifo)
        # Both ends, so that neither this nor a reader's open waits for the other.
        self.release_fd = os.open(self.release_fifo, os.O_RDWR)

    def command(self, mount: str, *words: str) -> list[str]:
        body = "\n".join("    " + line for line in mount.splitlines())
        driver = DRIVER.replace("MOUNT", body)
        return [sys.executable, "-c", driver, str(self.release_fifo), *words]

    def start(self, mount: str, *words: str) -> subprocess.CompletedProcess[str]:
        """Ends when the parent has exited and nobody holds its stdout and stderr any more."""
        return run_forked(self.command(mount, "--log-file", str(self.log_file), *words), os.environ)

    @contextmanager
    def waited_for(self, mount: str, *command: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
        """A parent that waits for a mount, whose first line is its pid, and that pid; `command` runs the parent."""
        words = [*command, *self.command(f"logger.info('%d', os.getpid())\n{mount}", "--log-file", str(self.log_file))]
        with Forked[str](words, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as parent:
            try:
                assert parent.stderr is not None
                lines = iter(parent.stderr.readline, "")
                child = int(next(line for line in lines if "INFO" in line).split()[-1])
                yield parent, child
            finally:
                parent.kill()
        wait_for_exit(child)

    def release(self) -> None:
        """Let go of the FIFO's only other end; whoever reads it, now or later, reads to the end."""
        if self.release_fd >= 0:
            os.close(self.release_fd)
            self.release_fd = -1


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    daemon = Daemon(tmp_path)
    yield daemon
    daemon.release()


def wait_for_exit(pid: int) -> None:
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([process], [], [], WAIT_S)[0], f"process {pid} is still there"
    finally:
        os.close(process)


def test_the_parent_ends_when_the_mount_is_ready_and_the_child_goes_on_without_its_terminal(daemon: Daemon) -> None:
    started = daemon.start("""
streams = [os.readlink(f"/proc/self/fd/{stream}") for stream in (0, 1, 2)]
logger.info("%s %s %d", os.getcwd(), " ".join(streams), os.getpid())
ready(-1)
await_release()
return 0
""")
    assert (started.returncode, started.stdout) == (0, "")
    *found, pid = started.stderr.split()[-5:]
    assert found == ["/", "/dev/null", "/dev/null", "/dev/null"]
    assert os.getsid(int(pid)) == int(pid)
    daemon.release()
    wait_for_exit(int(pid))


def test_a_process_forked_before_readiness_neither_holds_the_callers_pipes_nor_misses_them(daemon: Daemon) -> None:
    started = daemon.start("""
worker = os.fork()
if worker == 0:
    await_release()
    logger.info("a line that nobody takes at the other end of the pipe")
    logger.info("sinks left: %d", len(logging.getLogger().handlers))
    os._exit(0)
logger.info("%d", worker)
ready(-1)
return 0
""")
    assert started.returncode == 0
    daemon.release()
    wait_for_exit(int(started.stderr.split()[-1]))
    logged = daemon.log_file.read_text()
    assert "a line that nobody takes" in logged
    assert "sinks left: 1" in logged


def test_files_that_variables_name_below_the_working_directory_are_found_elsewhere_too(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    names = {"AWS_CONFIG_FILE": "aws/config", "AWS_SHARED_CREDENTIALS_FILE": "~/keys", "AWS_CA_BUNDLE": "/bundle"}
    for name, path in names.items():
        monkeypatch.setenv(name, path)
    monkeypatch.chdir(tmp_path)
    daemon.start("""
for name in "AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE", "AWS_CA_BUNDLE", "AWS_WEB_IDENTITY_TOKEN_FILE":
    logger.info("it is %s", os.environ.get(name))
ready(-1)
return 0
""")
    said = [line.split()[-1] for line in daemon.log_file.read_text().splitlines() if "it is" in line]
    assert said == [f"{tmp_path}/aws/config", "~/keys", "/bundle", "None"]


def test_lines_before_readiness_are_shown_and_those_after_it_and_an_error_are_only_logged(daemon: Daemon) -> None:
    started = daemon.start("""
logger.info("before %d", os.getpid())
ready(-1)
logger.info("after")
raise AccessError("credentials expired")
""")
    assert started.returncode == 0
    [line] = started.stderr.splitlines()
    *_, word, pid = line.split()
    wait_for_exit(int(pid))
    assert word == "before"
    logged = daemon.log_file.read_text()
    assert [text.split()[3] for text in logged.splitlines()[:2]] == ["before", "after"]
    assert "ERROR fastfuse.cli.main: credentials expired\n" in logged


def test_a_daemon_that_nobody_will_hear_says_so_while_it_is_heard(daemon: Daemon) -> None:
    started = run_forked(daemon.command("ready(-1); logger.info('unheard'); return 0"), os.environ)
    assert started.returncode == 0
    [line] = started.stderr.splitlines()
    assert "WARNING fastfuse.cli.main: there is no syslog here" in line


def test_an_error_before_readiness_is_the_parents_error_and_exit_code(daemon: Daemon) -> None:
    mount = "raise AccessError('access denied to s3://b', hint='check the policy')"
    failed = daemon.start(mount)
    assert failed.returncode == 3
    assert "fastfuse: error: access denied to s3://b\nhint: check the policy\n" in failed.stderr
    assert (failed.stderr.count("access denied"), "Traceback" in failed.stderr) == (1, False)
    assert "access denied" in daemon.log_file.read_text()
    records = [json.loads(line) for line in daemon.start(mount, "--log-format", "json").stderr.splitlines()]
    assert [(record["level"], record["exit_code"]) for record in records] == [("error", 3)]


@pytest.mark.parametrize("redirection", ["<&- >&- 2>&-", "2>&-"])
def test_a_daemon_that_is_started_without_standard_streams_gets_ready(daemon: Daemon, redirection: str) -> None:
    mount = "logger.info('%d', os.getpid()); ready(-1); return 0"
    command = [*daemon.command(mount), "--log-file", str(daemon.log_file)]
    started = subprocess.run(["sh", "-c", f'exec "$@" {redirection}', "sh", *command], timeout=WAIT_S, check=False)
    assert started.returncode == 0
    wait_for_exit(int(daemon.log_file.read_text().split()[-1]))


def test_an_exit_code_is_heard_of_although_the_end_of_children_is_ignored_where_we_are_started(daemon: Daemon) -> None:
    command = daemon.command("raise AccessError('access denied to s3://b')")
    ignoring = (
        "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
    )
    started = subprocess.run([sys.executable, "-c", ignoring, *command], stderr=subprocess.DEVNULL, timeout=WAIT_S)
    assert started.returncode == 3


@pytest.mark.parametrize(
    ("error", "told"),
    [
        ("KeyError('unforeseen')", "'unforeseen'"),
        ("BrokenPipeError(32, 'Broken pipe')", "a pipe of the mount broke: [Errno 32] Broken pipe"),
    ],
)
def test_a_bug_before_readiness_is_shown_with_its_traceback(daemon: Daemon, error: str, told: str) -> None:
    failed = daemon.start(f"raise {error}")
    assert failed.returncode == 1
    assert f"this is a bug in fastfuse: {told}" in failed.stderr
    assert "Traceback" in failed.stderr
    assert "Traceback" in daemon.log_file.read_text()


@pytest.mark.parametrize(
    ("mount", "how"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "killed by SIGKILL"),
        ("return 0", "stopped"),
        ("if os.fork(): os._exit(0)\nawait_release(); os._exit(0)", "stopped"),
    ],
)
def test_a_child_that_ends_before_readiness_without_a_word_is_reported(daemon: Daemon, mount: str, how: str) -> None:
    failed = daemon.start(mount)
    assert failed.returncode == 1
    assert failed.stderr == f"fastfuse: error: the daemon was {how} before the mount was ready\n"


def test_a_system_without_room_for_the_daemon_is_reported(daemon: Daemon) -> None:
    python, option, driver, *words = daemon.command("return 0")
    refusing = "import os\ndef refuse(): raise BlockingIOError(11, os.strerror(11))\nos.fork = refuse\n"
    failed = run_forked([python, option, refusing + driver, *words], os.environ)
    assert failed.returncode == 1
    assert failed.stderr.startswith("fastfuse: error: no process can be started: Resource temporarily unavailable\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_interrupting_the_wait_ends_the_child_too(daemon: Daemon, number: signal.Signals) -> None:
    with daemon.waited_for("await_release(); return 0") as (parent, _):
        parent.send_signal(number)
        assert parent.wait(WAIT_S) == 128 + number


FORK_AND_SIGNAL = """
import os, signal
fork = os.fork
def fork_and_signal():
    child = fork()
    if child: signal.raise_signal(NUMBER)
    return child
os.fork = fork_and_signal
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_a_signal_right_after_the_fork_ends_the_child_too(daemon: Daemon, number: signal.Signals) -> None:
    python, option, driver, *words = daemon.command("await_release(); return 0", "--log-file", str(daemon.log_file))
    command = [python, option, FORK_AND_SIGNAL.replace("NUMBER", str(int(number))) + driver, *words]
    ours, theirs = os.pipe()  # both processes hold `theirs`
    try:
        with Forked[str](command, stdin=subprocess.DEVNULL, pass_fds=[theirs]) as parent:
            os.close(theirs)
            assert parent.wait(WAIT_S) == 128 + number
        assert select.select([ours], [], [], WAIT_S)[0], "the child is still there"
    finally:
        os.close(ours)


def test_a_hangup_that_the_caller_ignores_ends_neither_the_wait_nor_the_child(daemon: Daemon) -> None:
    with daemon.waited_for("await_release(); ready(-1); return 0", "nohup") as (parent, _):
        parent.send_signal(signal.SIGHUP)
        daemon.release()
        assert parent.wait(WAIT_S) == 0


@pytest.mark.parametrize("reader", ["parent", "stderr"])
def test_a_mount_serves_though_what_waits_for_it_is_gone(daemon: Daemon, reader: str) -> None:
    mount = "await_release(); logger.info('listed'); ready(-1); logger.info('served'); return 0"
    with daemon.waited_for(mount) as (parent, _):
        assert parent.stderr is not None
        if reader == "parent":
            parent.kill()
            parent.wait(WAIT_S)
        parent.stderr.close()
        daemon.release()
        assert parent.wait(WAIT_S) == (0 if reader == "stderr" else -signal.SIGKILL)
    assert [line.split()[3] for line in daemon.log_file.read_text().splitlines()[1:]] == ["listed", "served"]


def test_a_mistaken_command_line_is_refused_before_anything_is_forked(daemon: Daemon) -> None:
    failed = daemon.start("raise KeyError", "--part-size", "1")
    assert failed.returncode == 2
    assert not daemon.log_file.exists()
