"""botocore's client, which signs and sends the requests of uploads."""

import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from typing import Any, Final

import trio
from aiobotocore.config import AioConfig
from aiobotocore.credentials import AioCredentials
from botocore import UNSIGNED
from botocore.auth import SIGV4_TIMESTAMP
from botocore.awsrequest import AWSRequest
from botocore.exceptions import BotoCoreError, ClientError

from fastfuse.errors import ConfigurationError
from fastfuse.s3.aws import DEFAULT_REGION, PLACEHOLDER_CREDENTIALS, S3Session, bad_ca_bundle, stall_timeout_s
from fastfuse.s3.base import CONNECT_TIMEOUT_S
from fastfuse.s3.clock import ServiceClock
from fastfuse.s3.credentials import Credentials
from fastfuse.s3.failures import Kind, failure_of_exception, resolution_error
from fastfuse.s3.proxies import proxy_for

UPLOADS_IN_FLIGHT: Final = 4


class UploadClient:
    """botocore's client of a region, opened when it is first needed; it signs by the credentials of the moment."""

    def __init__(self, session: S3Session, exits: AsyncExitStack) -> None:
        """Open no client yet; `exits` closes it in the end."""
        self._session = session
        self._exits = exits
        self._opening = trio.Lock()
        self._boto: Any = None  # its class is made at run time

    async def current(self, region: str) -> tuple[Any, Credentials | None]:
        """Return the client, which keeps the first region that is given, and the credentials of its next request."""
        source = self._session.credentials
        credentials = None if source is None else await source.current()
        async with self._opening:
            if self._boto is None:
                self._boto = await self._make(self._open, region)
        return self._boto, credentials

    async def load(self) -> None:
        """Read and load all that the client needs. Raises `ConfigurationError` where that is not to be had."""
        await self._make(self._session.aws.load_client, DEFAULT_REGION)

    async def _open(self, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - as `create_client`
        boto = await self._exits.enter_async_context(self._session.aws.create_client(*arguments, **options))
        boto.meta.events.register_first("needs-retry.s3", _stop_botocore_from_redirecting)
        boto.meta.events.register("before-sign.s3", self._sign)
        return boto

    async def _sign(self, request: AWSRequest, **_: object) -> None:
        """Have `request` signed with the session's credentials and time: botocore takes this machine's clock."""
        signing = dict(request.context.get("signing", {}))
        if self._session.credentials is not None:
            credentials = await self._session.credentials.current()
            signing["request_credentials"] = AioCredentials(
                credentials.access_key, credentials.secret_key, credentials.token
            )
        request.context = _SigningContext({**request.context, "signing": signing}, self._session.clock)

    async def _make(self, make: Callable[..., Awaitable[Any]], region: str) -> Any:  # noqa: ANN401 - see `_boto`
        """Return what `make` returns for the arguments of a client of the region."""
        session = self._session
        try:
            return await make(
                "s3",
                region_name=region,
                endpoint_url=session.endpoint_url,
                verify=session.authorities or False,
                config=_boto_config(session),
                **PLACEHOLDER_CREDENTIALS,
            )
        except BotoCoreError as error:
            raise resolution_error(error) from error
        except ValueError as error:  # other requests take hosts with underscores
            raise ConfigurationError(
                f"Nothing can be uploaded through the S3 endpoint {session.endpoint_url}: botocore refuses its host.",
                hint="Name the host in --endpoint-url by its address, or by a name without underscores.",
            ) from error
        except OSError as error:
            raise bad_ca_bundle(session) from error


def _boto_config(session: S3Session) -> AioConfig:
    config = session.config
    options: dict[str, Any] = {}
    if not config.sign_request:
        options["signature_version"] = UNSIGNED
    if config.force_path_style:
        options["s3"] = session.s3_settings | {"addressing_style": "path"}
    if session.endpoint_url is not None and proxy_for(session.endpoint_url) is None:
        options["proxies"] = {}  # botocore knows no networks in no_proxy
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


def _stop_botocore_from_redirecting(response: Any, **_: object) -> None:  # noqa: ANN401
    """Raise in place of following a bucket into its region, which `S3Client.region` has found."""
    if response is None:
        return
    http, parsed = response
    if http.status_code >= 300:
        error = ClientError(parsed, "S3")
        if failure_of_exception(error).kind is Kind.WRONG_REGION:
            raise error
