"""What the channels of a job still have to write, so that who looks whether its own fits counts the others in.

Each of two channels may fit on a disk that has no room for both. A claim is made before the disk is looked at: of two
channels that look at the same moment at least one sees the other.
"""

import mmap

__all__ = ["DiskClaim", "DiskClaims"]

# Of each place: the device, and bytes.
_FIELDS = 2
_FIELD_BYTES = 8
_MAX_CLAIM_BYTES = (1 << 63) - 1  # no disk has as many


class DiskClaims:
    """One place for each channel, in memory that is shared with every process forked from here."""

    def __init__(self, places: int) -> None:
        memory = mmap.mmap(-1, places * _FIELDS * _FIELD_BYTES)
        # Each place has one writer.
        self._values = memoryview(memory).cast("q")

    def claim(self, place: int) -> "DiskClaim":
        """What belongs to the channel at `place`; nothing as yet."""
        return DiskClaim(self, place)

    def put(self, place: int, device: int, size_bytes: int) -> None:
        self._values[_FIELDS * place] = device
        self._values[_FIELDS * place + 1] = min(size_bytes, _MAX_CLAIM_BYTES)

    def total_bytes(self, device: int, *, but: int) -> int:
        """What is claimed on `device`, the place `but` left out."""
        places = range(0, len(self._values), _FIELDS)
        return sum(self._values[at + 1] for at in places if at != _FIELDS * but and self._values[at] == device)


class DiskClaim:
    """One channel's place."""

    def __init__(self, claims: DiskClaims, place: int) -> None:
        self._claims = claims
        self._place = place
        self._device = self._size_bytes = 0

    def put(self, device: int, size_bytes: int) -> None:
        """So much will be written to `device`, as ``st_dev`` tells it."""
        self._device, self._size_bytes = device, size_bytes
        self._claims.put(self._place, device, size_bytes)

    def shrink(self, share: float) -> None:
        """Of that, `share` is still to be written: from 1 to 0."""
        self._claims.put(self._place, self._device, int(share * self._size_bytes))

    @property
    def others_bytes(self) -> int:
        """What the other channels still have to write there."""
        return self._claims.total_bytes(self._device, but=self._place)
