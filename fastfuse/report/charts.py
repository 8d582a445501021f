"""Draws lines over time as SVG, with pygal: without scripts, and in the colours and sizes of the page's style sheet."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any
from xml.etree import ElementTree

from fastfuse.errors import ConfigurationError

__all__ = ["Line", "chart", "check_installed"]

# A name, and its points: seconds since 1970 and a number, or None where there is none.
Line = tuple[str, Sequence[tuple[float, float | None]]]

# Width, height and the most labels of time. A phone shows the second: letters would be too small in the first.
_SIZES = {"wide": (1000, 240, 9), "narrow": (380, 240, 4)}
_STEPS_S = (1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 43200, 86400)
# As in the style sheet: pygal leaves room for labels of this size.
_FONT_PX = 14
# Nobody can point at them without a script.
_OF_SCRIPTS = ("overlay", "text-overlay", "tooltip-overlay")


def check_installed() -> None:
    """Import the library that draws.

    Raises:
        ConfigurationError: the library that draws is not installed.
    """
    try:
        import pygal  # noqa: F401
    except ImportError:
        raise ConfigurationError(
            "a report takes pygal, which is not installed", hint="pip install 'fastfuse[report]'"
        ) from None


def chart(title: str, unit: str, lines: Sequence[Line]) -> str:
    """Return a chart twice, for wide and for narrow screens, of which the style sheet shows one."""
    return "".join(_svg(size, title, unit, lines) for size in _SIZES)


def _svg(size: str, title: str, unit: str, lines: Sequence[Line]) -> str:
    import pygal
    from pygal.style import Style

    width, height, most_labels = _SIZES[size]
    times = [at for _, points in lines for at, _ in points]
    fonts = dict.fromkeys(("label_font_size", "major_label_font_size"), _FONT_PX)
    drawn = pygal.XY(
        width=width,
        height=height,
        margin=10,
        style=Style(**fonts),
        css=(),
        js=(),
        show_dots=False,
        show_legend=False,
        include_x_axis=True,
        min_scale=2,
        max_scale=4,
        xrange=(times[0], times[-1]) if times else None,
        value_formatter=_label,
        x_value_formatter=_clock(times),
        x_labels=_ticks(times, most_labels),
        disable_xml_declaration=True,
        no_data_text="",
    )
    for name, points in lines:
        drawn.add(name, [*points])
    root = drawn.render_tree()
    return _cleaned(root, f"plot {size}", f"{title} ({unit})")


def _cleaned(root: Any, classes: str, title: str) -> str:  # noqa: ANN401 -- an element of whichever etree pygal uses
    """Return the SVG without scripts, styles and what needs them."""
    for parent in [*root.iter()]:
        for child in [*parent]:
            name = child.tag.rpartition("}")[2] if isinstance(child.tag, str) else "comment"
            # Titles within show a number that the axis shows.
            is_of_scripts = set(child.get("class", "").split()) & {*_OF_SCRIPTS} if name != "comment" else True
            if name in {"script", "style", "defs", "title"} or is_of_scripts:
                parent.remove(child)
    root.set("class", classes)
    root.set("role", "img")
    root.set("aria-label", title)
    root.attrib.pop("id", None)
    return ElementTree.tostring(root, encoding="unicode", short_empty_elements=True)


def _label(number: float) -> str:
    # All labels are as wide as one another, so the charts of a page have their times below each other.
    return (f"{number:,.0f}" if number >= 1000 else f"{number:.3g}").rjust(6, "\N{FIGURE SPACE}")


def _ticks(times: Sequence[float], most: int) -> list[float]:
    """Return round times of the day, at most so many."""
    if not times:
        return []
    first, last = times[0], times[-1]
    step_s = next((step for step in _STEPS_S if (last - first) / step <= most - 1), (last - first) / (most - 1))
    tick = -(-first // step_s) * step_s
    ticks = []
    while tick <= last:
        ticks.append(tick)
        tick += step_s
    return ticks


def _clock(times: Sequence[float]) -> Any:  # noqa: ANN401 -- what pygal calls
    length_s = times[-1] - times[0] if times else 0
    pattern = "%H:%M:%S" if length_s < 600 else "%H:%M" if length_s < 86400 else "%d %H:%M"
    return lambda at: datetime.fromtimestamp(at, UTC).strftime(pattern)
