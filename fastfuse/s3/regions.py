"""Finds the region of each bucket on its first use, and with it the route there.

The region is the configured one, or the one in the ARN of an access point. Otherwise one request asks the service,
where an EC2 instance is, if its role gives the credentials: it may reach no other one. The request is unsigned: S3
names the region on 200, 301, 400 and 403 alike, and a signature would need the region.
"""

from functools import partial

import trio

from fastfuse.errors import ConfigurationError, FastfuseError
from fastfuse.s3.aws import DEFAULT_REGION, S3Session
from fastfuse.s3.bodies import is_of_s3
from fastfuse.s3.connection import Patience
from fastfuse.s3.failures import Failure, Kind, failure_of_reply
from fastfuse.s3.http1 import BadReplyHeadError
from fastfuse.s3.retries import Retries, RetryableError
from fastfuse.s3.routes import Route, Routes, failure_of_connection

# The deadline of a search that no read waits for, retries included. It delays the start of the mount.
_DEADLINE_S = 20.0
# With these the service has not answered what was asked.
_UNANSWERED = (Kind.THROTTLED, Kind.BUSY, Kind.BROKEN, Kind.UNREACHABLE, Kind.TLS, Kind.NOT_S3)


class Regions:
    """Adds to `routes` the route to each bucket that is asked for."""

    def __init__(self, session: S3Session, routes: Routes, retries: Retries, patience: Patience) -> None:
        self._session = session
        self._routes = routes
        self._retries = retries
        self._patience = patience
        # Each bucket has its own lock, so that a search that waits for a service delays no other bucket.
        self._searches: dict[str, trio.Lock] = {}

    async def route(self, bucket: str, *, is_read: bool) -> Route:
        """Return the route to `bucket`. A checkpoint only on first use.

        Raises:
            SourceError, ConfigurationError, ServiceError: no such bucket, no region from AWS, no answer.
            RetryableError: nothing answers a read (`is_read`), which tries again itself.
        """
        route = self._routes.known(bucket)
        if route is None:
            async with self._searches.setdefault(bucket, trio.Lock()):
                route = self._routes.known(bucket)
                if route is None:
                    route = self._routes.add(bucket, await self._region(bucket, is_read=is_read))
        return route

    async def _region(self, bucket: str, *, is_read: bool) -> str:
        if region := named_region(self._session, bucket):
            return region
        asked = await self._session.instance_region() or DEFAULT_REGION
        ask = partial(self._ask, self._routes.make(bucket, asked), is_read=is_read)
        if is_read:
            return await ask()
        with trio.move_on_after(_DEADLINE_S):
            return await self._retries.run(ask, name=f"the region of {bucket!r}")
        failure = Failure(kind=Kind.UNREACHABLE, detail=f"no answer in {_DEADLINE_S:g} s")
        raise self._error(failure, bucket, asked)

    async def _ask(self, route: Route, *, is_read: bool) -> str:
        """Return the region that the service names; `DEFAULT_REGION` where a server of one's own names none."""
        try:
            connection, head = await self._routes.ask(
                route, route.request("HEAD", None), self._patience, has_body=False
            )
            failure = failure_of_reply(head.status, "", head.headers.get("x-amz-bucket-region", ""))
            route.leave_failed(connection, failure, is_of_s3=is_of_s3(head, b""))
            self._routes.put_back(route, connection)
        except (BadReplyHeadError, OSError) as error:
            failure = failure_of_connection(error, is_read=is_read)
        if not is_read:
            failure = self._routes.judged(failure)
        if failure.region:
            return failure.region
        final = self._error(failure, route.bucket, route.endpoint.region)
        if failure.kind in _UNANSWERED:
            raise RetryableError(final, failure, is_read=is_read)
        if self._session.endpoint_url is not None:
            return DEFAULT_REGION
        if failure.kind is Kind.CHANGED:
            raise final
        raise ConfigurationError(
            f"The region of the bucket {route.bucket!r} could not be found out ({failure.detail}).",
            hint="Name it with --region.",
        )

    def _error(self, failure: Failure, bucket: str, asked: str) -> FastfuseError:
        error = self._session.command_error(failure, bucket, "", asked)
        is_guess = asked == DEFAULT_REGION and self._session.endpoint_url is None
        if is_guess and failure.kind in (Kind.NO_BUCKET, Kind.CHANGED, Kind.UNREACHABLE):
            error.hint += f" No region is configured, and {asked} was asked: give --region."
        return error


def named_region(session: S3Session, bucket: str) -> str:
    """Return the configured region, or that in the ARN of an access point; empty if only the service can tell it."""
    arn = bucket.split(":", 5)
    in_arn = arn[3] or DEFAULT_REGION if len(arn) == 6 else ""
    return session.configured_region or in_arn
