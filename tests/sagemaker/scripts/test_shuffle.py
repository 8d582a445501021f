"""``ShuffleConfig``: each epoch of a stream has the same records in another order, which is the same in every run."""

from collections.abc import Iterator

import pytest

from fastfuse.testing import LoopbackServer, MemoryObjects
from tests.sagemaker.running.jobs import BUCKET
from tests.sagemaker.scripts.datasets import LABELLED, TFRECORDS, described
from tests.sagemaker.scripts.hosts import Epochs, read_by


@pytest.fixture(scope="module")
def server() -> Iterator[LoopbackServer]:
    with LoopbackServer({BUCKET: MemoryObjects({**TFRECORDS.objects, **LABELLED.objects})}) as running_server:
        yield running_server


def read_shuffled(server: LoopbackServer, mode: str) -> dict[str, Epochs]:
    channels = [described("tfrecords", mode)]
    if mode == "Pipe":
        augmented = described(
            "labelled", mode, "lists/images.manifest", "AugmentedManifestFile", AttributeNames=["image-ref", "label"]
        )
        channels.append(augmented | {"RecordWrapperType": "RecordIO"})
    [read] = read_by(1, server.endpoint_url, [item | {"ShuffleConfig": {"Seed": 7}} for item in channels])
    return read


def test_every_epoch_has_all_records_in_an_order_of_its_own_which_the_next_run_has_again(
    server: LoopbackServer,
) -> None:
    read = read_shuffled(server, "Pipe")
    for script, dataset in {"tfrecords": TFRECORDS, "labelled": LABELLED}.items():
        assert [sorted(records) for records in read[script]] == [dataset.all_records] * 2
        as_listed = [record for records in dataset.records.values() for record in records]
        assert as_listed not in read[script]
        assert read[script][0] != read[script][1]
    assert read_shuffled(server, "Pipe") == read


@pytest.mark.parametrize("mode", ["File", "FastFile"])
def test_of_files_the_script_chooses_the_order(server: LoopbackServer, mode: str) -> None:
    read = read_shuffled(server, mode)
    assert [sorted(records) for records in read["tfrecords"]] == [TFRECORDS.all_records] * 2
