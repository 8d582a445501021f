"""Decide what is well, what slows a mount down and what prevents it, from the facts of a machine. Pure."""

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum

from fastfuse.advise.model import Network
from fastfuse.sizes import MIB, format_size

# Its FUSE_NO_OPENDIR_SUPPORT has the kernel open directories by itself, as we need it to.
_LEAST_KERNEL = (5, 1)
# A descriptor for each connection of the client and of threads, by default 768 at most, for each of the tier's segments
# that are open, 256 at most, and some for the mount itself.
_LEAST_FILES = 1280
# The default of --read-deadline-s, and 15 s: the kernel looks so often.
_LEAST_TIMEOUT_S = 75.0
# A quarter of it is the least memory target, 128 MiB.
_LEAST_MEMORY_BYTES = 512 * MIB
# S3 refuses requests that were signed 15 minutes away from its own time (RequestTimeTooSkewed).
_MOST_SKEW_S = 900
_WORRYING_SKEW_S = 300
# Programs that renew certificates mostly do so 30 days before they expire.
_LEAST_CERTIFICATE_DAYS = 14
# Within a region S3 takes 20 to 40 ms to the first byte.
_FAR_S = 0.1
# S3 gives 90 MB/s to one connection: if many get no more together, something between limits them.
_SLOW_BYTES_PER_S = 100e6


class Level(StrEnum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found; `remedy` is empty if all is well."""

    check: str
    level: Level
    found: str
    remedy: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a mount needs of the machine. An obstacle is a pair: what is in the way, and the remedy."""

    kernel: tuple[int, int]
    libfuse: str
    device_obstacle: tuple[str, str] | None
    rights_obstacle: tuple[str, str] | None
    has_sys_admin: bool
    fusermount: str | None
    may_allow_other: bool
    may_raise_readahead: bool
    # The kernel lets a request wait for so long; `inf`: for ever.
    request_timeout_s: float
    open_files: int
    memory_limit_bytes: int | None
    # What the control group lets this process use of the CPUs, in CPUs; None if all.
    cpu_limit: float | None
    updatedb_reads_mounts: bool


def findings(facts: Facts) -> list[Finding]:
    """Return a finding for each check, always in the same order."""
    kernel = f"Linux {facts.kernel[0]}.{facts.kernel[1]}, libfuse {facts.libfuse}"
    too_old = (f"{kernel}: too old for a mount", "use Linux 5.1 or later") if facts.kernel < _LEAST_KERNEL else None
    rights = "CAP_SYS_ADMIN: mounts by itself" if facts.has_sys_admin else "no CAP_SYS_ADMIN: fusermount3 mounts"
    memory, cpus = facts.memory_limit_bytes, facts.cpu_limit
    return [
        _fail_if(too_old, Finding("kernel", Level.OK, kernel)),
        _fail_if(facts.device_obstacle, Finding("device", Level.OK, "/dev/fuse can be opened")),
        _fail_if(facts.rights_obstacle, Finding("rights", Level.OK, rights)),
        _warn_unless(
            facts.fusermount is not None or not facts.has_sys_admin,
            Finding("fusermount3", Level.OK, facts.fusermount or "see rights"),
            "not installed: only root can mount",
            "install the package fuse3 if other users mount",
        ),
        _warn_unless(
            facts.may_allow_other,
            Finding("allow_other", Level.OK, "--allow-other is permitted"),
            "--allow-other is refused: /etc/fuse.conf has no user_allow_other",
            "add the line user_allow_other to /etc/fuse.conf as root if other users read the mount",
        ),
        _warn_unless(
            facts.may_raise_readahead,
            Finding("readahead", Level.OK, "the kernel's readahead can be raised"),
            "the kernel's readahead stays at 128 KiB: /sys/class/bdi cannot be written",
            "mount as root where sysfs is writable",
        ),
        _warn_unless(
            facts.request_timeout_s >= _LEAST_TIMEOUT_S,
            Finding("request timeout", Level.OK, f"{facts.request_timeout_s:g} s".replace("inf s", "none")),
            f"{facts.request_timeout_s:g} s: the kernel ends a mount in longer outages",
            f"sysctl fs.fuse.default_request_timeout and max_request_timeout: 0, or from {_LEAST_TIMEOUT_S:g} on",
        ),
        _warn_unless(
            facts.open_files >= _LEAST_FILES,
            Finding("open files", Level.OK, f"limit {facts.open_files:,}"),
            f"limit {facts.open_files:,}: too few for a connection each",
            f"ulimit -n {_LEAST_FILES} or more, or lower --max-connections",
        ),
        _warn_unless(
            memory is None or memory >= _LEAST_MEMORY_BYTES,
            Finding("memory limit", Level.OK, "none" if memory is None else format_size(memory)),
            f"{format_size(memory or 0)} in this control group: little is left beside the memory target",
            f"allow {format_size(_LEAST_MEMORY_BYTES)} or more",
        ),
        _warn_unless(
            cpus is None or cpus >= 1,
            Finding("CPU limit", Level.OK, "none" if cpus is None else f"{cpus:g} CPUs"),
            f"{cpus or 0:g} CPUs in this control group: reads wait for the rest of each period",
            "allow one CPU or more, or set no limit",
        ),
        _warn_unless(
            not facts.updatedb_reads_mounts,
            Finding("updatedb", Level.OK, "no mount is read at night"),
            "updatedb reads every directory of each mount, each night",
            "add fuse.fastfuse to PRUNEFS in /etc/updatedb.conf",
        ),
    ]


def clock(skew_s: float | None) -> Finding:
    """Judge by how many seconds this machine's clock is ahead of the service's, None where that is not known."""
    if skew_s is None:
        return Finding("clock", Level.OK, "the service does not tell the time")
    found = f"{abs(skew_s):.0f} s {'ahead of' if skew_s > 0 else 'behind'} the service"
    if abs(skew_s) < _WORRYING_SKEW_S:
        return Finding("clock", Level.OK, found)
    level = Level.WARN if abs(skew_s) < _MOST_SKEW_S else Level.FAIL
    return Finding("clock", level, found, "set this machine's clock (timedatectl set-ntp true): S3 refuses 15 minutes")


def certificate(days_left: int) -> Finding:
    """Judge in how many days the service's certificate expires."""
    found = f"days until it expires: {days_left}"
    remedy = "renew it at the server or proxy, unless that does so by itself: reads fail from then on"
    return _warn_unless(days_left >= _LEAST_CERTIFICATE_DAYS, Finding("certificate", Level.OK, found), found, remedy)


def region(used: str, told: str) -> Finding:
    """Judge the region that requests are signed for by the one that the service tells, empty if it tells none."""
    if not told or told == used:
        return Finding("region", Level.OK, used)
    return Finding("region", Level.WARN, f"configured is {used}, but the bucket is in {told}", f"use --region {told}")


def network(net: Network, note: str, measured: Collection[str]) -> list[Finding]:
    """Judge the figures of `net` that were `measured`; `note` says why not all were."""
    found = []
    if "latency_s" in measured:
        first_byte = f"{net.latency_s * 1000:.0f} ms"
        found.append(
            _warn_unless(
                net.latency_s <= _FAR_S,
                Finding("first byte", Level.OK, first_byte),
                f"{first_byte}: the service is far away or busy",
                "run in the bucket's region; many readers and --training hide part of it",
            )
        )
    if "requests_per_s" in measured:
        found.append(Finding("small files", Level.OK, f"up to {net.requests_per_s:,.0f} files/s"))
    one, many = (f"{rate / 1e6:,.0f} MB/s" for rate in (net.connection_bytes_per_s, net.total_bytes_per_s))
    rates = f"one connection {one}, up to 24 at once {many}"
    if note:
        remedy = "name a prefix of larger objects, or look at the cause"
        return [*found, Finding("throughput", Level.WARN, note.rstrip("."), remedy)]
    found.append(
        _warn_unless(
            net.total_bytes_per_s >= _SLOW_BYTES_PER_S,
            Finding("throughput", Level.OK, rates),
            f"{rates}: the network or the service limits them",
            "look for a proxy, a NAT gateway, or the bandwidth of this kind of host",
        )
    )
    return found


def _warn_unless(is_well: bool, well: Finding, found: str, remedy: str) -> Finding:
    return well if is_well else Finding(well.check, Level.WARN, found, remedy)


def _fail_if(obstacle: tuple[str, str] | None, well: Finding) -> Finding:
    return well if obstacle is None else Finding(well.check, Level.FAIL, *obstacle)
