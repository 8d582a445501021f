"""Scripts as people write them, on several hosts: in every mode they read the same records."""

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from bench.s3server import LoopbackServer, MemoryObjects
from tests.sagemaker.running.jobs import BUCKET, channel, running
from tests.sagemaker.scripts.datasets import scripts

EPOCHS = 2
# As ``python -m`` would run each; in one process, which imports numpy once.
ONE_AFTER_THE_OTHER = f"""
import runpy, sys
for script in sys.argv[1:]:
    sys.argv[1:] = [script]
    runpy.run_module("{__package__}." + script, run_name="__main__", alter_sys=True)
"""


@pytest.fixture(scope="module")
def server() -> Iterator[LoopbackServer]:
    objects = {key: data for dataset in scripts().values() for key, data in dataset.objects.items()}
    with LoopbackServer({BUCKET: MemoryObjects(objects)}) as running_server:
        yield running_server


# Three hosts are more than one of the scripts has objects.
@pytest.mark.parametrize(("host_count", "mode"), [(3, "FastFile"), (2, "File"), (2, "Pipe")])
def test_hosts_read_every_record_once_between_them(server: LoopbackServer, host_count: int, mode: str) -> None:
    channels = [channel(script, mode, f"{script}/") for script in scripts()]
    for each in channels:
        each["DataSource"]["S3DataSource"]["S3DataDistributionType"] = "ShardedByS3Key"
    options = ("--part-size", "1MiB", "--host")
    command = (sys.executable, "-c", ONE_AFTER_THE_OTHER, *scripts())
    hosts = []
    with ExitStack() as stack:
        numbers = [f"{host}/{host_count}" for host in range(1, host_count + 1)]
        for job in [
            stack.enter_context(running(server.endpoint_url, channels, *options, number, command=command))
            for number in numbers
        ]:
            assert job.wait() == 0, job.log
            lines = [json.loads(line) for line in job.output.splitlines()]
            hosts.append({line["channel"]: line["epochs"] for line in lines})
    for script, dataset in scripts().items():
        for epoch in range(EPOCHS):
            # Sorted lists, not sets: a record of two hosts would be there twice.
            assert sorted(record for read in hosts for record in read[script][epoch]) == dataset.records
        with_a_share = sum(bool(read[script][0]) for read in hosts)
        assert with_a_share == min(host_count, len(dataset.objects))
