"""The mount of a soak: the command in a process of its own, its worker, its metrics and its log."""

import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from bench.mounting import ENVIRONMENT
from bench.soak.server import BUCKET, SoakServer
from fastfuse.filesystem.mountpoint import find_mount

__all__ = ["SoakMount", "soak_mount"]

_START_S = 30.0
_STOP_S = 40.0
_POLL_S = 0.02
_LOG_CHARACTERS = 20_000
_METRICS_PORT = re.compile(r"metrics are served at http://127\.0\.0\.1:(\d+)/")
_SAMPLE = re.compile(r"^(fastfuse_\w+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)


@dataclass(frozen=True)
class SoakMount:
    """A mount at `root`, served below `process`."""

    root: Path
    process: subprocess.Popen[bytes]
    log_path: Path

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def worker(self) -> int | None:
        """Return the pid of the newest child with the connection to the kernel; None where there is none just now."""
        pid = self.process.pid
        # In the order in which they were forked; pids begin anew at some time.
        children = map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
        return next(reversed([child for child in children if _is_connected(child)]), None)

    def metrics(self) -> dict[str, float]:
        """Return the metrics; a label's value stands behind the name: ``fastfuse_errors_total EIO``."""
        found = _METRICS_PORT.findall(self.log)
        with urllib.request.urlopen(f"http://127.0.0.1:{found[-1]}/metrics", timeout=10) as reply:
            text = reply.read().decode()
        return {
            f"{name} {labels.partition('=')[2]}".replace('"', "").strip(): float(value)
            for name, labels, value in _SAMPLE.findall(text)
        }

    def stop(self) -> int | None:
        """Return the exit code after SIGTERM; None if the mount does not end."""
        self.process.terminate()
        with suppress(subprocess.TimeoutExpired):
            return self.process.wait(_STOP_S)
        return None


def _write_credentials(place: Path) -> dict[str, str]:
    """Return the environment of a user whose keys come from a program that makes new ones for each call."""
    program, config = place / "keys.sh", place / "config"
    program.write_text(
        'printf \'{"Version": 1, "AccessKeyId": "AKIASOAK%012d", "SecretAccessKey": "secret", "SessionToken": "token",'
        ' "Expiration": "2099-01-01T00:00:00Z"}\' $$\n'
    )
    config.write_text(f"[default]\ncredential_process = /bin/sh {program}\n")
    kept = {name: value for name, value in ENVIRONMENT.items() if not name.startswith("AWS_")}
    return {**kept, "AWS_CONFIG_FILE": str(config), "AWS_SHARED_CREDENTIALS_FILE": os.devnull}


def _is_connected(pid: int) -> bool:
    with suppress(FileNotFoundError, ProcessLookupError):  # it, or its descriptor, may go at any time
        return any(os.readlink(path) == "/dev/fuse" for path in Path(f"/proc/{pid}/fd").iterdir())
    return False


@contextmanager
def soak_mount(place: Path, server: SoakServer, memory_target: str, options: Sequence[str]) -> Iterator[SoakMount]:
    """Mount the server's bucket below `place` until the end of the block; `RuntimeError` if that fails."""
    root = place / "mount"
    root.mkdir()
    command = [
        *(sys.executable, "-m", "fastfuse", "mount", f"s3://{BUCKET}", str(root)),
        *("--endpoint-url", server.endpoint_url, "--region", "us-east-1", "--force-path-style"),
        *("--memory-target", memory_target, "--metrics-listen", "0", *options),
    ]
    environment = {**_write_credentials(place), "FASTFUSE_NO_INDEX_CACHE": "1"}
    log_path = place / "log"
    with log_path.open("wb") as log:
        process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    mount = SoakMount(root, process, log_path)
    try:
        _wait_until_mounted(mount)
        yield mount
    except OSError as error:
        # The mount's end shows as a file or a port that is not there any more.
        error.add_note(f"the mount: {process.poll()}\n{mount.log[-_LOG_CHARACTERS:]}")
        raise
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.send_signal(signal.SIGINT)  # a second signal: nothing is waited for
            with suppress(subprocess.TimeoutExpired):
                process.wait(_STOP_S)
        subprocess.run(["umount", "--lazy", "--quiet", root], check=False)
        process.kill()
        process.wait()


def _wait_until_mounted(mount: SoakMount) -> None:
    until_s = time.monotonic() + _START_S
    while find_mount(mount.root) is None or not _METRICS_PORT.search(mount.log):
        if mount.process.poll() is not None or time.monotonic() > until_s:
            raise RuntimeError(f"did not mount: {mount.log or 'it said nothing'}")
        time.sleep(_POLL_S)
    # The mount is in the table before its worker serves it; this waits until it does.
    os.listdir(mount.root)
