"""Man pages, in the macros of man(7), and what has a shell ask fastfuse how a command line goes on."""

import re
from typing import Any, Final

from typer.completion import get_completion_script  # type: ignore[attr-defined] # what --show-completion prints

from fastfuse.cli.help_pages import PAGES, first_sentence, sections_of
from fastfuse.version import VERSION

# Characters that roff reads, or prints as another one where a reader copies them from.
_ESCAPES: Final = str.maketrans({"\\": r"\e", "-": r"\-", "'": r"\(aq", "`": r"\(ga", "^": r"\(ha", "~": r"\(ti"})


def completion(shell: str) -> str:
    """Return the file that bash, zsh or fish loads."""
    script: str = get_completion_script(prog_name="fastfuse", complete_var="_FASTFUSE_COMPLETE", shell=shell)
    if shell == "zsh":
        script += '\n_fastfuse_completion "$@"'  # the first key loads the file, and is to be answered, too
    # A mountpoint is a file.
    return script.replace(" --no-files", "") + "\n"


def man_pages(context: Any) -> dict[str, str]:  # noqa: ANN401 -- typer keeps the type to itself
    """Return the pages of the program of a typer context and of its commands, by their names."""
    program = context.command
    commands = {f"fastfuse-{name}": command for name, command in program.commands.items()}
    pages = {"fastfuse": _page("fastfuse", program, context, sorted(commands))}
    for name, command in commands.items():
        inner = command.make_context(command.name, [], parent=context, resilient_parsing=True)
        pages[name] = _page(name, command, inner, ["fastfuse"])
    return pages


def _page(name: str, command: Any, context: Any, others: list[str]) -> str:  # noqa: ANN401
    summary = first_sentence(command.help.partition("\n\n")[0]).rstrip(".")
    lines = [
        f'.TH {_roff(name.upper())} 1 "" "fastfuse {VERSION}" "User Commands"',
        *(".SH NAME", _roff(f"{name} - {summary}"), ".SH SYNOPSIS", f".B {_roff(name.replace('-', ' ', 1))}"),
        _roff(" ".join(command.collect_usage_pieces(context))),
        *(".SH EXAMPLES", ".nf", *map(_roff, PAGES[command.name].examples), ".fi"),
        *(".SH DESCRIPTION", *_paragraphs(command.help)),
    ]
    for title, rows in sections_of(command, context, shows_all=True).items():
        lines.append(f".SH {_roff(title.upper())}")
        for term, text in rows:
            lines += [".TP", f".B {_roff(term)}", _roff(text)]
    if command.epilog:
        lines += [".SH NOTES", *_paragraphs(command.epilog)]
    lines += [".SH SEE ALSO", ", ".join(rf"\fB{_roff(other)}\fR(1)" for other in others)]
    return "\n".join(lines) + "\n"


def _paragraphs(text: str) -> list[str]:
    return [line for part in text.split("\n\n") for line in (".PP", _roff(part))]


def _roff(text: str) -> str:
    """Return text as one line of input that roff prints as it stands."""
    return re.sub(r"^\.", r"\\&.", " ".join(text.split()).translate(_ESCAPES))
