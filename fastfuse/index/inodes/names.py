"""Which keys can be shown as paths, and why the others cannot (clauses N2-N4)."""

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum

__all__ = ["MAX_NAME_BYTES", "Reason", "Refusals", "reason_to_refuse"]

MAX_NAME_BYTES = 255  # NAME_MAX of Linux

# `--strict` names the first ten, the log as many: enough to see the pattern, never a log full of hostile keys.
_EXAMPLES = 10


class Reason(StrEnum):
    """Why a key is left out, in the words of the log line."""

    EMPTY_SEGMENT = "an empty path segment"
    DOT_SEGMENT = "a '.' or '..' path segment"
    NUL = "a NUL character"
    TOO_LONG = "a path segment over 255 bytes"
    NOT_UTF8 = "bytes that are not UTF-8"
    MARKER_WITH_DATA = "a directory marker that is not empty"
    SHADOWED = "a file with the same name as a directory"
    MADE_SHADOWED = "the name of an object, and is none itself"


@dataclass(slots=True)
class Refusals:
    """Keys left out: how many for each reason, and the first few with their exact bytes."""

    counts: Counter[Reason] = field(default_factory=Counter)
    examples: list[tuple[bytes, Reason]] = field(default_factory=list)

    def add(self, key: bytes, reason: Reason) -> None:
        self.counts[reason] += 1
        if len(self.examples) < _EXAMPLES:
            self.examples.append((key, reason))

    @property
    def total(self) -> int:
        return self.counts.total()


def reason_to_refuse(path: bytes) -> Reason | None:
    """Why `path`, a key without its prefix, cannot be a path of the mount; None if it can.

    A trailing ``/`` is no empty segment: whether it marks a directory (N3) depends on the object's size.
    """
    if b"\0" in path:
        return Reason.NUL
    segments = path.removesuffix(b"/").split(b"/")
    if b"" in segments:
        return Reason.EMPTY_SEGMENT
    if b"." in segments or b".." in segments:
        return Reason.DOT_SEGMENT
    if max(map(len, segments)) > MAX_NAME_BYTES:
        return Reason.TOO_LONG
    try:
        path.decode()
    except UnicodeDecodeError:
        return Reason.NOT_UTF8
    return None
