"""Alert rules and dashboard ask for metrics, labels and values that there are, and for rates of what only grows."""

import json
import re
import shutil
import subprocess
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml

from fastfuse.deploy import shipped
from tests.deploy.queries import mistakes, selectors_of

RULES = shipped("prometheus/alerts.yml")
ALERTS: list[dict[str, Any]] = [rule for group in yaml.safe_load(RULES)["groups"] for rule in group["rules"]]
OPERATIONS = (Path(__file__).parents[2] / "docs/OPERATIONS.md").read_text()
DASHBOARD: dict[str, Any] = json.loads(shipped("grafana/dashboard.json"))
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]
QUERIES = [(panel["title"], target["expr"], target["legendFormat"]) for panel in PANELS for target in panel["targets"]]


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_an_alert_asks_for_what_there_is_and_says_what_is_wrong_and_what_to_do_as_the_table_does(
    rule: dict[str, Any],
) -> None:
    assert mistakes(rule["expr"]) == []
    assert rule["labels"]["severity"] in {"critical", "warning"}
    assert "{{ $labels.instance }}" in rule["annotations"]["summary"]
    assert rule["annotations"]["description"]
    (to_do,) = re.findall(rf"^\| `{rule['alert']}` \| [^|]+ \| ([^|]+) \|", OPERATIONS, re.MULTILINE)
    command = re.compile(r"fastfuse [a-z]+(?: --[a-z]+)?")
    assert command.findall(rule["annotations"]["description"]) == command.findall(to_do)


@pytest.mark.parametrize(
    ("query", "mistake"),
    [
        ("fastfuse_hits", "there is no fastfuse_hits"),
        ("fastfuse_retries > 0", "there is no fastfuse_retries"),
        ("rate(fastfuse_waiting_reads[5m])", "rate of fastfuse_waiting_reads"),
        ("fastfuse_retries_total", "None of fastfuse_retries_total"),
        ('rate(fastfuse_retries_total{why="x"}[5m])', "fastfuse_retries_total has no label why"),
        ("sum by (key) (fastfuse_waiting_reads)", "fastfuse_waiting_reads has no label key"),
        ('rate(fastfuse_retries_total{cause=~"throttled|slow"}[$__rate_interval])', "cause is never slow"),
        ("histogram_quantile(0.5, rate(fastfuse_get_seconds_bucket[5m]))", "fastfuse_get_seconds_bucket without le"),
        ("time() - 1", "it asks for nothing"),
    ],
)
def test_a_query_for_what_there_is_not_is_found(query: str, mistake: str) -> None:
    assert mistakes(query) == [mistake]


def test_the_table_of_alerts_is_complete() -> None:
    named = re.findall(r"^\| `(Fastfuse\w+)` \|", OPERATIONS, re.MULTILINE)
    assert named == [rule["alert"] for rule in ALERTS]


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
def test_prometheus_takes_the_rules_and_every_query_and_each_alert_fires(tmp_path: Path) -> None:
    (tmp_path / "alerts.yml").write_text(RULES)
    shutil.copy(Path(__file__).with_name("alerts_test.yml"), tmp_path)
    asked = [re.sub(r"\$__\w+", "5m", query) for _, query, _ in QUERIES]
    queries = [{"record": f"panel:{number}", "expr": query} for number, query in enumerate(asked)]
    (tmp_path / "panels.yml").write_text(json.dumps({"groups": [{"name": "dashboard", "rules": queries}]}))
    for words in ("check", "alerts.yml"), ("check", "panels.yml"), ("test", "alerts_test.yml"):
        command = ["promtool", words[0], "rules", words[1]]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
