"""The step from a request with valid fields to a training job: what the fields mean together. Pure."""

import posixpath
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from fastfuse.errors import ConfigurationError
from fastfuse.index.origin import SourceKind
from fastfuse.index.sources.uri import S3Uri
from fastfuse.sagemaker.description.channel import (
    HOMOGENEOUS,
    Channel,
    InputMode,
    LocalDirectory,
    OutputConfig,
    RequestedGroup,
    SyncedDirectory,
    TrainingJob,
)
from fastfuse.sagemaker.description.request import FieldError, FieldPath

# A structure of a request, by the names of the API.
_Fields = dict[str, Any]

# In the place of an S3 URI, for a directory of this host; the API has no such thing, but AWS's local mode has.
_FILE_SCHEME: Final = "file://"

# The host of an HTTPS address of AWS's: s3.eu-west-1.amazonaws.com, BUCKET.s3.amazonaws.com, BUCKET.s3-us-west-2...
_AWS_HOST: Final = re.compile(
    r"(?:(?P<bucket>.+)\.)?s3(?:[.-](?:dualstack\.)?[a-z0-9-]+)?\.amazonaws\.com(?:\.cn)?", re.ASCII
)


def job_of(request: _Fields, *, default_mode: InputMode | None) -> TrainingJob:
    """Make the job of what `parse_request` returns; channels without a mode get `default_mode`.

    Raises:
        FieldError: fields contradict each other, or ask for what is not served here; or a channel has no mode.
    """
    resources, algorithm = request.get("ResourceConfig"), request.get("AlgorithmSpecification", {})
    channels = tuple(
        _channel(("InputDataConfig", index), item, algorithm.get("TrainingInputMode"), default_mode)
        for index, item in enumerate(request.get("InputDataConfig", ()))
    )
    _check_names(channels)
    groups = () if resources is None else _groups(resources)
    _check_group_names(channels, {group.name for group in groups})
    # An answer of SageMaker's names the places of the job that it ran, which are not to be written to.
    arn = request.get("TrainingJobArn", "")
    # Arguments alone are those of an image's own command, which is not here.
    entrypoint = algorithm.get("ContainerEntrypoint", ())
    return TrainingJob(
        channels=channels,
        name=request.get("TrainingJobName", ""),
        arn=arn,
        groups=groups,
        hyperparameters=request.get("HyperParameters", {}),
        environment=request.get("Environment", {}),
        output=None if arn else _output(request),
        synced=() if arn else tuple(_synced(request)),
        max_runtime_s=request.get("StoppingCondition", {}).get("MaxRuntimeInSeconds"),
        command=(*entrypoint, *algorithm.get("ContainerArguments", ())) if entrypoint else (),
    )


def _channel(path: FieldPath, item: _Fields, job_mode: str | None, default_mode: InputMode | None) -> Channel:
    given = item.get("InputMode") or job_mode
    if (chosen := given or default_mode) is None:
        raise FieldError(
            ("AlgorithmSpecification", "TrainingInputMode"),
            f"is missing, and InputDataConfig[{path[1]}] ({item['ChannelName']!r}) has no InputMode of its own",
            hint="the API requires it: File, FastFile or Pipe, for every channel without an InputMode",
        )
    mode = InputMode(chosen)
    _check_mode(path, item, mode)
    where, given_source = (*path, "DataSource"), item["DataSource"]
    if [*given_source] not in (["S3DataSource"], ["FileSystemDataSource"]):
        hint = "a channel has one source here: give the S3 prefix as an S3DataSource, or a FileSystemDataSource"
        raise FieldError(where, f"has {' and '.join(given_source) or 'no source'}", hint=hint)
    [(kind, source)] = given_source.items()
    where, is_s3 = (*where, kind), kind == "S3DataSource"
    channel = Channel(
        name=item["ChannelName"],
        input_mode=mode,
        is_mode_assumed=given is None,
        source=_uri(where, source) if is_s3 else _file_system(where, source),
        content_type=item.get("ContentType"),
        is_gzip=item.get("CompressionType") == "Gzip",
        wraps_records=item.get("RecordWrapperType") == "RecordIO",
        shuffle_seed=item.get("ShuffleConfig", {}).get("Seed"),
    )
    if not is_s3:
        return channel
    _check_attributes(where, source, mode)
    return replace(
        channel,
        source_kind=SourceKind(source["S3DataType"]),
        is_sharded=source.get("S3DataDistributionType") == "ShardedByS3Key",
        attribute_names=tuple(source.get("AttributeNames", ())),
        instance_group_names=tuple(source.get("InstanceGroupNames", ())),
    )


def _file_system(where: FieldPath, source: _Fields) -> LocalDirectory:
    return LocalDirectory(
        path=_full_path((*where, "DirectoryPath"), source["DirectoryPath"]),
        file_system=source["FileSystemId"],
        is_writable=source["FileSystemAccessMode"] == "rw",
    )


def _full_path(where: FieldPath, text: str) -> str:
    if not text.startswith("/") or ".." in text.split("/") or "\0" in text:
        raise FieldError(
            where,
            f"{text!r} is not the full path of a directory",
            hint="begin it with /, and leave .. and NUL characters out of it",
        )
    return text


def _check_mode(path: FieldPath, item: _Fields, mode: InputMode) -> None:
    for name in ("CompressionType", "RecordWrapperType"):
        if mode is not InputMode.PIPE and item.get(name, "None") != "None":
            raise FieldError(
                (*path, name),
                f"is {item[name]}, which is for Pipe mode, and the channel's mode is {mode}",
                hint="set InputMode to Pipe, or leave it out and let the script decompress or parse the files",
            )


def _check_attributes(where: FieldPath, source: _Fields, mode: InputMode) -> None:
    # AWS's documents disagree on modes for augmented manifests. Here every mode takes them: a job must run when
    # only its mode changes.
    where, names = (*where, "AttributeNames"), source.get("AttributeNames", ())
    is_augmented = source["S3DataType"] == SourceKind.AUGMENTED_MANIFEST
    if names and not is_augmented:
        raise FieldError(
            where,
            f"is for augmented manifests, and S3DataType is {source['S3DataType']}",
            hint="leave it out, or set S3DataType to AugmentedManifestFile",
        )
    if is_augmented and mode is InputMode.PIPE and not names:
        raise FieldError(
            where, "is missing: a pipe carries the attributes that it names, in its order", hint="name one at least"
        )
    for index, name in enumerate(names):
        if name in names[:index]:
            raise FieldError((*where, index), f"names {name!r} a second time", hint="name each attribute once")


def _uri(where: FieldPath, source: _Fields) -> S3Uri | LocalDirectory:
    path, text, kind = (*where, "S3Uri"), source["S3Uri"], source["S3DataType"]
    if kind == "Converse":
        raise FieldError(
            (*where, "S3DataType"),
            "is Converse, which names conversations and no objects",
            hint="give the prefix of the files as an S3Prefix",
        )
    if text.startswith(_FILE_SCHEME):
        # Taken verbatim, as the keys of an S3 URI are.
        return LocalDirectory(path=_full_path(path, text.removeprefix(_FILE_SCHEME)))
    try:
        uri = _https_uri(text) if text.startswith("https://") else S3Uri.parse(text)
    except ConfigurationError as error:
        raise FieldError(path, str(error), hint=error.hint) from error
    if not text.startswith(("s3://", "https://")):
        raise FieldError(path, f"{text!r} is not an S3 URI", hint="the API wants s3:// in small letters")
    if kind != SourceKind.PREFIX and (not uri.path or uri.path.endswith("/")):
        raise FieldError(
            path,
            f"{str(uri)!r} names no file, and S3DataType is {kind}",
            hint="give the URI of the manifest, or set S3DataType to S3Prefix",
        )
    return uri


def _https_uri(text: str) -> S3Uri:
    """Return the S3 URI of an HTTPS address at AWS, in either style."""
    hint = "write it as s3://BUCKET/PREFIX, and give the service with --endpoint-url if it is not AWS"
    try:
        parts = urlsplit(text)
        match = _AWS_HOST.fullmatch((parts.hostname or "").lower())
    except ValueError as error:
        raise ConfigurationError("is not an address", hint=hint) from error
    if parts.query or parts.fragment or parts.username is not None or match is None:
        raise ConfigurationError(
            "is no HTTPS address of a bucket at AWS, or has more in it than bucket and key", hint=hint
        )
    path = unquote(parts.path.removeprefix("/"), errors="surrogateescape")
    return S3Uri.parse(f"s3://{match['bucket']}/{path}" if match["bucket"] else f"s3://{path}")


def _check_names(channels: tuple[Channel, ...]) -> None:
    seen: dict[str, int] = {}
    for index, channel in enumerate(channels):
        path = ("InputDataConfig", index, "ChannelName")
        if channel.name in (".", ".."):
            raise FieldError(path, f"is {channel.name!r}, which no directory can be called", hint="name it otherwise")
        other = seen.setdefault(channel.name.upper(), index)
        if other != index:
            what = f"{channel.name!r} and InputDataConfig[{other}] would both be SM_CHANNEL_{channel.name.upper()}"
            raise FieldError(path, what, hint="give each channel a name of its own")
    pipes = {channel.name for channel in channels if channel.input_mode is InputMode.PIPE}
    for index, channel in enumerate(channels):
        # A FIFO is ``<channel>_<epoch>``.
        name, _, epoch = channel.name.rpartition("_")
        if channel.name not in pipes and name in pipes and re.fullmatch(r"0|[1-9][0-9]*", epoch):
            raise FieldError(
                ("InputDataConfig", index, "ChannelName"),
                f"{channel.name!r} is also the name of a FIFO of the Pipe channel {name!r}",
                hint="rename one of the two",
            )


def _groups(resources: _Fields) -> tuple[RequestedGroup, ...]:
    path, given = ("ResourceConfig", "InstanceGroups"), resources.get("InstanceGroups")
    if not given:
        kind, count = resources.get("InstanceType", "local"), resources.get("InstanceCount", 1)
        return (RequestedGroup(name=HOMOGENEOUS, instance_type=kind, count=count),)
    if resources.keys() & {"InstanceType", "InstanceCount"}:
        raise FieldError(
            path, "is given beside InstanceType or InstanceCount", hint="describe the instances in one of the two ways"
        )
    names = [item["InstanceGroupName"] for item in given]
    for index, name in enumerate(names):
        if name in names[:index]:
            where = (*path, index, "InstanceGroupName")
            raise FieldError(where, f"{name!r} is the name of another group, too", hint="give each group its own")
    return tuple(
        RequestedGroup(name=name, instance_type=item["InstanceType"], count=item["InstanceCount"])
        for name, item in zip(names, given, strict=True)
    )


def _check_group_names(channels: tuple[Channel, ...], known: set[str]) -> None:
    for index, channel in enumerate(channels):
        for position, name in enumerate(channel.instance_group_names):
            if name not in known:
                path = ("InputDataConfig", index, "DataSource", "S3DataSource", "InstanceGroupNames", position)
                raise FieldError(
                    path,
                    f"{name!r} is no group of ResourceConfig.InstanceGroups",
                    hint=f"the groups are {', '.join(sorted(known))}" if known else "describe the groups there",
                )


# Everything of a job lies in them.
_NOT_ALONE: Final = frozenset({"/", "/opt", "/opt/ml"})
# The data are in the first, and what earlier runs left in the second.
_TAKEN: Final = ("/opt/ml/input/", "/opt/ml/runs/")
# The defaults of the API.
_CHECKPOINTS: Final = "/opt/ml/checkpoints"
_TENSORBOARD: Final = "/opt/ml/output/tensorboard"


def _output(request: _Fields) -> OutputConfig | None:
    config = request.get("OutputDataConfig")
    if config is None:
        return None
    folder = _folder(("OutputDataConfig", "S3OutputPath"), config["S3OutputPath"])
    return OutputConfig(
        place=S3Uri(folder.bucket, f"{folder.path}{_job_name(request)}/output/"),
        kms_key_id=config.get("KmsKeyId", ""),
        is_compressed=config.get("CompressionType") != "NONE",
    )


def _synced(request: _Fields) -> Iterator[SyncedDirectory]:
    checkpoints, logs = request.get("CheckpointConfig"), request.get("TensorBoardOutputConfig")
    if checkpoints is not None:
        path = _local_path("CheckpointConfig", checkpoints.get("LocalPath", _CHECKPOINTS))
        place = _folder(("CheckpointConfig", "S3Uri"), checkpoints["S3Uri"])
        yield SyncedDirectory(name="checkpoints", local_path=path, place=place, are_checkpoints=True)
    if logs is not None:
        path = _local_path("TensorBoardOutputConfig", logs.get("LocalPath", _TENSORBOARD))
        folder = _folder(("TensorBoardOutputConfig", "S3OutputPath"), logs["S3OutputPath"])
        place = S3Uri(folder.bucket, f"{folder.path}{_job_name(request)}/tensorboard-output/")
        yield SyncedDirectory(name="tensorboard", local_path=path, place=place, are_checkpoints=False)


def _local_path(config: str, text: str) -> str:
    # Two slashes at the beginning, which normpath keeps, mean one to Linux.
    path = posixpath.normpath(f"/{text.lstrip('/')}")
    is_full = text.startswith("/") and ".." not in text.split("/")
    if not is_full or path in _NOT_ALONE or f"{path}/".startswith(_TAKEN):
        raise FieldError(
            (config, "LocalPath"),
            f"{text!r} is no place for files that go to S3",
            hint=f"name a directory of their own, such as {_CHECKPOINTS}",
        )
    return path


def _folder(where: FieldPath, text: str) -> S3Uri:
    """Return the prefix that ends in "/", or that of the whole bucket."""
    try:
        place = S3Uri.parse(text)
    except ConfigurationError as error:
        raise FieldError(where, str(error), hint=error.hint) from error
    path = place.path.rstrip("/")
    return S3Uri(place.bucket, f"{path}/" if path else "")


def _job_name(request: _Fields) -> str:
    if "TrainingJobName" not in request:
        raise FieldError(
            ("TrainingJobName",),
            "is missing: it is a part of the keys of what the job makes",
            hint="name the job, or leave OutputDataConfig and TensorBoardOutputConfig out",
        )
    return str(request["TrainingJobName"])
