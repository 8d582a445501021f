import json

from bench.modes.figures import ChannelFigures, Measured, as_json, as_markdown
from tests.bench.modes.test_figures import figures


def measured() -> Measured:
    stages = {"imports and options": 0.25, "index": 0.125}
    runs = [
        figures("small", "raw"),
        figures("small", "FastFile", stages=stages, first_s=1.25),  # type: ignore[arg-type]
        figures("small", "FastFile", stages=stages, first_s=1.5),  # type: ignore[arg-type]
    ]
    channels = [ChannelFigures(channels=20, ready_s=2.5, cpu_s=6.0)]
    return Measured(facts={"cores": "4"}, runs=runs, channels=channels)


def test_the_tables_have_medians_and_the_stages_of_those_that_have_a_start() -> None:
    lines = as_markdown(measured()).splitlines()
    assert lines[0] == "cores 4."
    assert "| FastFile | 2 | 1.38 | 11.00 | 12.00 | 100 | 1.00 | 0.00 | 0.00 | 0 |" in lines
    assert "| FastFile | 250 | 125 |" in lines
    assert not any(line.startswith("| raw | –") for line in lines)
    assert "| 20 | 1 | 2.50 | 6.00 | – | – | – |" in lines


def test_the_document_has_every_run_and_the_verdicts() -> None:
    document = json.loads(as_json(measured()))
    assert [run["first_s"] for run in document["runs"]] == [1.5, 1.25, 1.5]
    assert [(verdict["topic"], verdict["is_met"]) for verdict in document["verdicts"]] == [("first record", True)]
    assert document["channels"][0]["channels"] == 20
