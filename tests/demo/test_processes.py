import os
import signal
import subprocess
import sys

import pytest

from fastfuse.demo.mounting import peak_memory_bytes, process_tree
from fastfuse.filesystem.children import fork_child, wait_child
from fastfuse.filesystem.privileges import become_nobody

PARENT = """
import os, subprocess, sys
block = bytearray(64 << 20); block[::4096] = b"x" * len(block[::4096]); del block
child = subprocess.Popen([sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()"])
child.wait()
"""


def test_a_tree_has_its_children_and_its_peak_counts_memory_that_was_given_back() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        process.stdout.readline()
        tree = process_tree(process.pid)
        assert tree[0] == process.pid
        assert len(tree) == 2
        assert 64 << 20 < peak_memory_bytes(process.pid) < 128 << 20
        process.stdin.close()


def test_a_process_without_children_is_a_tree_of_one() -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        assert process_tree(process.pid) == [process.pid]
        assert process.pid in process_tree(os.getpid())
        assert process.stdin is not None
        process.stdin.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_an_ordinary_user_gets_the_memory_of_processes_that_are_not_dumpable() -> None:
    def measure() -> None:
        become_nobody()
        children = [fork_child(signal.pause) for _ in range(2)]  # one of them is not the largest
        try:
            assert peak_memory_bytes(os.getpid()) > 1 << 20
        finally:
            for child in children:
                os.kill(child, signal.SIGKILL)
                wait_child(child)

    assert wait_child(fork_child(measure)) == 0
