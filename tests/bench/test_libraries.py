from pathlib import Path

import pytest

from bench import libraries
from bench.server import PROFILES

_SIZES = {"_TENSOR_BYTES": 64 << 10, "_ROWS": 200, "_READS": 50, "_KEYS": 1000, "_MEMBERS": 100, "_MEMBER_BYTES": 100}


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in _SIZES.items():
        monkeypatch.setattr(libraries, name, value)


def test_each_workload_reads_the_same_each_time(tmp_path: Path) -> None:
    libraries.make(tmp_path)
    for name, (read, library, _) in libraries._WORKLOADS.items():
        if library and not libraries._library(library):
            continue
        pieces = list(read(str(tmp_path)))
        assert all(pieces), name
        assert list(read(str(tmp_path))) == pieces, name


def test_a_library_with_its_own_reader_of_s3_reads_the_same_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def read_here(name: str, place: str, endpoint_url: str) -> tuple[float, int, int]:
        for variable, value in libraries._environment(endpoint_url).items():
            monkeypatch.setenv(variable, value)
        return libraries._read(name, place)

    monkeypatch.setattr(libraries, "_read_apart", read_here)
    monkeypatch.setitem(PROFILES, "s3", PROFILES["fast"])
    libraries._measure(["own"], runs=1, only="")
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines()[1:]]
    own = {name.removeprefix("| "): cell for name, *_, cell in rows}
    for name, (_, library, own_reader) in libraries._WORKLOADS.items():
        if library and not libraries._library(library):
            assert name not in own
        elif not own_reader:
            assert own[name] == "– |"
        elif not libraries._library(own_reader):
            assert own[name] == f"{own_reader} is not installed |"
        else:
            assert own[name].endswith(f" ({own_reader}) |")
    assert float(own["pyarrow, one of 20 row groups of Parquet"].split(",")[0]) > 0
