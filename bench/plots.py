"""The same figures as pictures, where matplotlib is (the extra `bench`)."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bench.results import Results
from bench.verdicts import speed
from bench.workloads import WORKLOADS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["write"]

_Cell = tuple[str, str]
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


def write(results: Results, output: Path) -> str:
    """Writes PNG files beside `output` and says which, or why none."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        return "no plots: matplotlib is not installed (pip install 'fastfuse[bench]')"
    bulk = [cell for cell in results.cells() if WORKLOADS[cell[1]].is_bulk]
    others = [cell for cell in results.cells() if not WORKLOADS[cell[1]].is_bulk]
    pages: list[tuple[str, str, Sequence[_Cell], Callable[[Axes, Results, _Cell], None]]] = [
        ("throughput", "Throughput (more is better)", bulk, _speeds),
        ("small", "Small files and random reads (more is better)", others, _speeds),
        ("cpu", "CPU seconds per GB (less is better)", bulk, _cpu),
    ]
    written = []
    for name, title, cells, draw in pages:
        if cells:
            path = output.with_name(f"{output.name}-{name}.png")
            figure = Figure()
            _draw_page(figure, title, cells, results, draw)
            figure.savefig(path, dpi=100)
            written.append(str(path))
    return f"plots: {', '.join(written)}"


def _draw_page(
    figure: "Figure",
    title: str,
    cells: Sequence[_Cell],
    results: Results,
    draw: "Callable[[Axes, Results, _Cell], None]",
) -> None:
    columns = min(_COLUMNS, len(cells))
    rows = -(-len(cells) // columns)
    figure.set_size_inches(5.2 * columns, 0.8 + 2.2 * rows)
    figure.set_layout_engine("constrained")
    figure.suptitle(title, fontweight="bold")
    for number, cell in enumerate(cells, 1):
        axes = figure.add_subplot(rows, columns, number)
        draw(axes, results, cell)
        axes.set_title(f"{cell[0]} {cell[1]}", fontsize=10)
        axes.invert_yaxis()
        axes.margins(x=0.15)
        axes.spines[["top", "right"]].set_visible(False)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), fontsize=9)


def _speeds(axes: "Axes", results: Results, cell: _Cell) -> None:
    candidates = results.candidates(*cell)
    values = [speed(results, *cell, candidate) or 0.0 for candidate in candidates]
    bars = axes.barh(candidates, values, color=[_COLOURS.get(name, _PEERS_COLOUR) for name in candidates])
    axes.bar_label(bars, fmt="{:,.0f}", padding=3, fontsize=8)
    axes.set_xlabel(WORKLOADS[cell[1]].unit, fontsize=8)


def _cpu(axes: "Axes", results: Results, cell: _Cell) -> None:
    candidates = results.candidates(*cell)
    left = [0.0] * len(candidates)
    for part, (figure, colour) in _CPU_PARTS.items():
        values = [results.median(*cell, candidate, figure) or 0.0 for candidate in candidates]
        bars = axes.barh(candidates, values, left=left, color=colour, label=part)
        left = [base + value for base, value in zip(left, values, strict=True)]
    axes.bar_label(bars, labels=[f"{total:.2f}" for total in left], padding=3, fontsize=8)
