"""The dashboard asks for metrics and labels that there are, and shows each panel at a place of its own."""

import json
import re
import shutil
import subprocess
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from fastfuse.deploy import shipped
from tests.deploy.queries import mistakes, selectors_of

DASHBOARD: dict[str, Any] = json.loads(shipped("grafana/dashboard.json"))
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]
QUERIES = [(panel["title"], target["expr"], target["legendFormat"]) for panel in PANELS for target in panel["targets"]]


@pytest.mark.parametrize(("title", "query", "legend"), QUERIES)
def test_a_query_asks_for_what_there_is(title: str, query: str, legend: str) -> None:
    assert mistakes(query) == []
    for one in selectors_of(query):
        assert one.values["instance"] == "$instance", title
        # A label that is summed away would be empty in the legend.
        assert {*re.findall(r"{{(\w+)}}", legend)} <= one.groups


def test_the_variable_is_a_label_that_there_is() -> None:
    [_, instance] = DASHBOARD["templating"]["list"]
    assert instance["name"] == "instance"
    [(metric, label)] = re.findall(r"^label_values\((\w+), (\w+)\)$", instance["query"]["query"])
    assert mistakes(f"sum by ({label}) ({metric})") == []


def test_every_panel_says_what_it_shows_and_where() -> None:
    for panel in PANELS:
        assert panel["title"]
        assert panel["description"].endswith(".")
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert panel["datasource"]["uid"] == "${datasource}"
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
        assert 0 <= panel["gridPos"]["x"] <= 24 - panel["gridPos"]["w"]
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
    for one, other in combinations([panel["gridPos"] for panel in PANELS], 2):
        assert any(one[at] + one[size] <= other[at] or other[at] + other[size] <= one[at] for at, size in ("xw", "yh"))


@pytest.mark.skipif(shutil.which("promtool") is None, reason="takes promtool (make alerts)")
def test_prometheus_takes_every_query(tmp_path: Path) -> None:
    asked = [re.sub(r"\$__\w+", "5m", query) for _, query, _ in QUERIES]
    rules = [{"record": f"panel:{number}", "expr": query} for number, query in enumerate(asked)]
    (tmp_path / "rules.yml").write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    command = ["promtool", "check", "rules", "rules.yml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
