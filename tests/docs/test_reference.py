"""The pages say what the code does: their tables and options are compared with it."""

import re

import pytest
import typer.main

from fastfuse.cli.main import app
from fastfuse.metrics import METRICS
from tests.docs.blocks import PAGES, ROOT

TEXTS = {page: (ROOT / page).read_text() for page in PAGES}

# Options of docker, install, systemctl, rclone, find and the bench.
OTHERS = {"--epochs", "--device", "--cap-add", "--security-opt", "--name", "--now", "--no-checksum", "--runs", "--help"}


def test_readme_is_read_in_one_sitting() -> None:
    assert len(TEXTS["README.md"].splitlines()) <= 150


def test_the_table_of_metrics_is_complete() -> None:
    rows = dict(re.findall(r"^\| `(fastfuse_\w+)[^|]*` \| (.*) \|$", TEXTS["docs/METRICS.md"], re.MULTILINE))
    assert rows == {metric.name + ("" if metric.is_gauge else "_total"): metric.help for metric in METRICS}


def _options(command: str) -> set[str]:
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    return {name for parameter in commands[command].params for name in parameter.opts if name.startswith("--")}


@pytest.mark.parametrize("page", PAGES)
def test_every_option_that_is_named_exists(page: str) -> None:
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", TEXTS[page])) - OTHERS
    assert named <= set().union(*map(_options, ("mount", "run", "demo", "index", "unmount", "hint")))


@pytest.mark.parametrize("command", ["mount", "run", "index"])
def test_every_option_of_a_command_is_named(command: str) -> None:
    missing = {option for option in _options(command) if option not in TEXTS["docs/USAGE.md"]}
    assert missing <= {"--mount-option", "--output", "--verbose"}  # there as -o and -v


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_somewhere(page: str) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)]+)\)", TEXTS[page]):
        path, _, anchor = target.partition("#")
        file = (ROOT / page).parent / path if path else ROOT / page
        assert file.exists(), target
        headings = re.findall(r"^#+ (.*)$", file.read_text(), re.MULTILINE) if anchor else []
        assert not anchor or anchor in {re.sub(r"[^\w -]", "", name.lower()).replace(" ", "-") for name in headings}


@pytest.mark.parametrize("page", PAGES)
def test_every_file_of_the_repository_that_is_named_exists(page: str) -> None:
    named = re.findall(r"`((?:fastfuse|tests|bench|systemd)/[^` ]+)`", TEXTS[page])
    assert [name for name in named if not (ROOT / name).exists()] == []
