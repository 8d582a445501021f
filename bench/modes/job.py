"""One run of ``fastfuse run``, from its start to its end, and when it came to what."""

import json
import re
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.modes.figures import Figures
from bench.mounting import ENVIRONMENT
from bench.server import Server

_TRAINING = Path(__file__).with_name("training.py")
_PREPARED = "files, guardian, forks"
# What a line of standard error says is over, in the order of a job with one channel.
_STAGES = {
    "imports and options": re.compile(" Starting - Preparing "),
    _PREPARED: re.compile(" Downloading - Preparing "),
    "index": re.compile(": listed s3://"),
    "mount, FIFO or download": re.compile(r" Downloading - \S+ \(\w+\): "),
    "the rest": re.compile(" Training - Running "),
}


def channel(name: str, server: Server, mode: str, prefix: str = "", **more: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    """An entry of InputDataConfig."""
    source = {"S3DataType": "S3Prefix", "S3Uri": f"s3://{server.bucket}/{prefix}"}
    return {"ChannelName": name, "InputMode": mode, "DataSource": {"S3DataSource": source}, **more}


def run_job(
    server: Server,
    place: Path,
    channels: Sequence[Mapping[str, Any]],
    manner: str,
    *options: str,
    begins: Callable[[], object] | None = None,
) -> Figures:
    """Run the training script on `channels` below the empty directory `place`.

    `begins` is called when its channels are about to be prepared.

    Raises:
        RuntimeError: the job failed.
    """
    command = [*_fastfuse_run(server, place, channels), *options, "--", sys.executable, "-E", str(_TRAINING), manner]
    lines: list[tuple[float, str]] = []
    cpu_before_s = _children_cpu_s()
    started_s = time.monotonic()
    with subprocess.Popen(
        command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        listening = threading.Thread(target=_listen, args=(process.stderr, lines, begins or (lambda: None)))
        listening.start()
        assert process.stdout is not None
        printed = process.stdout.read()
        listening.join()
    over_s = time.monotonic()
    if process.returncode:
        raise RuntimeError("the job failed: " + " / ".join(text.strip() for _, text in lines[-5:]))
    told = json.loads(printed)
    stages = stages_of([(at_s - started_s, text) for at_s, text in lines])
    script_s, first_s = told["began_s"] - started_s, told["first_s"] - started_s
    ready_s = sum(stages.values())
    return Figures(
        stages={**stages, "script's start": script_s - ready_s, "first record": first_s - script_s},
        ready_s=ready_s,
        script_s=script_s,
        first_s=first_s,
        total_s=told["ended_s"] - started_s,
        over_s=over_s - started_s,
        size_bytes=told["size_bytes"],
        records=told["records"],
        cpu_s=_children_cpu_s() - cpu_before_s - told["cpu_s"],
        script_cpu_s=told["cpu_s"],
    )


def _fastfuse_run(server: Server, place: Path, channels: Sequence[Mapping[str, Any]]) -> list[str]:
    job = place / "job.json"
    job.write_text(json.dumps(list(channels)))
    command = [sys.executable, "-m", "fastfuse", "run", "--job", str(job), "--base-dir", str(place / "ml")]
    command += ["--endpoint-url", server.endpoint_url, "--region", "us-east-1", "--force-path-style"]
    return command if server.ca_bundle is None else [*command, "--ca-bundle", str(server.ca_bundle)]


def stages_of(lines: Sequence[tuple[float, str]]) -> dict[str, float]:
    """How long each stage took, by the seconds at which lines of standard error came; what none tells of is left out.

    Of several channels the last one's lines count.
    """
    ends_s = {
        name: max((at_s for at_s, text in lines if mark.search(text)), default=None) for name, mark in _STAGES.items()
    }
    took_s, before_s = {}, 0.0
    for name, end_s in ends_s.items():
        if end_s is not None:
            took_s[name], before_s = end_s - before_s, end_s
    return took_s


def _listen(stream: Any, lines: list[tuple[float, str]], begins: Callable[[], object]) -> None:  # noqa: ANN401 - IO
    for line in stream:
        lines.append((time.monotonic(), line))
        if _STAGES[_PREPARED].search(line):
            begins()


def _children_cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
