"""Runs ``fastfuse index``."""

import json
import os
from pathlib import Path

from rich.console import Console, Group
from rich.text import Text

from fastfuse.cli.advice import short_advice
from fastfuse.cli.index_summary import summarise
from fastfuse.index.make import make_index
from fastfuse.index.origin import IndexOrigin
from fastfuse.index.saved import store_index
from fastfuse.index.snapshot import open_snapshot
from fastfuse.index.sources.uri import S3Uri
from fastfuse.s3.aws import S3Session
from fastfuse.s3.base import ConnectionConfig
from fastfuse.sizes import format_size

__all__ = ["run"]


def run(
    source: S3Uri,
    origin: IndexOrigin,
    connection: ConnectionConfig,
    *,
    output: Path | S3Uri | None,
    summary: bool,
    as_json: bool,
) -> int:
    """Make the index, write it to `output`, print its summary, and return the exit code.

    Raises:
        FastfuseError: it could not be made or written.
    """
    console = Console()
    fd = os.memfd_create("fastfuse-index", os.MFD_CLOEXEC)
    try:
        report = make_index(source, origin, S3Session(connection), fd)
        if output is not None:
            store_index(output, connection, fd)
            written = f"wrote {output}: {report}, {format_size(os.fstat(fd).st_size)}"
            # Standard output is for the summary only.
            Console(stderr=True).print(Text(written), soft_wrap=True)
        if summary:
            snapshot = open_snapshot(fd)
            found, advice = summarise(snapshot), short_advice(snapshot.table)
            if as_json:
                console.print_json(json.dumps(found.as_json() | {"advice": advice}), ensure_ascii=True)
            else:
                console.print(Group(found.render(), "", Text(advice)))
    finally:
        os.close(fd)
    return 0
