"""How a run ends before its time: signals, kill -9, a terminal; nothing stays mounted and no process stays."""

import errno
import os
import pty
import re
import signal
import sys
import termios
import time
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path
from unittest.mock import Mock

import pytest

from bench.s3server import FaultRule, LoopbackServer, MemoryObjects, ServerConfig, Stall
from fastfuse.filesystem.mounting.mountpoint import find_mount
from fastfuse.sagemaker.files import JobPaths, claim_base_dir
from fastfuse.sagemaker.running.guardian import Guardian
from fastfuse.sagemaker.running.run import _LOOK_EVERY_S
from tests.filesystem.waiting import wait_for_end, wait_until
from tests.mounting import ENVIRONMENT, run_fastfuse
from tests.sagemaker.jobs import request
from tests.sagemaker.running.jobs import BUCKET, Job, Run, channel, running
from tests.semantics.leftovers import descendants
from tests.semantics.places import block_bytes

OBJECTS = {"data/x": block_bytes(1, 40 << 20)}
CHANNELS = [channel("mounted", "FastFile", "data/"), channel("piped", "Pipe", "data/")]

# Tells of every signal that it gets, and ends at those to stop with codes of its own.
PATIENT = """
import os, signal, sys
def say(text):
    os.write(1, f"{text}\\n".encode())  # at once, or a signal finds half a line
def told(number, frame):
    say(signal.Signals(number).name)
    sys.exit(40 + number)
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
    signal.signal(number, told)
say("ready")
while True:
    signal.pause()
"""
STUBBORN = PATIENT.replace("    sys.exit(40 + number)\n", "")


def assert_nothing_is_left(job: Job) -> None:
    assert find_mount(job.data / "mounted") is None
    assert not [path for path in job.data.iterdir() if path.is_fifo()]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT])
def test_a_signal_is_passed_on_once_and_the_commands_exit_code_is_ours(run: Run, number: signal.Signals) -> None:
    with run(CHANNELS, command=PATIENT) as job:
        job.wait_for_output("ready")
        assert job.stop(number) == 40 + number
        assert job.output.split() == ["ready", number.name]
        assert f"Stopped - by {number.name}: the command exited with {40 + number}" in job.log
        assert_nothing_is_left(job)


def send_to_all(job: Job, number: signal.Signals) -> None:
    """Send the signal to every process of the job, as systemd and a shutdown do, and Slurm if it is told to."""
    for pid in (*descendants(job.process.pid), job.process.pid):
        with suppress(ProcessLookupError):  # the command has ended by it
            os.kill(pid, number)


# A signal that comes twice changes nothing.
WARNED = """
import signal, sys
numbers = {signal.SIGUSR1, signal.SIGUSR2}
signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
print("ready", flush=True)
number = signal.sigwait(numbers)
print(number.name, flush=True)
sys.exit(40 + number)
"""


@pytest.mark.parametrize(("number", "is_sent_to_all"), [(signal.SIGUSR1, False), (signal.SIGUSR2, True)])
def test_a_signal_that_warns_reaches_the_command_and_ends_no_process_of_the_run(
    run: Run, number: signal.Signals, is_sent_to_all: bool
) -> None:
    with run(CHANNELS, command=WARNED) as job:
        job.wait_for_output("ready")
        if is_sent_to_all:
            send_to_all(job, number)
        else:
            job.process.send_signal(number)
        assert job.wait() == 40 + number
        assert job.output.split() == ["ready", number.name]
        assert "Failed - the command exited with" in job.log
        assert_nothing_is_left(job)


# At the first signal it reads all that it has, saves a checkpoint and ends.
SAVING = """
import os, signal
numbers = {signal.SIGTERM, signal.SIGINT}
signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
print("ready", flush=True)
signal.sigwait(numbers)
for path in ("MOUNTED/x", "PIPED_0", "LOCAL/x", "PIPED_1"):
    name, rest = path[:-2], path[-2:]
    with open(os.environ["SM_CHANNEL_" + name] + rest, "rb") as file:
        print(len(file.read()), flush=True)
with open(os.environ["SAGEMAKER_BASE_DIR"] + "/checkpoints/last", "wb") as file:
    file.write(bytes(3 << 20))
"""


@pytest.mark.fuse
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_after_a_signal_to_every_process_the_command_reads_on_and_its_checkpoints_are_sent(
    tmp_path: Path, number: signal.Signals
) -> None:
    (tmp_path / "x").write_bytes(b"local")
    local = channel("local", "FastFile")
    local["DataSource"]["S3DataSource"]["S3Uri"] = f"file://{tmp_path}"
    config = ServerConfig(writes="unconditional", clock_s=time.time)
    with LoopbackServer({BUCKET: MemoryObjects(OBJECTS)}, config) as server:
        description = request(*CHANNELS, local, CheckpointConfig={"S3Uri": f"s3://{BUCKET}/saved/"})
        with running(server.endpoint_url, description, "--metrics-listen", "0", command=SAVING) as job:
            job.wait_for_output("ready")
            children = job.children()
            for pid in descendants(job.process.pid):
                if pid != children[-1]:  # the command
                    os.kill(pid, signal.SIGHUP)
            send_to_all(job, number)
            assert job.wait() == 0, job.log
            assert job.output.split() == ["ready", str(40 << 20), str(40 << 20), "5", str(40 << 20)]
            assert f"Stopped - by {number.name}: the command exited with 0" in job.log
            assert_nothing_is_left(job)
        assert server.buckets[BUCKET].view().lookup(b"saved/last") is not None


# A real-time signal has no name.
@pytest.mark.parametrize(("number", "name"), [(int(signal.SIGUSR1), "SIGUSR1"), (40, "signal 40")])
def test_a_command_that_a_signal_kills_is_told_as_shells_do(run: Run, number: int, name: str) -> None:
    command = f"import os; os.kill(os.getpid(), {number})"
    with run(CHANNELS, command=command, ends_with=128 + number) as job:
        assert f"Failed - the command was killed by {name}" in job.log
        assert_nothing_is_left(job)


def test_a_run_refreshes_what_is_mounted_at_sighup_and_goes_on_after_a_pause(run: Run) -> None:
    """Ctrl-Z and fg pause it, or `docker pause` does."""
    with run(CHANNELS, command=PATIENT) as job:
        job.wait_for_output("ready")
        job.process.send_signal(signal.SIGHUP)
        job.wait_for_log("refreshed s3://bucket/data/: 0 added, 0 removed, 0 replaced")
        job.process.send_signal(signal.SIGSTOP)
        # The pause is longer than the wait for a signal that it interrupts.
        signal.sigtimedwait([], 2 * _LOOK_EVERY_S)
        job.process.send_signal(signal.SIGCONT)
        assert job.stop() == 40 + signal.SIGTERM
        assert job.output.split() == ["ready", "SIGTERM"]


def test_a_command_that_does_not_end_in_time_is_killed_with_all_that_it_started(run: Run) -> None:
    text = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {STUBBORN!r}])\n{STUBBORN}"
    with run(CHANNELS, "--stop-timeout", "2", command=text) as job:
        wait_until(lambda: job.output.count("ready") == 2)
        processes = [os.pidfd_open(pid) for pid in descendants(job.process.pid)]
        assert job.stop() == 128 + signal.SIGKILL
        assert "SIGTERM" in job.output
        assert "the command has 2 s to end after SIGTERM, and is killed then" in job.log
        for process in processes:
            wait_for_end(process)
        assert_nothing_is_left(job)


def test_what_a_shell_left_running_is_told_to_end_too(run: Run) -> None:
    with run(CHANNELS, command=("sh", "-c", '"$0" -c "$1" & wait', sys.executable, PATIENT)) as job:
        job.wait_for_output("ready")
        assert job.stop() == 128 + signal.SIGTERM
        assert job.output.split() == ["ready", "SIGTERM"]


def test_a_command_inherits_no_signal_blocked_or_ignored_no_descriptor_and_no_variable_but_the_jobs(run: Run) -> None:
    """A variable that tells libraries how many threads to use would make it slow."""
    command = ("sh", "-c", "grep -E '^Sig(Blk|Ign)' /proc/self/status; ls /proc/self/fd; echo; env")
    with run(CHANNELS, command=command, ends_with=0) as job:
        status, _, variables = job.output.partition("\n\n")
        blocked, ignored, *descriptors = status.replace("SigBlk:", "").replace("SigIgn:", "").split()
        # What we were started with ignored stays so: some that run tests ignore a signal of the C library (32).
        ours = re.search(r"^SigIgn:\s*(\w+)", Path("/proc/self/status").read_text(), re.MULTILINE)
        assert ours is not None
        assert int(blocked, 16) == 0
        assert int(ignored, 16) & ~int(ours[1], 16) == 0
        assert not any(int(ignored, 16) & 1 << (number - 1) for number in (signal.SIGPIPE, signal.SIGXFSZ))  # as Python
        # What `ls` has open beyond the three is the directory.
        assert descriptors == ["0", "1", "2", "3"]
        shells_own = {"PWD", "OLDPWD", "SHLVL", "_"}
        added = {*re.findall(r"^(\w+)=", variables, re.MULTILINE)} - ENVIRONMENT.keys() - shells_own
        assert {name for name in added if not name.startswith("SM_")} == {
            *("AWS_REGION", "CURRENT_HOST", "S3_ENDPOINT_URL", "SAGEMAKER_BASE_DIR")
        }


@pytest.mark.parametrize(("exit_code", "options"), [(42, ()), (128 + signal.SIGINT, ("--stop-timeout", "0"))])
def test_ctrl_c_reaches_the_command_once_and_no_channel_and_is_why_the_command_ends(
    run: Run, tmp_path: Path, exit_code: int, options: tuple[str, ...]
) -> None:
    ours, theirs = pty.openpty()
    read = "say(len(open(os.environ['SM_CHANNEL_' + channel] + file, 'rb').read()))"
    reads = f"for channel, file in ('MOUNTED', '/x'), ('PIPED', '_0'): {read}"
    program = PATIENT.replace("    sys.exit(40 + number", f"    {reads}\n    sys.exit({exit_code}")
    with (
        (tmp_path / "log").open("wb") as log,
        run(CHANNELS, *options, command=program, terminal=theirs, stderr=log.fileno()) as job,
    ):
        job.wait_for_output("ready")
        os.write(ours, b"\x03")
        assert job.wait() == exit_code
        assert job.output.split() == ["ready", "SIGINT", *[str(40 << 20)] * 2]
    assert f"Stopped - by SIGINT: the command exited with {exit_code}" in (tmp_path / "log").read_text()
    os.close(ours)


def test_a_command_that_goes_on_after_ctrl_c_is_not_told_to_end(run: Run, tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    options = {"command": STUBBORN, "terminal": theirs}
    with (
        (tmp_path / "log").open("wb") as log,
        run(CHANNELS[:1], "--stop-timeout", "0.1", **options, stderr=log.fileno()) as job,
    ):
        job.wait_for_output("ready")
        for count in (1, 2):
            os.write(ours, b"\x03")
            wait_until(lambda count=count: job.output.split().count("SIGINT") == count)  # type: ignore[misc]
        # Of two signals that wait, SIGINT is taken first.
        assert job.stop(signal.SIGTERM) == 128 + signal.SIGKILL
    said = (tmp_path / "log").read_text()
    assert "s to end after SIGTERM" in said
    assert "s to end after SIGINT" not in said
    assert "Stopped - by SIGTERM: the command was killed by SIGKILL" in said
    os.close(ours)


@pytest.mark.parametrize(
    ("mode", "number"), [("FastFile", signal.SIGTERM), ("File", signal.SIGINT), ("Pipe", signal.SIGTERM)]
)
def test_signals_end_preparation(server: LoopbackServer, run: Run, mode: str, number: signal.Signals) -> None:
    operation = "GetObject" if mode == "File" else "ListObjectsV2"
    server.faults.add(FaultRule(action=Stall(0), operation=operation))
    channels = [channel("other", "FastFile", "data/"), channel("slow", mode, "data/")]
    with run(channels, command="print('never')") as job:
        server.wait_until(lambda statistics: statistics.requests.get(operation, 0) > 0)
        send_to_all(job, number)
        assert job.wait() == 128 + number
        assert f"Stopped - by {number.name} before everything was ready" in job.log
        assert job.output == ""
        assert not any(not path.name.startswith(".") for path in (job.data / "slow").glob("*"))


# Reads on once it is told to end, or once the shell has died, which is told, and tells nobody.
READ_ON = """
import os, signal
told, shell = [], SHELL
if not shell:
    signal.signal(signal.SIGTERM, lambda number, frame: told.append("told"))
with open(os.environ["SM_CHANNEL_PIPED"] + "_0", "rb", buffering=0) as file:
    file.read(1 << 10)
    print("reading", flush=True)
    while os.getppid() == shell if shell else not told:
        signal.sigtimedwait([], 0.01)
    print(*told, flush=True)
    file.readall()
print("whole", flush=True)
"""


@pytest.mark.parametrize("is_below_a_shell", [False, True])
def test_after_kill_9_a_reader_never_sees_its_epoch_end(run: Run, is_below_a_shell: bool) -> None:
    text = READ_ON.replace("SHELL", "os.getppid()" if is_below_a_shell else "0")
    command = ("sh", "-c", '"$0" -c "$1"; true', sys.executable, text) if is_below_a_shell else text
    with run(CHANNELS, "--stop-timeout", "3", command=command) as job:
        job.wait_for_output("reading")
        job.kill()
        assert job.output.split() == ["reading"] + ["told"] * (not is_below_a_shell)
        assert_nothing_is_left(job)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_without_a_command_a_reader_never_sees_its_epoch_end_with_the_run(run: Run, number: signal.Signals) -> None:
    change = "from fastfuse.sagemaker.running import guardian; guardian._HEEDS_WITHIN_S = 600.0"
    with run(CHANNELS, "--metrics-listen", "0", change=change) as job:
        job.wait_for_log("All channels are ready")
        _, guardian, *_ = job.children()
        processes = [os.pidfd_open(pid) for pid in descendants(job.process.pid) if pid != guardian]
        with (job.data / "piped_0").open("rb", buffering=0) as file:
            assert file.read(1)
            job.process.send_signal(number)
            for process in processes:
                wait_for_end(process)
            with pytest.raises(urllib.error.URLError, match="refused"):  # the next run may have the address
                job.metrics()
            wait_until(lambda: "an end that will not come" in job.log)
            held = Path(f"/proc/{guardian}/fd")
            wait_until(lambda: all(fd.is_fifo() for fd in held.iterdir()))  # `| tee` is at its end
            assert job.wait() in {0, -number}
            os.close(claim_base_dir(JobPaths(job.base)))  # the next run may begin
            os.set_blocking(file.fileno(), False)
            # What was in the FIFO, and then nothing yet, which is not the end.
            assert file.readall()
            assert file.read(1) is None
            process = os.pidfd_open(guardian)
        wait_for_end(process)
        assert_nothing_is_left(job)


def test_a_command_is_not_watched_where_a_filter_refuses_pidfds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    guardian = Guardian([], tmp_path, stop_timeout_s=1, not_done="", listener=None)
    try:
        monkeypatch.setattr(os, "pidfd_open", Mock(side_effect=PermissionError(errno.EPERM, "refused")))
        guardian.heed(os.getpid())
    finally:
        guardian.dismiss()
    assert "if this run is killed, its command may live on: [Errno 1] refused" in caplog.text


def test_epochs_end_even_if_the_guardian_was_killed(run: Run) -> None:
    text = """
import os, signal
with open(f"/proc/{os.getppid()}/task/{os.getppid()}/children") as file:
    os.kill(min(map(int, file.read().split())), signal.SIGKILL)
for epoch in range(4):
    with open(os.environ["SM_CHANNEL_PIPED"] + f"_{epoch}", "rb") as file:
        print(len(file.read()), flush=True)
"""
    with run(CHANNELS, command=text, ends_with=0) as job:
        assert job.output.split() == [str(40 << 20)] * 4
        assert_nothing_is_left(job)


def test_mounts_that_are_killed_or_unmounted_are_told_and_the_others_go_on(run: Run) -> None:
    with run([*CHANNELS, channel("other", "FastFile", "data/")], command=PATIENT) as job:
        job.wait_for_output("ready")
        # Channels are the first children but the guardian, in their order.
        _, victim, *_ = job.children()
        os.kill(victim, signal.SIGKILL)
        job.wait_for_log("channel mounted: its process was killed by signal 9; the other channels go on")
        assert len((job.data / "other" / "x").read_bytes()) == 40 << 20
        assert run_fastfuse("unmount", str(job.data / "other")).returncode == 0
        job.wait_for_log("channel other was unmounted; the other channels go on")
        assert (job.data / "piped_0").is_fifo()
        assert job.stop() == 40 + signal.SIGTERM
        assert_nothing_is_left(job)


def test_a_stream_whose_process_is_killed_ends_the_command_and_the_run_fails(run: Run) -> None:
    with run(CHANNELS, command=PATIENT) as job:
        job.wait_for_output("ready")
        _, _, victim, *_ = job.children()
        os.kill(victim, signal.SIGKILL)
        assert job.wait() == 1
        assert job.output.split() == ["ready", "SIGTERM"]
        assert "error: channel piped: its process was killed by signal 9" in job.log
        assert_nothing_is_left(job)


def test_a_metrics_endpoint_that_is_killed_is_started_again_and_is_none_of_the_commands(run: Run) -> None:
    change = "from fastfuse.filesystem.figures import endpoint; endpoint._START_EVERY_S = 0.0"
    with run(CHANNELS, "--metrics-listen", "0", command=PATIENT, change=change) as job:
        job.wait_for_output("ready")
        endpoint, *_ = job.children()
        os.kill(endpoint, signal.SIGKILL)
        assert 'channel="mounted"' in job.metrics()
        assert job.log.count("the metrics endpoint was killed by signal 9; it is started again") == 1
        assert job.stop() == 40 + signal.SIGTERM
        assert "which the command left running" not in job.log


def test_a_terminal_that_hangs_up_ends_a_run_that_logs_to_a_file(run: Run, tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    with (tmp_path / "log").open("wb") as log, run(CHANNELS, terminal=theirs, stderr=log.fileno()) as job:
        os.close(theirs)
        wait_until(lambda: "All channels are ready" in (tmp_path / "log").read_text())
        os.close(ours)
        assert job.wait() == 0
        assert_nothing_is_left(job)
    assert "Stopped - by SIGHUP" in (tmp_path / "log").read_text()


def test_a_terminal_that_hangs_up_ends_a_run_without_a_command(run: Run) -> None:
    ours, theirs = pty.openpty()
    modes = termios.tcgetattr(theirs)
    modes[3] |= termios.TOSTOP  # what writes in the background is stopped, unless it ignores that
    termios.tcsetattr(theirs, termios.TCSANOW, modes)
    with run(CHANNELS, terminal=theirs) as job:
        os.close(theirs)
        shown = b""
        while b"All channels are ready" not in shown:
            shown += os.read(ours, 65536)
        assert shown.count(b": listed s3://") == len(CHANNELS)
        os.close(ours)
        assert job.wait() == 0
        assert_nothing_is_left(job)


def test_a_log_that_nobody_reads_keeps_no_signal_from_the_command(run: Run) -> None:
    reading_fd, writing_fd = os.pipe()
    os.set_blocking(writing_fd, False)
    with suppress(BlockingIOError):
        while os.write(writing_fd, bytes(1 << 16)):
            pass
    os.set_blocking(writing_fd, True)
    with run(CHANNELS, command=PATIENT, stderr=writing_fd) as job:
        job.wait_for_output("ready")
        assert job.stop() == 40 + signal.SIGTERM
        assert_nothing_is_left(job)
    os.close(reading_fd)
    os.close(writing_fd)
