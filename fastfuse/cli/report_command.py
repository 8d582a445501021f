"""``fastfuse report``: a page of what a mount or a job did."""

import json
import os
from pathlib import Path
from typing import Annotated

import typer

from fastfuse.cli.messages import say
from fastfuse.errors import ConfigurationError

__all__ = ["report"]

_STDOUT = "-"


def report(
    place: Annotated[
        Path | None,
        typer.Argument(
            metavar="MOUNTPOINT|DIR|FILE",
            parser=Path,
            help="A mount (left out, the only one); the base directory of a 'fastfuse run' that has ended; or a record "
            "that --json printed.",
        ),
    ] = None,
    *,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", parser=Path, help="Where to write the page; - is stdout.")
    ] = Path("fastfuse-report.html"),
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the record instead, of which a page can be made later.")
    ] = False,
) -> int:
    """Write one HTML page of what a mount or a job did.

    The page covers the last hours and needs no network and no server. It takes pygal: pip install 'fastfuse[report]'.
    """
    from fastfuse.report import records

    if place is None:
        from fastfuse.cli.top_command import the_only_mount

        place = the_only_mount("a report is of")
    found = records.record_at(Path(os.path.abspath(place)))
    record = records.read_record(found)
    if as_json:
        say(json.dumps(found))
        return 0
    from fastfuse.report.charts import check_installed
    from fastfuse.report.layout import page

    check_installed()
    text = page(record)
    if str(output) == _STDOUT:
        say(text)
        return 0
    try:
        output.write_text(text)
    except OSError as error:
        raise ConfigurationError(
            f"--output {output} cannot be written: {error.strerror}", hint="name a file in a directory that exists"
        ) from error
    say(f"wrote {output}")
    return 0
