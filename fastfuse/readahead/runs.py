"""The runs of one file that a read could continue. Pure."""

from collections.abc import Iterator

from fastfuse.readahead.cursor import Cursor, RunLengths

# Readers at different places and early requests that are told apart: Linux has 12 background requests by default.
# Sequential readers, also those that have finished, and others do not displace one another.
_MAX_SEQUENTIAL, _MAX_OTHERS = 16, 24
# Most likely a run is over that was not read during so many reads of the file.
_IDLE_READS = 64
# A run longer than this, met by another cursor, is a second reader and no early request: the kernel has less than this
# of its readahead in flight for one file (read_ahead_kb twice, where an administrator has set 8 MiB).
_REORDERED_BYTES = 16 << 20


class Runs(dict[int, Cursor]):
    """Runs by the position where each goes on, least recently read first."""

    def take(self, offset: int, end: int) -> Cursor | None:
        """Take the run that a read of ``[offset, end)`` continues off the books, to be put back; None: it begins one.

        The run goes on where it ends, or some bytes further on. One of unknown kind may go down from where it begins.
        """
        run = self.pop(offset, None)
        if run is not None:
            run.ascend(end)
            return run
        for run in self.values():
            if run.begin == end and not run.sequential:
                run.descend(offset)
                return self.pop(run.position)
        for run in self.values():
            # The call takes as long as all else here, and most runs are elsewhere.
            if run.begin < offset < run.position + end - offset and run.skips_to(offset, end):
                del self[run.position]
                run.skip(offset, end)
                return run
        return None

    def merge(self, cursor: Cursor) -> Cursor:
        """Absorb early requests that `cursor` has reached. Return it, or a longer run that was here before."""
        other: Cursor | None = cursor
        while other is not None:
            near = (run for run in self.values() if run.begin == cursor.position)
            other = next((run for run in near if run.run_bytes <= _REORDERED_BYTES), None)
            if other is not None:
                del self[other.position]
                cursor.absorb(other)
        twin = self.pop(cursor.position, None)
        if twin is not None and twin.run_bytes >= cursor.run_bytes:
            cursor, twin = twin, cursor
        if twin is not None:
            twin.stride = None
            if twin.pace is not None:
                twin.pace.joined_another()
        return cursor

    def make_room(self, reads: int, lengths: RunLengths) -> Iterator[Cursor]:
        """Note the `lengths` of runs that are over, after so many `reads` of the file.

        Yield the least recent run of each kind that has no place for another, which is forgotten.
        """
        for run in self.values():
            if run.read_at <= reads - _IDLE_READS:
                lengths.ended(run)
        for is_sequential, most in ((True, _MAX_SEQUENTIAL), (False, _MAX_OTHERS)):
            alike = [run for run in self.values() if run.sequential == is_sequential]
            if len(alike) >= most:
                run = self.pop(alike[0].position)
                run.stride = None  # or each stride would keep the one before it for ever
                lengths.ended(run)
                yield run
