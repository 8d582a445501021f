"""That looks at an interpreter are counted; how long it is held is no test's matter."""

import sys

import pytest

from bench import interpreter, machine
from bench.workloads import Scale


def test_each_look_is_a_share_of_a_second() -> None:
    assert interpreter.seconds_held("main;read (a.py:1) 200\nmain (b c.py:2) 50\n") == 0.5


def test_who_cannot_be_looked_at_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreter, "_SPY", [sys.executable, "-c", "print('Permission denied')"])
    monkeypatch.setattr(interpreter, "_SCALE", Scale(small_files=10))
    monkeypatch.setattr(machine, "drop_caches", lambda: False)
    with pytest.raises(RuntimeError, match="py-spy cannot look at process"):
        interpreter.main(["--workloads", "small-1", "--runs", "1"])
