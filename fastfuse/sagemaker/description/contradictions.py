"""The step from a request with valid fields to a training job: what the fields mean together. Pure."""

import posixpath
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Final
from urllib.parse import unquote, urlsplit

from fastfuse.errors import ConfigurationError
from fastfuse.index.origin import SourceKind
from fastfuse.index.sources.uri import S3Uri
from fastfuse.sagemaker.description import request as api
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

__all__ = ["job_of"]

# In the place of an S3 URI, for a directory of this host; the API has no such thing, but AWS's local mode has.
_FILE_SCHEME: Final = "file://"

# The host of an HTTPS address of AWS's: s3.eu-west-1.amazonaws.com, BUCKET.s3.amazonaws.com, BUCKET.s3-us-west-2...
_AWS_HOST: Final = re.compile(
    r"(?:(?P<bucket>.+)\.)?s3(?:[.-](?:dualstack\.)?[a-z0-9-]+)?\.amazonaws\.com(?:\.cn)?", re.ASCII
)


def job_of(request: api.Request, *, default_mode: InputMode | None) -> TrainingJob:
    """Make the job; channels without a mode get `default_mode`.

    Raises:
        FieldError: fields contradict each other, or ask for what is not served here; or a channel has no mode.
    """
    groups = _groups(request.ResourceConfig) if request.ResourceConfig else ()
    channels = tuple(
        _channel(("InputDataConfig", index), item, request.AlgorithmSpecification.TrainingInputMode, default_mode)
        for index, item in enumerate(request.InputDataConfig)
    )
    _check_names(channels)
    if request.ResourceConfig is not None:
        _check_group_names(channels, request.ResourceConfig)
    return TrainingJob(
        channels=channels,
        name=request.TrainingJobName or "",
        arn=request.TrainingJobArn or "",
        groups=groups,
        hyperparameters=dict(request.HyperParameters),
        environment=dict(request.Environment),
        # An answer of SageMaker's names the places of the job that it ran, which are not to be written to.
        output=None if request.TrainingJobArn else _output(request),
        synced=() if request.TrainingJobArn else tuple(_synced(request)),
        max_runtime_s=_runtime_s(request),
        command=_command(request),
    )


def _channel(
    path: FieldPath, item: api.ChannelRequest, job_mode: InputMode | None, default_mode: InputMode | None
) -> Channel:
    mode = item.InputMode or job_mode or default_mode
    if mode is None:
        raise FieldError(
            ("AlgorithmSpecification", "TrainingInputMode"),
            f"is missing, and InputDataConfig[{path[1]}] ({item.ChannelName!r}) has no InputMode of its own",
            hint="the API requires it: File, FastFile or Pipe, for every channel without an InputMode",
        )
    source = _source(path, item)
    _check_mode(path, item, mode)
    channel = Channel(
        name=item.ChannelName,
        input_mode=mode,
        is_mode_assumed=not (item.InputMode or job_mode),
        source=_uri(path, source) if isinstance(source, api.S3Source) else _file_system(path, source),
        content_type=item.ContentType,
        is_gzip=item.CompressionType == "Gzip",
        wraps_records=item.RecordWrapperType == "RecordIO",
        shuffle_seed=item.ShuffleConfig.Seed if item.ShuffleConfig else None,
    )
    if isinstance(source, api.FileSystemSource):
        return channel
    _check_attributes(path, source, mode)
    return replace(
        channel,
        source_kind=source.S3DataType,
        is_sharded=source.S3DataDistributionType == "ShardedByS3Key",
        attribute_names=source.AttributeNames,
        instance_group_names=source.InstanceGroupNames,
    )


def _source(path: FieldPath, item: api.ChannelRequest) -> api.S3Source | api.FileSystemSource:
    where = (*path, "DataSource")
    given = [name for name in type(item.DataSource).model_fields if getattr(item.DataSource, name) is not None]
    if len(given) > 1:
        raise FieldError(where, f"has {' and '.join(given)}", hint="a channel has one data source: keep one of them")
    if item.DataSource.DatasetSource is not None:
        raise FieldError(
            (*where, "DatasetSource"),
            "is a dataset of the SageMaker hub, and fastfuse serves S3",
            hint="give the S3 prefix of its files as an S3DataSource",
        )
    source = item.DataSource.S3DataSource or item.DataSource.FileSystemDataSource
    if source is None:
        raise FieldError(where, "names no source", hint="give it an S3DataSource or a FileSystemDataSource")
    return source


def _file_system(path: FieldPath, source: api.FileSystemSource) -> LocalDirectory:
    return LocalDirectory(
        path=_full_path((*path, "DataSource", "FileSystemDataSource", "DirectoryPath"), source.DirectoryPath),
        file_system=source.FileSystemId,
        is_writable=source.FileSystemAccessMode == "rw",
    )


def _full_path(where: FieldPath, text: str) -> str:
    if not text.startswith("/") or "\0" in text or ".." in text.split("/"):
        raise FieldError(
            where, f"{text!r} is not the full path of a directory", hint="begin it with /, and leave .. out of it"
        )
    return text


def _check_mode(path: FieldPath, item: api.ChannelRequest, mode: InputMode) -> None:
    for name in ("CompressionType", "RecordWrapperType"):
        if mode is not InputMode.PIPE and getattr(item, name) != "None":
            raise FieldError(
                (*path, name),
                f"is {getattr(item, name)}, which is for Pipe mode, and the channel's mode is {mode}",
                hint="set InputMode to Pipe, or leave it out and let the script decompress or parse the files",
            )


def _check_attributes(path: FieldPath, source: api.S3Source, mode: InputMode) -> None:
    # AWS's documents disagree on modes for augmented manifests. Here every mode takes them: a job must run when
    # only its mode changes.
    where = (*path, "DataSource", "S3DataSource", "AttributeNames")
    is_augmented = source.S3DataType is SourceKind.AUGMENTED_MANIFEST
    if source.AttributeNames and not is_augmented:
        raise FieldError(
            where,
            f"is for augmented manifests, and S3DataType is {source.S3DataType}",
            hint="leave it out, or set S3DataType to AugmentedManifestFile",
        )
    if is_augmented and mode is InputMode.PIPE and not source.AttributeNames:
        raise FieldError(
            where, "is missing: a pipe carries the attributes that it names, in its order", hint="name one at least"
        )
    for index, name in enumerate(source.AttributeNames):
        if name in source.AttributeNames[:index]:
            raise FieldError((*where, index), f"names {name!r} a second time", hint="name each attribute once")


def _uri(path: FieldPath, source: api.S3Source) -> S3Uri | LocalDirectory:
    path = (*path, "DataSource", "S3DataSource", "S3Uri")
    if source.S3Uri.startswith(_FILE_SCHEME):
        return _named_directory(path, source)
    try:
        uri = _https_uri(source.S3Uri) if source.S3Uri.startswith("https://") else S3Uri.parse(source.S3Uri)
    except ConfigurationError as error:
        raise FieldError(path, str(error), hint=error.hint) from error
    if not source.S3Uri.startswith(("s3://", "https://")):
        raise FieldError(path, f"{source.S3Uri!r} is not an S3 URI", hint="the API wants s3:// in small letters")
    if source.S3DataType is not SourceKind.PREFIX and (not uri.path or uri.path.endswith("/")):
        raise FieldError(
            path,
            f"{str(uri)!r} names no file, and S3DataType is {source.S3DataType}",
            hint="give the URI of the manifest, or set S3DataType to S3Prefix",
        )
    return uri


def _named_directory(path: FieldPath, source: api.S3Source) -> LocalDirectory:
    # Taken verbatim, as the keys of an S3 URI are.
    directory = _full_path(path, source.S3Uri.removeprefix(_FILE_SCHEME))
    if source.S3DataType is not SourceKind.PREFIX:
        raise FieldError(
            path,
            f"names a directory, and S3DataType is {source.S3DataType}, which names objects in S3",
            hint="set S3DataType to S3Prefix, or put the manifest into S3",
        )
    return LocalDirectory(path=directory)


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
            what = (
                f"{channel.name!r} is the name of InputDataConfig[{other}], too"
                if channels[other].name == channel.name
                else f"{channel.name!r} and {channels[other].name!r} of InputDataConfig[{other}] differ in case only, "
                f"and both would be SM_CHANNEL_{channel.name.upper()}"
            )
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


def _groups(resources: api.ResourceRequest) -> tuple[RequestedGroup, ...]:
    path = ("ResourceConfig", "InstanceGroups")
    if not resources.InstanceGroups:
        count = 1 if resources.InstanceCount is None else resources.InstanceCount
        kind = resources.InstanceType or "local"
        return (RequestedGroup(name=HOMOGENEOUS, instance_type=kind, count=count),)
    if resources.InstanceType is not None or resources.InstanceCount is not None:
        raise FieldError(
            path, "is given beside InstanceType or InstanceCount", hint="describe the instances in one of the two ways"
        )
    names = [item.InstanceGroupName for item in resources.InstanceGroups]
    for index, name in enumerate(names):
        if name in names[:index]:
            where = (*path, index, "InstanceGroupName")
            raise FieldError(where, f"{name!r} is the name of another group, too", hint="give each group its own")
    return tuple(
        RequestedGroup(name=item.InstanceGroupName, instance_type=item.InstanceType, count=item.InstanceCount)
        for item in resources.InstanceGroups
    )


def _check_group_names(channels: tuple[Channel, ...], resources: api.ResourceRequest) -> None:
    known = {item.InstanceGroupName for item in resources.InstanceGroups}
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
_INPUT: Final = "/opt/ml/input"
# The defaults of the API.
_CHECKPOINTS: Final = "/opt/ml/checkpoints"
_TENSORBOARD: Final = "/opt/ml/output/tensorboard"


def _output(request: api.Request) -> OutputConfig | None:
    config = request.OutputDataConfig
    if config is None:
        return None
    folder = _folder(("OutputDataConfig", "S3OutputPath"), config.S3OutputPath)
    return OutputConfig(
        place=S3Uri(folder.bucket, f"{folder.path}{_job_name(request)}/output/"),
        kms_key_id=config.KmsKeyId or "",
        is_compressed=config.CompressionType == "GZIP",
    )


def _synced(request: api.Request) -> Iterator[SyncedDirectory]:
    checkpoints, logs = request.CheckpointConfig, request.TensorBoardOutputConfig
    if checkpoints is not None:
        path = _local_path("CheckpointConfig", checkpoints.LocalPath or _CHECKPOINTS)
        place = _folder(("CheckpointConfig", "S3Uri"), checkpoints.S3Uri)
        yield SyncedDirectory(name="checkpoints", local_path=path, place=place, are_checkpoints=True)
    if logs is not None:
        path = _local_path("TensorBoardOutputConfig", logs.LocalPath or _TENSORBOARD)
        folder = _folder(("TensorBoardOutputConfig", "S3OutputPath"), logs.S3OutputPath)
        place = S3Uri(folder.bucket, f"{folder.path}{_job_name(request)}/tensorboard-output/")
        yield SyncedDirectory(name="tensorboard", local_path=path, place=place, are_checkpoints=False)


def _local_path(config: str, text: str) -> str:
    path = posixpath.normpath(text)
    if ".." in text.split("/") or path in _NOT_ALONE or f"{path}/".startswith(f"{_INPUT}/"):
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


def _job_name(request: api.Request) -> str:
    if not request.TrainingJobName:
        raise FieldError(
            ("TrainingJobName",),
            "is missing: it is a part of the keys of what the job makes",
            hint="name the job, or leave OutputDataConfig and TensorBoardOutputConfig out",
        )
    return request.TrainingJobName


def _runtime_s(request: api.Request) -> int | None:
    condition = request.StoppingCondition
    if condition is None:
        return None
    runtime_s, wait_s = condition.MaxRuntimeInSeconds, condition.MaxWaitTimeInSeconds
    if runtime_s is not None and wait_s is not None and wait_s < runtime_s:
        raise FieldError(
            ("StoppingCondition", "MaxWaitTimeInSeconds"),
            f"is {wait_s}, and MaxRuntimeInSeconds, which it includes, is {runtime_s}",
            hint="wait at least as long as the job may run",
        )
    return runtime_s


def _command(request: api.Request) -> tuple[str, ...]:
    """Return the command that the job names; arguments alone are those of an image's own command, which is not here."""
    algorithm = request.AlgorithmSpecification
    entrypoint, arguments = algorithm.ContainerEntrypoint, algorithm.ContainerArguments
    return (*entrypoint, *(arguments or ())) if entrypoint else ()
