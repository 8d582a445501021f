"""The alert rules ask for metrics, labels and values that there are, and for rates of what only grows."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

import fastfuse.deploy
from tests.deploy.queries import mistakes

RULES = Path(fastfuse.deploy.__file__).parent / "prometheus/alerts.yml"
OPERATIONS = Path(__file__).parents[2] / "docs/OPERATIONS.md"


def alerts() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


@pytest.mark.parametrize("rule", alerts(), ids=lambda rule: rule["alert"])
def test_an_alert_asks_for_what_there_is(rule: dict[str, Any]) -> None:
    assert mistakes(rule["expr"]) == []


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


@pytest.mark.parametrize("rule", alerts(), ids=lambda rule: rule["alert"])
def test_an_alert_says_what_is_wrong_and_what_to_do(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in {"critical", "warning"}
    assert "{{ $labels.instance }}" in rule["annotations"]["summary"]
    assert rule["annotations"]["description"]


def test_the_table_of_alerts_is_complete() -> None:
    named = re.findall(r"^\| `(Fastfuse\w+)` \|", OPERATIONS.read_text(), re.MULTILINE)
    assert named == [rule["alert"] for rule in alerts()]


@pytest.mark.parametrize("rule", alerts(), ids=lambda rule: rule["alert"])
def test_an_alert_names_the_commands_that_the_table_does(rule: dict[str, Any]) -> None:
    (to_do,) = re.findall(rf"^\| `{rule['alert']}` \| [^|]+ \| ([^|]+) \|", OPERATIONS.read_text(), re.MULTILINE)
    command = re.compile(r"fastfuse [a-z]+(?: --[a-z]+)?")
    assert command.findall(rule["annotations"]["description"]) == command.findall(to_do)


@pytest.mark.skipif(shutil.which("promtool") is None, reason="takes promtool (make alerts)")
def test_prometheus_takes_the_rules_and_each_alert_fires(tmp_path: Path) -> None:
    for file in (RULES, Path(__file__).with_name("alerts_test.yml")):
        shutil.copy(file, tmp_path)
    for words in ("check", "alerts.yml"), ("test", "alerts_test.yml"):
        command = ["promtool", words[0], "rules", words[1]]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
