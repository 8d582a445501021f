"""What channels mean beside each other; what the fields of one mean together is in the table of `test_request`."""

import pytest

from fastfuse.sagemaker.description.channel import HOMOGENEOUS, InputMode, RequestedGroup
from tests.sagemaker.jobs import S3, job_of, refusal, request, source, with_field


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (source("a"), source("a"), "InputDataConfig[1].ChannelName: 'a' is the name of InputDataConfig[0], too"),
        (
            source("train"),
            source("Train"),
            "InputDataConfig[1].ChannelName: 'Train' and 'train' of InputDataConfig[0] differ in case only",
        ),
        (
            source("a", InputMode="Pipe"),
            source("a_0"),
            "InputDataConfig[1].ChannelName: 'a_0' is also the name of a FIFO of the Pipe channel 'a'",
        ),
        (
            source("a_17", InputMode="FastFile"),
            source("a", InputMode="Pipe"),
            "InputDataConfig[0].ChannelName: 'a_17' is also the name of a FIFO of the Pipe channel 'a'",
        ),
    ],
)
def test_two_channels_in_one_place_are_refused(
    first: dict[str, object], second: dict[str, object], message: str
) -> None:
    assert f": {message}" in str(refusal(request(first, second)))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (source("a"), source("a_0")),
        (source("a", InputMode="Pipe"), source("a_00")),
        (source("a", InputMode="Pipe"), source("a_")),
        (source("a", InputMode="Pipe"), source("a_b")),
        (source("a", InputMode="Pipe"), source("a_0", InputMode="Pipe")),
        (source("A", InputMode="Pipe"), source("a_0")),
    ],
)
def test_channels_whose_names_only_look_alike_are_taken(first: dict[str, object], second: dict[str, object]) -> None:
    assert len(job_of(request(first, second)).channels) == 2


@pytest.mark.parametrize("mode", list(InputMode))
@pytest.mark.parametrize("kind", ["S3Prefix", "ManifestFile", "AugmentedManifestFile"])
def test_every_source_runs_in_every_mode(mode: InputMode, kind: str) -> None:
    tree = with_field(request(source(InputMode=mode.value, ShuffleConfig={"Seed": 1})), (*S3, "S3DataType"), kind)
    tree = with_field(tree, (*S3, "S3Uri"), "s3://bucket/manifest")
    if kind == "AugmentedManifestFile":
        tree = with_field(tree, (*S3, "AttributeNames"), ["source-ref"])
    assert job_of(tree).channels[0].input_mode is mode


def test_a_pipe_of_an_augmented_manifest_needs_attribute_names() -> None:
    tree = with_field(request(source(InputMode="Pipe")), (*S3, "S3DataType"), "AugmentedManifestFile")
    error = refusal(with_field(tree, (*S3, "S3Uri"), "s3://bucket/manifest"))
    assert "InputDataConfig[0].DataSource.S3DataSource.AttributeNames: is missing" in str(error)


@pytest.mark.parametrize(
    ("resources", "groups"),
    [
        (None, ()),
        ({}, (RequestedGroup(name=HOMOGENEOUS, instance_type="local", count=1),)),
        (
            {"InstanceType": "ml.m5.large", "InstanceCount": 3},
            (RequestedGroup(name=HOMOGENEOUS, instance_type="ml.m5.large", count=3),),
        ),
        (
            {"InstanceGroups": [{"InstanceGroupName": "g", "InstanceType": "ml.m5.large", "InstanceCount": 0}]},
            (RequestedGroup(name="g", instance_type="ml.m5.large", count=0),),
        ),
    ],
)
def test_a_job_has_the_groups_that_it_asks_for(
    resources: dict[str, object] | None, groups: tuple[RequestedGroup, ...]
) -> None:
    assert job_of(request(ResourceConfig=resources)).groups == groups
