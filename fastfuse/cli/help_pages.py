"""Commands that start fast, and their help pages: examples first, then the options that are used most.

Typer converts each value with pydantic and draws help with rich. Both together take longer to load than the rest of a
command, and a daemon would keep them for its life. Here a value that is text already stays as it is, and help is plain
text. Only numbers and choices that somebody gives are left to typer.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from typer.core import TyperCommand, TyperGroup

_ALL: Final = "--help-all"
HELP_OPTIONS: Final = ["-h", "--help", _ALL]

_SHOW_ALL: Final = "fastfuse.cli.show_all"
_OPTIONS: Final = "Options"
_NO_LIMIT: Final = 1000


class Page(NamedTuple):
    """What a command's short help shows: command lines, and the options that are used most (none: all of them)."""

    examples: Sequence[str]
    options: Sequence[str] = ()


_ACCESS: Final = ("--region", "--profile", "--no-sign-request", "--endpoint-url")
PAGES: Final[Mapping[str, Page]] = {
    "fastfuse": Page(
        (
            "fastfuse demo                                  # a tour, without an S3 account",
            "fastfuse mount s3://BUCKET/PREFIX /mnt/data    # until Ctrl-C",
            "fastfuse run --channel train=s3://BUCKET/PREFIX -- python train.py",
        )
    ),
    "mount": Page(
        (
            "fastfuse mount s3://BUCKET/PREFIX /mnt/data",
            "fastfuse mount --daemon --training s3://BUCKET/PREFIX /mnt/data",
            "fastfuse mount --no-sign-request s3://PUBLIC-BUCKET/PREFIX /mnt/data",
        ),
        ("--daemon", "--allow-other", "--memory-target", "--index", "--index-max-age", *_ACCESS, "--log-file"),
    ),
    "run": Page(
        (
            "fastfuse run --job job.json -- python train.py --epochs 3",
            "fastfuse run --channel train=s3://BUCKET/PREFIX -- python train.py",
        ),
        ("--job", "--channel", "--base-dir", "--memory-target", "--stop-timeout", *_ACCESS),
    ),
    "unmount": Page(("fastfuse unmount /mnt/data",)),
    "index": Page(
        ("fastfuse index s3://BUCKET/PREFIX -o data.index", "fastfuse index s3://BUCKET/PREFIX --summary"),
        ("--output", "--summary", "--json", "--inventory", *_ACCESS),
    ),
    "advise": Page(
        ("fastfuse advise s3://BUCKET/PREFIX", "fastfuse advise s3://BUCKET/PREFIX --hosts 8 --epochs 10 --hours 5"),
        ("--hosts", "--epochs", "--hours", "--readers", "--access", "--json", *_ACCESS),
    ),
    "doctor": Page(("fastfuse doctor", "fastfuse doctor s3://BUCKET/PREFIX"), ("--json", *_ACCESS, "--ca-bundle")),
    "deploy": Page(
        (
            "fastfuse deploy kubernetes s3://BUCKET/PREFIX --daemonset",
            "fastfuse deploy kubernetes s3://BUCKET/PREFIX --sidecar --training-image IMAGE",
            "fastfuse deploy grafana > dashboard.json",
            "fastfuse deploy prometheus > alerts.yml",
        ),
        (
            *("--sidecar", "--job", "--daemonset", "--training-image", "--hosts", "--mountpoint"),
            *("--memory-target", "--mount-option", "--service-account"),
        ),
    ),
    "warm": Page(
        (
            "fastfuse warm s3://BUCKET/PREFIX --cache /nvme/fastfuse",
            "fastfuse warm s3://BUCKET/PREFIX --cache /nvme/fastfuse --shard 2/8",
            "fastfuse warm /mnt/data",
        ),
        ("--cache", "--cache-size", "--shard", "--limit", "--check", *_ACCESS),
    ),
    "cache": Page(
        (
            "fastfuse cache status --cache /nvme/fastfuse",
            "fastfuse cache pin s3://BUCKET/PREFIX --cache /nvme/fastfuse",
        ),
        ("--cache", "--cache-size", "--json", *_ACCESS),
    ),
    "status": Page(("fastfuse status", "fastfuse status /mnt/data --json")),
    "report": Page(("fastfuse report", "fastfuse report /mnt/data -o report.html", "fastfuse report /opt/ml")),
    "trace": Page(("fastfuse trace /mnt/data", "fastfuse trace /mnt/data --path '*.tar' --json")),
    "top": Page(("fastfuse top", "fastfuse top /mnt/data")),
    "stats": Page(("fastfuse stats /mnt/data", "fastfuse stats /mnt/data --interval 10 --count 6")),
    "log-level": Page(("fastfuse log-level /mnt/data debug", "fastfuse log-level /mnt/data")),
    "refresh": Page(("fastfuse refresh /mnt/data",)),
    "fuse-helper": Page(("fastfuse fuse-helper --socket /run/fastfuse/socket --user 1000 /mnt/data",)),
    "hint": Page(("fastfuse hint /mnt/data < list",)),
    "demo": Page(("fastfuse demo", "fastfuse demo --shards 2 --shard-size 20MiB")),
    "install": Page(
        ("fastfuse install", "fastfuse install --root debian/tmp --prefix /usr --program /usr/bin/fastfuse")
    ),
    "version": Page(("fastfuse version",)),
}


class _OwnPages:
    """The half of a command, and of a group of them, that converts no text and writes its own help page."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 -- typer keeps the type to itself
        ctx.meta[_SHOW_ALL] = _ALL in args
        for parameter in self.get_params(ctx):  # type: ignore[attr-defined]
            if "process_value" not in vars(parameter):
                vars(parameter)["process_value"] = partial(_process, parameter, parameter.process_value)
        parsed: list[str] = super().parse_args(ctx, args)  # type: ignore[misc]
        return parsed

    def format_help(self: Any, ctx: Any, formatter: Any) -> None:  # noqa: ANN401
        self.format_usage(ctx, formatter)
        with formatter.section("Examples"):
            for example in PAGES[self.name or ""].examples:
                formatter.write(f"  {example}\n")
        self.format_help_text(ctx, formatter)
        for title, rows in sections_of(self, ctx, shows_all=ctx.meta[_SHOW_ALL]).items():
            with formatter.section(title):
                formatter.write_dl(rows)
        self.format_epilog(ctx, formatter)


class Command(_OwnPages, TyperCommand):
    """A command that converts no text and writes its own help page."""


class Group(_OwnPages, TyperGroup):
    """The same for the program itself, whose page lists the commands, too."""


def _process(parameter: Any, convert: Callable[[Any, Any], Any], ctx: Any, value: Any) -> Any:  # noqa: ANN401
    """Return the value of `parameter` for the command, and let typer `convert` only what is not of its kind yet."""
    kind = parameter.type_descriptor.annotation
    if value is None and not parameter.required:
        value = () if parameter.multiple or parameter.nargs == -1 else None
    elif kind is Path and isinstance(value, str):
        value = Path(value)
    elif not isinstance(value, list | tuple if kind == list[str] else kind):
        return convert(ctx, value)
    return value if parameter.callback is None else parameter.callback(ctx, parameter, value)


def first_sentence(text: str) -> str:
    """Return what the first sentence of a help text says."""
    return text.partition(". ")[0].rstrip(".") + "."


def sections_of(command: Command | Group, ctx: Any, *, shows_all: bool) -> dict[str, list[tuple[str, str]]]:  # noqa: ANN401
    """Return the terms and texts of a help page below their titles: of all options, or of those used most."""
    page = PAGES[command.name or ""]
    sections: dict[str, list[tuple[str, str]]] = {"Arguments": []}
    parameters: Sequence[Any] = command.get_params(ctx)
    for parameter in parameters:
        record = parameter.get_help_record(ctx)
        if record is None or _ALL in parameter.opts:
            continue
        if parameter.param_type_name == "argument":
            # Typer adds the type, as in MOUNTPOINT <Path>.
            sections["Arguments"].append((record[0].partition(" <")[0], record[1]))
        elif shows_all or not page.options:
            sections.setdefault(parameter.rich_help_panel or _OPTIONS, []).append(record)
        elif max(parameter.opts, key=len) in page.options:
            sections.setdefault(_OPTIONS, []).append((record[0], first_sentence(parameter.help)))
    sections.setdefault(_OPTIONS, []).append(("-h, --help", "Show this page."))
    if page.options:
        sections[_OPTIONS].append((_ALL, "Show every option, and the environment variable of each."))
    if isinstance(command, Group):
        sections["Commands"] = [(name, one.get_short_help_str(_NO_LIMIT)) for name, one in command.commands.items()]
    return {title: rows for title, rows in sections.items() if rows}
