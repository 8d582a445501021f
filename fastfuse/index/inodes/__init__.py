"""The inode table: turns keys into a frozen tree in columns. Pure: no I/O, no clock, no FUSE."""
