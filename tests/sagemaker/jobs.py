"""Requests as dictionaries in AWS's spelling, to be changed in one place each."""

import copy
import json

from fastfuse.errors import ConfigurationError
from fastfuse.sagemaker.description.channel import Channel, TrainingJob
from fastfuse.sagemaker.description.job import parse_json_job
from fastfuse.sagemaker.description.request import FieldPath

# Takes a field away.
ABSENT = object()

CHANNEL: FieldPath = ("InputDataConfig", 0)
S3: FieldPath = (*CHANNEL, "DataSource", "S3DataSource")


def source(name: str = "train", **fields: object) -> dict[str, object]:
    """A channel of a prefix, and its fields beside `DataSource`."""
    place = {"S3DataType": "S3Prefix", "S3Uri": f"s3://bucket/{name}/"}
    return {"ChannelName": name, "DataSource": {"S3DataSource": place}, **fields}


def request(*channels: dict[str, object], **fields: object) -> dict[str, object]:
    """A whole CreateTrainingJob request; one channel if none is given."""
    return {
        "TrainingJobName": "a-job",
        "RoleArn": "arn:aws:iam::123456789012:role/Training",
        "AlgorithmSpecification": {"TrainingImage": "image", "TrainingInputMode": "File"},
        "OutputDataConfig": {"S3OutputPath": "s3://bucket/output/"},
        "ResourceConfig": {"InstanceType": "ml.g5.xlarge", "InstanceCount": 1, "VolumeSizeInGB": 50},
        "StoppingCondition": {"MaxRuntimeInSeconds": 86400},
        "InputDataConfig": list(channels) or [source()],
        **fields,
    }


def with_field(tree: dict[str, object], path: FieldPath, value: object) -> dict[str, object]:
    changed = copy.deepcopy(tree)
    inner: object = changed
    for step in path[:-1]:
        inner = inner.setdefault(step, {}) if isinstance(inner, dict) else inner[step]  # type: ignore[index]
    assert isinstance(inner, dict)
    if value is ABSENT:
        inner.pop(path[-1], None)
    else:
        inner[path[-1]] = value
    return changed


def job_of(tree: object) -> TrainingJob:
    return parse_json_job(json.dumps(tree, indent=2).encode(), "job.json")


def channel_of(tree: object) -> Channel:
    (channel,) = job_of(tree).channels
    return channel


def refusal(tree: object) -> ConfigurationError:
    """The error, whose message begins with the file and the field."""
    try:
        job = job_of(tree)
    except ConfigurationError as error:
        return error
    raise AssertionError(f"taken for {job}")
