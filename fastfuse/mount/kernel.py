"""What the kernel is told about a mount once it stands.

The kernel's own readahead decides how many bytes a buffered reader has on the way: with the default of 128 KiB a reader
has two requests of 128 KiB in flight, which is 42 MB/s at 5 ms a read; with 4 MiB it was 757 MB/s. Mount options cannot
set it (libfuse refuses ``max_readahead``), only the bdi's file in sysfs can, and only root may write that.
"""

import logging
from pathlib import Path

__all__ = ["raise_readahead"]

_log = logging.getLogger(__name__)

_BDI = Path("/sys/class/bdi")

# Four requests of 1 MiB ahead of the reader: enough to hide one part's delivery, not so much that a random reader of a
# mapped file drags in megabytes (the kernel scales it down for those itself).
READ_AHEAD_KIB = 4096


def raise_readahead(device: str, *, directory: Path = _BDI) -> bool:
    """Set the readahead of the mount with the bdi `device` (``major:minor``); False where that is not permitted."""
    setting = directory / device / "read_ahead_kb"
    try:
        setting.write_text(str(READ_AHEAD_KIB))
    except OSError as error:
        _log.warning(
            "the kernel reads ahead only 128 KiB, and one reader gets tens of MB/s instead of hundreds: "
            "%s cannot be written (%s); let root write %d there, or run where sysfs is writable",
            setting,
            error.strerror,
            READ_AHEAD_KIB,
        )
        return False
    return True
