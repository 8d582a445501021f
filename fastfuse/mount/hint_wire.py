"""What is said between `fastfuse.hints` and the worker, over a stream socket (`mount.sockets`).

The worker greets with `SERVED`, or with `REFUSED` and the end. Then the client sends paths below the mountpoint, each
ended by a NUL, as fast as they are taken. If it closes its side of the connection (shutdown(2)), that was the whole
order, and the worker says `TAKEN` once it has announced the last path. If it hangs up, the order is withdrawn.
"""

__all__ = ["MAX_PATH_BYTES", "REFUSED", "SERVED", "TAKEN", "PathTooLongError", "socket_prefix", "split_paths"]

SERVED = b"+"
REFUSED = b"-"
TAKEN = b"."

# A key has no more (https://docs.aws.amazon.com/AmazonS3/latest/userguide/object-keys.html).
MAX_PATH_BYTES = 1024


class PathTooLongError(Exception):
    """What is received is no order of files."""


def socket_prefix(device: str) -> str:
    """How the names of the sockets begin that take the hints of the mount with this ``major:minor``."""
    return f"fastfuse-hints-{device}"


def split_paths(rest: bytes, received: bytes) -> tuple[list[bytes], bytes]:
    """The paths that end in `received`, and the `rest` to come before what is received next.

    Raises:
        PathTooLongError: a path is longer than any key.
    """
    *paths, rest = (rest + received).split(b"\0")
    if any(len(path) > MAX_PATH_BYTES for path in (*paths, rest)):
        raise PathTooLongError(f"a path has more than {MAX_PATH_BYTES} bytes")
    return paths, rest
