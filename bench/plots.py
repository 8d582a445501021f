"""The figures as pictures, where matplotlib is (the extra `bench`)."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.results import Results
from bench.verdicts import speed
from bench.workloads import WORKLOADS

# The mount in blue, what bounds it in grey, the peers in warm colours.
_COLOURS = {"raw": "#777777", "fuse-only": "#aaaaaa", "local": "#cccccc"}
_COLOURS |= {"fastfuse": "#1f5fbf", "fastfuse-512MiB": "#5b93e0", "fastfuse-hints": "#0b2f66"}
_COLOURS |= {"FastFile": "#1f5fbf", "Pipe": "#5b93e0"}
_PEERS_COLOUR = "#d9822b"


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar of the colour of `candidate`."""

    label: str
    candidate: str
    value: float


@dataclass(frozen=True, slots=True)
class Panel:
    """One diagram: a bar for each candidate of a cell, or for each cell that one candidate has for itself."""

    title: str
    unit: str
    bars: list[Bar]


def panels(results: Results, *, is_bulk: bool) -> list[Panel]:
    """Everything measured that goes by bytes, or everything else, in the order of the runs."""
    found: dict[tuple[str, ...], Panel] = {}
    for profile, workload in results.cells():
        known = WORKLOADS[workload]
        candidates = results.candidates(profile, workload)
        if known.is_bulk != is_bulk:
            continue
        speeds = {name: speed(results, profile, workload, name) or 0.0 for name in candidates}
        if len(candidates) > 1:
            bars = [Bar(name, name, value) for name, value in speeds.items()]
            found[profile, workload] = Panel(f"{profile} {workload}", known.unit, bars)
        else:
            title = f"{profile}, {candidates[0]} alone"
            alone = found.setdefault((title, known.unit), Panel(title, known.unit, []))
            alone.bars.append(Bar(workload, candidates[0], speeds[candidates[0]]))
    return list(found.values())


def write(results: Results, output: Path) -> str:
    """Writes PNG files beside `output` and says which, or why none."""
    pages = {
        "throughput": ("Throughput (more is better)", panels(results, is_bulk=True)),
        "small": ("Small files and random reads (more is better)", panels(results, is_bulk=False)),
    }
    said = [
        draw(output.with_name(f"{output.name}-{name}.png"), title, shown)
        for name, (title, shown) in pages.items()
        if shown
    ]
    return "\n".join(dict.fromkeys(said))


def draw(path: Path, title: str, shown: Sequence[Panel], *, columns: int = 3, number: str = "{:,.0f}") -> str:
    """Writes a PNG file and says so, or why not."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        return "no plot: matplotlib is not installed (pip install 'fastfuse[bench]')"
    columns = min(columns, len(shown))
    rows = -(-len(shown) // columns)
    figure = Figure(figsize=(5.2 * columns, 1.0 + 2.2 * rows), layout="constrained")
    figure.suptitle(title, fontweight="bold")
    for place, panel in enumerate(shown, 1):
        axes = figure.add_subplot(rows, columns, place)
        colours = [_COLOURS.get(bar.candidate, _PEERS_COLOUR) for bar in panel.bars]
        drawn = axes.barh([bar.label for bar in panel.bars], [bar.value for bar in panel.bars], color=colours)
        axes.bar_label(drawn, fmt=number, padding=3, fontsize=8)
        axes.set_xlabel(panel.unit, fontsize=8)
        axes.set_title(panel.title, fontsize=10)
        axes.invert_yaxis()
        axes.margins(x=0.15)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=100)
    return f"plot: {path}"
