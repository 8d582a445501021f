"""``fastfuse status``, ``stats`` and ``trace``: what the mounts of this machine do, as lines of text."""

import json
import select
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from io import BufferedReader
from itertools import islice
from pathlib import Path
from typing import Any, Final

from fastfuse.cli.messages import say
from fastfuse.errors import FastfuseError, MountError
from fastfuse.filesystem.figures.status import summary_lines
from fastfuse.filesystem.mounting.mountpoint import MountEntry, fastfuse_file_systems, find_mount, is_mounted
from fastfuse.filesystem.talking.control import (
    MOST_LINE_BYTES,
    STACK,
    TASKS,
    TRACE,
    DeadMountError,
    ForeignMountError,
    ask,
    ask_status,
    entry_of,
    watching,
)
from fastfuse.sizes import MIB, format_duration, format_size
from fastfuse.version import VERSION

# 78 columns with the time.
_HEADINGS: Final = ("read MB/s", "S3 MB/s", "GETs/s", "waiting", "stalled", "  MiB", "retries", "errors")
# As many lines as fit on a small terminal.
_HEAD_EVERY = 20
_NOT_OK = 1
_DEAD = "dead"
_NOT_YOURS = "not yours"
# A worker hands out what is asked between two requests of the kernel.
_TASKS_WITHIN_S = 3.0


def status(mountpoint: Path | None, *, as_json: bool) -> int:
    """Print the status of the mount at `mountpoint`, or of every mount.

    Return 0 if all of this user's mounts are ok (of root's: all mounts), otherwise 1.

    Raises:
        MountError: nothing of fastfuse is mounted at `mountpoint`, or that mount is another user's.
    """
    if mountpoint is None:
        # One may be unmounted while others are asked.
        found = [_asked(entry) for entry in fastfuse_file_systems() if is_mounted(entry.path, entry.device)]
    else:
        found = [_asked(entry_of(mountpoint), raises=(ForeignMountError,))]
    if as_json:
        say(json.dumps({"mounts": found}))
    elif not found:
        say("nothing of fastfuse is mounted")
    else:
        say("\n\n".join("\n".join(_lines(one, time.time())) for one in found))
    return 0 if all(one["state"] in ("ok", _NOT_YOURS) for one in found) else _NOT_OK


def stack(mountpoint: Path, *, as_json: bool) -> int:
    """Print where the threads and the tasks of the mount's worker are now; a worker that hangs has only threads.

    Raises:
        MountError: nothing of fastfuse is mounted there, or the mount does not answer.
    """
    entry = entry_of(mountpoint)
    found = ask(entry, STACK)
    try:
        found |= ask(entry, TASKS, within_s=_TASKS_WITHIN_S)
    except MountError:
        found |= {"tasks": ["(the worker's loop does not answer)"]}
    if as_json:
        say(json.dumps(found))
    else:
        with well_formed(mountpoint):
            lines = (f"worker, process {found['worker_pid']}", *found["threads"], "", "tasks", *found["tasks"])
        say("\n".join(map(plain, lines)))
    return 0


def stats(mountpoint: Path, *, every_s: float, count: int | None) -> int:
    """Print a line every `every_s` seconds with what the mount did meanwhile, `count` lines if that is given.

    Raises:
        MountError: nothing of fastfuse is mounted there, or the mount does not answer, or no longer.
    """
    entry = entry_of(mountpoint)
    with well_formed(mountpoint):
        before_s, before = time.monotonic(), ask_status(entry)
        for number in range(count or sys.maxsize):
            if number % _HEAD_EVERY == 0:
                say("  ".join(("time    ", *_HEADINGS)))
            time.sleep(max(0.0, before_s + every_s - time.monotonic()))
            now_s, now = time.monotonic(), ask_status(entry)
            if now["pid"] != before["pid"]:  # a later mount may have the device, by which mounts are asked
                raise MountError(f"the mount at {mountpoint} has ended", hint="'fastfuse status' shows which are there")
            say(_row(before["counters"], now["counters"], now_s - before_s))
            before_s, before = now_s, now
    return 0


def summary(mountpoint: Path, *, as_json: bool) -> int:
    """Print what the mount did since it began, and whether readers waited for it.

    Raises:
        MountError: nothing of fastfuse is mounted there, or the mount does not answer.
    """
    found = ask_status(entry_of(mountpoint))
    with well_formed(mountpoint):
        text = json.dumps(found["summary"]) if as_json else "\n".join(map(plain, summary_lines(found["summary"])))
    say(text)
    return 0


@contextmanager
def well_formed(mountpoint: Path) -> Iterator[None]:
    """Raise `MountError` if an answer of the mount lacks what is read from it, or has it of another type."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise MountError(
            f"the mount at {mountpoint} answered what version {VERSION} of fastfuse does not understand",
            hint="ask with the fastfuse that mounted it, or mount again",
        ) from error


def _asked(entry: MountEntry, *, raises: tuple[type[FastfuseError], ...] = ()) -> dict[str, Any]:
    """Return the status of a mount, or one that says why there is none, unless that is an error of `raises`."""
    try:
        # The mount tells where it was made: it may have been moved since, or the place is that of a container.
        top = find_mount(entry.path)
        covered = {"covered_by": top.file_system_type} if top and not top.is_ours else {}
        found = ask_status(entry) | {"mountpoint": str(entry.path)} | covered
        with well_formed(entry.path):
            list(_lines(found, time.time()))
        return found
    except raises:
        raise
    except FastfuseError as error:
        states: dict[type[FastfuseError], str] = {DeadMountError: _DEAD, ForeignMountError: _NOT_YOURS}
        told = {"state": states.get(type(error), "no answer"), "reason": str(error), "hint": error.hint}
        return {"mountpoint": str(entry.path), "source": entry.source, **told}


def _lines(one: Mapping[str, Any], now: float) -> Iterator[str]:
    yield f"{plain(one['mountpoint'])}  {plain(one['source'])}"
    if "counters" not in one:
        yield f"  state     {'dead: no process serves it' if one['state'] == _DEAD else plain(one['state'])}"
        # The reason repeats the mountpoint.
        yield f"  hint      {plain(one['hint'] or one['reason'])}"
        return
    # A mount of another version may not count everything.
    counters, rates = (defaultdict(int, one[name]) for name in ("counters", "rates"))
    mounted_for = format_duration(now - one["mounted_at"])
    yield f"  state     {plain(one['state'])}, mounted for {mounted_for}, process {plain(one['pid'])}"
    if cover := one.get("covered_by"):
        yield f"  covered   a mount of type {plain(cover)} is above: umount {plain(one['mountpoint'])} takes that away"
    if one["version"] != VERSION:
        yield f"  version   {plain(one['version'])}, and this program is {VERSION}: mount again to change that"
    if trouble := one["trouble"]:
        since = format_duration(now - trouble["since"])
        yield f"  trouble   for {since}: {failures_in(trouble)}; {_consequence(trouble, counters)}"
    listed_ago = format_duration(now - counters["fastfuse_listed_timestamp_seconds"])
    yield f"  objects   {counters['fastfuse_table_files']:,}, listed {listed_ago} ago"
    if failure := one.get("refresh_failure"):  # a mount of another version may not say
        yield f"  refresh   failing for {format_duration(now - failure['since'])}: {plain(failure['reason'])}"
    read, fetched = rates["fastfuse_read_served_bytes"] / 1e6, rates["fastfuse_fetched_bytes"] / 1e6
    yield f"  rates     {read:,.1f} MB/s read, {fetched:,.1f} MB/s fetched (the last {rates['seconds']:.0f} s)"
    waiting, stalled = counters["fastfuse_waiting_reads"], rates["fastfuse_stalled_seconds"]
    reads = "1 read" if waiting == 1 else f"{waiting:,} reads"
    yield f"  waiting   {reads} now; readers waited in {percent(stalled)} of that time"
    held, target = counters["fastfuse_pool_bytes"], one["memory_target_bytes"]
    yield f"  memory    {format_size(held)} of {format_size(target)} for data"
    if cache := one.get("cache"):  # a mount of another version may not say
        yield f"  cache     {_cache(cache, counters)}"
    respawns, hangs = counters["fastfuse_worker_respawns"], counters["fastfuse_worker_hangs"]
    times = "once" if respawns == 1 else f"{respawns:,} times"
    replaced = f", replaced {times} ({hangs:,} hung)" if respawns else ""
    yield f"  worker    process {plain(one['worker_pid'])}{replaced}"
    for at, text in one["errors"]:
        yield f"  error     {_moment(at)} {plain(text)}"


def _consequence(trouble: Mapping[str, Any], counters: Mapping[str, float]) -> str:
    """Return what a trouble does to requests and reads now."""
    tried = trouble["requests"]
    if tried:
        return "1 request is tried again" if tried == 1 else f"{tried:,} requests are tried again"
    return "reads fail" if counters["fastfuse_reads_failing"] else "nothing was answered since"


def _cache(cache: Mapping[str, Any], counters: Mapping[str, float]) -> str:
    """Return what the local tier takes, what it has served, and how often it could not be used."""
    used, size = (format_size(int(counters[f"fastfuse_cache_{name}_bytes"])) for name in ("used", "size"))
    served = format_size(int(counters['fastfuse_cache_bytes{event="served"}']))
    failed = sum(count for name, count in counters.items() if name.startswith("fastfuse_cache_failures{"))
    failures = f", {failed:,.0f} failure{'s' * (failed != 1)}" if failed else ""
    is_used = counters["fastfuse_cache_size_bytes"]
    takes = f"{used} of {size} in" if is_used else "not used by this worker (see the log):"
    return f"{takes} {plain(cache['directory'])}, {served} served{failures}"


def _row(before: Mapping[str, float], now: Mapping[str, float], elapsed_s: float) -> str:
    numbers = (
        f"{grown(before, now, 'fastfuse_read_served_bytes') / 1e6 / elapsed_s:,.1f}",
        f"{grown(before, now, 'fastfuse_fetched_bytes') / 1e6 / elapsed_s:,.1f}",
        f"{grown(before, now, 'fastfuse_fetch_requests') / elapsed_s:,.0f}",
        f"{now.get('fastfuse_waiting_reads', 0):,.0f}",
        percent(grown(before, now, "fastfuse_stalled_seconds") / elapsed_s),
        f"{now.get('fastfuse_pool_bytes', 0) / MIB:,.0f}",
        f"{grown(before, now, 'fastfuse_retries'):,.0f}",
        f"{grown(before, now, 'fastfuse_errors'):,.0f}",
    )
    columns = (number.rjust(len(heading)) for number, heading in zip(numbers, _HEADINGS, strict=True))
    return "  ".join((f"{datetime.now().astimezone():%H:%M:%S}", *columns))


def grown(before: Mapping[str, float], now: Mapping[str, float], name: str) -> float:
    """Return by how much the metric `name` grew from one answer of a mount to another, with all its labels."""
    return sum(now[key] - before.get(key, 0) for key in now if key.partition("{")[0] == name)


def failures_in(trouble: Mapping[str, Any]) -> str:
    """Return how often requests failed in a trouble that a mount tells of, by the kind of failure."""
    return ", ".join(f"{plain(count)} × {plain(kind)}" for kind, count in trouble["failures"].items())


def percent(share: float) -> str:
    return f"{min(share, 1.0):.0%}"


def _moment(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def plain(told: object) -> str:
    """Return `told` as text without what a terminal would obey: keys, and mounts of others, may say anything."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in str(told))


_HEADING = f"{'time':15}  {'process':22}  {'found':6}  {'offset':>13}  {'size':>8}  {'µs':>9}  path"

# The mount has so long to start another worker.
_NEXT_WORKER_WITHIN_S = 60.0
_RETRY_S = 0.2
# Python does not heed a Ctrl-C that comes just before a wait until that wait ends.
_LONGEST_WAIT_S = 1.0


def is_chosen(read: Mapping[str, Any], path: str | None, process: str | None) -> bool:
    """Return whether to print what the mount tells; what is not of a read is always printed."""
    if "path" not in read:
        return True
    is_process = process is None or process in {read["process"], str(read["pid"])}
    return is_process and (path is None or fnmatchcase(read["path"], path))


def trace(
    mountpoint: Path, *, path: str | None, process: str | None, sample: int, count: int | None, as_json: bool
) -> int:
    """Print reads until the mount ends, `count` lines if that is given: one of `sample`.

    If they are given, the file matches `path`, and the reader is the process or thread `process`.

    Raises:
        MountError: nothing of fastfuse is mounted there, or the mount does not answer.
    """
    entry = entry_of(mountpoint)
    if not as_json:
        say(_HEADING)
    with well_formed(mountpoint):
        chosen = (read for read in _reads(entry, sample) if is_chosen(read, path, process))
        for read in islice(chosen, count or sys.maxsize):
            say(json.dumps(read) if as_json else line_of(read))
    return 0


def _reads(entry: MountEntry, sample: int) -> Iterator[dict[str, Any]]:
    """Yield what one worker of the mount tells after the other; end when the mount does."""
    yield from _told(entry, sample)
    until_s = time.monotonic() + _NEXT_WORKER_WITHIN_S
    while is_mounted(entry.path, entry.device):
        try:
            yield from _told(entry, sample, is_next=True)
            until_s = time.monotonic() + _NEXT_WORKER_WITHIN_S
        except MountError:
            if time.monotonic() >= until_s:
                raise
        time.sleep(_RETRY_S)


def _told(entry: MountEntry, sample: int, *, is_next: bool = False) -> Iterator[dict[str, Any]]:
    with watching(entry, {"request": TRACE, "sample": sample}) as told, suppress(ConnectionError, ValueError):
        if is_next:
            yield {"replaced": True}
        rest = b""
        while len(rest) <= MOST_LINE_BYTES and (received := _received(told)):
            # A line that a killed worker has begun is not shown.
            *lines, rest = (rest + received).split(b"\n")
            yield from map(json.loads, lines)


def _received(told: BufferedReader) -> bytes:
    """Return what came, which may end amid a line; nothing at the end."""
    while not select.select([told], [], [], _LONGEST_WAIT_S)[0]:
        pass
    return told.read1()


def line_of(read: Mapping[str, Any]) -> str:
    """Return what the mount told in one line for people."""
    if "lost" in read:
        return f"({read['lost']:,} reads are not shown: this command does not keep up)"
    if "replaced" in read:
        return "(the worker of the mount was replaced)"
    at = datetime.fromtimestamp(read["at"]).astimezone()
    process = f"{read['process']}[{read['pid']}]"
    failed = f" {read['errno']}" if "errno" in read else ""
    return plain(
        f"{at:%H:%M:%S}.{at.microsecond:06}  {process:22}  {read['found']:6}  {read['offset']:13}  {read['size']:8}  "
        f"{read['us']:9}  {read['path']}{failed}"
    )
