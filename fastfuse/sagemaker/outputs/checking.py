"""Checks before a job starts that S3 takes what it will make: days later is too late to hear of a wrong bucket."""

import logging
from collections.abc import Sequence
from contextlib import AsyncExitStack

from fastfuse.errors import FastfuseError, RefusedError, ServiceError, about
from fastfuse.index.sources.uri import S3Uri
from fastfuse.s3.aws import S3Session
from fastfuse.s3.client import S3Client
from fastfuse.s3.upload import ObjectWriter

_log = logging.getLogger(__name__)


async def check_places(places: Sequence[tuple[str, S3Uri, str]], session: S3Session) -> None:
    """Check that an object can be written at each place, or below it, with its key of KMS; write none.

    Each place has the field of the job that names it, for messages. A service that cannot be reached now is only told:
    it may be there when it is needed. So is one that refuses uploads in parts: small files do without them, but not
    without the key.

    Raises:
        AccessError, ConfigurationError, SourceError: an object cannot be written.
    """
    client = S3Client(session)
    async with AsyncExitStack() as exits:
        exits.push_async_callback(client.aclose)
        for field, uri, kms_key_id in places:
            key = f"{uri.path}fastfuse" if uri.path.endswith("/") or not uri.path else uri.path
            try:
                region = await client.region(uri.bucket)
                writer = ObjectWriter(client.session, exits, uri.bucket, key, region, kms_key_id=kms_key_id)
                await writer.check_access()
            except FastfuseError as error:
                if not isinstance(error, ServiceError) or (kms_key_id and isinstance(error, RefusedError)):
                    raise about(f"{field} (KmsKeyId {kms_key_id})" if kms_key_id else field, error) from error
                _log.warning("whether %s of %s can be written to is not known: %s", uri, field, error)
