"""Which files are being read, and so how much readahead each may have. Pure: time is counted in bytes fetched."""

from fastfuse.readahead.parts import FileParts

__all__ = ["FairShare"]


class FairShare:
    """Divides `total_bytes` of readahead between the files that are being read.

    A file is idle when all files together have fetched `idle_after_bytes` since it was last read: by then others have
    had the use of the whole memory, while in a pause of everybody nobody becomes idle.
    """

    __slots__ = ("_idle_after_bytes", "_last_read_at", "_total_bytes", "share_bytes")

    def __init__(self, total_bytes: int, idle_after_bytes: int) -> None:
        self._total_bytes = total_bytes
        self._idle_after_bytes = idle_after_bytes
        # By time of the last read, oldest first.
        self._last_read_at: dict[FileParts, int] = {}
        self.share_bytes = total_bytes

    @property
    def active(self) -> int:
        """Files being read; at least 1."""
        return len(self._last_read_at) or 1

    def touch(self, file: FileParts, fetched_bytes: int) -> list[FileParts]:
        """`file` is read at the time `fetched_bytes`: the files that have become idle by now."""
        reads = self._last_read_at
        reads.pop(file, None)
        reads[file] = fetched_bytes
        idle = []
        for other, last_read_at in reads.items():
            if fetched_bytes - last_read_at <= self._idle_after_bytes:
                break
            idle.append(other)
        for other in idle:
            del reads[other]
        self.share_bytes = self._total_bytes // len(reads)
        return idle

    def forget(self, file: FileParts) -> None:
        """`file` is closed."""
        self._last_read_at.pop(file, None)
        self.share_bytes = self._total_bytes // self.active
