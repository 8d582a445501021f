"""Sizes and times as people write and read them."""

import re
from fractions import Fraction
from typing import Final

from fastfuse.errors import ConfigurationError

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB

# Twenty digits: more is no size of anything, and too much for a float.
_SIZE: Final = re.compile(r"(\d{1,20}(?:\.\d{1,20})?)\s*([A-Za-z]*)", re.ASCII)
_PERCENT: Final = re.compile(r"(\d{1,20}(?:\.\d{1,20})?)\s*%", re.ASCII)
# As in dd and rclone: a bare letter is binary; `MB` is decimal, as disks and networks are sold.
_UNITS: Final = {"": 1, "b": 1} | {
    unit: factor
    for exponent, letter in enumerate("kmgt", start=1)
    for unit, factor in (
        (letter, KIB**exponent),
        (f"{letter}ib", KIB**exponent),
        (f"{letter}b", 1000**exponent),
    )
}


def parse_size(text: str, option: str = "") -> int:
    """Bytes of ``8MiB``, ``8M`` (the same), ``8MB`` (8 000 000), ``1.5GiB`` or ``4096``, rounded down.

    The error names the `option` that has the value.

    Raises:
        ConfigurationError: `text` is none of these.
    """
    match = _SIZE.fullmatch(text.strip())
    factor = _UNITS.get(match[2].lower()) if match else None
    if match is None or factor is None:
        raise ConfigurationError(
            f"{option} {text!r} is not a size".lstrip(), hint="write it as 8MiB, 2GiB or a number of bytes"
        )
    return int(Fraction(match[1]) * factor)


def parse_share(text: str, whole_bytes: int, option: str) -> int:
    """Return the bytes of a size, or of a percentage of `whole_bytes`, rounded down.

    Raises:
        ConfigurationError: `text` is neither.
    """
    percent = _PERCENT.fullmatch(text.strip())
    return int(whole_bytes * Fraction(percent[1]) / 100) if percent else parse_size(text, option)


def format_size(size_bytes: int) -> str:
    """`size_bytes` in the largest binary unit that it fills, with at most one decimal."""
    for factor, unit in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if size_bytes >= factor:
            return f"{size_bytes / factor:.1f}".removesuffix(".0") + f" {unit}"
    return f"{size_bytes} B"


def format_duration(seconds: float) -> str:
    """Return a time in its two largest units."""
    left = max(0, int(seconds))
    units = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))
    parts: list[str] = []
    for unit, size in units:
        if left >= size or (unit == "s" and not parts):
            parts.append(f"{left // size} {unit}")
        left %= size
    return " ".join(parts[:2])


def three_digits(number: float) -> str:
    """Return a number with three digits, or with all that it has before its point."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"
