"""Man pages of the commands, in the macros of man(7)."""

import re
from collections.abc import Sequence
from typing import Final

from fastfuse.deploy.described import Described
from fastfuse.version import VERSION

__all__ = ["man_page", "page_name"]

# Characters that roff reads, or prints as another one where a reader copies them from.
_ESCAPES: Final = str.maketrans({"\\": r"\e", "-": r"\-", "'": r"\(aq", "`": r"\(ga", "^": r"\(ha", "~": r"\(ti"})


def page_name(command: Described) -> str:
    """Return the name of a command's page: fastfuse-mount; that of the program is its own."""
    return f"fastfuse-{command.name}" if command.name else "fastfuse"


def man_page(command: Described, others: Sequence[Described]) -> str:
    """Return the page of a command; it refers to those of the `others`."""
    name = page_name(command)
    lines = [
        f'.TH {_roff(name.upper())} 1 "" "fastfuse {VERSION}" "User Commands"',
        *(".SH NAME", _roff(f"{name} - {command.summary}")),
        *(".SH SYNOPSIS", f".B {_roff(name.replace('-', ' ', 1))}", _roff(command.usage)),
        *(".SH EXAMPLES", ".nf", *map(_roff, command.examples), ".fi"),
        ".SH DESCRIPTION",
        *_paragraphs(command.text),
    ]
    for title, rows in command.sections.items():
        lines.append(f".SH {_roff(title.upper())}")
        for term, text in rows:
            lines += [".TP", f".B {_roff(term)}", _roff(text)]
    if command.notes:
        lines += [".SH NOTES", *_paragraphs(command.notes)]
    names = sorted({page_name(one) for one in others} - {name})
    lines += [".SH SEE ALSO", ", ".join(rf"\fB{_roff(other)}\fR(1)" for other in names)]
    return "\n".join(lines) + "\n"


def _paragraphs(text: str) -> list[str]:
    return [line for part in text.split("\n\n") for line in (".PP", _roff(part))]


def _roff(text: str) -> str:
    """Return text as one line of input that roff prints as it stands."""
    return re.sub(r"^\.", r"\\&.", " ".join(text.split()).translate(_ESCAPES))
