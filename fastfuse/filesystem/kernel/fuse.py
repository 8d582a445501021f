"""Load pyfuse3 after `interposed`, which stands between it and libfuse: import both from here only."""

import errno
import logging
import os
import sys

# So that pyfuse3 finds the functions of `interposed` where it looks for those of libfuse.
_flags = sys.getdlopenflags()
sys.setdlopenflags(_flags | os.RTLD_GLOBAL)
try:
    from fastfuse.filesystem.kernel import direct_reads, interposed, replies
finally:
    sys.setdlopenflags(_flags)

import pyfuse3  # noqa: E402 - not before


def _is_news(record: logging.LogRecord) -> bool:
    """Return False for an answer that the kernel needs no more: the worker that died with the request had given one."""
    return record.args != (os.strerror(errno.ENOENT),)


logging.getLogger("pyfuse3").addFilter(_is_news)

__all__ = ["direct_reads", "interposed", "pyfuse3", "replies"]
