"""Job files, and the values of ``--channel``: a line each."""

import json
from contextlib import suppress

from fastfuse.errors import ConfigurationError
from fastfuse.sagemaker.description.channel import TrainingJob
from fastfuse.sagemaker.description.job import channels_job, parse_json_job

TOKENS = (
    *(b'"InputDataConfig"', b'"ChannelName"', b'"train"', b'"DataSource"', b'"S3DataSource"', b'"S3DataType"'),
    *(b'"S3Uri"', b'"S3Prefix"', b'"ManifestFile"', b'"AugmentedManifestFile"', b'"s3://bucket/a"'),
    *(b'"S3DataDistributionType"', b'"ShardedByS3Key"', b'"FullyReplicated"', b'"AttributeNames"', b'["a"]'),
    *(b'"InputMode"', b'"Pipe"', b'"File"', b'"FastFile"', b'"CompressionType"', b'"Gzip"', b'"RecordWrapperType"'),
    *(b'"RecordIO"', b'"ShuffleConfig"', b'{"Seed": 1}', b'"ResourceConfig"', b'"InstanceGroups"'),
    *(b'"InstanceGroupNames"', b'"InstanceType"', b"1" * 41, b'"InstanceCount"', b'"HyperParameters"'),
    *(b'"Environment"', b'"TrainingJobName"', b'"AlgorithmSpecification"', b'"TrainingInputMode"'),
    *(b'"FileSystemDataSource"', b'"DatasetSource"', b"{", b"}", b"[", b"]", b",", b":", b'"', b"null", b"true"),
    *(b"NaN", b"-Infinity", b"1.5", b"1e999", b"\\ud800", b"\\u0000", b"\\", b"\x00", b"\xff", b"\n", b"[" * 64),
    *(b"]" * 64, b'{"a":' * 64, b"}" * 64, b"train=s3://bucket/a", b",type=manifest", b",shuffle-seed=1"),
    *(b",mode=pipe", b",distribution=sharded", b",attribute=a", b",compression=gzip"),
    b"\xef\xbb\xbf",
)


def try_one(data: bytes) -> None:
    try:
        job = parse_json_job(data, "job.json")
    except ConfigurationError as error:
        _check_error(error)
    else:
        json.loads(data.decode("utf-8-sig"), parse_int=len)  # of any length in fields that are not read
        _check(job)
    with suppress(ConfigurationError):  # it may quote whatever the user typed
        _check(channels_job(data.decode("utf-8", "surrogateescape").split("\n")))


def _check(job: TrainingJob) -> None:
    assert job.channels
    names = [channel.name for channel in job.channels]
    assert len(set(names)) == len(names)
    for name in names:
        assert name.isascii()
        assert not {"/", "\0", "\n"} & set(name)
        assert name not in (".", "..", "")


def _check_error(error: ConfigurationError) -> None:
    shown = f"{error} {error.hint}"
    assert shown.isprintable(), shown
    assert len(shown) < 1 << 12
