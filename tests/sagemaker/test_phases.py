import json
import logging
import re

import pytest

from fastfuse.log import JsonFormatter
from fastfuse.sagemaker.phases import Phase, Phases


def test_lines_have_time_phase_and_text_and_the_end_has_the_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    phases = Phases(is_json=False)
    phases.enter(Phase.STARTING, "Preparing")
    phases.enter(Phase.DOWNLOADING, "Preparing the data")
    phases.say("train: there")
    phases.enter(Phase.COMPLETED, "done")
    lines = capsys.readouterr().err.splitlines()
    assert [re.sub(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d ", "", line) for line in lines] == [
        "Starting - Preparing",
        "Downloading - Preparing the data",
        "Downloading - train: there",
        "Completed - done",
    ]
    assert re.fullmatch(r"Starting \d+\.\d s, Downloading \d+\.\d s", phases.timings())


def test_lines_of_channels_are_passed_on_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    phases = Phases(is_json=False)
    phases.relay("[bold] träge".encode())
    phases.relay(b"\xff")
    assert capsys.readouterr().err == "[bold] träge\n\\xff\n"


def test_as_json_phases_are_records_of_the_log(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "fastfuse")
    Phases(is_json=True).enter(Phase.TRAINING, "Running python")
    [record] = caplog.records
    made = json.loads(JsonFormatter().format(record))
    assert (made["phase"], made["message"]) == ("Training", "Running python")
    assert capsys.readouterr().err == ""


def test_without_a_terminal_a_download_is_told_seldom(capsys: pytest.CaptureFixture[str]) -> None:
    phases = Phases(is_json=False)
    phases.enter(Phase.DOWNLOADING, "x")
    capsys.readouterr()
    for done_bytes in range(100):
        phases.download("train", done_bytes, 100)
    assert capsys.readouterr().err == ""
