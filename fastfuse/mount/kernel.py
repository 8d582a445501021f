"""What the kernel is told about a mount once it stands.

The kernel's own readahead decides how much it asks us for at once: 128 KiB by default, 1 MiB with 4 MiB of it. Mount
options cannot set it (libfuse refuses ``max_readahead``), only the bdi's file in sysfs can, and only root may write
that. Where it cannot be written, what else there is was measured against it: a loopback server with two workers and
the mount on four shared cores, medians in MB/s of one reader with reads of 16 KiB, 128 KiB and 1 MiB, and of four
readers with 1 MiB.

=====================================================  ======  =======  =====  =====
..                                                     16 KiB  128 KiB  1 MiB  4 x 1
=====================================================  ======  =======  =====  =====
page cache, readahead of 4 MiB                            608     1241   1214   1287
page cache, readahead of 128 KiB                          515      816    778    715
past the page cache (FOPEN_DIRECT_IO)                     205      810    929   1022
=====================================================  ======  =======  =====  =====

With 20 ms to the first byte and 90 MB/s a connection they were 215, 576, 569 and 1017; 161, 432, 407 and 776; 144, 447,
513 and 1091. Past the page cache wins with reads of 1 MiB (1.2 times, and 1.4 with four readers), changes nothing with
the 128 KiB that `open` of Python and of C read (`st_blksize`), and loses with less; all of it is fetched again in the
next epoch. The size of its reads is not known when a file is opened. So ``auto`` keeps the page cache, and says what to
do. Pushing parts into it before they are asked for (`pyfuse3.notify_store`) is slower than both: 1.5 GB/s from memory,
where 128 KiB at a time read 1.9 and past the page cache 2.8 to 5.0.
"""

import logging
from pathlib import Path

__all__ = ["raise_readahead"]

_log = logging.getLogger(__name__)

_BDI = Path("/sys/class/bdi")

# Four requests of 1 MiB ahead of the reader: enough to hide one part's delivery, not so much that a random reader of a
# mapped file drags in megabytes (the kernel scales it down for those itself).
READ_AHEAD_KIB = 4096


def raise_readahead(device: str, *, level: int = logging.WARNING, directory: Path = _BDI) -> bool:
    """Set the readahead of the mount with the bdi `device` (``major:minor``).

    False where that is not permitted, which is logged with `level`.
    """
    setting = directory / device / "read_ahead_kb"
    try:
        setting.write_text(str(READ_AHEAD_KIB))
    except OSError as error:
        _log.log(
            level,
            "the kernel reads ahead only 128 KiB, which costs readers of large files a third of their speed: "
            "%s cannot be written (%s); let root write %d there, run where sysfs is writable, or, for files that are "
            "read once and in pieces of 1 MiB or more, mount with --io direct",
            setting,
            error.strerror,
            READ_AHEAD_KIB,
        )
        return False
    return True
