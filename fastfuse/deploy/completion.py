"""Completion of bash, zsh and fish as files that hold every command and option: no key starts fastfuse.

Where a value or an argument may be anything, each shell completes names of files.
"""

import re
import textwrap
from collections.abc import Iterator, Sequence
from typing import Final

from fastfuse.deploy.described import Described

__all__ = ["bash", "fish", "zsh"]

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
