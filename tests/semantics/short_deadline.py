"""``python -m tests.semantics.short_deadline URI MOUNTPOINT ENDPOINT``: a mount whose reads fail within seconds.

No option sets the deadline, and a test cannot wait a minute for each failure.
"""

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from fastfuse import log
from fastfuse.cli.config import mount_settings
from fastfuse.filesystem import supervisor
from fastfuse.log import LogConfig
from fastfuse.s3.base import ConnectionConfig
from tests import mounting

__all__ = ["DEADLINE_S", "shorten_deadline"]

DEADLINE_S = 3.0


def shorten_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `tests.mounting.mounted` start this instead of the command."""

    def command(uri: str, path: Path, endpoint_url: str) -> list[str]:
        return [sys.executable, "-m", "tests.semantics.short_deadline", uri, str(path), endpoint_url]

    monkeypatch.setattr(mounting, "mount_command", command)


def main(uri: str, path: str, endpoint_url: str) -> int:
    connection = ConnectionConfig(
        endpoint_url=endpoint_url, region="us-east-1", force_path_style=True, deadline_s=DEADLINE_S
    )
    log.configure(LogConfig())
    settings = mount_settings(source=uri, mountpoint=Path(path), connection=connection, memory_target="256MiB")
    return supervisor.run(replace(settings, notify_socket=os.environ["NOTIFY_SOCKET"]))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
