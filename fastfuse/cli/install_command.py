"""Defines the options of ``fastfuse install`` and runs it."""

import os
import re
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from fastfuse.cli.commands import PAGES, first_sentence, sections_of
from fastfuse.cli.messages import say, warn
from fastfuse.errors import ConfigurationError

if TYPE_CHECKING:
    from fastfuse.deploy.described import Described

__all__ = ["describe", "install"]

# What a unit and a shell take without quotes.
_PLAIN: Final = re.compile(r"/[\w./+@-]+", re.ASCII)


def install(
    context: typer.Context,
    *,
    root: Annotated[
        Path, typer.Option(metavar="DIR", help="Write below this directory, for a package or an image.")
    ] = Path("/"),
    prefix: Annotated[
        str, typer.Option(metavar="DIR", help="Where lib and share are; /usr for a package.")
    ] = "/usr/local",
    program: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="The fastfuse that units and mount(8) run; left out, this one."),
    ] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Remove what was installed.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Replace or remove files that were changed after they were installed, too.")
    ] = False,
) -> int:
    """Install units, helpers for fstab, completion, and man pages.

    The units are systemd's, the helpers those of mount(8), the shells bash, zsh and fish. Says what it does with each
    file, and can be repeated. Files that were changed after they were installed are kept.
    """
    from fastfuse.deploy import install as system

    run_by_units = _program() if program is None else program
    for name, value in (("--program", run_by_units), ("--prefix", prefix)):
        if not _PLAIN.fullmatch(value):
            raise ConfigurationError(
                f"{name} {value!r} is no absolute path of letters, digits and ./+@_-",
                hint="systemd and mount(8) take it without quotes: choose another place",
            )
    if root == Path("/") and not remove:
        if not os.access(run_by_units, os.X_OK):
            raise ConfigurationError(f"{run_by_units} is no program", hint="name one with --program FILE")
        if (found := system.writable_by_others(Path(run_by_units))) is not None:
            warn(
                f"root will run {run_by_units}, and users other than root can change {found}",
                hint="install fastfuse where only root can write, as README does",
                words=sys.argv,
            )
    # Every user reads man pages, whatever root's umask is.
    os.umask(0o022)
    page, *commands = describe(context.parent)
    for file in system.files(root, prefix.strip("/"), run_by_units, page, commands):
        outcome = system.settle(file, root, remove=remove, force=force)
        kept = " (changed since it was installed; --force takes it all the same)" if outcome == "kept" else ""
        say(f"{outcome:9} {root / file.path}{kept}")
    return 0


def describe(context: Any) -> "list[Described]":  # noqa: ANN401 -- typer keeps the type to itself
    """Return the program of a typer context and then its commands, as man pages and completion describe them."""
    from fastfuse.deploy.described import Described, Option

    described = []
    for command in (context.command, *context.command.commands.values()):
        name = command.name if command is not context.command else ""
        inner = command.make_context(name, [], parent=context, resilient_parsing=True) if name else context
        sections = sections_of(command, inner, shows_all=True)
        if not name:
            sections["Commands"] = [(one.name, one.get_short_help_str(1000)) for one in command.commands.values()]
        options = [
            Option(
                sorted(parameter.opts),
                "Show help." if "--help" in parameter.opts else first_sentence(parameter.help),
                not parameter.is_flag,
                [str(one.value) for one in getattr(parameter.type_descriptor.annotation, "__members__", {}).values()],
                parameter.multiple,
            )
            for parameter in command.get_params(inner)
            if parameter.param_type_name == "option"
        ]
        described.append(
            Described(
                name,
                first_sentence(command.help.partition("\n\n")[0]).rstrip("."),
                " ".join(command.collect_usage_pieces(inner)),
                command.help,
                PAGES[command.name].examples,
                sections,
                command.epilog or "",
                options,
            )
        )
    return described


def _program() -> str:
    """Return the path of the program that runs, as it was called: a link to it stays where it is."""
    found = shutil.which(sys.argv[0])
    if found is None or Path(found).name != "fastfuse":
        raise ConfigurationError(
            "which fastfuse units and mount(8) should run cannot be told", hint="name it with --program FILE"
        )
    return os.path.abspath(found)
