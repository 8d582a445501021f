"""The mount of a soak: the command in a process of its own, its worker, its metrics and its log."""

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from bench.mounting import ENVIRONMENT, make_mountpoint
from bench.soak.server import BUCKET, SoakServer
from fastfuse.demo.mounting import MountProcess

__all__ = ["SoakMount"]

_LOG_CHARACTERS = 20_000


class SoakMount(MountProcess):
    """A mount of the server's bucket below `place`, between ``with`` and its end."""

    def __init__(self, place: Path, server: SoakServer, memory_target: str, options: Sequence[str]) -> None:
        self.root = make_mountpoint(place)
        arguments = ["--endpoint-url", server.endpoint_url, "--region", "us-east-1", "--force-path-style"]
        arguments += ["--memory-target", memory_target, *options]
        environment = {**_write_credentials(place), "FASTFUSE_NO_INDEX_CACHE": "1"}
        super().__init__(
            f"s3://{BUCKET}", self.root, log_path=place / "log", environment=environment, arguments=arguments
        )

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        # The mount's end shows as a file or a port that is not there any more.
        if isinstance(error, OSError):
            error.add_note(f"the mount: {self.process.poll()}\n{self.log[-_LOG_CHARACTERS:]}")
        super().__exit__(kind, error, trace)

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def worker(self) -> int | None:
        """Return the pid of the newest child with the connection to the kernel; None where there is none just now."""
        # In the order in which they were forked; pids begin anew at some time.
        children = map(int, Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split())
        return next(reversed([child for child in children if _is_connected(child)]), None)

    def metrics(self) -> dict[str, float]:
        """Return the metrics; a label's value stands behind the name: ``fastfuse_errors_total EIO``."""
        return {" ".join((sample.name, *sample.labels.values())): sample.value for sample in self.samples()}


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
