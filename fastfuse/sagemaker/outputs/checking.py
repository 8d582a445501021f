"""Checks before a job starts that S3 takes what it will make: days later is too late to hear of a wrong bucket."""

import logging
from collections.abc import Sequence
from contextlib import AsyncExitStack

from fastfuse.errors import ServiceError
from fastfuse.index.sources.uri import S3Uri
from fastfuse.s3.aws import S3Session
from fastfuse.s3.base import ConnectionConfig
from fastfuse.s3.client import S3Client
from fastfuse.s3.upload import ObjectWriter

__all__ = ["check_places"]

_log = logging.getLogger(__name__)


async def check_places(places: Sequence[tuple[S3Uri, str]], connection: ConnectionConfig) -> None:
    """Check that an object can be written at each place, or below it, with its key of KMS; write none.

    A service that cannot be reached now is only told: it may be there when it is needed.

    Raises:
        AccessError, ConfigurationError, SourceError: an object cannot be written.
    """
    client = S3Client(S3Session(connection))
    async with AsyncExitStack() as exits:
        exits.push_async_callback(client.aclose)
        for uri, kms_key_id in places:
            key = f"{uri.path}fastfuse" if uri.path.endswith("/") or not uri.path else uri.path
            try:
                region = await client.region(uri.bucket)
                writer = ObjectWriter(client.session, exits, uri.bucket, key, region, kms_key_id=kms_key_id)
                await writer.check_access()
            except ServiceError as error:
                _log.warning("whether %s can be written to is not known: %s", uri, error)
