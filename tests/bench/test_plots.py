import sys
from pathlib import Path

import pytest

from bench import plots
from bench.results import Results
from tests.bench.runs import run


def test_candidates_share_a_diagram_and_so_do_cells_of_one_candidate() -> None:
    results = Results(
        [
            run("s3", "sequential-1", "raw"),
            run("s3", "sequential-1", "fastfuse"),
            run("s3", "sequential-1-64k", "fastfuse"),
            run("s3", "small-1", "fastfuse"),
            run("s3", "sequential-1-4m", "fastfuse"),
        ]
    )
    both, alone = plots.panels(results, is_bulk=True)
    assert (both.title, [bar.label for bar in both.bars]) == ("s3 sequential-1", ["raw", "fastfuse"])
    assert [bar.label for bar in alone.bars] == ["sequential-1-64k", "sequential-1-4m"]
    (small,) = plots.panels(results, is_bulk=False)
    assert (small.unit, small.bars) == ("files/s", [plots.Bar("small-1", "fastfuse", 100.0)])


def test_without_matplotlib_there_are_no_plots_and_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    results = Results([run("s3", "sequential-1", "fastfuse")])
    assert "matplotlib is not installed" in plots.write(results, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
