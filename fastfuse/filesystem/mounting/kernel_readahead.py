"""The kernel's readahead of a mount: libfuse refuses its mount option, so only the bdi's file in sysfs can set it."""

import logging
from pathlib import Path

_log = logging.getLogger(__name__)

_BDI = Path("/sys/class/bdi")

# One request of 1 MiB ahead of the reader: more bring it nothing, and each page fault of a map asks for as much around
# it. The kernel takes it over as a file is opened, so it cannot follow a reader. docs/MEASUREMENTS.md, "Mount".
READ_AHEAD_KIB = 1024


def raise_readahead(device: str, *, directory: Path = _BDI) -> None:
    """Set the kernel's readahead of the mount with the bdi `device` (``major:minor``).

    Warn if that is not permitted. Who made the mount for us may have set it.
    """
    setting = directory / device / "read_ahead_kb"
    if readahead_kib(device, directory=directory) == READ_AHEAD_KIB:
        return
    try:
        setting.write_text(str(READ_AHEAD_KIB))
    except OSError as error:
        _log.warning(
            "the kernel reads ahead only 128 KiB, which costs readers of large files a third of their speed: "
            "%s cannot be written (%s); let root write %d there, or run where sysfs is writable",
            setting,
            error.strerror,
            READ_AHEAD_KIB,
        )


def readahead_kib(device: str, *, directory: Path = _BDI) -> int:
    """Return the kernel's readahead of the mount with the bdi `device`, or 0 where it cannot be known."""
    try:
        return int((directory / device / "read_ahead_kb").read_text())
    except (OSError, ValueError):
        return 0
