"""Man pages, and completion of bash, zsh and fish, of commands that are described as the command line has them.

The pages are in the macros of man(7). The files of completion hold every command and option: no key starts fastfuse.
Where a value or an argument may be anything, each shell completes names of files.
"""

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from fastfuse.version import VERSION

__all__ = ["Described", "Option", "bash", "fish", "man_page", "page_name", "zsh"]


class Option(NamedTuple):
    """An option: its names, whether a value follows, and the words that the value may be (none: any)."""

    names: Sequence[str]
    summary: str
    takes_value: bool = False
    choices: Sequence[str] = ()
    repeats: bool = False


class Described(NamedTuple):
    """A command, or the program itself, whose name is empty. `sections` are the terms and texts of its help page."""

    name: str
    summary: str
    usage: str
    text: str
    examples: Sequence[str]
    sections: Mapping[str, Sequence[tuple[str, str]]]
    notes: str
    options: Sequence[Option]


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


_BASH: Final = """\
# Completion of fastfuse for bash.
_fastfuse() {{
    local cur=${{COMP_WORDS[COMP_CWORD]}} prev=${{COMP_WORDS[COMP_CWORD - 1]}} words=
    [[ " ${{COMP_WORDS[*]:0:COMP_CWORD}} " == *' -- '* ]] && return
    # Bash takes the = of --option=value for a word.
    if [[ $cur == = ]]; then cur=; elif [[ $prev == = ]]; then prev=${{COMP_WORDS[COMP_CWORD - 2]}}; fi
    case ${{COMP_WORDS[1]}}:$prev in
{cases}
    esac
    ((COMP_CWORD == 1)) && words='{commands}'
    COMPREPLY=($(compgen -W "$words" -- "$cur"))
}}
complete -o default -F _fastfuse fastfuse
"""
_ZSH: Final = """\
#compdef fastfuse
# Completion of fastfuse for zsh.
local line state
local -a commands=(
{commands}
)
_arguments -C '1: :->command' '*:: :->arguments'
case $state in
(command) _describe command commands ;;
(arguments)
    case $words[1] in
{cases}
    esac ;;
esac
"""


def bash(program: Described, commands: Sequence[Described]) -> str:
    """Return the file that bash-completion loads."""
    cases = []
    for one in commands:
        for option in one.options:
            if option.choices:
                before = "|".join(f"{one.name}:{name}" for name in option.names)
                cases.append(f"{before}) words='{' '.join(option.choices)}' ;;")
        if valued := [f"{one.name}:{name}" for option in one.options if option.takes_value for name in option.names]:
            cases.append(f"{'|'.join(valued)}) return ;;")
        cases.append(f"{one.name}:*) [[ $cur == -* ]] && words='{' '.join(_names(one))}' ;;")
    first = [*(one.name for one in commands), *_names(program)]
    return _BASH.format(cases=textwrap.indent("\n".join(cases), " " * 4), commands=" ".join(first))


def zsh(commands: Sequence[Described]) -> str:
    """Return the file that zsh's completion system loads."""
    described = [_quoted(f"{one.name}:{one.summary}") for one in commands]
    cases = [
        "\n    ".join(
            [f"({one.name}) _arguments -S \\", *(f"{spec} \\" for spec in _zsh_specs(one)), "'*:file:_files' ;;"]
        )
        for one in commands
    ]
    return _ZSH.format(
        commands=textwrap.indent("\n".join(described), " " * 4), cases=textwrap.indent("\n".join(cases), " " * 4)
    )


def fish(program: Described, commands: Sequence[Described]) -> str:
    """Return the file that fish loads."""
    lines = ["# Completion of fastfuse for fish."]
    lines += [
        f"complete -c fastfuse -n __fish_use_subcommand -f -a {one.name} -d {_fish_quoted(one.summary)}"
        for one in commands
    ]
    for one in (program, *commands):
        condition = _fish_quoted(f"__fish_seen_subcommand_from {one.name}") if one.name else "__fish_use_subcommand"
        for option in one.options:
            names = [f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in option.names]
            value = (
                [f"-x -a {_fish_quoted(' '.join(option.choices))}"] if option.choices else ["-r"] * option.takes_value
            )
            words = ["complete -c fastfuse -n", condition, *names, *value, "-d", _fish_quoted(option.summary)]
            lines.append(" ".join(words))
    return "\n".join(lines) + "\n"


def _names(command: Described) -> list[str]:
    return [name for option in command.options for name in option.names]


def _zsh_specs(command: Described) -> Iterator[str]:
    for option in command.options:
        excluded = "*" if option.repeats else f"({' '.join(option.names)})"
        help_text = re.sub(r"([\[\]])", r"\\\1", option.summary)
        value = f":value:({' '.join(option.choices)})" if option.choices else ":value:_files" * option.takes_value
        for name in option.names:
            follows = "" if not option.takes_value else "=" if name.startswith("--") else "+"
            yield _quoted(f"{excluded}{name}{follows}[{help_text}]{value}")


def _quoted(text: str) -> str:
    return "'" + text.replace("'", r"'\''") + "'"


def _fish_quoted(text: str) -> str:
    return "'" + text.replace("\\", r"\\").replace("'", r"\'") + "'"
