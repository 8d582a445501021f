"""The FUSE side: one supervisor that owns the mount, one worker that serves it. pyfuse3 is imported here only."""
