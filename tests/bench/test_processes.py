import mmap
import os
import subprocess

from bench.processes import cpu_seconds, peak_pss_bytes, process_tree, pss_bytes

SIZE_BYTES = 64 << 20


def test_memory_that_was_given_back_is_in_the_peak_alone() -> None:
    before_bytes = pss_bytes(os.getpid())
    with mmap.mmap(-1, SIZE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        for place in range(0, SIZE_BYTES, mmap.PAGESIZE):
            memory[place] = 1
        held_bytes = pss_bytes(os.getpid())
    assert held_bytes > before_bytes + SIZE_BYTES * 0.9
    assert pss_bytes(os.getpid()) < held_bytes - SIZE_BYTES * 0.9
    assert peak_pss_bytes(os.getpid()) > held_bytes - SIZE_BYTES * 0.1


def test_cpu_time_goes_on() -> None:
    before_s = cpu_seconds(os.getpid())
    while cpu_seconds(os.getpid()) == before_s:
        pass
    assert cpu_seconds(os.getpid()) > before_s


def test_a_tree_has_a_process_and_its_children() -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        assert process_tree(process.pid) == [process.pid]
        assert process.pid in process_tree(os.getpid())
        assert process.stdin is not None
        process.stdin.close()
