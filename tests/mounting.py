"""Real mounts for tests: the command line in a process of its own, through the real kernel.

Nothing waits for a time: a mount is there when it says READY=1 on a notify socket, or its process has ended.
"""

import os
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fastfuse.filesystem.mounting.mountpoint import find_mount, unmount
from tests.forked import Forked, run_forked

# Long enough for a loaded machine; a test that needs it has failed.
_PATIENCE_S = 60.0

# Nothing of the machine's own AWS configuration reaches a test.
ENVIRONMENT: Mapping[str, str] = {
    **{name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "FASTFUSE_", "NOTIFY_"))},
    "AWS_ACCESS_KEY_ID": "AKIATESTTESTTESTTEST",
    "AWS_SECRET_ACCESS_KEY": "secret-secret-secret-secret-secret-secret",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": "/nonexistent",
    "AWS_SHARED_CREDENTIALS_FILE": "/nonexistent",
    "PYTHONWARNINGS": "error::ResourceWarning",
}


@contextmanager
def fuse_connections() -> Iterator[Path]:
    """What the kernel shows of its FUSE connections, by the minor number of their devices.

    At a place of our own, for not every machine has it at ``/sys/fs/fuse/connections``.
    """
    with tempfile.TemporaryDirectory(prefix="fastfuse-test-") as place:
        subprocess.run(["mount", "-t", "fusectl", "none", place], check=True)
        try:
            yield Path(place)
        finally:
            # Lazily: who holds a file of it may use that for as long.
            subprocess.run(["umount", "--lazy", place], check=True)


def abort_connection(path: Path) -> None:
    """As an administrator gets rid of a mount that hangs (Documentation/filesystems/fuse.rst)."""
    minor = os.minor(os.stat(path).st_dev)
    with fuse_connections() as connections:
        (connections / str(minor) / "abort").write_text("1")


@contextmanager
def tmpfs(place: Path, options: str = "rw", *, source: str = "none") -> Iterator[Path]:
    """Mount a file system in memory at `place`, a new directory or an empty one, until the end of the block."""
    place.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, source, place], check=True)
    try:
        yield place
    finally:
        # Lazily: the traceback of a failure holds directories open.
        subprocess.run(["umount", "--lazy", place], check=True)


@dataclass
class Mount:
    """A mount that was ready; `process` is its supervisor."""

    path: Path
    process: subprocess.Popen[bytes]
    log_path: Path
    notify_socket: socket.socket

    @property
    def log(self) -> str:
        """Everything it has written to stderr until now."""
        return self.log_path.read_text()

    def children(self) -> list[int]:
        """Pids of the supervisor's children, in the order in which they were forked (the worker is the newest)."""
        return children_of(self.process.pid)

    def worker(self) -> int:
        return self.children()[-1]

    def metrics_port(self) -> int:
        """Where a mount with ``--metrics-listen 0`` serves its metrics."""
        match = re.search(r"metrics are served at http://127\.0\.0\.1:(\d+)/", self.log)
        assert match is not None, self.log
        return int(match[1])

    def notified(self) -> str:
        """The next message to the service manager; blocks until it comes."""
        readable, _, _ = select.select([self.notify_socket], [], [], _PATIENCE_S)
        assert readable, f"nothing was notified: {self.log}"
        message = self.notify_socket.recv(4096).decode()
        return self.notified() if message == "WATCHDOG=1" else message

    def wait(self) -> int:
        """The exit code of the supervisor, once it has one."""
        try:
            return self.process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired as error:
            pids = self.process.pid, *self.children()
            waits = {pid: Path(f"/proc/{pid}/wchan").read_text() for pid in pids}
            raise AssertionError(f"it goes on, with processes in {waits}: {self.log}") from error

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.wait()


def children_of(pid: int) -> list[int]:
    """Return the children of a process, by age."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def access(endpoint_url: str) -> tuple[str, ...]:
    """Return the options of a command that reads from a server of the tests."""
    return "--endpoint-url", endpoint_url, "--region", "us-east-1", "--force-path-style"


def mount_command(uri: str, path: Path | None, endpoint_url: str, *options: str) -> list[str]:
    return [
        *(sys.executable, "-m", "fastfuse", "mount", uri, *([] if path is None else [str(path)])),
        *(*access(endpoint_url), "--memory-target", "256MiB", *options),
    ]


def changed(command: Sequence[str], change: str) -> list[str]:
    """Return a mount's command that runs the lines of `change` before the command line."""
    program = f"import sys\n{textwrap.dedent(change)}\nfrom fastfuse.cli.main import main\nsys.exit(main())"
    return [sys.executable, "-c", program, *command[command.index("mount") :]]


def run_fastfuse(*arguments: str, environment: Mapping[str, str] = ENVIRONMENT) -> subprocess.CompletedProcess[str]:
    """Run a command that ends by itself."""
    return run_forked([sys.executable, "-m", "fastfuse", *arguments], environment)


@contextmanager
def mounted(
    uri: str,
    endpoint_url: str,
    *options: str,
    path: Path | None = None,
    environment: Mapping[str, str] = ENVIRONMENT,
    run_by: Sequence[str] = (),
    pass_fds: Sequence[int] = (),
    change: str = "",
) -> Iterator[Mount]:
    """Mount `uri` at `path` (a new directory unless given) until the end of the block.

    Fails unless it gets ready and, if the block has not waited for its end, exits with 0.

    The lines of `change` are run before the mount's command, and `run_by` is a command that runs it, in an interpreter
    of its own. With --fuse-socket the path is the helper's, and is not named.
    """
    with tempfile.TemporaryDirectory(prefix="fastfuse-test-") as directory:
        place = path or Path(directory, "mount")
        if path is None:
            place.mkdir()
        log_path = Path(directory, "log")
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify_socket, log_path.open("wb") as log:
            notify_socket.bind(str(Path(directory, "notify")))
            if run_by:
                os.chmod(directory, 0o711)
                os.chmod(Path(directory, "notify"), 0o777)
            command = mount_command(uri, None if "--fuse-socket" in options else place, endpoint_url, *options)
            process = Forked[bytes](
                [*run_by, *(changed(command, change) if change else command)],
                env={**environment, "NOTIFY_SOCKET": str(Path(directory, "notify"))}, stdout=log, stderr=log,
                pass_fds=pass_fds,
            )  # fmt: skip
            mount = Mount(place, process, log_path, notify_socket)
            try:
                _wait_ready(mount)
                yield mount
                assert process.returncode is not None or mount.stop() == 0, mount.log
            finally:
                _end(mount)


def _wait_ready(mount: Mount) -> None:
    pid_fd = os.pidfd_open(mount.process.pid)
    try:
        while True:
            readable, _, _ = select.select([mount.notify_socket.fileno(), pid_fd], [], [], _PATIENCE_S)
            assert mount.notify_socket.fileno() in readable, f"the mount did not get ready: {mount.log}"
            if mount.notify_socket.recv(4096) == b"READY=1":
                return
    finally:
        os.close(pid_fd)


def _end(mount: Mount) -> None:
    """Take the mount down whatever the test has done to it."""
    if mount.process.poll() is None:
        mount.process.send_signal(signal.SIGTERM)
        mount.process.send_signal(signal.SIGINT)  # a second signal: no waiting for files that a failed test left open
        mount.process.wait(_PATIENCE_S)
    if find_mount(mount.path) is not None:
        unmount(mount.path, lazy=True)
