"""The commands beside mounts: unmount, refresh, status, stats, trace, top, report, log-level, hint, fuse-helper."""

import io
import json
import os
from pathlib import Path
from typing import Annotated

import typer

from fastfuse import log
from fastfuse.cli.messages import INTERRUPTED, say
from fastfuse.errors import ConfigurationError

__all__ = ["fuse_helper", "hint", "log_level", "refresh", "report", "stats", "status", "top", "trace", "unmount"]


def unmount(
    mountpoint: Annotated[
        Path | None, typer.Argument(metavar="MOUNTPOINT", parser=Path, help="Where fastfuse is mounted.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Unmount every fastfuse mount that is yours.")] = False,
    of_all_users: Annotated[
        bool, typer.Option("--all-users", help="Unmount those of all users of the machine; takes root.")
    ] = False,
    lazy: Annotated[
        bool, typer.Option("--lazy", help="Take it away at once; what is open can be read until it is closed.")
    ] = False,
) -> int:
    """Unmount, and so end the process that serves the mount."""
    if (mountpoint is not None) + every + of_all_users != 1:
        raise ConfigurationError(
            "unmount takes one of MOUNTPOINT, --all and --all-users", hint="see 'fastfuse unmount --help'"
        )
    if of_all_users and os.geteuid() != 0:
        raise ConfigurationError("--all-users takes root", hint="--all unmounts those that are yours")
    from fastfuse.filesystem import mountpoint as mounts

    uid = None if of_all_users else os.geteuid()
    for path in mounts.fastfuse_mounts(uid) if mountpoint is None else [Path(os.path.abspath(mountpoint))]:
        mounts.unmount(path, lazy=lazy)
        say(f"unmounted {path}")
    return 0


def refresh(
    mountpoint: Annotated[Path, typer.Argument(metavar="MOUNTPOINT", parser=Path, help="Where fastfuse is mounted.")],
) -> int:
    """List the source of a mount again, and show what it holds now.

    What has not changed keeps its pages.
    """
    from fastfuse.filesystem import control

    say(control.request_refresh(Path(os.path.abspath(mountpoint))))
    return 0


def status(
    mountpoint: Annotated[
        Path | None, typer.Argument(metavar="MOUNTPOINT", parser=Path, help="One mount; left out, all of them.")
    ] = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON, with every counter.")] = False,
    stack: Annotated[
        bool, typer.Option("--stack", help="Print where threads and tasks of the mount's worker are now, for a report.")
    ] = False,
) -> int:
    """Say what the mounts of this machine do.

    For each: its state, rates, memory, and last errors.
    The exit code is 0 if all are ok, and 1 if one is in trouble, stops or does not answer.
    """
    from fastfuse.cli import status_command as command

    if stack:
        if mountpoint is None:
            raise ConfigurationError("--stack is of one mount", hint="give a MOUNTPOINT")
        return command.stack(Path(os.path.abspath(mountpoint)), as_json=as_json)
    return command.status(None if mountpoint is None else Path(os.path.abspath(mountpoint)), as_json=as_json)


def stats(
    mountpoint: Annotated[Path, typer.Argument(metavar="MOUNTPOINT", parser=Path, help="Where fastfuse is mounted.")],
    *,
    interval: Annotated[float, typer.Option(min=0.1, metavar="SECONDS", help="Seconds between two lines.")] = 1.0,
    count: Annotated[int | None, typer.Option(min=1, metavar="N", help="End after so many lines.")] = None,
    summary: Annotated[
        bool, typer.Option("--summary", help="Say once what the mount did since it began, and why readers waited.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> int:
    """Print a line every second with what a mount does.

    What it reads, fetches and waits for, until Ctrl-C.
    """
    from fastfuse.cli import status_command as command

    if summary or as_json:
        return command.summary(Path(os.path.abspath(mountpoint)), as_json=as_json)
    try:
        return command.stats(Path(os.path.abspath(mountpoint)), every_s=interval, count=count)
    except KeyboardInterrupt:
        return INTERRUPTED


def top(
    mountpoint: Annotated[
        Path | None,
        typer.Argument(metavar="MOUNTPOINT", parser=Path, help="Where fastfuse is mounted; left out, the only one."),
    ] = None,
    *,
    interval: Annotated[
        float, typer.Option(min=0.1, max=3600, metavar="SECONDS", help="Seconds between two looks.")
    ] = 1.0,
) -> int:
    """Show on the whole terminal what a mount does.

    Rates, readers that wait, files, slow GETs, memory, and errors.
    w, b and f sort the files by waiting, bytes and name; p pauses; q ends. Where the output is no terminal, or one that
    cannot be redrawn, it is printed once.
    """
    from fastfuse.cli import top_command as command

    try:
        return command.top(None if mountpoint is None else Path(os.path.abspath(mountpoint)), every_s=interval)
    except KeyboardInterrupt:
        return INTERRUPTED


def trace(
    mountpoint: Annotated[Path, typer.Argument(metavar="MOUNTPOINT", parser=Path, help="Where fastfuse is mounted.")],
    *,
    path: Annotated[
        str | None, typer.Option(metavar="GLOB", help="Only files whose path below the mount matches; * is also any /.")
    ] = None,
    process: Annotated[
        str | None, typer.Option(metavar="NAME|ID", help="Only what processes of this name, or this thread, read.")
    ] = None,
    sample: Annotated[int, typer.Option(min=1, metavar="N", help="Only every Nth request.")] = 1,
    count: Annotated[int | None, typer.Option(min=1, metavar="N", help="End after so many lines.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print each line as JSON.")] = False,
) -> int:
    """Print a line for each read of a mount, until Ctrl-C.

    Reads that the page cache serves never reach the mount. A trace that is not read fast enough loses lines, and says
    how many; it delays no reader.
    """
    from fastfuse.cli import status_command as command

    chosen = command.Choice(path, process, sample)
    try:
        return command.trace(Path(os.path.abspath(mountpoint)), chosen, count=count, as_json=as_json)
    except KeyboardInterrupt:
        return INTERRUPTED


def log_level(
    mountpoint: Annotated[Path, typer.Argument(metavar="MOUNTPOINT", parser=Path, help="Where fastfuse is mounted.")],
    level: Annotated[
        str | None, typer.Argument(metavar="LEVEL", help="debug, info, warning or error; left out, say which it is.")
    ] = None,
) -> int:
    """Change how much a mount logs while it runs, until it ends."""
    from fastfuse.filesystem import control

    if level is not None and level not in log.LEVELS:
        raise ConfigurationError(f"there is no log level {level!r}", hint=f"one of {', '.join(log.LEVELS)}")
    entry = control.entry_of(Path(os.path.abspath(mountpoint)))
    say(control.ask(entry, control.LOG_LEVEL, level=level)["level"])
    return 0


def hint(
    mountpoint: Annotated[Path, typer.Argument(metavar="MOUNTPOINT", parser=Path, help="Where fastfuse is mounted.")],
    file: Annotated[
        Path | None, typer.Option("--file", metavar="FILE", parser=Path, help="Read the list from there, not stdin.")
    ] = None,
    null: Annotated[
        bool, typer.Option("-0", "--null", help="A NUL ends each path (find -print0), not a newline.")
    ] = False,
) -> int:
    """Announce the order in which files will be opened.

    Takes a list of paths, one a line.
    They are fetched ahead of whoever opens them. Ends when the mount has taken the last one, which it does no faster
    than files are opened: run it beside what opens them.
    """
    from fastfuse import hints

    try:
        with _opened(file) as listing:
            hints.hand_over(hints.paths_in(listing, b"\0" if null else b"\n"), mountpoint)
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


def fuse_helper(
    mountpoint: Annotated[
        Path, typer.Argument(metavar="MOUNTPOINT", parser=Path, help="Where to mount: an empty directory.")
    ],
    *,
    path: Annotated[
        Path, typer.Option("--socket", metavar="PATH", help="Where to listen. It is made for this user alone.")
    ],
    uid: Annotated[int, typer.Option("--user", metavar="ID", min=0, help="Who may have it mount; becomes the owner.")],
) -> int:
    """Mount for a process that may not mount.

    That process serves the mount with 'fastfuse mount --fuse-socket PATH'. The helper takes CAP_SYS_ADMIN, and knows
    neither S3 nor credentials. The mount goes with the process that serves it, and the next one gets another.
    """
    log.configure(log.LogConfig())
    from fastfuse.filesystem import fuse_helper as helper

    place = Path(os.path.abspath(mountpoint))
    helper.serve(place, helper.listen_at(Path(os.path.abspath(path)), uid), uid)
    return 0


def _opened(path: Path | None) -> io.BufferedReader:
    """Open the file, or stdin in a way that closing leaves it open."""
    try:
        return open(0, "rb", closefd=False) if path is None else path.open("rb")
    except OSError as error:
        name = "stdin" if path is None else f"--file {path}"
        raise ConfigurationError(f"{name} cannot be read: {error.strerror}", hint="give a list of paths") from error


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
    from fastfuse.report.layout import check_installed, page

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
