"""The inode table: keys in, a frozen tree in columns out. Pure: no I/O, no clock, no FUSE."""
