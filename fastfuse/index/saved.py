"""Indexes that were saved: to a file or to S3, and back."""

import logging
import os
from collections.abc import Collection
from pathlib import Path

import trio

from fastfuse.errors import ConfigurationError
from fastfuse.index.atomic_files import copy_into, open_file, replace_file
from fastfuse.index.snapshot import Snapshot
from fastfuse.index.sources.uri import S3Uri
from fastfuse.index.verified import verify_index
from fastfuse.s3.aws import S3Session
from fastfuse.s3.base import ConnectionConfig
from fastfuse.s3.client import S3Client
from fastfuse.s3.upload import upload
from fastfuse.s3.whole import read_into

__all__ = ["load_index", "store_index"]

_log = logging.getLogger(__name__)


def load_index(
    place: Path | S3Uri, connection: ConnectionConfig, source: S3Uri, fd: int, views: Collection[str] = ("",)
) -> Snapshot:
    """Read the index of `source` in one of `views` from `place` into the empty file `fd` and check every byte of it.

    Raises:
        ConfigurationError: there is no such file, it is damaged or no index, or it is one of another source.
        SourceError, AccessError, ServiceError: S3 does not give it.
    """
    if isinstance(place, S3Uri):
        trio.run(_download, place, connection, fd)
    else:
        try:
            with open_file(place) as file:
                copy_into(fd, file)
        except OSError as error:
            raise ConfigurationError(
                f"the index {place} cannot be read: {error.strerror or error}", hint="fastfuse index makes one"
            ) from error
    try:
        return verify_index(fd, source, views)
    except ConfigurationError as error:
        raise ConfigurationError(f"{place}: {error}", hint=error.hint) from error


def store_index(place: Path | S3Uri, connection: ConnectionConfig, fd: int) -> None:
    """Write the index in `fd` to `place`, all or nothing.

    Raises:
        ConfigurationError: the file cannot be written.
        SourceError, AccessError, ServiceError: S3 does not take it.
    """
    if isinstance(place, S3Uri):
        trio.run(_upload, place, connection, fd)
        return
    try:
        replace_file(place, fd)
    except OSError as error:
        raise ConfigurationError(f"the index {place} cannot be written: {error.strerror or error}") from error


async def _download(place: S3Uri, connection: ConnectionConfig, fd: int) -> None:
    client = S3Client(S3Session(connection))
    try:
        ref = await client.head(place.bucket, place.path)
        os.ftruncate(fd, ref.size_bytes)
        await read_into(client, ref, fd)
    finally:
        await client.aclose()


async def _upload(place: S3Uri, connection: ConnectionConfig, fd: int) -> None:
    client = S3Client(S3Session(connection))
    try:
        await upload(client, fd, place.bucket, place.path)
    finally:
        await client.aclose()
