"""`fastfuse doctor`: a rule for each condition, and the command on this machine."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from fastfuse.doctor.machine import look
from fastfuse.doctor.rules import Facts, Level, findings
from tests.mounting import run_fastfuse

WELL = Facts(
    kernel=(6, 9),
    device_obstacle=None,
    rights_obstacle=None,
    has_sys_admin=True,
    fusermount="/usr/bin/fusermount3",
    may_allow_other=True,
    may_raise_readahead=True,
    open_files=1024,
    memory_limit_bytes=None,
    cpu_limit=None,
)


def test_a_machine_that_has_everything_is_well() -> None:
    assert {one.level for one in findings(WELL)} == {Level.OK}
    assert not any(one.remedy for one in findings(WELL))


@pytest.mark.parametrize(
    ("change", "check", "level", "remedy"),
    [
        ({"kernel": (6, 8)}, "kernel", Level.WARN, "6.9"),
        ({"device_obstacle": ("/dev/fuse is missing", "--device")}, "device", Level.FAIL, "--device"),
        ({"rights_obstacle": ("not set-uid", "chmod u+s")}, "rights", Level.FAIL, "chmod u+s"),
        ({"fusermount": None}, "fusermount3", Level.WARN, "fuse3"),
        ({"may_allow_other": False}, "allow_other", Level.WARN, "user_allow_other"),
        ({"may_raise_readahead": False}, "readahead", Level.WARN, "where sysfs is writable"),
        ({"open_files": 256}, "open files", Level.WARN, "ulimit -n"),
        ({"memory_limit_bytes": 256 << 20}, "memory limit", Level.WARN, "512 MiB"),
        ({"cpu_limit": 0.5}, "CPU limit", Level.WARN, "one CPU"),
    ],
)
def test_each_condition_is_found_with_its_remedy(
    change: dict[str, object], check: str, level: Level, remedy: str
) -> None:
    [one] = [one for one in findings(replace(WELL, **change)) if one.level is not Level.OK]  # type: ignore[arg-type]
    assert (one.check, one.level) == (check, level)
    assert remedy in one.remedy


def test_a_machine_without_the_device_is_found(tmp_path: Path) -> None:
    facts = look(tmp_path)
    assert facts.device_obstacle is not None
    assert facts.device_obstacle[0].endswith("fuse is missing")
    assert not facts.may_raise_readahead


def test_the_command_prints_a_line_for_each_check_and_the_same_as_json() -> None:
    done, as_json = run_fastfuse("doctor"), run_fastfuse("doctor", "--json")
    report = json.loads(as_json.stdout)
    assert report["version"] == 1
    lines = done.stdout.splitlines()
    assert [line[:4].strip() for line in lines] == [one["level"] for one in report["checks"]]
    assert done.returncode == as_json.returncode == any(one["level"] == "fail" for one in report["checks"])
