"""The page of a record: HTML that needs nothing else, without scripts. Each figure of a chart is in a table, too.

pygal draws lines over time as SVG, without scripts, and in the colours and sizes of the page's style sheet.
"""

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from html import escape
from importlib.resources import files
from typing import Any, Final, NamedTuple
from xml.etree import ElementTree

import pygal
from pygal.style import Style

from fastfuse.filesystem.figures.recorder import samples_of
from fastfuse.filesystem.figures.verdict import Figures, judge
from fastfuse.metrics import Counters
from fastfuse.report.intervals import Interval, figures, intervals
from fastfuse.report.records import ChannelRecord, Job, Record
from fastfuse.sizes import MIB, format_duration, format_size, three_digits

# A shorter phase has no room for its name on a phone; the table has it.
_LABELLED: Final = 0.2


# The heading of a line in a chart and of a column in the table, and its number in an interval, if there is one.
_Column = tuple[str, Callable[[Interval], float | None]]


def _rate(name: str) -> Callable[[Interval], float | None]:
    return lambda it: float(getattr(it.figures, name)) / 1e6 / it.figures.elapsed_s


def _ms(name: str) -> Callable[[Interval], float | None]:
    return lambda it: getattr(it.figures, name) * 1000 or None


class _Chart(NamedTuple):
    title: str
    unit: str
    columns: tuple[_Column, ...]
    text: str


_CHARTS: Final = (
    _Chart(
        "Throughput",
        "MB/s",
        (("read", _rate("served_bytes")), ("from S3", _rate("fetched_bytes"))),
        "Bytes handed to readers, and bytes that came from S3. What the page cache serves is in neither.",
    ),
    _Chart(
        "Readers waiting",
        "at a time",
        (("readers", lambda it: it.figures.blocked_s / it.figures.elapsed_s),),
        "How many readers waited for data at a time, on average over each interval.",
    ),
    _Chart(
        "Memory",
        "MiB",
        (("held", lambda it: it.held_bytes / MIB), ("target", lambda it: it.figures.memory_target_bytes / MIB)),
        "Bytes of data held or on their way at the end of each interval, and what --memory-target allows.",
    ),
    _Chart(
        "Time to the first byte of a GET",
        "ms",
        (("p50", _ms("first_byte_p50_s")), ("p99", _ms("first_byte_p99_s"))),
        "Half of the GETs of an interval took at most p50, 99 % at most p99; estimated from a histogram.",
    ),
    _Chart(
        "Failures",
        "per interval",
        (
            ("failed reads", lambda it: it.figures.failed_reads),
            ("retries", lambda it: it.figures.throttled + it.figures.retried),
        ),
        "Reads that failed, and requests to S3 that were tried again.",
    ),
)


def page(record: Record) -> str:
    """Return the page of a record."""
    job = record.job or Job()
    title, state = job.name or record.mountpoint or "job", job.status or record.state
    start = min(channel.at[0] for channel in record.channels)
    end = max(channel.at[-1] for channel in record.channels)
    style = files("fastfuse.report").joinpath("style.css").read_text("utf-8")
    body = [
        f"<header><h1>{escape(title)}</h1>",
        f"<p>{_moment(start)} to {_moment(end)} UTC ({format_duration(end - start)}), "
        f"<b id='state'>{escape(state)}</b>, fastfuse {escape(record.version)}</p></header>",
        *_phases(record.phases, end),
        *(part for channel in record.channels for part in _channel(channel)),
        *_errors(record.errors, job.failure),
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        # Whatever a record holds, nothing is loaded and nothing runs.
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)} – fastfuse</title><style>{style}</style></head>\n<body>\n"
        + "\n".join(body)
        + "\n</body></html>\n"
    )


def _channel(channel: ChannelRecord) -> Iterator[str]:
    samples = samples_of(channel.at, channel.numbers)
    total, pieces, last = figures(samples), intervals(samples), samples[-1][1]
    verdict = judge(total, channel.mode)
    name = f"{channel.name} ({channel.mode}) " if channel.name else ""
    yield f"<section data-channel='{escape(channel.name)}'><h2>{escape(name)}<code>{escape(channel.source)}</code></h2>"
    yield (
        f"<div class='verdict {'well' if verdict.name == 'not waiting' else ''}'><h3>{escape(verdict.name)}</h3>"
        f"<p>{escape(verdict.text)}.</p><p>What helps: {escape(verdict.advice)}.</p></div>"
    )
    tiles = (f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in _figures(total, last).items())
    yield f"<dl>{''.join(tiles)}</dl>"
    drawn = [one for one in _CHARTS if any(one.columns[0][1](it) or one.columns[-1][1](it) for it in pieces)]
    yield from (_figure(one, pieces) for one in drawn)
    yield _table(drawn, pieces)
    yield "</section>"


def _figures(it: Figures, last: Counters) -> dict[str, str]:
    shown = {
        "Read": format_size(it.served_bytes),
        "Fetched": format_size(it.fetched_bytes),
        "GETs": f"{it.gets - it.refused:,}" + (f" and {it.refused:,} refused" if it.refused else ""),
        "GETs cost": f"${it.cost_usd:.{4 if it.cost_usd >= 0.01 else 6}f}",
        "Readers waited": f"{it.stalled_share:.1%} of {format_duration(it.in_use_s)} in use",
        "Read, p50 and p99": _times(it.read_p50_s, it.read_p99_s),
        "GET's first byte, p50 and p99": _times(it.first_byte_p50_s, it.first_byte_p99_s),
        "Parts ahead of readers": f"{it.foreseen_share:.0%}" if it.parts else "",
        "Reads that waited for nothing": f"{it.hit_share:.0%}" if it.hits + it.misses else "",
        "Files of the source": f"{it.files:,}, {format_size(it.total_bytes)}" if it.files else "",
        "Tried again": f"{it.throttled + it.retried:,}",
        "Failed reads": f"{it.failed_reads:,}",
        "Workers replaced": f"{last.get('fastfuse_worker_respawns'):,}",
    }
    return {name: value for name, value in shown.items() if value}


def _figure(drawn: _Chart, pieces: Sequence[Interval]) -> str:
    lines: list[_Line] = [(heading, [(it.end, number(it)) for it in pieces]) for heading, number in drawn.columns]
    keys = []
    for number, (name, points) in enumerate(lines):
        found = [value for _, value in points if value is not None]
        most = f"at most {three_digits(max(found))} {drawn.unit}" if found else "none"
        keys.append(f"<span class='key key-{number}'>{name}: {most}</span>")
    # One is for wide screens and one for narrow ones: the style sheet shows one.
    svg = "".join(_svg(size, drawn.title, drawn.unit, lines) for size in _SIZES)
    return (
        f"<figure><h3>{drawn.title}, {drawn.unit}</h3>{svg}"
        f"<figcaption>{' '.join(keys)}<br>{drawn.text}</figcaption></figure>"
    )


def _table(drawn: Sequence[_Chart], pieces: Sequence[Interval]) -> str:
    columns = [(one.unit, *column) for one in drawn for column in one.columns]
    heads = "".join(f"<th scope='col'>{heading}, {unit}</th>" for unit, heading, _ in columns)
    rows = []
    for piece in pieces:
        numbers = (number(piece) for *_, number in columns)
        cells = "".join(f"<td>{'' if number is None else three_digits(number)}</td>" for number in numbers)
        rows.append(f"<tr><th scope='row'>{_moment(piece.end)}</th>{cells}</tr>")
    return (
        "<details><summary>All figures as a table</summary><div class='wide-table'><table>"
        f"<thead><tr><th scope='col'>until (UTC)</th>{heads}</tr></thead><tbody>{''.join(rows)}</tbody>"
        "</table></div></details>"
    )


def _phases(phases: Sequence[tuple[str, float]], end: float) -> Iterator[str]:
    """Yield the phases of a job, each as long as it took."""
    if not phases:
        return
    ends = [*(at for _, at in phases[1:]), max(end, phases[-1][1])]
    spans = [(name, until - at) for (name, at), until in zip(phases, ends, strict=True) if until > at]
    yield "<section><h2>Phases</h2><div class='phases' aria-hidden='true'>"
    whole_s = sum(took_s for _, took_s in spans)
    for name, took_s in spans:
        label = escape(name) if took_s > _LABELLED * whole_s else "&nbsp;"
        yield f"<span style='flex-grow:{took_s:.1f}'>{label}</span>"
    rows = "".join(
        f"<tr><th scope='row'>{escape(name)}</th><td>{format_duration(took)}</td></tr>" for name, took in spans
    )
    yield f"</div><table class='phase-table'>{rows}</table></section>"


def _errors(errors: Sequence[tuple[float, str]], reason: str) -> Iterator[str]:
    lines = [*([reason] if reason else []), *(f"{_moment(at)} {text}" for at, text in errors)]
    if lines:
        items = "".join(f"<li>{escape(line)}</li>" for line in lines)
        yield f"<section><h2>Last errors</h2><ul class='errors'>{items}</ul></section>"


def _times(*seconds: float) -> str:
    return ", ".join(f"{three_digits(one * 1000)} ms" for one in seconds)


def _moment(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S")


# A name, and its points: seconds since 1970 and a number, or None where there is none.
_Line = tuple[str, Sequence[tuple[float, float | None]]]

# Width, height and the most labels of time. A phone shows the second: letters would be too small in the first.
_SIZES = {"wide": (1000, 240, 9), "narrow": (380, 240, 4)}
_STEPS_S = (1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 43200, 86400)
# The size in the style sheet: pygal leaves room for such labels.
_FONT_PX = 14
# Nobody can point at them without a script.
_OF_SCRIPTS = {"overlay", "text-overlay", "tooltip-overlay"}


def _svg(size: str, title: str, unit: str, lines: Sequence[_Line]) -> str:
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
        xrange=(times[0], times[-1]),
        value_formatter=_label,
        x_value_formatter=_clock(times),
        x_labels=_ticks(times, most_labels),
        disable_xml_declaration=True,
    )
    for name, points in lines:
        drawn.add(name, [*points])
    root = drawn.render_tree()
    return _cleaned(root, f"plot {size}", f"{title} ({unit})")


def _cleaned(root: Any, classes: str, title: str) -> str:  # noqa: ANN401 -- an element of whichever etree pygal uses
    """Return the SVG without scripts, styles and what needs them."""
    for parent in [*root.iter()]:
        for child in [*parent]:
            # A comment's tag is no text. Titles within show a number that the axis shows.
            name = child.tag.rpartition("}")[2] if isinstance(child.tag, str) else ""
            if name in {"", "script", "style", "defs", "title"} or _OF_SCRIPTS & {*child.get("class", "").split()}:
                parent.remove(child)
    root.set("class", classes)
    root.set("role", "img")
    root.set("aria-label", title)
    root.attrib.pop("id", None)
    return ElementTree.tostring(root, encoding="unicode", short_empty_elements=True)


def _label(number: float) -> str:
    # All labels are as wide as one another, so the charts of a page have their times below each other.
    return three_digits(number).rjust(6, "\N{FIGURE SPACE}")


def _ticks(times: Sequence[float], most: int) -> list[float]:
    """Return round times of the day, at most so many."""
    first, last = times[0], times[-1]
    step_s = next((step for step in _STEPS_S if (last - first) / step <= most - 1), (last - first) / (most - 1))
    tick = -(-first // step_s) * step_s
    return [tick + number * step_s for number in range(int((last - tick) // step_s) + 1)]


def _clock(times: Sequence[float]) -> Any:  # noqa: ANN401 -- what pygal calls
    length_s = times[-1] - times[0]
    pattern = "%H:%M:%S" if length_s < 600 else "%H:%M" if length_s < 86400 else "%d %H:%M"
    return lambda at: datetime.fromtimestamp(at, UTC).strftime(pattern)
