"""Commands that are forks of a loaded process (`tests.forked`) end with the tests."""

import os
import select
import subprocess
import sys
from pathlib import Path

from tests.filesystem.waiting import PATIENCE_S

COMMAND = "import os, signal; print(os.getpid(), flush=True); signal.pause()"
TESTS = f"import sys; from tests.forked import Forked; Forked([sys.executable, '-c', {COMMAND!r}]).wait()"


def test_a_command_ends_with_tests_that_are_killed() -> None:
    root = Path(__file__).parents[1]
    with subprocess.Popen([sys.executable, "-c", TESTS], stdout=subprocess.PIPE, cwd=root) as tests:
        assert tests.stdout is not None
        pid = int(tests.stdout.readline())
        with open(os.pidfd_open(pid), "rb", buffering=0) as end:
            tests.kill()
            assert select.select([end], [], [], PATIENCE_S)[0]
