"""Real jobs for tests: ``fastfuse run`` in a process of its own, with a command that says what it sees."""

import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import termios
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.filesystem.waiting import PATIENCE_S, wait_for_end, wait_until
from tests.forked import Forked
from tests.mounting import ENVIRONMENT, children_of
from tests.semantics.leftovers import descendants

BUCKET = "bucket"

Script = Sequence[str]


def script(text: str) -> Script:
    return (sys.executable, "-c", text)


# Written as for SageMaker: it knows its channels by SM_CHANNELS and SM_CHANNEL_*, whatever their mode.
CHECKSUMS = """
import hashlib, json, os
config = json.loads(os.environ["SM_INPUT_DATA_CONFIG"])
sums = {}
for name in json.loads(os.environ["SM_CHANNELS"]):
    place = os.environ["SM_CHANNEL_" + name.upper()]
    hashed = hashlib.sha256()
    if config[name]["TrainingInputMode"] == "Pipe":
        paths = [place + "_0"]
    else:
        paths = [os.path.join(top, file) for top, _, files in os.walk(place) for file in files if file[0] != "."]
    for path in sorted(paths):
        with open(path, "rb") as file:
            while chunk := file.read(1 << 20):
                hashed.update(chunk)
    sums[name] = hashed.hexdigest()
print(json.dumps(sums), flush=True)
"""


def checksums(job: "Job") -> dict[str, str]:
    made: dict[str, str] = json.loads(job.output)
    return made


def channel(name: str, mode: str, prefix: str = "", **more: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    """An entry of InputDataConfig."""
    source = {"S3DataType": "S3Prefix", "S3Uri": f"s3://{BUCKET}/{prefix}"}
    return {"ChannelName": name, "InputMode": mode, "DataSource": {"S3DataSource": source}, **more}


@dataclass
class Job:
    process: "subprocess.Popen[bytes]"
    base: Path
    directory: Path

    @property
    def log(self) -> str:
        return (self.directory / "log").read_text()

    @property
    def output(self) -> str:
        return (self.directory / "output").read_text()

    @property
    def data(self) -> Path:
        return self.base / "input" / "data"

    def children(self) -> list[int]:
        return children_of(self.process.pid)

    def metrics(self) -> str:
        address = re.search(r"metrics are served at (\S+)", self.log)
        assert address, self.log
        with urllib.request.urlopen(address[1], timeout=60) as reply:
            return str(reply.read(), "utf-8")

    def wait(self) -> int:
        return self.process.wait(PATIENCE_S)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.wait()

    def kill(self) -> None:
        """Kill the run alone, and wait for the end of all that it started, its guardian too."""
        started = [os.pidfd_open(pid) for pid in descendants(self.process.pid)]
        self.process.kill()
        assert self.wait() == -signal.SIGKILL
        for process in started:
            wait_for_end(process)

    def wait_for_output(self, text: str) -> None:
        wait_until(lambda: text in self.output or self._is_over(), lambda: self.log)
        assert text in self.output, self.log

    def wait_for_log(self, text: str) -> None:
        wait_until(lambda: text in self.log or self._is_over(), lambda: self.log)
        assert text in self.log, self.log

    def _is_over(self) -> bool:
        return self.process.poll() is not None


# `running` with the endpoint of a server.
Run = Callable[..., AbstractContextManager[Job]]


@contextmanager
def running(
    endpoint_url: str,
    description: Sequence[Mapping[str, Any]] | Mapping[str, Any],
    *options: str,
    command: Script | str = (),
    base: Path | None = None,
    terminal: int | None = None,
    stderr: int | None = None,
    change: str = "",
    is_fresh: bool = False,
    ends_with: int | None = None,
) -> Iterator[Job]:
    """Start a job, in a session of its own on `terminal` if one is given; what still runs at the end is stopped.

    It logs to `stderr`, to the terminal, or else to a file. A command that is a text is a program in Python. Lines of
    Python in `change` run before the job. One that `is_fresh` is no fork of a process that has loaded what jobs load
    late. With `ends_with` the job is over, with this exit code, as the block begins.
    """
    command = script(command) if isinstance(command, str) else command
    with tempfile.TemporaryDirectory(prefix="job-") as name:
        directory = Path(name)
        (directory / "job.json").write_text(json.dumps(description))
        place = base or directory / "ml"
        start = ("-c", f"{change}\nimport sys\nfrom fastfuse.cli.main import main\nsys.exit(main())")
        arguments = [sys.executable, *(["-B"] if is_fresh else []), *(start if change else ("-m", "fastfuse"))]
        arguments += ["run", "--job", str(directory / "job.json")]
        arguments += ["--base-dir", str(place), "--endpoint-url", endpoint_url, "--region", "us-east-1"]
        arguments += ["--force-path-style", *options, *(["--", *command] if command else [])]
        with (directory / "log").open("wb") as log, (directory / "output").open("wb") as output:
            process = Forked[bytes](
                arguments, env=ENVIRONMENT, stdin=terminal, stdout=output, stderr=stderr or terminal or log,
                preexec_fn=None if terminal is None else _take_terminal,
            )  # fmt: skip
        job = Job(process, place, directory)
        try:
            assert ends_with is None or job.wait() == ends_with, job.log
            yield job
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(PATIENCE_S)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()


def _take_terminal() -> None:
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
