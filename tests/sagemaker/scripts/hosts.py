"""Jobs of one or several hosts, each of them a run on this machine, all at the same time."""

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from tests.sagemaker.running.jobs import running

__all__ = ["Epochs", "read_by", "script_command"]

# The hashes of the records of each epoch, in their order.
Epochs = list[list[str]]


# As ``python -m`` would run each; in one process, which imports numpy once.
_ONE_AFTER_THE_OTHER = f"""
import runpy, sys
for script in sys.argv[1:]:
    sys.argv[1:] = [script]
    runpy.run_module("{__package__}." + script, run_name="__main__", alter_sys=True)
"""


def script_command(scripts: Sequence[str]) -> tuple[str, ...]:
    """Runs one script after the other, each on the channel of its name."""
    if len(scripts) == 1:
        return (sys.executable, "-m", f"{__package__}.{scripts[0]}", scripts[0])
    return (sys.executable, "-c", _ONE_AFTER_THE_OTHER, *scripts)


def read_by(host_count: int, endpoint_url: str, channels: Sequence[Mapping[str, Any]]) -> list[dict[str, Epochs]]:
    """What the scripts of these channels have read on each of the hosts."""
    command = script_command([item["ChannelName"] for item in channels])
    with ExitStack() as stack:
        jobs = [
            stack.enter_context(
                running(
                    endpoint_url, channels, "--host", f"{host}/{host_count}", "--part-size", "1MiB", command=command
                )
            )
            for host in range(1, host_count + 1)
        ]
        return [_read(job.wait(), job.output, job.log) for job in jobs]


def _read(exit_code: int, output: str, log: str) -> dict[str, Epochs]:
    assert exit_code == 0, log
    lines = [json.loads(line) for line in output.splitlines()]
    return {line["channel"]: line["epochs"] for line in lines}
