"""The alert rules ask for metrics, labels and values that there are, and for rates of what only grows."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

import fastfuse.deploy
from fastfuse.metrics import METRICS

RULES = Path(fastfuse.deploy.__file__).parent / "prometheus/alerts.yml"
OPERATIONS = Path(__file__).parents[2] / "docs/OPERATIONS.md"
NAMES = {metric.name + ("" if metric.is_gauge else "_total"): metric for metric in METRICS}


def alerts() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


@pytest.mark.parametrize("rule", alerts(), ids=lambda rule: rule["alert"])
def test_an_alert_asks_for_what_there_is(rule: dict[str, Any]) -> None:
    selectors = re.findall(r"(\w+\()?(fastfuse_\w+)(?:\{(\w+)=~?\"([\w|]+)\"\})?(\[\w+\])?", rule["expr"])
    assert selectors or rule["expr"].startswith('up{job="fastfuse"}')
    for function, name, label, values, span in selectors:
        metric = NAMES[name]
        assert metric.is_gauge == (not span) == (function not in {"rate(", "increase("})
        assert not label or (label == metric.label and set(values.split("|")) <= {*metric.values})


@pytest.mark.parametrize("rule", alerts(), ids=lambda rule: rule["alert"])
def test_an_alert_says_what_is_wrong_and_what_to_do(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in {"critical", "warning"}
    assert "{{ $labels.instance }}" in rule["annotations"]["summary"]
    assert rule["annotations"]["description"]


def test_the_table_of_alerts_is_complete() -> None:
    named = re.findall(r"^\| `(Fastfuse\w+)` \|", OPERATIONS.read_text(), re.MULTILINE)
    assert named == [rule["alert"] for rule in alerts()]


@pytest.mark.skipif(shutil.which("promtool") is None, reason="takes promtool, of Debian's package prometheus")
def test_prometheus_takes_the_rules() -> None:
    subprocess.run(["promtool", "check", "rules", str(RULES)], check=True, capture_output=True)
