"""Shards of a job: a host may be without any. What hosts and manifests deliver is in `tests/sagemaker/scripts`."""

import hashlib

import pytest

from bench.s3server import LoopbackServer
from tests.sagemaker.running.jobs import CHECKSUMS, channel, checksums, running, script

OBJECTS = {"data/0": b"all of it"}


# In FastFile mode: `tests/sagemaker/scripts/test_modes.py`, where hosts are more than objects.
@pytest.mark.parametrize("mode", ["File", "Pipe"])
def test_a_host_without_a_share_is_no_failure(server: LoopbackServer, mode: str) -> None:
    described = channel("data", mode, "data/")
    described["DataSource"]["S3DataSource"]["S3DataDistributionType"] = "ShardedByS3Key"
    read = []
    for host in (1, 2):
        options = ("--host", f"{host}/2")
        with running(server.endpoint_url, [described], *options, command=script(CHECKSUMS)) as job:
            assert job.wait() == 0, job.log
            read.append(checksums(job)["data"])
    assert sorted(read) == sorted([hashlib.sha256(b"all of it").hexdigest(), hashlib.sha256(b"").hexdigest()])
