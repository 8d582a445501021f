"""What several modules write to the kernel and read from it as it is, beside libfuse: <linux/fuse.h>."""

import struct

__all__ = ["OUT_HEADER"]

# fuse_out_header: the length of all, the error or the notification's code, and the number of the request or 0.
OUT_HEADER = struct.Struct("=IiQ")
