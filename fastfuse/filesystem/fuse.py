"""Load pyfuse3 after `filesystem.interposed`, which stands between it and libfuse: import both from here only."""

import os
import sys

# So that pyfuse3 finds the functions of `interposed` where it looks for those of libfuse.
_flags = sys.getdlopenflags()
sys.setdlopenflags(_flags | os.RTLD_GLOBAL)
try:
    from fastfuse.filesystem import direct_reads, interposed, replies
finally:
    sys.setdlopenflags(_flags)

import pyfuse3  # noqa: E402 - not before

__all__ = ["direct_reads", "interposed", "pyfuse3", "replies"]
