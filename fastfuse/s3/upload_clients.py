"""botocore's clients, which sign and send the requests of uploads."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any, Final

import trio
from aiobotocore.config import AioConfig
from botocore import UNSIGNED
from botocore.auth import SIGV4_TIMESTAMP
from botocore.awsrequest import AWSRequest
from botocore.exceptions import BotoCoreError, ClientError

from fastfuse.s3.aws import S3Session, bad_ca_bundle, stall_timeout_s
from fastfuse.s3.base import CONNECT_TIMEOUT_S
from fastfuse.s3.clock import ServiceClock
from fastfuse.s3.credentials import Credentials
from fastfuse.s3.failures import Kind, failure_of_exception, resolution_error

UPLOADS_IN_FLIGHT: Final = 4


class _Client:
    """An open client, the credentials that it signs with, and the number of its requests that are under way."""

    def __init__(self, boto: Any, credentials: Credentials | None, exits: AsyncExitStack) -> None:  # noqa: ANN401
        # Its class is made at run time.
        self.boto = boto
        self.credentials = credentials
        self.request_count = 0
        self.close = exits.aclose


class Clients:
    """botocore's client of a region: opened when it is first needed, and again when the credentials change."""

    def __init__(self, session: S3Session, exits: AsyncExitStack, region: str) -> None:
        """Open no client yet; `exits` closes the one that is open in the end."""
        self._session = session
        self._region = region
        self._opening = trio.Lock()
        self._current: _Client | None = None
        exits.push_async_callback(self._close)

    @asynccontextmanager
    async def current(self) -> AsyncIterator[tuple[Any, Credentials | None]]:
        """Yield a client that signs with the current credentials, and these; it is not closed during the block."""
        source = self._session.credentials
        credentials = None if source is None else await source.current()
        async with self._opening:
            client = self._current
            if client is None or credentials is not client.credentials:
                exits = AsyncExitStack()
                boto = await self.make(partial(self._open, exits), credentials)
                last, client = client, _Client(boto, credentials, exits)
                self._current = client
                if last is not None and not last.request_count:
                    await last.close()
            client.request_count += 1
        try:
            yield client.boto, credentials
        finally:
            client.request_count -= 1
            if client is not self._current and not client.request_count:
                await client.close()

    async def mends(self, error: Exception, kind: Kind, credentials: Credentials | None) -> bool:
        """Return whether the reason for an `error` of this `kind` is removed now, by other credentials or the time."""
        if isinstance(error, ClientError):
            clock, is_head = self._session.clock, error.operation_name == "HeadObject"
            date = error.response["ResponseMetadata"]["HTTPHeaders"].get("date", "")
            if kind is Kind.SKEWED:
                return clock.correct(date)
            # A HEAD has no error code.
            if kind is Kind.DENIED and is_head and clock.correct(date):
                return True
        return (await self._session.replace_refused(credentials, kind))[0]

    async def _open(self, exits: AsyncExitStack, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - see `_Client`
        boto = await exits.enter_async_context(self._session.aws.create_client(*arguments, **options))
        boto.meta.events.register_first("needs-retry.s3", _stop_botocore_from_redirecting)
        boto.meta.events.register("before-sign.s3", partial(_sign_by, self._session.clock))
        return boto

    async def _close(self) -> None:
        if self._current is not None:
            await self._current.close()

    async def make(self, make: Callable[..., Awaitable[Any]], credentials: Credentials | None) -> Any:  # noqa: ANN401
        """Return what `make` returns for the arguments of a client that signs with `credentials`, if there are any."""
        session = self._session
        # botocore would look for keys itself, for a client that signs and is only loaded.
        keys = credentials or Credentials(access_key="-", secret_key="-")  # noqa: S106
        try:
            return await make(
                "s3",
                region_name=self._region,
                endpoint_url=session.endpoint_url,
                verify=session.authorities or False,
                config=_boto_config(session),
                aws_access_key_id=keys.access_key,
                aws_secret_access_key=keys.secret_key,
                aws_session_token=keys.token,
            )
        except (BotoCoreError, ValueError) as error:
            raise resolution_error(error) from error
        except OSError as error:
            raise bad_ca_bundle(session) from error


def _boto_config(session: S3Session) -> AioConfig:
    config = session.config
    options: dict[str, Any] = {}
    if not config.sign_request:
        options["signature_version"] = UNSIGNED
    if config.force_path_style:
        options["s3"] = session.s3_settings | {"addressing_style": "path"}
    return AioConfig(
        connect_timeout=CONNECT_TIMEOUT_S,
        read_timeout=stall_timeout_s(config),
        connector_args={"write_timeout": stall_timeout_s(config)},
        max_pool_connections=UPLOADS_IN_FLIGHT,
        retries={"mode": "standard", "total_max_attempts": 1},
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        **options,
    )


class _SigningContext(dict[str, Any]):
    """What botocore knows of a request; the time of its signature is that of `clock`, whichever botocore sets."""

    def __init__(self, context: Mapping[str, Any], clock: ServiceClock) -> None:
        super().__init__(context)
        self._clock = clock

    def __setitem__(self, name: str, value: Any) -> None:  # noqa: ANN401 - botocore has no types
        if name == "timestamp":
            value = time.strftime(SIGV4_TIMESTAMP, time.gmtime(self._clock.now_s()))
        super().__setitem__(name, value)


def _sign_by(clock: ServiceClock, request: AWSRequest, **_: object) -> None:
    """Sign `request` with the time of `clock`: botocore takes this machine's, and has no setting for it."""
    request.context = _SigningContext(request.context, clock)


def _stop_botocore_from_redirecting(response: Any, **_: object) -> None:  # noqa: ANN401
    """Raise in place of following a bucket into its region, which `S3Client.region` has found."""
    if response is None:
        return
    http, parsed = response
    if http.status_code >= 300:
        error = ClientError(parsed, "S3")
        if failure_of_exception(error).kind is Kind.WRONG_REGION:
            raise error
