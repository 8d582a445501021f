"""The same figures as pictures, where matplotlib is (the extra `bench`)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bench.results import Results
from bench.verdicts import speed
from bench.workloads import WORKLOADS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Bar", "Panel", "panels", "write"]


@dataclass(frozen=True, slots=True)
class Bar:
    """What one bar is of."""

    label: str
    profile: str
    workload: str
    candidate: str


@dataclass(frozen=True, slots=True)
class Panel:
    """One diagram: a bar for each candidate of a cell, or for each cell that one candidate has for itself."""

    title: str
    unit: str
    bars: list[Bar]


# The mount in blue, what bounds it in grey, the peers in warm colours.
_COLOURS = {"raw": "#777777", "fuse-only": "#aaaaaa", "local": "#cccccc"}
_COLOURS |= {"fastfuse": "#1f5fbf", "fastfuse-512MiB": "#5b93e0", "fastfuse-hints": "#0b2f66"}
_PEERS_COLOUR = "#d9822b"
# Figure and colour.
_CPU_PARTS = {
    "daemon, or client": ("cpu_s_per_gb", "#1f5fbf"),
    "readers": ("readers_cpu_s_per_gb", "#d9822b"),
    "server": ("server_cpu_s_per_gb", "#bbbbbb"),
}
_COLUMNS = 3


def panels(results: Results, *, is_bulk: bool) -> list[Panel]:
    """Everything measured that goes by bytes, or everything else, in the order of the runs."""
    found: dict[tuple[str, ...], Panel] = {}
    for profile, workload in results.cells():
        known = WORKLOADS[workload]
        candidates = results.candidates(profile, workload)
        if known.is_bulk != is_bulk:
            continue
        if len(candidates) > 1:
            bars = [Bar(name, profile, workload, name) for name in candidates]
            found[profile, workload] = Panel(f"{profile} {workload}", known.unit, bars)
        else:
            title = f"{profile}, {candidates[0]} alone"
            alone = found.setdefault((title, known.unit), Panel(title, known.unit, []))
            alone.bars.append(Bar(workload, profile, workload, candidates[0]))
    return list(found.values())


def write(results: Results, output: Path) -> str:
    """Writes PNG files beside `output` and says which, or why none."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        return "no plots: matplotlib is not installed (pip install 'fastfuse[bench]')"
    bulk, others = (panels(results, is_bulk=is_bulk) for is_bulk in (True, False))
    pages: list[tuple[str, str, list[Panel], Callable[[Axes, Results, Panel], None]]] = [
        ("throughput", "Throughput (more is better)", bulk, _speeds),
        ("small", "Small files and random reads (more is better)", others, _speeds),
        ("cpu", "CPU seconds per GB (less is better)", bulk, _cpu),
    ]
    written = []
    for name, title, shown, draw in pages:
        if shown:
            path = output.with_name(f"{output.name}-{name}.png")
            figure = Figure()
            _draw_page(figure, title, shown, results, draw)
            figure.savefig(path, dpi=100)
            written.append(str(path))
    return f"plots: {', '.join(written)}"


def _draw_page(
    figure: "Figure",
    title: str,
    shown: Sequence[Panel],
    results: Results,
    draw: "Callable[[Axes, Results, Panel], None]",
) -> None:
    columns = min(_COLUMNS, len(shown))
    rows = -(-len(shown) // columns)
    figure.set_size_inches(5.2 * columns, 1.0 + 2.2 * rows)
    figure.set_layout_engine("constrained")
    figure.suptitle(title, fontweight="bold")
    for number, panel in enumerate(shown, 1):
        axes = figure.add_subplot(rows, columns, number)
        draw(axes, results, panel)
        axes.set_title(panel.title, fontsize=10)
        axes.invert_yaxis()
        axes.margins(x=0.15)
        axes.spines[["top", "right"]].set_visible(False)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), fontsize=9)


def _speeds(axes: "Axes", results: Results, panel: Panel) -> None:
    values = [speed(results, bar.profile, bar.workload, bar.candidate) or 0.0 for bar in panel.bars]
    colours = [_COLOURS.get(bar.candidate, _PEERS_COLOUR) for bar in panel.bars]
    bars = axes.barh([bar.label for bar in panel.bars], values, color=colours)
    axes.bar_label(bars, fmt="{:,.0f}", padding=3, fontsize=8)
    axes.set_xlabel(panel.unit, fontsize=8)


def _cpu(axes: "Axes", results: Results, panel: Panel) -> None:
    labels = [bar.label for bar in panel.bars]
    left = [0.0] * len(labels)
    for part, (figure, colour) in _CPU_PARTS.items():
        values = [results.median(bar.profile, bar.workload, bar.candidate, figure) or 0.0 for bar in panel.bars]
        bars = axes.barh(labels, values, left=left, color=colour, label=part)
        left = [base + value for base, value in zip(left, values, strict=True)]
    axes.bar_label(bars, labels=[f"{total:.2f}" for total in left], padding=3, fontsize=8)
