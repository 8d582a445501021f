"""File systems of others: a command that mounts and serves in the foreground."""

import os
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.processes import cpu_seconds, peak_pss_bytes
from bench.readers import Manner, Outcome, Span, read_mount
from bench.server import Server
from fastfuse.filesystem.mounting.mountpoint import find_mount

# Nothing of the user's own configuration or proxies; keys of a length that rclone takes. Compiled modules are kept, as
# they are where the package is installed.
ENVIRONMENT = {
    **{
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("AWS_", "FASTFUSE_", "RCLONE_")) and not name.lower().endswith("_proxy")
        if name != "PYTHONDONTWRITEBYTECODE"
    },
    "AWS_ACCESS_KEY_ID": "AKIABENCHBENCHBENCH0",
    "AWS_SECRET_ACCESS_KEY": "bench" * 8,
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    "AWS_EC2_METADATA_DISABLED": "true",
}
_START_S = 30.0
_STOP_S = 10.0
_POLL_S = 0.02


class UnavailableError(Exception):
    """A candidate cannot be measured here, and that is no failure of it."""


def _environment_for(server: Server) -> Mapping[str, str]:
    """`ENVIRONMENT`, and the authority to trust for what can be told so by the variables of OpenSSL, Go and curl."""
    if server.ca_bundle is None:
        return ENVIRONMENT
    return {**ENVIRONMENT, "SSL_CERT_FILE": str(server.ca_bundle), "CURL_CA_BUNDLE": str(server.ca_bundle)}


@dataclass(frozen=True, slots=True)
class Mounted:
    """A mount at `root` that `pid` and its descendants serve."""

    root: Path
    pid: int

    def read(self, tasks: Sequence[Sequence[Span]], manner: Manner) -> list[Outcome]:
        return read_mount(self.root, tasks, manner)

    def cpu_s(self) -> float:
        return cpu_seconds(self.pid)

    def peak_bytes(self) -> int:
        return peak_pss_bytes(self.pid)


def make_mountpoint(place: Path) -> Path:
    root = place / "mount"
    root.mkdir()
    return root


@contextmanager
def foreground(command: Sequence[str], root: Path, server: Server, log_path: Path) -> Iterator[Mounted]:
    """Run a command that mounts at `root` and serves until it is unmounted; `RuntimeError` if it does not."""
    with (
        log_path.open("ab") as log,
        subprocess.Popen(
            command, env=_environment_for(server), stdin=subprocess.DEVNULL, stdout=log, stderr=log
        ) as process,
    ):
        try:
            deadline_s = time.monotonic() + _START_S
            while find_mount(root) is None:
                if process.poll() is not None or time.monotonic() > deadline_s:
                    raise _start_error(command, log_path)
                time.sleep(_POLL_S)  # a peer tells nobody when it has mounted
            try:
                # The mount is in the table before its daemon serves it; this waits until it does.
                os.listdir(root)
            except OSError as error:
                raise _start_error(command, log_path) from error
            yield Mounted(root, process.pid)
        finally:
            # Some unmount by themselves when they fail.
            subprocess.run(["umount", "--lazy", "--quiet", root], check=False)
            process.terminate()
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()


def _start_error(command: Sequence[str], log_path: Path) -> RuntimeError:
    told = " / ".join(log_path.read_text(errors="replace").strip().splitlines()[-3:])
    return RuntimeError(f"did not mount ({' '.join(command)}): {told or 'it said nothing'}")
