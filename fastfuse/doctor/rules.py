"""Decide what is well, what slows a mount down and what prevents it, from the facts of a machine. Pure."""

from dataclasses import dataclass
from enum import StrEnum

from fastfuse.sizes import MIB, format_size

__all__ = ["Facts", "Finding", "Level", "findings"]

_RESEND = (6, 9)
# A descriptor for each connection, and some for the mount itself.
_LEAST_FILES = 512
# A quarter of it is the least memory target, 128 MiB.
_LEAST_MEMORY_BYTES = 512 * MIB


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
    device_obstacle: tuple[str, str] | None
    rights_obstacle: tuple[str, str] | None
    has_sys_admin: bool
    fusermount: str | None
    may_allow_other: bool
    may_raise_readahead: bool
    open_files: int
    memory_limit_bytes: int | None


def findings(facts: Facts) -> list[Finding]:
    """Return a finding for each check, always in the same order."""
    kernel = f"Linux {facts.kernel[0]}.{facts.kernel[1]}"
    rights = "CAP_SYS_ADMIN: mounts by itself" if facts.has_sys_admin else "no CAP_SYS_ADMIN: fusermount3 mounts"
    memory = facts.memory_limit_bytes
    return [
        _warn_unless(
            facts.kernel >= _RESEND,
            Finding("kernel", Level.OK, f"{kernel}: FUSE can resend requests"),
            f"{kernel}: FUSE cannot resend requests, so reads fail that a worker's death interrupts",
            "use Linux 6.9 or later",
        ),
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
            "mount as root where sysfs is writable, or mount with --io direct",
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
    ]


def _warn_unless(is_well: bool, well: Finding, found: str, remedy: str) -> Finding:
    return well if is_well else Finding(well.check, Level.WARN, found, remedy)


def _fail_if(obstacle: tuple[str, str] | None, well: Finding) -> Finding:
    return well if obstacle is None else Finding(well.check, Level.FAIL, *obstacle)
