"""`fastfuse doctor`: a rule for each condition, and the command on this machine."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from math import inf
from pathlib import Path

import pytest

from fastfuse.doctor.machine import look
from fastfuse.doctor.rules import Facts, Level, certificate, findings
from tests.mounting import ENVIRONMENT, run_fastfuse

WELL = Facts(
    kernel=(6, 9), libfuse="3.14.0", device_obstacle=None, rights_obstacle=None, has_sys_admin=True,
    fusermount="/usr/bin/fusermount3", may_allow_other=True, may_raise_readahead=True, request_timeout_s=inf,
    open_files=1280, memory_limit_bytes=None, cpu_limit=None, updatedb_reads_mounts=False,
)  # fmt: skip


def test_a_machine_that_has_everything_is_well() -> None:
    assert {one.level for one in findings(WELL)} == {Level.OK}
    assert not any(one.remedy for one in findings(WELL))


@pytest.mark.parametrize(
    ("change", "check", "level", "remedy"),
    [
        ({"kernel": (4, 19)}, "kernel", Level.FAIL, "use Linux 5.1 or later"),
        ({"device_obstacle": ("/dev/fuse is missing", "--device")}, "device", Level.FAIL, "--device"),
        ({"rights_obstacle": ("not set-uid", "chmod u+s")}, "rights", Level.FAIL, "chmod u+s"),
        ({"fusermount": None}, "fusermount3", Level.WARN, "fuse3"),
        ({"may_allow_other": False}, "allow_other", Level.WARN, "user_allow_other"),
        ({"request_timeout_s": 60.0}, "request timeout", Level.WARN, "0, or from 75 on"),
        ({"may_raise_readahead": False}, "readahead", Level.WARN, "where sysfs is writable"),
        ({"open_files": 256}, "open files", Level.WARN, "ulimit -n"),
        ({"memory_limit_bytes": 256 << 20}, "memory limit", Level.WARN, "512 MiB"),
        ({"cpu_limit": 0.5}, "CPU limit", Level.WARN, "one CPU"),
        ({"updatedb_reads_mounts": True}, "updatedb", Level.WARN, "PRUNEFS"),
    ],
)
def test_a_condition_is_found_with_its_remedy(change: dict[str, object], check: str, level: Level, remedy: str) -> None:
    [one] = [one for one in findings(replace(WELL, **change)) if one.level is not Level.OK]  # type: ignore[arg-type]
    assert (one.check, one.level) == (check, level)
    assert remedy in one.remedy


@pytest.mark.parametrize(("days_left", "level"), [(13, Level.WARN), (14, Level.OK)])
def test_a_certificate_that_nobody_has_renewed_in_time_is_found(days_left: int, level: Level) -> None:
    assert certificate(days_left).level is level


def test_a_machine_without_the_device_is_found(tmp_path: Path) -> None:
    facts = look(tmp_path)
    assert facts.device_obstacle is not None
    assert facts.device_obstacle[0].endswith("fuse is missing")
    assert not facts.may_raise_readahead
    assert not facts.updatedb_reads_mounts


@pytest.mark.parametrize(
    ("settings", "reads"),
    [
        ('PRUNEPATHS="/tmp"\nPRUNEFS="nfs fuse.rclone"\n', True),
        ('PRUNEPATHS="/tmp"\n# PRUNEFS="fuse.fastfuse"\n', True),
        ('PRUNE_BIND_MOUNTS="yes"\n PRUNEFS = "NFS Fuse.fastfuse fuse.rclone"\n', False),
    ],
)
def test_a_machine_that_indexes_mounts_is_found(tmp_path: Path, settings: str, reads: bool) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/updatedb.conf").write_text(settings)
    assert look(tmp_path).updatedb_reads_mounts == reads


def test_the_limits_of_a_control_group_and_of_requests_are_found(tmp_path: Path) -> None:
    for name, text in {
        "proc/self/cgroup": "0::/job\n",
        "sys/fs/cgroup/job/memory.max": f"{256 << 20}\n",
        "sys/fs/cgroup/job/cpu.max": "50000 100000\n",
        "proc/sys/fs/fuse/default_request_timeout": "60\n",
        "proc/sys/fs/fuse/max_request_timeout": "0\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    found = {one.check: one for one in findings(look(tmp_path))}
    assert "256 MiB in this control group" in found["memory limit"].found
    assert found["request timeout"].found.startswith("60 s: the kernel ends a mount")
    assert "0.5 CPUs in this control group" in found["CPU limit"].found


def prepared(script: str) -> dict[str, str]:
    """Return the level of each check after a shell, in a mount namespace of its own, has prepared what it sees."""
    doctor = (sys.executable, "-m", "fastfuse", "doctor", "--json")
    words = ("unshare", "--mount", "sh", "-ec", f'{script} "$@"', "sh", *doctor)
    done = subprocess.run(words, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True, check=False)
    checks = json.loads(done.stdout)["checks"]
    assert done.returncode == any(one["level"] == "fail" for one in checks)
    # Whether updatedb is there is the machine's affair.
    return {one["check"]: one["level"] for one in checks if one["level"] != "ok" and one["check"] != "updatedb"}


@pytest.mark.fuse
def test_what_a_machine_lacks_is_found_on_a_real_one() -> None:
    assert prepared(
        "mount --bind /dev/null /dev/fuse; mount -o remount,bind,ro /sys; exec prlimit --nofile=256: env PATH=/nowhere"
    ) == {"device": "fail", "fusermount3": "warn", "readahead": "warn", "open files": "warn"}
    # Whether this user may open /dev/fuse is the machine's affair.
    found = prepared("mount --bind /dev/null /etc/fuse.conf; exec setpriv --reuid=65534 --clear-groups --no-new-privs")
    assert {"rights": "fail", "allow_other": "warn", "readahead": "warn"}.items() <= found.items()


def test_the_command_prints_a_line_for_each_check_and_the_same_as_json() -> None:
    done, as_json = run_fastfuse("doctor"), run_fastfuse("doctor", "--json")
    report = json.loads(as_json.stdout)
    assert report["version"] == 1
    lines = done.stdout.splitlines()
    assert [line[:4].strip() for line in lines] == [one["level"] for one in report["checks"]]
    assert re.search(r"kernel +Linux \d+\.\d+, libfuse 3\.\d+\.\d+", lines[0])
    assert done.returncode == as_json.returncode == any(one["level"] == "fail" for one in report["checks"])
