"""``python -m bench.fio JOB.fio ...``: fio's job files, unchanged, on a mount.

The files that a job names are made with the size that it names (sparse, so they cost no room), served by the loopback
server and mounted; fio runs in the mount with ``--readonly --allow_file_create=0``, and is interrupted after some
seconds, because many jobs are written to run for a quarter of an hour.
"""

import argparse
import configparser
import json
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.candidates import CANDIDATES, Limits
from bench.machine import drop_caches
from bench.mounting import Mounted
from bench.server import PROFILES, Server
from fastfuse.sizes import parse_size

_EXAMPLES = Path("/usr/share/doc/fio/examples")
_USUAL = [_EXAMPLES / "fio-seq-read.fio", _EXAMPLES / "fio-rand-read.fio"]
_END_S = 30.0


def files_of(job_file: str) -> dict[str, int]:
    """The files that the text of a job file reads, and their sizes in bytes; `ValueError` where it says none."""
    parser = configparser.ConfigParser(
        allow_no_value=True, strict=False, interpolation=None, comment_prefixes=("#", ";"), delimiters=("=",)
    )
    parser.read_string(job_file)
    common = dict(parser["global"]) if "global" in parser else {}
    files: dict[str, int] = {}
    for name in parser.sections():
        if name != "global":
            job = common | dict(parser[name])
            size = job.get("size")
            if not size:
                raise ValueError(f"job {name} says no size, so there is no file to make for it")
            files |= dict.fromkeys(_names(name, job), parse_size(size))
    return files


def _names(name: str, job: Mapping[str, str | None]) -> list[str]:
    given = job.get("filename")
    if given:
        return given.split(":")
    # fio's own names: $jobname.$jobnum.$filenum
    return [
        f"{name}.{number}.{file}"
        for number in range(int(job.get("numjobs") or 1))
        for file in range(int(job.get("nrfiles") or 1))
    ]


@contextmanager
def _mounted(files: Mapping[str, int], candidate: str, profile: str) -> Iterator[Mounted]:
    with (
        tempfile.TemporaryDirectory(prefix="fastfuse-bench-") as source,
        tempfile.TemporaryDirectory(prefix="fastfuse-bench-") as place,
    ):
        for name, size_bytes in files.items():
            with Path(source, name).open("wb") as file:
                file.truncate(size_bytes)
        with (
            Server(Path(source), profile=PROFILES[profile]) as server,
            CANDIDATES[candidate](server, Path(place), Limits()) as mounted,
        ):
            assert isinstance(mounted, Mounted)
            yield mounted


def _run(job: Path, root: Path, seconds: float) -> list[dict[str, Any]]:
    """fio's report of each job in the file; `ValueError` if it made none."""
    command = ["fio", "--readonly", "--allow_file_create=0", "--output-format=json", str(job)]
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            told, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            told, _ = process.communicate(timeout=_END_S)
    # It says something about the signal before and after.
    if "{" not in told:
        raise ValueError(f"fio made no report: {told.strip()}")
    jobs: list[dict[str, Any]] = json.JSONDecoder().raw_decode(told[told.index("{") :])[0]["jobs"]
    return jobs


def _row(job: Path, report: Mapping[str, Any]) -> str:
    read = report["read"]
    p99_ms = read["clat_ns"].get("percentile", {}).get("99.000000", 0) / 1e6
    return (
        f"| {job.name} {report['jobname']} | {read['bw_bytes'] / 1e6:,.0f} | {read['iops']:,.0f} "
        f"| {read['clat_ns']['mean'] / 1e6:.2f} | {p99_ms:.2f} | {report['error'] or '–'} |"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print; 1 if a job had an error or read nothing."""
    parser = argparse.ArgumentParser(prog="python -m bench.fio", description=__doc__)
    parser.add_argument("jobs", type=Path, nargs="*", default=_USUAL, help="else fio's examples fio-{seq,rand}-read")
    parser.add_argument("--seconds", type=float, default=10.0, help="how long each job file may run")
    parser.add_argument("--profile", choices=PROFILES, default="s3")
    parser.add_argument("--candidate", choices=[name for name in CANDIDATES if name != "raw"], default="fastfuse")
    options = parser.parse_args(arguments)
    if shutil.which("fio") is None:
        parser.error("fio is not on the PATH (Debian: fio, and fio-examples for its own job files)")
    print("| job | MB/s | reads/s | mean ms | p99 ms | error |\n|---|---:|---:|---:|---:|---|")
    is_fine = True
    for job in options.jobs:
        try:
            with _mounted(files_of(job.read_text()), options.candidate, options.profile) as mounted:
                drop_caches()
                reports = _run(job.absolute(), mounted.root, options.seconds)
        except (OSError, ValueError) as error:
            parser.error(f"{job}: {getattr(error, 'strerror', None) or error}")
        for report in reports:
            print(_row(job, report), flush=True)
            is_fine &= not report["error"] and report["read"]["io_bytes"] > 0
    return 0 if is_fine else 1


if __name__ == "__main__":
    sys.exit(main())
