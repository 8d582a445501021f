import pytest
from pydantic import BaseModel

from fastfuse.sagemaker.description.request import (
    AlgorithmRequest,
    ChannelRequest,
    CheckpointRequest,
    FileSystemSource,
    GroupRequest,
    OutputRequest,
    Request,
    ResourceRequest,
    S3Source,
    SourceRequest,
    StoppingRequest,
    TensorBoardRequest,
)
from tests.sagemaker.models import shapes


@pytest.mark.parametrize(
    ("shape", "names"),
    [
        (Request, ("CreateTrainingJobRequest", "DescribeTrainingJobResponse")),
        (ChannelRequest, ("Channel",)),
        (SourceRequest, ("DataSource",)),
        (S3Source, ("S3DataSource",)),
        (FileSystemSource, ("FileSystemDataSource",)),
        (AlgorithmRequest, ("AlgorithmSpecification",)),
        (ResourceRequest, ("ResourceConfig",)),
        (GroupRequest, ("InstanceGroup",)),
        (OutputRequest, ("OutputDataConfig",)),
        (StoppingRequest, ("StoppingCondition",)),
        (CheckpointRequest, ("CheckpointConfig",)),
        (TensorBoardRequest, ("TensorBoardOutputConfig",)),
    ],
)
def test_every_field_that_the_api_has_is_known(shape: type[BaseModel], names: tuple[str, ...]) -> None:
    known = shape.model_fields.keys() | shape.known  # type: ignore[attr-defined]
    assert {field for name in names for field in shapes()[name]["members"]} <= known


def test_no_field_is_known_that_the_api_has_not() -> None:
    answers = shapes()["CreateTrainingJobRequest"]["members"] | shapes()["DescribeTrainingJobResponse"]["members"]
    assert Request.model_fields.keys() | Request.known == answers.keys() | {"ResponseMetadata"}
