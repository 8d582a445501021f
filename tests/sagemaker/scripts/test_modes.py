"""Scripts as people write them, on several hosts: in every mode they read the same records."""

from collections.abc import Iterator

import pytest

from bench.s3server import LoopbackServer, MemoryObjects
from tests.sagemaker.running.jobs import BUCKET
from tests.sagemaker.scripts.datasets import LABELLED, SCRIPTS, described
from tests.sagemaker.scripts.hosts import read_by

EPOCHS = 2


@pytest.fixture(scope="module")
def server() -> Iterator[LoopbackServer]:
    objects = {key: data for dataset in (*SCRIPTS.values(), LABELLED) for key, data in dataset.objects.items()}
    with LoopbackServer({BUCKET: MemoryObjects(objects)}) as running_server:
        yield running_server


# Six hosts are more than one of the scripts has objects.
@pytest.mark.parametrize(("host_count", "mode"), [(6, "FastFile"), (2, "File"), (2, "Pipe")])
def test_hosts_of_a_sharded_job_read_every_record_once_between_them(
    server: LoopbackServer, host_count: int, mode: str
) -> None:
    channels = [described(script, mode, S3DataDistributionType="ShardedByS3Key") for script in SCRIPTS]
    hosts = read_by(host_count, server.endpoint_url, channels)
    for script, dataset in SCRIPTS.items():
        for epoch in range(EPOCHS):
            # Sorted lists, not sets: a record of two hosts would be there twice.
            assert sorted(record for read in hosts for record in read[script][epoch]) == dataset.all_records
        with_a_share = sum(bool(read[script][0]) for read in hosts)
        assert with_a_share == min(host_count, len(dataset.objects))
