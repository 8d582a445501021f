"""The commands beside mounts: unmount, refresh, status, stats, trace, top, report, log-level, hint, fuse-helper."""

import io
import json
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from fastfuse import log
from fastfuse.cli import startup
from fastfuse.cli.messages import say
from fastfuse.cli.options import MOST_ID, option
from fastfuse.errors import ConfigurationError, FastfuseError, MountError

if TYPE_CHECKING:
    from fastfuse.report.records import Record


def _absolute(path: Path | None) -> Path | None:
    return None if path is None else Path(os.path.abspath(path))


# Nothing is checked there: a hung mount would hang this process, too.
_PLACE: Final[dict[str, Any]] = {"metavar": "MOUNTPOINT", "parser": Path, "callback": _absolute}
Mountpoint = Annotated[Path, typer.Argument(help="Where fastfuse is mounted.", **_PLACE)]
_EVERY_S: Final = 1.0
_READ_BYTES: Final = 64 << 10


def unmount(
    mountpoint: Annotated[Path | None, typer.Argument(help="Where fastfuse is mounted.", **_PLACE)] = None,
    every: Annotated[bool, option("--all", "Unmount every fastfuse mount that is yours.")] = False,
    of_all_users: Annotated[bool, option("--all-users",
        "Unmount those of all users of the machine; takes root.")] = False,
    lazy: Annotated[bool, option("--lazy",
        "Take it away at once; what is open can be read until it is closed.")] = False,
) -> int:  # fmt: skip
    """Unmount, and so end the process that serves the mount."""
    if (mountpoint is not None) + every + of_all_users != 1:
        raise ConfigurationError(
            "unmount takes one of MOUNTPOINT, --all and --all-users", hint="see 'fastfuse unmount --help'"
        )
    if of_all_users and os.geteuid() != 0:
        raise ConfigurationError("--all-users takes root", hint="--all unmounts those that are yours")
    from fastfuse.filesystem.mounting import mountpoint as mounts

    uid = None if of_all_users else os.geteuid()
    kept: list[FastfuseError] = []
    for path in mounts.fastfuse_mounts(uid) if mountpoint is None else [mountpoint]:
        if mountpoint is None and path not in mounts.fastfuse_mounts(uid):
            continue  # it went with one before, where mounts propagate, or with its process
        try:
            users = mounts.unmount(path, lazy=lazy)
        except FastfuseError as error:
            kept.append(error)  # a busy mount keeps none of the others
        else:
            say(f"unmounted {path}" + "".join(f"; it is still used at {user}" for user in users))
    if len(kept) > 1:
        raise MountError("; ".join(map(str, kept)), hint=kept[0].hint)
    if kept:
        raise kept[0]
    return 0


def refresh(mountpoint: Mountpoint) -> int:
    """List the source of a mount again, and show what it holds now.

    What has not changed keeps its pages.
    """
    from fastfuse.filesystem.talking import control

    say(control.request_refresh(mountpoint))
    return 0


def status(
    mountpoint: Annotated[Path | None, typer.Argument(help="One mount; left out, all of them.", **_PLACE)] = None,
    *,
    as_json: Annotated[bool, option("--json", "Print it as JSON, with every counter.")] = False,
    stack: Annotated[bool, option("--stack",
        "Print where threads and tasks of the mount's worker are now, for a report.")] = False,
) -> int:  # fmt: skip
    """Say what the mounts of this machine do.

    For each: its state, rates, memory, and last errors.
    The exit code is 0 if all of yours are ok, and 1 if one is in trouble, stops or does not answer.
    """
    with startup.loading():
        from fastfuse.cli import status_command as command

    if stack:
        if mountpoint is None:
            raise ConfigurationError("--stack is of one mount", hint="give a MOUNTPOINT")
        return command.stack(mountpoint, as_json=as_json)
    return command.status(mountpoint, as_json=as_json)


def stats(
    mountpoint: Mountpoint,
    *,
    interval: Annotated[float, option("--interval SECONDS",
        "Seconds between two lines.", min=0.1, max=86400)] = _EVERY_S,
    count: Annotated[int | None, option("--count N", "End after so many lines.", min=1)] = None,
    summary: Annotated[bool, option("--summary",
        "Say once what the mount did since it began, and why readers waited.")] = False,
    as_json: Annotated[bool, option("--json", "Print the summary as JSON.")] = False,
) -> int:  # fmt: skip
    """Print a line every second with what a mount does.

    What it reads, fetches and waits for, until Ctrl-C.
    """
    with startup.loading():
        from fastfuse.cli import status_command as command

    if summary or as_json:
        if (interval, count) != (_EVERY_S, None):
            raise ConfigurationError(
                "--interval and --count are for lines, and the summary is printed once",
                hint="leave them out, or --summary and --json",
            )
        return command.summary(mountpoint, as_json=as_json)
    return command.stats(mountpoint, every_s=interval, count=count)


def top(
    mountpoint: Annotated[Path | None, typer.Argument(
        help="Where fastfuse is mounted; left out, the only one.", **_PLACE)] = None,
    *,
    interval: Annotated[float, option("--interval SECONDS", "Seconds between two looks.", min=0.1, max=3600)] = 1.0,
) -> int:  # fmt: skip
    """Show on the whole terminal what a mount does.

    Rates, readers that wait, files, slow GETs, memory, and errors.
    w, b and f sort the files by waiting, bytes and name; p pauses; q ends. Where the output is no terminal, or one that
    cannot be redrawn, it is printed once.
    """
    with startup.loading():
        from fastfuse.cli import top_command as command

    return command.top(mountpoint, every_s=interval)


def trace(
    mountpoint: Mountpoint,
    *,
    path: Annotated[str | None, option("--path GLOB",
        "Only files whose path below the mount matches; * is also any /.")] = None,
    process: Annotated[str | None, option("--process NAME|ID",
        "Only what processes of this name, or this thread, read.")] = None,
    sample: Annotated[int, option("--sample N", "Only every Nth request.", min=1)] = 1,
    count: Annotated[int | None, option("--count N", "End after so many lines.", min=1)] = None,
    as_json: Annotated[bool, option("--json", "Print each line as JSON.")] = False,
) -> int:  # fmt: skip
    """Print a line for each read of a mount, until Ctrl-C.

    Reads that the page cache serves never reach the mount. A trace that is not read fast enough loses lines, and says
    how many; it delays no reader.
    """
    with startup.loading():
        from fastfuse.cli import status_command as command

    return command.trace(mountpoint, path=path, process=process, sample=sample, count=count, as_json=as_json)


def log_level(
    mountpoint: Mountpoint,
    level: Annotated[
        str | None, typer.Argument(metavar="LEVEL", help="debug, info, warning or error; left out, say which it is.")
    ] = None,
) -> int:
    """Change how much a mount logs while it runs, until it ends."""
    with startup.loading():
        from fastfuse.cli import status_command as command
        from fastfuse.filesystem.talking import control

    if level is not None and level not in log.LEVELS:
        raise ConfigurationError(f"there is no log level {level!r}", hint=f"one of {', '.join(log.LEVELS)}")
    entry = control.entry_of(mountpoint)
    with command.well_formed(mountpoint):
        say(command.plain(control.ask(entry, control.LOG_LEVEL, level=level)["level"]))
    return 0


def hint(
    mountpoint: Mountpoint,
    file: Annotated[Path | None, option("--file FILE", "Read the list from there, not stdin.", parser=Path)] = None,
    null: Annotated[bool, option("-0 --null", "A NUL ends each path (find -print0), not a newline.")] = False,
) -> int:  # fmt: skip
    """Announce the order in which files will be opened.

    Takes a list of paths, one a line.
    They are fetched ahead of whoever opens them. Ends when the mount has taken the last one. It takes about 65,000
    ahead of the files that are opened, and a million that the page cache has: run it beside what opens them.
    """
    from fastfuse import hints
    from fastfuse.filesystem.talking import control

    def look(place: Path) -> None:
        """Raise `MountError` if the mount hangs; one of another user does not say."""
        with suppress(control.ForeignMountError):
            control.ask_status(control.entry_of(place))

    with _opened(file) as listing:
        hints.hand_over(paths_in(listing, b"\0" if null else b"\n"), mountpoint, meanwhile=look)
    return 0


def paths_in(listing: io.BufferedReader, end: bytes) -> Iterator[bytes]:
    """Yield the paths of a list in which `end` ends each, as they come; leave out empty ones."""
    rest = b""
    while received := listing.read1(_READ_BYTES):
        *paths, rest = (rest + received).split(end)
        yield from filter(None, paths)
    if rest:
        yield rest


def fuse_helper(
    mountpoint: Annotated[Path, typer.Argument(help="Where to mount: an empty directory.", **_PLACE)],
    *,
    path: Annotated[Path, option("--socket PATH", "Where to listen. It is made for this user alone.")],
    uid: Annotated[int, option("--user ID", "Who may have it mount; becomes the owner.", min=0, max=MOST_ID)],
) -> int:  # fmt: skip
    """Mount for a process that may not mount.

    That process serves the mount with 'fastfuse mount --fuse-socket PATH'. The helper takes CAP_SYS_ADMIN and
    CAP_CHOWN, and knows neither S3 nor credentials. The mount goes with the process that serves it, and the next one
    gets another.
    """
    log.configure(log.LogConfig())
    from fastfuse.filesystem.mounting import fuse_helper as helper

    helper.serve(mountpoint, helper.listen_at(Path(os.path.abspath(path)), uid), uid)
    return 0


def _opened(path: Path | None) -> io.BufferedReader:
    """Open the file, or stdin in a way that closing leaves it open."""
    try:
        return open(0, "rb", closefd=False) if path is None else path.open("rb")
    except OSError as error:
        name = "stdin" if path is None else f"--file {path}"
        raise ConfigurationError(f"{name} cannot be read: {error.strerror}", hint="give a list of paths") from error


def report(
    place: Annotated[Path | None, typer.Argument(metavar="MOUNTPOINT|DIR|FILE", parser=Path,
        help="A mount (left out, the only one); the base directory of a 'fastfuse run' that has ended; or a record "
        "that --json printed.")] = None,
    *,
    output: Annotated[Path | None, option("--output -o FILE",
        "Where to write the page (left out, fastfuse-report.html), or with --json the record (left out, stdout); "
        "- is stdout.", parser=Path)] = None,
    as_json: Annotated[bool, option("--json", "Print the record instead, of which a page can be made later.")] = False,
) -> int:  # fmt: skip
    """Write one HTML page of what a mount or a job did.

    The page covers the last hours and needs no network and no server. It takes pygal.
    """
    with startup.loading():
        from fastfuse.report import records

    if place is None:
        with startup.loading():
            from fastfuse.cli.top_command import the_only_mount

        place = the_only_mount("a report is of")
    found = records.record_at(Path(os.path.abspath(place)))
    record = records.read_record(found)
    text = json.dumps(found) if as_json else _page(record)
    written = output or Path("-" if as_json else "fastfuse-report.html")
    if str(written) == "-":
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")  # as the page says of itself
        say(text)
        return 0
    try:
        written.write_text(text, "utf-8")
    except OSError as error:
        raise ConfigurationError(
            f"--output {written} cannot be written: {error.strerror}", hint="name a file in a directory that exists"
        ) from error
    say(f"wrote {written}")
    return 0


def _page(record: "Record") -> str:
    try:
        with startup.loading():
            from fastfuse.report.layout import page
    except ImportError:
        raise ConfigurationError(
            "a report takes pygal, which is not installed", hint=f"{sys.executable} -m pip install pygal"
        ) from None
    return page(record)
