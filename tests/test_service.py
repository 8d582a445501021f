"""The systemd unit and its example of an environment file."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from bench.s3server import LoopbackServer, MemoryObjects
from fastfuse.cli.main import app
from tests.mounting import mounted

SYSTEMD = Path(__file__).parents[1] / "systemd"
UNIT = SYSTEMD / "fastfuse@.service"
TARGET = SYSTEMD / "fastfuse.target"
EXAMPLE = SYSTEMD / "fastfuse.env.example"

# Each of these gives the service a mount namespace (systemd.exec(5)), in which the mount would stay.
NAMESPACE_MAKERS = {
    *("PrivateTmp", "PrivateMounts", "PrivateDevices", "PrivateUsers", "ProtectSystem", "ProtectHome", "ProtectProc"),
    *("ProcSubset", "ProtectKernelTunables", "ProtectKernelModules", "ProtectKernelLogs", "ProtectControlGroups"),
    *("ProtectHostname", "ReadOnlyPaths", "ReadWritePaths", "InaccessiblePaths", "ExecPaths", "NoExecPaths"),
    *("BindPaths", "BindReadOnlyPaths", "TemporaryFileSystem", "RootDirectory", "RootImage"),
    *("MountFlags", "MountImages", "DynamicUser"),
}


def directives() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in UNIT.read_text().splitlines():
        if match := re.match(r"([A-Za-z]+)=(.*)", line):
            found.setdefault(match[1], []).append(match[2])
    return found


def mount_variables() -> set[str]:
    mount = vars(typer.main.get_command(app))["commands"]["mount"]
    variables: set[str] = set()
    for parameter in mount.params:
        given = parameter.envvar or []
        variables.update([given] if isinstance(given, str) else given)
    return variables


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    # Where fastfuse is not installed at the place that the unit names, an executable that exists stands in for it.
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("/usr/local/bin/fastfuse", shutil.which("true") or sys.executable))
    shutil.copy(TARGET, tmp_path)
    checked = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", str(unit), str(tmp_path / TARGET.name)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


def test_the_unit_hides_no_mount_and_waits_and_restarts_as_the_mount_needs() -> None:
    found = directives()
    assert not found.keys() & NAMESPACE_MAKERS
    # What is mounted there when a start fails may be somebody else's.
    assert not found.keys() & {"ExecStop", "ExecStopPost", "ExecCondition", "ExecStartPre"}
    wanted = {
        "DeviceAllow": ["/dev/fuse rw"],  # ProtectClock= closes all devices that are not named
        "Type": ["notify"],
        "NotifyAccess": ["main"],
        "TimeoutStartSec": ["infinity"],  # a listing takes its time
        "Restart": ["on-failure"],
        "RestartPreventExitStatus": ["2 4"],  # trying again does not mend these
    }
    assert {name: found[name] for name in wanted} == wanted
    [timeout] = found["TimeoutStopSec"]
    assert int(timeout) > 30.0  # reads under way have so long to end


@pytest.mark.fuse
def test_the_rights_of_the_unit_are_enough_for_a_cache_that_is_new(tmp_path: Path) -> None:
    [kept] = directives()["CapabilityBoundingSet"]
    bounds = ",".join(["-all", *(f"+{name.removeprefix('CAP_').lower()}" for name in kept.split())])
    rights = ("setpriv", f"--bounding-set={bounds}", "--inh-caps=-all", "--no-new-privs", "--")
    options = ("--cache", str(tmp_path / "cache"), "--cache-size", "1GiB", "--cache-min-free", "0")
    data = os.urandom(1 << 20)
    with LoopbackServer({"bucket": MemoryObjects({"a": data})}) as server:
        for _ in range(2):
            with mounted("s3://bucket", server.endpoint_url, *options, run_by=rights) as mount:
                assert (mount.path / "a").read_bytes() == data
                assert "WARNING" not in mount.log
        fetched_bytes = sum(one.sent_bytes for one in server.requests if one.operation == "GetObject")
        assert fetched_bytes == len(data) + 2  # each mount reads a byte first (L8)
    assert {one.stat().st_uid for one in (tmp_path / "cache").iterdir()} == {65534}


@pytest.mark.parametrize("text", [EXAMPLE.read_text(), UNIT.read_text()], ids=["example", "unit"])
def test_every_variable_that_is_named_is_one_that_mount_reads(text: str) -> None:
    named = set(re.findall(r"FASTFUSE_[A-Z_]+", text))
    assert named
    assert named <= mount_variables()


def test_the_example_sets_what_must_be_set_and_leaves_the_rest_commented_out() -> None:
    lines = [line for line in EXAMPLE.read_text().splitlines() if line and not line.startswith("#")]
    assert lines == ["FASTFUSE_SOURCE=s3://BUCKET/PREFIX"]
