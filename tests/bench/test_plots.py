import sys
from pathlib import Path

import pytest

from bench import plots
from bench.results import Results
from tests.bench.runs import run


def test_without_matplotlib_there_are_no_plots_and_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    results = Results([run("s3", "sequential-1", "fastfuse")])
    assert "matplotlib is not installed" in plots.write(results, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
