"""Defines the options of ``fastfuse doctor`` and runs it."""

import json
from dataclasses import asdict
from typing import Annotated

import typer

from fastfuse.cli.messages import say
from fastfuse.doctor.machine import look
from fastfuse.doctor.rules import Finding, Level, findings

__all__ = ["doctor"]

_VERSION = 1


def doctor(as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False) -> int:
    """Check whether this machine can mount, and say what to do about what is in the way."""
    found = findings(look())
    if as_json:
        say(json.dumps({"version": _VERSION, "checks": [asdict(one) for one in found]}))
    else:
        say("\n".join(map(_line, found)))
    return 1 if any(one.level is Level.FAIL for one in found) else 0


def _line(one: Finding) -> str:
    return f"{one.level:4}  {one.check:12}  {one.found}" + (f"; {one.remedy}" if one.remedy else "")
