import os
from pathlib import Path

from bench.mounting import Mounted
from bench.requests import measure


def test_each_request_is_made_once_and_the_processes_time_is_shared_among_them(tmp_path: Path) -> None:
    numbers: list[int] = []

    def act(number: int) -> None:
        numbers.append(number)
        sum(range(1000))

    cost = measure(Mounted(tmp_path, os.getpid()), 50, act)
    assert numbers == list(range(50))
    assert cost.cpu_us > 0
    assert cost.elapsed_us > 0
