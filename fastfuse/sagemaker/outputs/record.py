"""The record of a job: ``output/job-record.json``, the lineage that SageMaker would keep.

docs/USAGE.md describes its fields. Names are those of SageMaker's API where it has one. The history beside it has what
`fastfuse report` draws.
"""

import hashlib
import json
import logging
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np

from fastfuse.filesystem.figures.recorder import HISTORY_NAME
from fastfuse.index.inodes.columns import Kind
from fastfuse.index.inodes.table import InodeTable
from fastfuse.index.snapshot import Snapshot
from fastfuse.prices import Item, dollars
from fastfuse.regular_files import open_regular
from fastfuse.sagemaker.description.channel import Channel, Cluster, TrainingJob
from fastfuse.sagemaker.files import JobPaths, directory_at, write_file
from fastfuse.sizes import format_size
from fastfuse.version import VERSION

_log = logging.getLogger(__name__)

# They say which rows there are, with their sizes and versions; times and inode numbers are left out.
_HASHED = ("names", "name_ends", "parents", "kinds", "sizes", "etag_parts", "made", "source_order")


def listing_of(table: InodeTable) -> dict[str, object]:
    """Describe the listing in `table` for the record: what this host gets of a channel.

    The hash covers names below the prefix, sizes, ETags and the order of a manifest. Equal content has an equal hash,
    whatever the bucket and the times.
    """
    hashed = hashlib.sha256()
    for name in _HASHED:
        if (column := table.columns.get(name)) is not None:
            hashed.update(f"{name}:{len(column)}\n".encode())
            hashed.update(np.ascontiguousarray(column).view("uint8").data)
    # The places of unusual ETags depend on the order in which the pages of the listing came.
    kinds, etags = table.columns["kinds"], table.columns["etags"]
    unusual = np.flatnonzero(kinds == Kind.FILE_OTHER_ETAG)
    hashed.update(np.delete(etags, unusual, axis=0).tobytes() if len(unusual) else np.ascontiguousarray(etags).data)
    for etag in table.other_etags(unusual):
        hashed.update(etag + b"\n")
    metadata = table.metadata
    return {"Objects": metadata.file_count, "Bytes": metadata.total_bytes, "ListingSha256": hashed.hexdigest()}


RECORD_NAME: Final = "job-record.json"
# The directory of the files that name each object of a channel.
ETAGS_NAME: Final = "job-etags"
# The version of the record's fields; a change that breaks a reader makes it another.
_FORMAT: Final = 1
# SageMaker shows as many.
_FAILURE_CHARACTERS: Final = 1024
_MAX_CHARACTER_BYTES: Final = 4


class Usage(NamedTuple):
    """Bytes of one channel, and the requests that S3 charges for."""

    fetched_bytes: int
    # GETs and HEADs: every attempt that was answered, but not with 5xx.
    gets: int
    lists: int

    @property
    def cost_usd(self) -> float:
        return dollars(Item.GET, self.gets) + dollars(Item.LIST, self.lists)

    def __str__(self) -> str:
        return (
            f"{format_size(self.fetched_bytes)}, {self.gets:,} GET, {self.lists:,} LIST, "
            f"${self.cost_usd:.{2 if self.cost_usd >= 0.1 else 6}f} at the prices of us-east-1"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelAccount:
    """A channel, and what this host had of it."""

    channel: Channel
    usage: Usage
    # Made by `listing_of`. Empty: it was not listed, or is a directory that the script itself reads.
    listing: Mapping[str, object]
    # The part of a record that `filesystem.figures.recorder` makes.
    samples: Mapping[str, Any] = field(default_factory=dict)


def job_record(
    job: TrainingJob,
    cluster: Cluster,
    channels: Sequence[ChannelAccount],
    *,
    status: str,
    secondary_status: str,
    exit_code: int,
    failure_reason: str,
    times: tuple[float, float],
    phase_s: Mapping[str, float],
    artifacts: Mapping[str, Mapping[str, object]],
) -> dict[str, object]:
    """Return the record as JSON.

    `status` is ``Completed``, ``Failed`` or ``Stopped``, and `secondary_status` the same, or what SageMaker calls a
    special one. `times` are those of start and end. `artifacts` are by name, such as ``model``: with S3Uri, Files (and
    links), the sum of their Bytes, and the ETag of an archive.
    """
    return {
        "RecordFormat": _FORMAT,
        "FastfuseVersion": VERSION,
        "TrainingJobName": job.name or None,
        "TrainingJobArn": job.arn or None,
        "CurrentHost": cluster.current_host,
        "Hosts": list(cluster.hosts),
        "TrainingJobStatus": status,
        "SecondaryStatus": secondary_status,
        "ExitCode": exit_code,
        **({"FailureReason": failure_reason} if failure_reason else {}),
        "StartTime": _utc(times[0]),
        "EndTime": _utc(times[1]),
        "PhaseSeconds": {name: round(took_s, 3) for name, took_s in phase_s.items()},
        "Artifacts": dict(artifacts),
        "Channels": {account.channel.name: _channel(account, cluster) for account in channels},
    }


def _channel(account: ChannelAccount, cluster: Cluster) -> dict[str, object]:
    channel, usage = account.channel, account.usage
    shard = cluster.shard(channel)
    return {
        "InputMode": channel.input_mode.value,
        "Source": str(channel.source),
        "SourceType": channel.source_kind.value,
        "ShuffleSeed": channel.shuffle_seed,
        "Shard": None if shard is None else {"Index": shard.index, "Count": shard.count},
        **account.listing,
        "BytesRead": usage.fetched_bytes,
        "GetRequests": usage.gets,
        "ListRequests": usage.lists,
        "CostUsd": usage.cost_usd,
    }


def _utc(at: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))


def write_record(
    record: Mapping[str, object],
    phases: Sequence[tuple[str, float]],
    channels: Sequence[ChannelAccount],
    paths: JobPaths,
) -> bytes:
    """Put the record and the history in place whole, beside the outputs, and return the bytes of the record.

    A failure is only logged: S3 may take the record all the same.
    """
    text = json.dumps(record, indent=2) + "\n"
    told = [
        {
            "name": account.channel.name,
            "mode": account.channel.input_mode.value,
            "source": str(account.channel.source),
            **account.samples,
        }
        for account in channels
    ]
    history = {"fastfuse": _FORMAT, "version": VERSION, "job": record, "phases": phases, "channels": told}
    try:
        with directory_at(paths.output, paths.base) as output_fd:
            write_file(output_fd, RECORD_NAME, [text.encode()])
            write_file(output_fd, HISTORY_NAME, [json.dumps(history).encode(), b"\n"])
    except OSError as error:
        _log.error("%s cannot be written: %s", paths.output / RECORD_NAME, error.strerror)
    return text.encode()


def write_etags(snapshot: Snapshot, channel: str, paths: JobPaths) -> None:
    """Write ``output/job-etags/CHANNEL.jsonl``: bucket, key, size and ETag of each object in `snapshot`, a line each.

    Raises:
        OSError: it cannot be written.
    """
    refs = snapshot.table.refs()
    told = ({"Bucket": it.bucket, "Key": it.key, "Size": it.size_bytes, "ETag": it.etag} for it in refs)
    with directory_at(paths.output / ETAGS_NAME, paths.base) as etags_fd:
        write_file(etags_fd, f"{channel}.jsonl", (json.dumps(one).encode() + b"\n" for one in told))


def read_failure(paths: JobPaths, since: float = 0.0) -> str:
    """Return what the script has written to ``output/failure`` `since` then, at most 1,024 characters, or "".

    Control characters but newlines and tabs are replaced, because the text is printed.
    """
    try:
        with directory_at(paths.output, paths.base) as output_fd:
            fd = open_regular("failure", output_fd)
        with os.fdopen(fd, "rb") as file:
            # A run that keeps what was there does not fail for an earlier one's reason.
            if os.fstat(fd).st_mtime < since:
                return ""
            data = file.read(_FAILURE_CHARACTERS * _MAX_CHARACTER_BYTES)
    except OSError:
        return ""
    text = data.decode(errors="replace").strip()[:_FAILURE_CHARACTERS]
    return "".join(one if one.isprintable() or one in "\n\t" else "\N{REPLACEMENT CHARACTER}" for one in text)
