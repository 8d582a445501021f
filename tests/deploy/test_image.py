"""What the container image asks of a mount, and what the commands that run it leave it time for."""

import json
import re
import subprocess
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from fastfuse.cache.settings import FLUSH_S
from fastfuse.filesystem.mounting.mount_settings import MountSettings
from tests.docs.blocks import ROOT

_DOCKERFILE = (ROOT / "Dockerfile").read_text()


@pytest.mark.parametrize(
    ("states", "is_healthy"),
    [
        ((), True), (("ok", "in trouble", "stopping", "not yours"), True),
        (("dead",), False), (("ok", "no worker"), False), (("no answer", "ok"), False),
    ],
)  # fmt: skip
def test_only_a_mount_that_serves_nobody_makes_a_container_unhealthy(
    states: tuple[str, ...], is_healthy: bool, tmp_path: Path
) -> None:
    [check] = re.findall(r"^HEALTHCHECK .*\\\n +CMD (.*)$", _DOCKERFILE, re.MULTILINE)
    told = json.dumps({"mounts": [{"mountpoint": "/mnt/no worker", "state": state} for state in states]})
    (tmp_path / "fastfuse").write_text(f"#!/bin/sh\n[ \"$*\" = 'status --json' ] && echo '{told}'\nexit 1\n")
    (tmp_path / "fastfuse").chmod(0o755)
    done = subprocess.run(["sh", "-c", check], env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, check=False)
    assert done.returncode == (not is_healthy)


def test_docker_stop_leaves_a_mount_the_time_that_it_takes() -> None:
    commands = re.findall(r"docker run (?:.*\\\n)+", _DOCKERFILE + (ROOT / "docs/USAGE.md").read_text())
    assert len(commands) == 2
    defaults: dict[str, Any] = {field.name: field.default for field in fields(MountSettings)}
    for command in commands:
        [timeout_s] = re.findall(r"--stop-timeout (\d+)", command)
        assert int(timeout_s) > defaults["grace_s"] + FLUSH_S
