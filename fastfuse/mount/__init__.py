"""The FUSE side: one supervisor that owns the mount, one worker that serves it. pyfuse3 is imported here only."""

import os
import sys

# Before pyfuse3, and visible to it: see there.
_flags = sys.getdlopenflags()
sys.setdlopenflags(_flags | os.RTLD_GLOBAL)
try:
    from fastfuse.mount import interposed as interposed
finally:
    sys.setdlopenflags(_flags)
