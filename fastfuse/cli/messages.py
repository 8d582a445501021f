"""What the command line says of a mistake: which option or variable it is in, and which variables nobody reads."""

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import typer
from typer.core import TyperCommand, TyperGroup

from fastfuse import log
from fastfuse.cli.instead import instead_of
from fastfuse.errors import FastfuseError

# The exit code of a command that Ctrl-C ends, as shells report it: 128 and the signal.
INTERRUPTED = 130

_PREFIX = "FASTFUSE_"
# What Kubernetes sets in every pod for a Service that is called fastfuse.
_OF_KUBERNETES = re.compile(r"FASTFUSE_(SERVICE_(HOST|PORT)|PORT(_\d+_.*)?$)")


def say(text: object) -> None:
    """Print the result of a command."""
    with printing():
        typer.echo(text)


@contextmanager
def printing() -> Iterator[None]:
    """Raise `FastfuseError` where the block cannot write to standard output."""
    try:
        yield
    except OSError as error:
        # The rest of the buffer would fail once more at the exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise FastfuseError(f"standard output cannot be written: {error.strerror}") from error


def usage_message(error: typer.TyperException, command: str) -> tuple[str, str]:
    """Return what typer says of a mistake in `command` on one line, without the word of its checker; and what to do."""
    option = getattr(error, "option_name", None)  # typer does not export NoSuchOption
    hint = instead_of(option) if option and command == "fastfuse mount" else None
    if hint:
        return f"No such option: {option}", hint
    on_one_line = re.sub(r"\n\t?", " ", error.format_message())
    return on_one_line.replace(": Value error, ", ": ", 1), f"see '{command} --help'"


def variables_of(group: TyperGroup, only: str = "") -> dict[str, str]:
    """Return the environment variables that the commands of `group` read, or one, each with its option or argument."""
    return {
        variable: max(parameter.opts, key=len)
        for name, command in group.commands.items()
        if isinstance(command, TyperCommand) and only in ("", name)
        for parameter in command.params
        for variable in ([parameter.envvar] if isinstance(parameter.envvar, str) else parameter.envvar or ())
    }


def warn_of_unknown_variables(group: TyperGroup, known: Mapping[str, str], words: Sequence[str]) -> None:
    """Warn of each variable that looks like one of ours and is none of those `known`; `group` has the commands.

    `run` also warns of variables that only other commands read, because those of a mount may be meant for the job.
    """
    is_run = words[:1] == ["run"]
    read = variables_of(group, "run") if is_run else known
    ours = {name for name in os.environ if name.startswith(_PREFIX) and not _OF_KUBERNETES.match(name)}
    for name in sorted(ours - read.keys()):
        warn(
            f"the environment has {name}, which {'fastfuse run' if name in known else 'fastfuse'} does not read",
            hint="other commands do; unset it for this one" if name in known else _instead_of(name, group, read),
            words=words,
        )


def _instead_of(name: str, group: TyperGroup, known: Mapping[str, str]) -> str:
    """Return what to do in place of setting the variable `name`, which nothing reads."""
    from difflib import get_close_matches  # most environments have no such variable

    option = "--" + name.removeprefix(_PREFIX).replace("_", "-").lower()
    if any(option in parameter.opts for command in (group, *group.commands.values()) for parameter in command.params):
        return f"{option} has no variable: give it on the command line"
    nearest = get_close_matches(name, known, n=1, cutoff=0.8)
    guess = f"did you mean {nearest[0]}?" if nearest else "'fastfuse mount --help-all' shows which it does; unset it"
    return instead_of(option) or guess


def warn(message: str, *, hint: str, words: Sequence[str]) -> None:
    """Say on stderr what is not as the user of the command line `words` may think."""
    tell(log.command_text(message, hint=hint, json=_wants_json(words)))


def fail(message: str, *, hint: str, exit_code: int, words: Sequence[str], known: Mapping[str, str]) -> None:
    """Say on stderr why the command line `words` fails. An option in `message` may have been given by a variable."""
    given = [f"{variable} gives {option}" for variable, option in _blamed(message, words, known)]
    hint = "; ".join([*([hint] if hint else []), *given])
    tell(log.command_text(message, hint=hint, exit_code=exit_code, json=_wants_json(words)))


def tell(text: str) -> None:
    """Write a line to stderr, if that takes no waiting: the exit code says what matters."""
    log.UnblockedStderr().write(text)


def _blamed(message: str, words: Sequence[str], known: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    named = {word.strip("'\",;:") for word in message.split()}
    for variable, option in known.items():
        value = os.environ.get(variable)
        if value is None or variable in message:
            continue
        if option.startswith("--"):
            if option in named and not any(word == option or word.startswith(f"{option}=") for word in words):
                yield variable, option
        elif repr(value) in message and value not in words:
            yield variable, option.upper()


def _wants_json(words: Sequence[str]) -> bool:
    """Return whether messages are shown as JSON. Reads the raw words, because parsing them may have failed."""
    named = [words[at + 1 : at + 2] for at, word in enumerate(words) if word == "--log-format"]
    if ["json"] in named or any("log-format=json" in word.replace("_", "-") for word in words):
        return True
    return not named and os.environ.get("FASTFUSE_LOG_FORMAT") == "json"
