"""Divide a range into the pieces that are kept and those that are missing. Pure."""

from collections.abc import Iterable, Sequence

from fastfuse.cache.catalog import Extent


def pieces(extents: Sequence[Extent], start: int, end: int) -> list[tuple[Extent, int, int]]:
    """Return what each extent, in order of their starts, gives of ``[start, end)``, so that no byte is given twice."""
    found, at = [], start
    for extent in extents:
        piece_start, piece_end = max(at, extent.start), min(end, extent.end)
        if piece_start < piece_end:
            found.append((extent, piece_start, piece_end))
            at = piece_end
    return found


def gaps(there: Iterable[Extent | tuple[int, int]], start: int, end: int) -> list[tuple[int, int]]:
    """Return what of ``[start, end)`` lies in none of the ranges that are `there`, in order."""
    missing, at = [], start
    for range_start, range_end in sorted(one[:2] for one in there):
        if at < min(range_start, end):
            missing.append((at, min(range_start, end)))
        at = max(at, range_end)
    return [*missing, *([(at, end)] if at < end else [])]
