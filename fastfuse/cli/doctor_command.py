"""Defines the options of ``fastfuse doctor`` and runs it."""

import json
import shutil
import sys
import textwrap
from dataclasses import asdict
from typing import Annotated

import typer

from fastfuse import log
from fastfuse.cli import options
from fastfuse.cli.messages import say
from fastfuse.doctor.machine import look
from fastfuse.doctor.rules import Finding, Level, findings
from fastfuse.index.sources.uri import S3Uri
from fastfuse.log import LogConfig
from fastfuse.s3.base import ConnectionConfig

__all__ = ["doctor"]

_VERSION = 1
_INDENT = " " * 21


@options.takes(connection=options.connection, logs=options.logs)
def doctor(
    source: Annotated[str | None, typer.Argument(metavar="S3_URI", help="Ask the service of this source, too.")] = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
    connection: ConnectionConfig,
    logs: LogConfig,
) -> int:
    """Check whether this machine can mount a source.

    Says what to do about what is in the way.
    With S3_URI a few requests list and read a little of it, and measure the network for up to 5 s and 208 MiB.
    """
    uri = None if source is None else S3Uri.parse(source)
    log.configure(logs)
    found: list[Finding] = []

    def tell(one: Finding) -> None:
        found.append(one)
        if not as_json:
            say(_line(one))

    for one in findings(look()):
        tell(one)
    if uri is not None:
        from fastfuse.doctor.steps import ask_service  # loads the S3 client

        ask_service(uri, connection, tell)
    if as_json:
        say(json.dumps({"version": _VERSION, "checks": [asdict(one) for one in found]}))
    return 1 if any(one.level is Level.FAIL for one in found) else 0


def _line(one: Finding) -> str:
    text = f"{one.level:4}  {one.check:13}  {one.found}" + (f"; {one.remedy}" if one.remedy else "")
    if not sys.stdout.isatty():
        return text
    width = max(shutil.get_terminal_size().columns, 40)
    return textwrap.fill(text, width, subsequent_indent=_INDENT, break_long_words=False, break_on_hyphens=False)
