import os
import subprocess

from fastfuse.sagemaker.training import CommandProcess


def test_only_what_the_command_left_running_is_told_to_end() -> None:
    """A shell that has started something may have become this process: ``tensorboard & exec fastfuse run ...``."""
    with subprocess.Popen(["sleep", "600"]) as earlier:
        command = CommandProcess("/bin/true", ["true"], {})
        os.waitpid(command.pid, 0)
        assert not command.press_leftovers(600.0)
        with subprocess.Popen(["sleep", "600"]) as later:
            assert command.press_leftovers(600.0)
            assert later.wait() == -15
        assert earlier.poll() is None
        earlier.kill()
