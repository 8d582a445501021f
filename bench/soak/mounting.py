"""The mount of a soak, and what its processes hold: descriptors, threads, sockets, memory."""

import os
import re
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from bench.mount_process import MountProcess
from bench.mounting import ENVIRONMENT, make_mountpoint
from bench.processes import process_tree, pss_bytes
from bench.soak.server import BUCKET, SoakServer
from fastfuse.errors import FastfuseError
from fastfuse.filesystem.talking.control import TASKS, ask, ask_status, entry_of

_LOG_CHARACTERS = 20_000
_PROC = Path("/proc")
_SETTLE_S = 30.0
# They are renewed after half of it.
_KEYS_LAST_S = 40
_POLL_S = 0.25
# A line of `fastfuse stack`: how many tasks wait at the same place, and their name.
_TASKS = re.compile(r"(\d+) × (\S+)")
_SHARED_MEMORY = re.compile(r"\S+ \S+ \S+ \S+ (\d+)\s+(/memfd:\S+|/dev/shm/\S+)")


class SoakMount(MountProcess):
    """A mount of the server's bucket below `place`, between ``with`` and its end."""

    def __init__(self, place: Path, server: SoakServer, memory_target: str, options: Sequence[str]) -> None:
        self.root = make_mountpoint(place)
        arguments = ["--endpoint-url", server.endpoint_url, "--region", "us-east-1", "--force-path-style"]
        arguments += ["--memory-target", memory_target, *options]
        environment = _write_credentials(place)
        super().__init__(
            f"s3://{BUCKET}", self.root, log_path=place / "log", environment=environment, arguments=arguments
        )

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        # The mount's end shows as a file or a port that is not there any more.
        if isinstance(error, OSError):
            error.add_note(f"the mount: {self.process.poll()}\n{self.log[-_LOG_CHARACTERS:]}")
        super().__exit__(kind, error, trace)

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def worker(self) -> int | None:
        """Return the pid of the worker; None where there is none just now. Other children have its descriptors, too."""
        with suppress(FastfuseError):  # the supervisor has other things to do
            return ask_status(entry_of(self.root))["worker_pid"] or None
        return None

    def metrics(self) -> dict[str, float]:
        """Return the metrics; a label's value stands behind the name: ``fastfuse_errors_total EIO``."""
        where = {"mount", "bucket"}
        return {
            " ".join((one.name, *(value for name, value in one.labels.items() if name not in where))): one.value
            for one in self.samples()
        }


def _write_credentials(place: Path) -> dict[str, str]:
    """Return the environment of a user whose keys come from a program: new ones for each call, which soon expire."""
    program, config = place / "keys.sh", place / "config"
    program.write_text(
        'printf \'{"Version": 1, "AccessKeyId": "AKIASOAK%012d", "SecretAccessKey": "secret", "SessionToken": "token",'
        f' "Expiration": "%s"}}\' $$ "$(date -u -d "+{_KEYS_LAST_S} seconds" +%Y-%m-%dT%H:%M:%SZ)"\n'
    )
    config.write_text(f"[default]\ncredential_process = /bin/sh {program}\n")
    kept = {name: value for name, value in ENVIRONMENT.items() if not name.startswith("AWS_")}
    return {**kept, "AWS_CONFIG_FILE": str(config), "AWS_SHARED_CREDENTIALS_FILE": os.devnull}


def is_alive(pid: int) -> bool:
    try:
        return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


# Connections to S3, and segments of the local tier, of which at most 256 are open.
_KEPT = {"TCP connection", "segment"}


def holdings(mount: SoakMount) -> dict[str, float]:
    """Return what may not grow while nobody reads, without what is kept for the next reads."""
    tree = process_tree(mount.pid)
    kinds: Counter[str] = Counter(
        f"descriptors: {kind}" for pid in tree for kind in _descriptor_kinds(pid) if kind not in _KEPT
    )
    metrics = mount.metrics()
    return {
        **kinds,
        "descriptors": sum(kinds.values()),
        "processes": len(tree),
        "threads": sum(_threads(pid) for pid in tree),
        "tasks": _tasks(mount),
        "shared memory": len(set().union(*(_shared_memory(pid) for pid in tree))),
        "waiting reads": metrics["fastfuse_waiting_reads"],
        "GETs in flight": metrics["fastfuse_gets_in_flight"],
        "bytes in flight": metrics["fastfuse_memory_bytes in_flight"],
    }


def _tasks(mount: SoakMount) -> int:
    """Return the number of the worker's tasks of trio, without those of pyfuse3, which keeps a few that are idle."""
    with suppress(FastfuseError):  # a worker has just ended
        lines = ask(entry_of(mount.root), TASKS)["tasks"]
        found = (_TASKS.match(line) for line in lines)
        return sum(int(match[1]) for match in found if match and match[2] != "pyfuse")
    return 0


def sample(mount: SoakMount) -> dict[str, float]:
    """Return what a long run has to keep flat."""
    tree = process_tree(mount.pid)
    kinds = [kind for pid in tree for kind in _descriptor_kinds(pid)]
    return {
        "memory_bytes": pss_bytes(mount.pid),
        "descriptors": len(kinds),
        "connections": kinds.count("TCP connection"),
        "threads": sum(_threads(pid) for pid in tree),
        "processes": len(tree),
    }


# What nothing holds while nobody reads, readahead included.
_OF_READS = ("waiting reads", "GETs in flight", "bytes in flight")


def at_rest(mount: SoakMount) -> dict[str, float]:
    """Return the holdings once nothing is read any more."""
    now = settled(mount, {**holdings(mount), **dict.fromkeys(_OF_READS, 0.0)})
    return {**now, **dict.fromkeys(_OF_READS, 0.0)}


def settled(mount: SoakMount, before: dict[str, float]) -> dict[str, float]:
    """Return the holdings once they are no more than `before`, or those of half a minute later."""
    until_s = time.monotonic() + _SETTLE_S
    while True:
        now = holdings(mount)
        if time.monotonic() > until_s or all(now.get(name, 0) <= before.get(name, 0) for name in {*now, *before}):
            return now
        time.sleep(_POLL_S)


def _threads(pid: int) -> int:
    # Those that get small files are kept for the next reads, as connections are.
    names = []
    with suppress(FileNotFoundError, ProcessLookupError):
        for entry in os.listdir(_PROC / str(pid) / "task"):
            with suppress(FileNotFoundError, ProcessLookupError):
                names.append((_PROC / str(pid) / "task" / entry / "comm").read_text().strip())
    return sum(name != "fastfuse-get" for name in names)


def _descriptor_kinds(pid: int) -> Iterator[str]:
    with suppress(FileNotFoundError, ProcessLookupError):
        listening = _listening_inodes(pid)
        for entry in os.listdir(_PROC / str(pid) / "fd"):
            with suppress(OSError):  # it was closed meanwhile
                path = _PROC / str(pid) / "fd" / entry
                target = os.readlink(path)
                kind, _, rest = target.partition(":")
                if kind == "socket":
                    is_tcp = os.getxattr(path, "system.sockprotoname").startswith(b"TCP")
                    yield "TCP connection" if is_tcp and rest.strip("[]") not in listening else "socket"
                else:
                    yield kind if kind == "pipe" else "segment" if ".segment" in target else target


def _listening_inodes(pid: int) -> set[str]:
    """Return the inodes of listening sockets; what is not in the table may be a connection that its peer has reset."""
    lines = (_PROC / str(pid) / "net" / "tcp").read_text().splitlines()[1:]
    return {fields[9] for fields in map(str.split, lines) if fields[3] == "0A"}


def _shared_memory(pid: int) -> set[tuple[str, ...]]:
    with suppress(FileNotFoundError, ProcessLookupError):
        return set(_SHARED_MEMORY.findall((_PROC / str(pid) / "maps").read_text()))
    return set()
