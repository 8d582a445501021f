"""A command of fastfuse as man pages and completion describe it: read off the command line, never written by hand."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

__all__ = ["Described", "Option"]


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
