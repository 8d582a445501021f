"""What every refusal has in common, and environments in which something is missing."""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from fastfuse.filesystem.mounting.mountpoint import find_mount
from tests.forked import run_forked
from tests.mounting import ENVIRONMENT

NOBODY = 65534

# Ends when every process that the command started has ended, too, with the exit code of the command.
_WITH_DESCENDANTS = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
command = os.fork()
if command == 0:
    %s
code = os.waitstatus_to_exitcode(os.waitpid(command, 0)[1])
try:
    while True:
        os.wait()
except ChildProcessError:
    sys.exit(code)
"""


def run(command: list[str], *, environment: Mapping[str, str] = ENVIRONMENT) -> subprocess.CompletedProcess[str]:
    """Run until the command and all that it started have ended."""
    return run_forked(
        [sys.executable, "-c", _WITH_DESCENDANTS % "os.execvp(sys.argv[1], sys.argv[1:])", *command], environment
    )


def assert_refused(
    done: subprocess.CompletedProcess[str], exit_code: int, *messages: str, environment: Mapping[str, str] = ENVIRONMENT
) -> None:
    """One line that says what is wrong, at most one that says what to do, and nothing that nobody should see."""
    assert "Traceback" not in done.stderr
    said = (" INFO fastfuse.", " WARNING fastfuse.s3.retries:")  # a request that is tried again is told
    lines = [line for line in done.stderr.splitlines() if not any(words in line for words in said)]
    assert lines, f"exit code {done.returncode} without a word"
    assert lines[0].startswith("fastfuse: error: "), done.stderr
    assert [line.startswith("hint: ") for line in lines[1:]] in ([], [True]), done.stderr
    for message in messages:
        assert message in "\n".join(lines)
    for name, value in environment.items():
        if name in ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
            assert value not in done.stderr + done.stdout
    assert done.returncode == exit_code, done.stderr
    assert not done.stdout


def refused(
    path: Path, exit_code: int, *messages: str, arguments: list[str], environment: Mapping[str, str] = ENVIRONMENT
) -> None:
    """``fastfuse`` with `arguments` is refused with this code and these words, and mounts nothing at `path`."""
    program = _WITH_DESCENDANTS % "from fastfuse.cli.main import main; sys.exit(main())"
    done = run_forked([sys.executable, "-c", program, *arguments], environment)
    assert_refused(done, exit_code, *messages, environment=environment)
    assert find_mount(path) is None


def in_namespace(command: list[str], preparation: str) -> list[str]:
    """`command` in a mount namespace of its own, after the shell commands `preparation`."""
    return ["unshare", "-m", "sh", "-e", "-c", f'{preparation}\nexec "$@"', "sh", *command]


def as_nobody(command: list[str]) -> list[str]:
    """`command` as an ordinary user.

    It keeps one capability, to read files whatever their mode: the interpreter may lie in somebody's home directory.
    That gives no right to mount.
    """
    keep = ["--inh-caps=-all,+dac_read_search", "--ambient-caps=+dac_read_search"]
    return ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", *keep, "--", *command]
