"""What a worker shows of itself: one JSON object in memory that the supervisor can read at any time.

One process writes at a time. A reader never waits for it: the version is odd while it writes, and a writer that died
then leaves it odd until the next one writes.
"""

import json
import mmap
import struct
from typing import Any

__all__ = ["Board"]

_HEAD = struct.Struct("=II")  # version, length of the text
_MOST_BYTES = 64 << 10
_TRIES = 20


class Board:
    """Made by the supervisor; the workers inherit it."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _HEAD.size + _MOST_BYTES)
        self._shown: bytes = b""

    def show(self, value: dict[str, Any]) -> None:
        """Replace what is shown by `value`, which has at most 64 KiB as JSON; a longer one is not shown."""
        text = json.dumps(value).encode()
        if text == self._shown or len(text) > _MOST_BYTES:
            return
        self._shown = text
        version = _HEAD.unpack_from(self._memory)[0] | 1
        _HEAD.pack_into(self._memory, 0, version, 0)
        self._memory[_HEAD.size : _HEAD.size + len(text)] = text
        _HEAD.pack_into(self._memory, 0, (version + 1) & 0xFFFFFFFF, len(text))

    def read(self) -> dict[str, Any]:
        """Return what is shown, or nothing if it is being written or was never written."""
        for _ in range(_TRIES):
            version, length = _HEAD.unpack_from(self._memory)
            text = self._memory[_HEAD.size : _HEAD.size + length]
            if length and not version & 1 and _HEAD.unpack_from(self._memory)[0] == version:
                value: dict[str, Any] = json.loads(text)
                return value
        return {}
