"""The README says what the code does: its tables and options are compared with it."""

import re
from pathlib import Path

import pytest
import typer.main

from fastfuse.cli import app
from fastfuse.metrics import METRICS

README = (Path(__file__).parents[1] / "README.md").read_text()

# Options of docker, systemctl, rclone and the bench.
OTHERS = {"--epochs", "--device", "--cap-add", "--security-opt", "--now", "--no-checksum", "--runs", "--help"}


def test_the_table_of_metrics_is_complete() -> None:
    rows = dict(re.findall(r"^\| `(fastfuse_\w+)[^|]*` \| (.*) \|$", README, re.MULTILINE))
    assert rows == {metric.name + ("" if metric.is_gauge else "_total"): metric.help for metric in METRICS}


def _options(command: str) -> set[str]:
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    return {name for parameter in commands[command].params for name in parameter.opts if name.startswith("--")}


def test_every_option_that_is_named_exists() -> None:
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", README)) - OTHERS
    assert named
    assert named <= set().union(*map(_options, ("mount", "run", "demo", "index", "unmount", "hint")))


@pytest.mark.parametrize("command", ["mount", "run", "index"])
def test_every_option_of_a_command_is_named(command: str) -> None:
    missing = {option for option in _options(command) if option not in README}
    assert missing <= {"--mount-option", "--output", "--verbose"}  # there as -o and -v
