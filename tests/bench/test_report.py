import json

from bench.report import as_json, as_markdown
from bench.suite import Measured, Plan
from tests.bench.runs import run

PLAN = Plan(cells=[])
MEASURED = Measured(
    runs=[
        run("s3", "sequential-1", "raw", mb_per_s=2000, cpu_s=1.0),
        run("s3", "sequential-1", "fastfuse", mb_per_s=900, cpu_s=1.25, readers_cpu_s=0.5, peak_bytes=3 << 20),
        run("s3", "sequential-1", "fastfuse", mb_per_s=900, cpu_s=1.25, readers_cpu_s=0.5, peak_bytes=3 << 20),
        run("fast", "small-1", "fastfuse", span_s=0.0015, cpu_s=0.1),
    ],
    notes={"goofys": "is not on the PATH"},
)


def rows(text: str) -> dict[str, dict[str, str]]:
    """The cells of every row by its first one, by the headings of its table."""
    found = {}
    headings: list[str] = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|"):
            headings = []
        elif not headings:
            headings = cells
        else:
            found[cells[0]] = dict(zip(headings, cells, strict=True))
    return found


def test_a_table_has_medians_ratios_and_everybodys_cpu_time() -> None:
    text = as_markdown(MEASURED, PLAN, {"cores": "4"}, 120)
    bulk = text[text.index("### sequential-1") :]
    row = rows(bulk[: bulk.index("## Server fast")])
    assert (row["raw"]["MB/s"], row["raw"]["fastfuse / it"], row["raw"]["runs"]) == ("2,000", "0.45", "1")
    ours = row["fastfuse"]
    assert (ours["runs"], ours["MB/s"], ours["CPU s/GB"], ours["readers' CPU s/GB"]) == ("2", "900", "1.25", "0.50")
    assert (ours["peak MiB"], ours["fetched / asked"]) == ("3", "1.00")


def test_small_files_are_told_one_by_one() -> None:
    text = as_markdown(MEASURED, PLAN, {}, 120)
    ours = rows(text[text.index("### small-1") :])["fastfuse"]
    assert (ours["files/s"], ours["median ms"], ours["CPU ms each"]) == ("100", "1.50", "1.00")


def test_targets_and_what_is_left_out_come_first() -> None:
    text = as_markdown(MEASURED, PLAN, {"cores": "4"}, 120)
    head = text[: text.index("## Server")]
    assert text.startswith("cores 4.\n")
    assert "4 runs in 2.0 minutes" in head
    assert "| throughput | s3 sequential-1: fastfuse 900 MB/s / raw 2000 | 0.45 | ≥ 0.5 | **missed** |" in head
    assert "| CPU | s3 sequential-1: daemon 1.25 s/GB / raw client 1.00 | 1.25 | ≤ 1.5 | met |" in head
    assert "- left out: goofys is not on the PATH" in head


def test_the_json_has_every_run() -> None:
    document = json.loads(as_json(MEASURED, PLAN, {"cores": "4"}, 120))
    assert [run["candidate"] for run in document["runs"]] == ["raw", "fastfuse", "fastfuse", "fastfuse"]
    assert {verdict["topic"]: verdict["is_met"] for verdict in document["verdicts"]} == {
        "throughput": False,
        "latency": True,
        "CPU": True,
    }
    assert document["left_out"] == MEASURED.notes
