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
    ("command", "is_helped"),
    [("mount", False), ("mount", True), ("mount --fuse-socket=/s", False), ("mount -o fuse_socket=/s", False),
     ("fuse-helper --socket /s", False), ("run --job-config job.json", False)],
)  # fmt: skip
@pytest.mark.parametrize(
    ("states", "is_healthy"),
    [
        (("ok", "in trouble", "stopping", "not yours", "no answer"), True),
        (("dead",), False), (("ok", "no worker"), False),
    ],
)  # fmt: skip
def test_a_container_is_healthy_once_something_is_mounted_that_is_served(
    states: tuple[str, ...], is_healthy: bool, command: str, is_helped: bool, tmp_path: Path
) -> None:
    [check] = re.findall(r"^HEALTHCHECK .*\\\n +CMD (.*\\\n.*)$", _DOCKERFILE, re.MULTILINE)
    mounts, first = tmp_path / "mounts", tmp_path / "first"
    first.write_text(f"fastfuse {command}\0".replace(" ", "\0"))
    mounts.write_text("s3://b/p /mnt fuse.fastfuse ro 0 0\n" if "socket" not in command and not is_helped else "")
    told = json.dumps({"mounts": [{"mountpoint": "/mnt/no worker", "state": state} for state in states]})
    (tmp_path / "fastfuse").write_text(f"#!/bin/sh\n[ \"$*\" = 'status --json' ] && echo '{told}'\nexit 1\n")
    (tmp_path / "fastfuse").chmod(0o755)

    def exit_code(**environment: str) -> int:
        shell = ["sh", "-c", check.replace("/proc/self/mounts", str(mounts)).replace("/proc/1/cmdline", str(first))]
        return subprocess.run(shell, env={"PATH": f"{tmp_path}:/usr/bin:/bin"} | environment, check=False).returncode

    assert exit_code(**({"FASTFUSE_FUSE_SOCKET": "/s"} if is_helped else {})) == (not is_healthy)
    mounts.write_text("")
    assert exit_code() == (0 if is_healthy and "socket" in command else 1)


def test_docker_stop_leaves_a_mount_the_time_that_it_takes() -> None:
    commands = re.findall(r"docker run (?:.*\\\n)+", _DOCKERFILE + (ROOT / "docs/USAGE.md").read_text())
    assert len(commands) == 2
    defaults: dict[str, Any] = {field.name: field.default for field in fields(MountSettings)}
    for command in commands:
        [timeout_s] = re.findall(r"--stop-timeout (\d+)", command)
        assert int(timeout_s) > defaults["grace_s"] + FLUSH_S
