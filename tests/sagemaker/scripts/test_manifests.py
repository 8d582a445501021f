"""Scripts over manifests of both kinds: in every mode two hosts together read what is listed."""

import json
from collections.abc import Iterator

import pytest

from bench.s3server import LoopbackServer, MemoryObjects
from tests.sagemaker.running.jobs import BUCKET
from tests.sagemaker.scripts.datasets import LABELLED, TFRECORDS, described
from tests.sagemaker.scripts.hosts import read_by

MODES = ("FastFile", "File", "Pipe")
PREFIX = "tfrecords/part "
# Two of three, the last first.
LISTED = [key for number, key in enumerate(TFRECORDS.objects) if number % 3][::-1]
MANIFEST = json.dumps([{"prefix": f"s3://{BUCKET}/{PREFIX}"}, *(key.removeprefix(PREFIX) for key in LISTED)])
LISTED_RECORDS = [record for key in LISTED for record in TFRECORDS.records[key]]
LABELLED_RECORDS = [record for records in LABELLED.records.values() for record in records]


@pytest.fixture(scope="module")
def server() -> Iterator[LoopbackServer]:
    objects = {**TFRECORDS.objects, **LABELLED.objects, "lists/part.manifest": MANIFEST.encode()}
    with LoopbackServer({BUCKET: MemoryObjects(objects)}) as running_server:
        yield running_server


@pytest.mark.parametrize("mode", MODES)
def test_what_manifests_list_is_read_in_every_mode_on_two_hosts_together(server: LoopbackServer, mode: str) -> None:
    sharded = {"S3DataDistributionType": "ShardedByS3Key"}
    labelled = described(
        "labelled", mode, "lists/images.manifest", "AugmentedManifestFile",
        AttributeNames=["image-ref", "label"], **sharded,
    )  # fmt: skip
    if mode == "Pipe":  # where files end, a stream needs a word; SageMaker wants it in Pipe mode only
        labelled["RecordWrapperType"] = "RecordIO"
    listed = described("tfrecords", mode, "lists/part.manifest", "ManifestFile", **sharded)
    hosts = read_by(2, server.endpoint_url, [listed, labelled])
    for epoch in range(2):
        for script, records in (("tfrecords", LISTED_RECORDS), ("labelled", LABELLED_RECORDS)):
            assert sorted(record for read in hosts for record in read[script][epoch]) == sorted(records)
        # Lines have their order wherever they are read from, and objects in a stream.
        for read in hosts:
            assert_in_order(read["labelled"][epoch], LABELLED_RECORDS)
            if mode == "Pipe":
                assert_in_order(read["tfrecords"][epoch], LISTED_RECORDS)


def assert_in_order(records: list[str], of: list[str]) -> None:
    places = [of.index(record) for record in records]
    assert places == sorted(places)
