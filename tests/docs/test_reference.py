"""The pages say what the code does: their tables and options are compared with it."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from itertools import groupby
from typing import Any

import pytest
import typer.main

from fastfuse.cli.deploy_commands import Product
from fastfuse.cli.help_pages import PAGES as HELP_PAGES
from fastfuse.cli.instead import INSTEAD
from fastfuse.cli.main import app
from fastfuse.filesystem.figures.verdict import OF_CHANNELS, RULES
from fastfuse.metrics import BUILD_INFO, HISTOGRAMS, METRICS
from tests.docs.blocks import PAGES, ROOT

TEXTS = {page: (ROOT / page).read_text() for page in PAGES}
# The columns: the others' option, what fastfuse does, and a remark.
MIGRATIONS = re.findall(r"^\| (.*?) \| (.*?) \| (.*?) ?\|$", TEXTS["docs/MIGRATION.md"], re.MULTILINE)

# Options of docker, systemctl, pip, setuptools, rclone, a training script and the bench.
OTHERS = {
    *("--kill-on-bad-exit", "--nodes", "--ntasks", "--ntasks-per-node", "--overlap", "--signal"),  # srun
    *("--nnodes", "--nproc-per-node", "--real"),  # torchrun, bench.fleet
    *("--device", "--cap-add", "--security-opt", "--name", "--now", "--editable", "--no-deps", "--inplace"),
    *("--no-checksum", "--epochs", "--help", "--help-all", "--runs", "--profiles", "--workloads", "--candidates"),
    *("--throttle", "--outage", "--refusal", "--watched", "--shard-mib", "--server-processes"),
    *("--pid", "--shm-size"),  # py-spy, docker run
    *("--every", "--keep-caches", "--longest", "--only", "--seconds"),  # bench.soak
}


def test_readme_is_read_in_one_sitting() -> None:
    assert len(TEXTS["README.md"].splitlines()) <= 150


def test_the_table_of_metrics_is_complete() -> None:
    rows = dict(re.findall(r"^\| `(fastfuse_\w+)[^|]*` \| (.*) \|$", TEXTS["docs/METRICS.md"], re.MULTILINE))
    numbers = {metric.name + ("" if metric.is_gauge else "_total"): metric.help for metric in (*METRICS, BUILD_INFO)}
    assert rows == numbers | {f"{histogram.name}_bucket": histogram.help for histogram in HISTOGRAMS}


def test_the_table_of_label_values_is_complete() -> None:
    rows = re.findall(r"^\| `(\w+)` of `(\w+?)(?:_total)?` \| (.*) \|$", TEXTS["docs/METRICS.md"], re.MULTILINE)
    values = {(name, label): re.findall(r"`(\w+)`", text) for label, name, text in rows}
    assert values == {(metric.name, metric.label): [*metric.values] for metric in METRICS if metric.label}


def test_the_table_of_verdicts_has_each_in_the_order_in_which_it_is_asked_for() -> None:
    _, *rows = re.findall(r"^\| ([^|]+) \| [^|]+ \| [^|]+ \|$", TEXTS["docs/TUNING.md"], re.MULTILINE)
    assert rows == [name for name, _ in groupby(RULES, lambda rule: rule.name)]


def test_the_verdicts_of_channels_are_named() -> None:
    said = re.search(r"For File and Pipe channels only (.*?) are asked for", TEXTS["docs/TUNING.md"], re.DOTALL)
    assert said is not None
    assert tuple(re.findall(r'"([^"]+)"', said[1])) == OF_CHANNELS


def test_each_product_of_deploy_is_named_in_its_help() -> None:
    [what] = [one for one in _parameters("deploy") if one.metavar == "WHAT"]
    assert re.findall(r"'(\w+)':", what.help) == [*Product]


@cache
def _parameters(command: str) -> list[Any]:
    parameters: list[Any] = typer.main.get_command(app).commands[command].params  # type: ignore[attr-defined]
    return [one for one in parameters if not getattr(one, "hidden", False)]


def _options(command: str) -> set[str]:
    return {name for parameter in _parameters(command) for name in parameter.opts if name.startswith("--")}


def _shown_default(default: object) -> str:
    if default is None:
        return "–"
    if isinstance(default, bool):
        return "on" if default else "off"
    if isinstance(default, float):
        return f"{default:g}"
    return str(default)


def test_the_table_of_options_is_complete() -> None:
    rows = re.findall(r"^\| `(-[^`]+)` \| ([^|]*) \|", TEXTS["docs/USAGE.md"], re.MULTILINE)
    assert {name.replace("\\", ""): default for name, default in rows} == {
        " ".join(filter(None, (parameter.opts[0], parameter.metavar))): _shown_default(parameter.default)
        for parameter in _parameters("mount")
        if parameter.param_type_name == "option"
    }


@pytest.mark.parametrize("page", PAGES)
def test_every_option_that_is_named_exists(page: str) -> None:
    text = TEXTS[page]
    if page == "docs/MIGRATION.md":
        # The first column has the options of others, and so has each command line of theirs.
        text = re.sub(r"^\|.*?\||`(mount-s3|s3fs|goofys|rclone) [^`]*`|`--(rc|s3-…)`", "", text, flags=re.MULTILINE)
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", text)) - OTHERS
    assert named <= set().union(*map(_options, HELP_PAGES.keys() - {"fastfuse"}))


@pytest.mark.parametrize("command", ["mount", "run", "index", "advise"])
def test_every_option_of_a_command_is_named(command: str) -> None:
    missing = {option for option in _options(command) if option not in TEXTS["docs/USAGE.md"]}
    assert missing <= {"--mount-option", "--output", "--verbose"}  # there as -o and -v


def test_the_options_of_a_mount_that_a_job_lacks_are_named() -> None:
    said = re.search(r"`run` takes all .*? except (.*?)\. ", TEXTS["docs/USAGE.md"], re.DOTALL)
    assert said is not None
    named = set(re.findall(r"`(--?[a-z-]+)`", said[1]))
    assert named == _options("mount") - _options("run") - {"--mount-option"} | {"-o"}


@pytest.mark.parametrize("page", [*PAGES, "CHANGELOG.md"])
def test_every_link_leads_somewhere(page: str) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)]+)\)", (ROOT / page).read_text()):
        path, _, anchor = target.partition("#")
        file = (ROOT / page).parent / path if path else ROOT / page
        assert file.exists(), target
        headings = re.findall(r"^#+ (.*)$", file.read_text(), re.MULTILINE) if anchor else []
        assert not anchor or anchor in {re.sub(r"[^\w -]", "", name.lower()).replace(" ", "-") for name in headings}


def _texts_of_the_code() -> Iterator[str]:
    for path in (ROOT / "fastfuse").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value
    yield from (path.read_text() for path in (ROOT / "fastfuse").rglob("*.pyx"))


def test_every_message_that_troubleshooting_quotes_is_one_of_the_code() -> None:
    first_cells = re.findall(r"^\| ([^|]+) \|", TEXTS["docs/TROUBLESHOOTING.md"], re.MULTILINE)
    quoted = {text for cell in first_cells for text in re.findall(r'"([^"]+)"', re.sub(r"`[^`]*`", "", cell))}
    texts = "\0".join(_texts_of_the_code())
    assert len(quoted) > 30
    assert [text for text in quoted if text not in texts] == []


@pytest.mark.parametrize("page", PAGES)
def test_every_file_of_the_repository_that_is_named_exists(page: str) -> None:
    named = re.findall(r"`((?:fastfuse|tests|bench|systemd)/[^` ]+)`", TEXTS[page])
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_every_row_of_a_migration_names_options_of_mount_or_says_why_there_is_none() -> None:
    assert len(MIGRATIONS) > 80
    for theirs, ours, remark in MIGRATIONS:
        named = set(re.findall(r"`(--[a-z-]+)`", ours))
        if theirs in ("Mountpoint", "s3fs", "goofys", "rclone", "gcsfuse", "---"):
            continue
        assert re.fullmatch(r"(?:`[^`]+`(?:, )?)+(?: as directory)?", theirs)
        assert named <= _options("mount")
        assert named or remark or "s3://" in ours, theirs


def test_every_option_for_which_the_command_line_names_another_is_in_a_migration() -> None:
    theirs = " ".join(row[0] for row in MIGRATIONS).replace("_", "-")
    named = {option.removeprefix("o ") for option in re.findall(r"`--?(o [a-z0-9-]+|[a-z0-9-]+)", theirs)}
    assert INSTEAD.keys() - named == {"io", "index-cache", "no-index-cache"}  # no other program's
    assert not [option for option in INSTEAD if f"--{option}" in _options("mount")]
