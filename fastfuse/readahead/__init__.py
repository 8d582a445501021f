"""The read engine: keeps ranged GETs ahead of the readers.

`engine` is the seam to the FUSE layer. A file is *begun* by its first read. `window` decides what to fetch of a file
that is read (pure: where by `cursor`, how far ahead by `pace`), and `stream` carries it out. `prefetch` does both for
files that are not begun yet. `pool` owns the memory, and `fetches` makes the GETs.
"""

from fastfuse.readahead.engine import ReadEngine
from fastfuse.readahead.limits import ReadaheadConfig
from fastfuse.readahead.ranges import opening_ends, part_ranges

__all__ = ["ReadEngine", "ReadaheadConfig", "opening_ends", "part_ranges"]
