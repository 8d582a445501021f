"""The process that trains, and the names of the job's hosts, which resolve in it: scripts look ``algo-1`` up.

The process has the caller's signals and streams, and is stopped as SageMaker stops it. It stays in our process group,
for a terminal's job control and for scripts that read from it. Its orphans become our children (`adopt_orphans`) and
are told to end as well: a shell dies without telling its children, and in a container nothing outlives the first
process.

The command gets a mount namespace of its own, in which ``/etc/hosts`` has the names; nobody else sees it, and it ends
with the command. The namespace takes root, and it takes mounts that are shared, as systemd makes them: of private ones,
as in most containers, an unmount of a channel would not reach it. Without root a user namespace does, too, but in one
setuid programs (sudo) and checks of ownership (ssh) fail. So in these two cases a namespace is made only if addresses
are given. Without a namespace SageMaker's toolkit is told not to look the names up. HOSTALIASES would not do: the C
library passes such an alias to a name server, and those do not know addresses or ``localhost``.
"""

import ipaddress
import logging
import math
import os
import re
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from fastfuse.cgroup import oom_kills
from fastfuse.errors import ConfigurationError
from fastfuse.filesystem.processes.children import DIES_WITHIN_S, UNHEEDED, fork_child
from fastfuse.sagemaker.description.channel import Cluster
from fastfuse.sagemaker.files import LIBC, checked

_log = logging.getLogger(__name__)

HOSTS_FILE: Final = Path("/etc/hosts")
_MOUNTS: Final = Path("/proc/self/mountinfo")
# The toolkit's own switch: it does not wait until the names of all hosts resolve.
_NO_LOOK_UP: Final = "SM_STUDIO_LOCAL_MODE"
# A name that fastfuse or SageMaker gave; others are those of real hosts, and resolve without us.
_GIVEN_NAME: Final = re.compile(r"algo-\d+", re.ASCII)
_LOOPBACK: Final = "127.0.0.1"
# TEST-NET-1 (RFC 5737): no packet is sent to find out which address would be used for one.
_ELSEWHERE: Final = ("192.0.2.1", 9)

_CLONE_NEWNS, _CLONE_NEWUSER = 0x20000, 0x10000000  # <sched.h>
_MS_BIND, _MS_REC, _MS_SLAVE = 4096, 16384, 1 << 19  # <sys/mount.h>


def parse_addresses(values: Sequence[str], hosts: Collection[str]) -> dict[str, str]:
    """Return the values of ``--address``, each ``HOST=ADDRESS``, by name of host. An address may be a name to look up.

    Raises:
        ConfigurationError: a value is none, names no host of the job, or has a name that does not resolve.
    """
    found: dict[str, str] = {}
    for text in values:
        name, _, address = text.partition("=")
        if name not in hosts:
            raise ConfigurationError(
                f"--address {text!r} names no host of the job", hint=f"the hosts are {', '.join(hosts)}"
            )
        try:
            found[name] = _address_of(address)
        except (OSError, ValueError) as error:
            raise ConfigurationError(
                f"--address {text!r} has neither an IP address nor a name that resolves here",
                hint="write it as --address algo-2=10.0.0.2",
            ) from error
    return found


def _address_of(text: str) -> str:
    with suppress(ValueError):
        return str(ipaddress.ip_address(text))
    if not text:
        raise ValueError("empty")
    return str(socket.getaddrinfo(text, None, type=socket.SOCK_STREAM)[0][4][0])


class HostNames:
    """The names that the command gets, beside those that resolve without us."""

    def __init__(self, cluster: Cluster, given: Mapping[str, str]) -> None:
        self._are_given = bool(given)
        self._text = ""
        with suppress(OSError):
            self._text = HOSTS_FILE.read_text(errors="surrogateescape")
        known = {name for line in self._text.splitlines() for name in line.partition("#")[0].split()[1:]}
        own = cluster.current_host
        self._addresses = dict(given)
        if own not in known and _GIVEN_NAME.fullmatch(own):
            self._addresses.setdefault(own, _LOOPBACK if len(cluster.hosts) == 1 else _own_address())
        unknown = set(cluster.hosts) - known - self._addresses.keys()
        # The names that nothing known to us resolves: the toolkit would wait for them.
        self.unknown = sorted(filter(_GIVEN_NAME.fullmatch, unknown))

    def lines(self) -> Iterator[str]:
        """Yield what the user should know before the command starts."""
        if self.unknown:
            names, example = ", ".join(self.unknown), f"--address {self.unknown[0]}=10.0.0.2"
            yield f"No address is known for {names}: unless a name server knows it, give it, as in {example}"

    def enter(self, environment: dict[str, str]) -> None:
        """Make the names resolve for this process, which becomes the command, or have the toolkit do without."""
        if not self._addresses:
            return
        if self._are_given or (os.geteuid() == 0 and _are_mounts_shared()):
            try:
                self._enter_namespace()
            except OSError as error:
                _log.warning("the names %s do not resolve here: %s", ", ".join(self._addresses), error)
            else:
                if not self.unknown:
                    return
        environment.setdefault(_NO_LOOK_UP, "true")

    def _enter_namespace(self) -> None:
        uid, gid = os.geteuid(), os.getegid()
        # The directory is the user's own, so that nobody else can replace the file before it is mounted.
        with tempfile.TemporaryDirectory(prefix="fastfuse-hosts-") as directory:
            file = Path(directory, "hosts")
            added = "".join(f"{address} {name}\n" for name, address in self._addresses.items())
            file.write_text(added + self._text, errors="surrogateescape")
            # The umask must not hide it.
            file.chmod(0o644)
            checked(LIBC.unshare(_CLONE_NEWNS | (_CLONE_NEWUSER if uid else 0)))
            if uid:
                Path("/proc/self/setgroups").write_text("deny")
                Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
                Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
            checked(LIBC.mount(None, b"/", None, _MS_REC | _MS_SLAVE, None))
            checked(LIBC.mount(os.fsencode(file), os.fsencode(HOSTS_FILE), None, _MS_BIND, None))
            # The directory goes when the context ends; the file lives as long as it is mounted.


def _are_mounts_shared() -> bool:
    """Return whether mounts and unmounts reach the namespaces that are made of this one (proc(5))."""
    mounts = (line.partition(b" - ")[0].split(b" ") for line in _MOUNTS.read_bytes().split(b"\n")[:-1])
    return any(fields[4] == b"/" and any(tag.startswith(b"shared:") for tag in fields[6:]) for fields in mounts)


def _own_address() -> str:
    """Return the address that other hosts probably know this one by."""
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(_ELSEWHERE)
        return str(probe.getsockname()[0])
    return _LOOPBACK


_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # <sys/prctl.h>

# A shell's exit code for a file that cannot be run.
_CANNOT_RUN = 126
# Signals that Python ignores from its start, or `fork_child`, and a program expects at their default.
_PYTHONS_OWN = (signal.SIGPIPE, signal.SIGXFSZ, *UNHEEDED)
# Signals that `fork_child` resets; a caller may ignore them (nohup, a shell's background).
_INHERITED = (signal.SIGINT, signal.SIGHUP)


def find_command(command: Sequence[str], environment: Mapping[str, str]) -> str:
    """Return the path of the program to run.

    Raises:
        ConfigurationError: there is none that can be run.
    """
    found = shutil.which(command[0], path=environment.get("PATH", os.defpath))
    if found is None:
        raise ConfigurationError(
            f"the command {command[0]!r} is not to be found, or may not be run",
            hint="give its path, or see $PATH and the file's permissions",
        )
    return found


def ignored_signals() -> set[signal.Signals]:
    """Return the signals that our caller ignores."""
    return {number for number in _INHERITED if signal.getsignal(number) == signal.SIG_IGN}


def adopt_orphans() -> None:
    """Become the parent of every descendant that loses its own."""
    LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1)


class CommandProcess:
    """The command, from its start to its end."""

    def __init__(self, program: str, command: Sequence[str], environment: Mapping[str, str], names: HostNames) -> None:
        ignored = ignored_signals()
        # Children that the command did not start: channels, the guardian, and those of a shell that we replaced.
        self._others = frozenset(_children(os.getpid()))
        self._oom_kills = oom_kills() or 0
        self.pid = fork_child(lambda: _become(program, command, dict(environment), ignored, names))
        self._exit_code: int | None = None
        self._kill_at_s: float | None = None
        self._killed_s = math.inf
        # The leftovers that were told to end.
        self._told: set[int] = set()

    @property
    def is_over(self) -> bool:
        return self._exit_code is not None

    @property
    def exit_code(self) -> int:
        """The exit code as a shell reports it: 128 + N after signal N."""
        assert self._exit_code is not None
        return self._exit_code if self._exit_code >= 0 else 128 - self._exit_code

    def ended(self, exit_code: int) -> None:
        """Note that the command was reaped; `exit_code` is negative for a signal."""
        if self._exit_code is None:  # the kernel may give its pid to an orphan that it has left
            self._exit_code = exit_code

    def describe_end(self) -> str:
        """Say how the command ended, and if it failed, whether memory ran out meanwhile."""
        assert self._exit_code is not None
        number = -self._exit_code
        names = {known.value: known.name for known in signal.Signals}  # without most of the real-time signals
        killed_by = f"the command was killed by {names.get(number, f'signal {number}')}"
        told = f"the command exited with {self._exit_code}" if self._exit_code >= 0 else killed_by
        killed = (oom_kills() or 0) - self._oom_kills
        if self._exit_code and killed > 0:
            # The count of a group has what the machine killed for want of memory, too.
            told += f"; memory ran out, and the kernel killed processes of its control group: {killed:,}"
        return told

    def send(self, number: signal.Signals) -> None:
        if not self.is_over:
            _send(self.pid, number)

    def stop(self, number: signal.Signals, timeout_s: float, *, has_it: bool = False) -> None:
        """Send `number` to the command, unless it `has_it`, and let `enforce` kill it after the timeout."""
        if not has_it:
            self.send(number)
        if self._kill_at_s is None and not self.is_over:
            _log.info("the command has %g s to end after %s, and is killed then", timeout_s, number.name)
            self._kill_at_s = time.monotonic() + timeout_s

    @property
    def left_s(self) -> float | None:
        """The seconds until the command must be killed: None while it may run, infinite once it was killed."""
        if self._killed_s < math.inf:
            return math.inf
        return None if self._kill_at_s is None else max(0.0, self._kill_at_s - time.monotonic())

    def enforce(self) -> None:
        """Kill the command and all that it started if its time is over; wait no longer for one that does not die."""
        if self.is_over:
            return
        now_s = time.monotonic()
        if self.left_s == 0.0:
            _log.warning("the command did not end in time and is killed")
            self._killed_s = now_s
            self.kill()
        elif now_s >= self._killed_s + DIES_WITHIN_S:
            _log.error("SIGKILL does not end the command: a device or a disk that hangs holds it, or it is root's")
            self.ended(-signal.SIGKILL)

    def kill(self) -> None:
        if not self.is_over:
            for pid in (*_descendants(self.pid), self.pid):
                _send(pid, signal.SIGKILL)

    def press_leftovers(self, timeout_s: float, spared: Collection[int] = ()) -> bool:
        """Tell what the command left running to end, or kill it once its time is over.

        Children that we have started since the command, which are `spared`, are not the command's. The time is the
        command's, or else begins with the first call. Return False once nothing is left or helps.
        """
        if self._kill_at_s is None:
            self._kill_at_s = time.monotonic() + timeout_s
        leftovers = [pid for pid in _children(os.getpid()) if pid not in self._others and pid not in spared]
        late_s = time.monotonic() - self._kill_at_s
        for pid in leftovers:
            if late_s >= 0:
                for late in (*_descendants(pid), pid):
                    _send(late, signal.SIGKILL)
            elif pid not in self._told:
                _log.info("process %d, which the command left running, is told to end", pid)
                self._told.add(pid)
                _send(pid, signal.SIGTERM)
        return bool(leftovers) and late_s < DIES_WITHIN_S


def _become(
    program: str,
    command: Sequence[str],
    environment: dict[str, str],
    ignored: Iterable[int],
    names: HostNames,
) -> None:
    names.enter(environment)
    # If we are killed, its data are gone, but it may write a checkpoint.
    LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    for number in _PYTHONS_OWN:
        signal.signal(number, signal.SIG_DFL)
    for inherited in ignored:
        signal.signal(inherited, signal.SIG_IGN)
    try:
        os.execve(program, list(command), environment)
    except OSError as error:
        os.write(2, f"fastfuse: error: {program} cannot be run: {error.strerror}\n".encode(errors="replace"))
        os._exit(_CANNOT_RUN)


def _descendants(pid: int) -> list[int]:
    found = _children(pid)
    for child in found:
        found += _children(child)
    return found


def _children(pid: int) -> list[int]:
    """Return the children of every thread, for any of them may have forked (proc(5))."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):  # the thread, or all of it, has just ended
            found += map(int, task.read_text().split())
    return found


def _send(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):  # gone, or somebody else's by now (setuid)
        os.kill(pid, number)
