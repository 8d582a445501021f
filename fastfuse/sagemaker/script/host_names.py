"""The names of a job's hosts, made to resolve for the command: scripts and SageMaker's toolkit look ``algo-1`` up.

The command gets a mount namespace of its own, in which ``/etc/hosts`` has the names; nobody else sees it, and it ends
with the command. The namespace takes root, and it takes mounts that are shared, as systemd makes them: of private ones,
as in most containers, an unmount of a channel would not reach it. Without root a user namespace does, too, but in one
setuid programs (sudo) and checks of ownership (ssh) fail. So in these two cases a namespace is made only if addresses
are given. Without a namespace SageMaker's toolkit is told not to look the names up. HOSTALIASES would not do: the C
library passes such an alias to a name server, and those do not know addresses or ``localhost``.
"""

import ctypes
import ipaddress
import logging
import os
import re
import socket
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from fastfuse.errors import ConfigurationError
from fastfuse.sagemaker.description.channel import Cluster

__all__ = ["HostNames", "parse_addresses"]

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
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


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
            _check(_LIBC.unshare(_CLONE_NEWNS | (_CLONE_NEWUSER if uid else 0)))
            if uid:
                Path("/proc/self/setgroups").write_text("deny")
                Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
                Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
            _check(_LIBC.mount(None, b"/", None, _MS_REC | _MS_SLAVE, None))
            _check(_LIBC.mount(os.fsencode(file), os.fsencode(HOSTS_FILE), None, _MS_BIND, None))
            # The directory goes when the context ends; the file lives as long as it is mounted.


def _are_mounts_shared() -> bool:
    """Return whether mounts and unmounts reach the namespaces that are made of this one (proc(5))."""
    mounts = (line.partition(" - ")[0].split() for line in _MOUNTS.read_text().splitlines())
    return any(fields[4] == "/" and any(tag.startswith("shared:") for tag in fields[6:]) for fields in mounts)


def _own_address() -> str:
    """Return the address that other hosts probably know this one by."""
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(_ELSEWHERE)
        return str(probe.getsockname()[0])
    return _LOOPBACK


def _check(result: int) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
