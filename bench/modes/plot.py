"""The same figures as a picture, where matplotlib is (the extra `bench`)."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bench.modes.figures import Figures, median

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["write"]

_COLOURS = {"raw": "#777777", "FastFile": "#1f5fbf", "Pipe": "#5b93e0"}
_FILE_COLOUR = "#d9822b"


def write(runs: Sequence[Figures], path: Path) -> str:
    """Writes a PNG file and says so, or why not."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        return "no plot: matplotlib is not installed (pip install 'fastfuse[bench]')"
    workloads = list(dict.fromkeys(run.workload for run in runs))
    figure = Figure(figsize=(10.4, 1.0 + 2.2 * len(workloads)), layout="constrained")
    figure.suptitle("A training job in each mode, seconds from its start (less is better)", fontweight="bold")
    axes = figure.subplots(len(workloads), 2, squeeze=False)
    for row, workload in enumerate(workloads):
        for column, (name, title) in enumerate({"first_s": "first record", "total_s": "all records"}.items()):
            _draw(axes[row][column], runs, workload, name)
            axes[row][column].set_title(f"{workload}: {title}", fontsize=10)
    figure.savefig(path, dpi=100)
    return f"plot: {path}"


def _draw(axes: "Axes", runs: Sequence[Figures], workload: str, figure: str) -> None:
    candidates = list(dict.fromkeys(run.candidate for run in runs if run.workload == workload))
    values = [median(runs, workload, candidate, figure) or 0.0 for candidate in candidates]
    bars = axes.barh(candidates, values, color=[_COLOURS.get(name, _FILE_COLOUR) for name in candidates])
    axes.bar_label(bars, fmt="{:.2f}", padding=3, fontsize=8)
    axes.invert_yaxis()
    axes.margins(x=0.15)
    axes.spines[["top", "right"]].set_visible(False)
