"""The read engine: keeps ranged GETs ahead of the readers.

`engine` is the seam to the FUSE layer; `window` decides (pure: where by `cursor` and `runs`, how far ahead by `pace`
and `load`), `stream` carries out, `pool` owns the memory.
"""

from fastfuse.readahead.engine import ReadEngine
from fastfuse.readahead.ranges import part_ranges
from fastfuse.readahead.readahead_config import ReadaheadConfig
from fastfuse.readahead.statistics import ReadStatistics

__all__ = ["ReadEngine", "ReadStatistics", "ReadaheadConfig", "part_ranges"]
