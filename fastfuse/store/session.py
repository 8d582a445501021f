"""One AWS session for all clients: endpoint, addressing, TLS trust, credentials and region are decided here once.

Nothing here loads botocore's S3 model (16 MB): a worker that only streams through obstore never needs it.
"""

import copy
import re
from collections.abc import Callable
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

import trio
from aiobotocore.config import AioConfig
from aiobotocore.hooks import AioHierarchicalEmitter
from aiobotocore.session import AioSession
from botocore.awsrequest import AWSRequest
from botocore.configprovider import ConfiguredEndpointProvider
from botocore.exceptions import BotoCoreError
from botocore.loaders import Loader, create_loader
from botocore.utils import get_environ_proxies

from fastfuse.errors import ConfigurationError
from fastfuse.store.base import ConnectionConfig
from fastfuse.store.credentials import CredentialSource, resolve_credentials
from fastfuse.store.failures import Kind, failure_of_exception, failure_of_reply, resolution_error, start_error
from fastfuse.store.retries import RetryableError, retrying
from fastfuse.store.transport import OriginFormSession

__all__ = ["DEFAULT_PORTS", "DEFAULT_REGION", "S3Session", "bad_ca_bundle", "host_header", "stall_timeout_s"]

DEFAULT_PORTS = {"http": 80, "https": 443}
# What S3-compatible servers sign with when they name no region of their own.
DEFAULT_REGION = "us-east-1"
# Whole search for a bucket's region, retries included: it delays the start of the mount.
_REGION_DEADLINE_S = 20.0
# A bucket that TLS wildcard certificates and DNS can carry as a host label (botocore's rule for virtual hosting).
_HOST_LABEL = re.compile(r"[a-z0-9][a-z0-9-]{1,61}[a-z0-9]", re.ASCII)
# A region becomes part of a host, and of what is signed.
_REGION_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?", re.ASCII)

T = TypeVar("T")


def stall_timeout_s(config: ConnectionConfig) -> float:
    """After so long without a byte a connection is given up and the rest is fetched over another one.

    A third of the deadline leaves room for two more attempts. 20 s is what GCS's client waits before it calls a read
    stalled.
    """
    return min(20.0, config.deadline_s / 3)


class _Session(AioSession):  # type: ignore[misc]  # aiobotocore has no types
    """Does nothing that another session of this process, or of one that it was forked from, has done (`preload`).

    That is of what is the same for all: models, and the list of botocore's own handlers. Never of what is configured.
    """

    def __init__(self, profile: str | None) -> None:
        super().__init__(profile=profile, event_hooks=copy.copy(_handlers()), include_builtin_handlers=False)

    def _register_data_loader(self) -> None:
        self._components.lazy_register_component("data_loader", lambda: _loader(self.get_config_variable("data_path")))


@cache
def _handlers() -> AioHierarchicalEmitter:
    """Registered one by one, these 120 take a third of what a short listing takes: 5 ms."""
    handlers = AioHierarchicalEmitter()
    AioSession(event_hooks=handlers)
    return handlers


@cache
def _loader(data_path: str | None) -> Loader:
    return create_loader(data_path)


class S3Session:
    """How to reach the S3 service of `config`. Constructing it does no I/O."""

    def __init__(self, config: ConnectionConfig) -> None:
        self.config = config
        self.aws = _Session(profile=config.profile)
        self.aws.set_default_client_config(AioConfig(http_session_cls=OriginFormSession))
        if config.ca_bundle is not None:
            # Like the AWS CLI: for the services that issue credentials, too.
            self.aws.set_config_variable("ca_bundle", config.ca_bundle)
        self.credentials = CredentialSource(partial(resolve_credentials, self.aws)) if config.sign_request else None
        self._regions: dict[str, str] = {}
        self._region_lock = trio.Lock()

    @cached_property
    def endpoint_url(self) -> str | None:
        """The endpoint of the configuration, environment or profile, in that order; None for AWS itself.

        Raises `ConfigurationError` for one that is no URL.
        """
        given = self.config.endpoint_url or self._read(self._configured_endpoint)
        if given is None:
            return None
        parts = _split_url(given)
        if parts is None or parts.scheme not in ("http", "https") or not parts.hostname or parts.query:
            raise ConfigurationError(
                "The S3 endpoint is not a URL such as https://s3.example.com:9000.", hint="Correct --endpoint-url."
            )
        if parts.username or parts.password:
            raise ConfigurationError(
                "The S3 endpoint URL holds a user name or password, which S3 does not use.",
                hint="Take them out of --endpoint-url and configure credentials instead.",
            )
        return given.rstrip("/")

    @cached_property
    def ca_bundle(self) -> Path | None:
        """The certificate authorities to trust, from the configuration, environment or profile.

        Raises `ConfigurationError` where there is no such file.
        """
        given: str | None = self.setting("ca_bundle")
        if not given:
            return None
        bundle = Path(given)
        if not bundle.is_file():
            raise ConfigurationError(f"There is no CA bundle {given!r}.", hint="Correct --ca-bundle or AWS_CA_BUNDLE.")
        return bundle

    @property
    def verify(self) -> bool | str:
        """As botocore's ``verify``."""
        if not self.config.verify_ssl:
            return False
        return str(self.ca_bundle) if self.ca_bundle else True

    @property
    def s3_settings(self) -> dict[str, Any]:
        """The profile's ``s3 =`` section."""
        return dict(self.setting("s3") or {})

    def setting(self, name: str) -> Any:  # noqa: ANN401 - botocore's settings have no common type
        """One of botocore's configuration variables. Raises `ConfigurationError` for an unreadable profile."""
        return self._read(lambda: self.aws.get_config_variable(name))

    def uses_path_style(self, bucket: str) -> bool:
        """Whether `bucket` goes into the path or into the host name, by botocore's rules."""
        style = self.s3_settings.get("addressing_style")
        if self.config.force_path_style or style == "path" or not _HOST_LABEL.fullmatch(bucket):
            return True
        return self.endpoint_url is not None and style != "virtual"

    def special_endpoint(self, bucket: str) -> str:
        """What makes `bucket` one that only botocore's client can address; empty where nothing does."""
        if bucket.startswith("arn:"):
            return "an access point ARN"
        if bucket.endswith("--x-s3"):
            return "a directory bucket"
        if self.endpoint_url is None:
            if self.setting("use_fips_endpoint"):
                return "use_fips_endpoint"
            if self.setting("use_dualstack_endpoint") or self.s3_settings.get("use_dualstack_endpoint"):
                return "use_dualstack_endpoint"
        return "use_accelerate_endpoint" if self.s3_settings.get("use_accelerate_endpoint") else ""

    def service_url(self, region: str) -> str:
        """The endpoint without a bucket: the configured one, or that of `region` at AWS."""
        return self.endpoint_url or f"https://s3.{region}.{self._dns_suffix(region)}"

    def bucket_url(self, bucket: str, region: str) -> str:
        """Where the objects of `bucket` are, which is in the path or in the host name. No slash at the end."""
        service = urlsplit(self.service_url(region))
        if self.uses_path_style(bucket):
            return f"{service.geturl()}/{quote(bucket, safe='')}"
        return f"{service.scheme}://{bucket}.{service.netloc}{service.path}"

    @property
    def extra_headers(self) -> dict[str, str]:
        """Of every request for a bucket, and signed with it."""
        return {"x-amz-request-payer": "requester"} if self.config.request_payer else {}

    async def region(self, bucket: str) -> str:
        """The region to sign for: as configured, in an ARN, or as the service tells for `bucket` (an unsigned request).

        A server of one's own that does not tell gets `DEFAULT_REGION`. Raises `SourceError` where the bucket does
        not exist, `ConfigurationError` where AWS tells no region or what is configured is no name of one,
        `ServiceError` where nothing answers.
        """
        given: str | None = self.config.region or self.setting("region")
        if given:
            if not _REGION_NAME.fullmatch(given):
                raise ConfigurationError(
                    f"the configured region {given!r} is not the name of a region",
                    hint="look at AWS_DEFAULT_REGION and the profile; --region overrides both",
                )
            return given
        arn = bucket.split(":", 5)
        if len(arn) == 6:  # its region is the access point's
            return arn[3] or DEFAULT_REGION
        async with self._region_lock:
            if bucket not in self._regions:
                self._regions[bucket] = await self._ask_region(bucket)
            return self._regions[bucket]

    async def _ask_region(self, bucket: str) -> str:
        with trio.move_on_after(_REGION_DEADLINE_S):
            return await retrying(partial(self._head_bucket, bucket))
        raise start_error(
            failure_of_reply(408, ""), bucket=bucket, endpoint=self.endpoint_url or "", region=DEFAULT_REGION
        )

    async def _head_bucket(self, bucket: str) -> str:
        # Unsigned: S3 names the region on 200, 301, 400 and 403 alike, and a signature would need the region.
        url = f"{self.service_url(DEFAULT_REGION)}/{quote(bucket, safe='')}"
        request = AWSRequest(method="HEAD", url=url).prepare()
        request.stream_output = False
        timeouts = (self.config.connect_timeout_s, stall_timeout_s(self.config))
        try:
            async with OriginFormSession(self.verify, get_environ_proxies(url), timeouts) as http:
                reply = await http.send(request)
        except BotoCoreError as error:
            failure = failure_of_exception(error)
            final = start_error(failure, bucket=bucket, endpoint=self.endpoint_url or "", region=DEFAULT_REGION)
            raise RetryableError(final, attempts=failure.attempts) from error
        except OSError as error:
            raise bad_ca_bundle(self) from error
        return self._region_in(bucket, reply.status_code, reply.headers.get("x-amz-bucket-region", ""))

    def _region_in(self, bucket: str, status: int, region: str) -> str:
        failure = failure_of_reply(status, "", region)
        if failure.region:
            return failure.region
        final = start_error(failure, bucket=bucket, endpoint=self.endpoint_url or "", region=DEFAULT_REGION)
        if failure.kind is Kind.BUSY:
            raise RetryableError(final, attempts=failure.attempts)
        if self.endpoint_url is not None:
            return DEFAULT_REGION
        if failure.kind is Kind.CHANGED:
            raise final
        raise ConfigurationError(
            f"The region of the bucket {bucket!r} could not be found out ({failure.detail}).",
            hint="Name it with --region.",
        )

    def _configured_endpoint(self) -> str | None:
        if self.aws.get_config_variable("ignore_configured_endpoint_urls"):
            return None
        # botocore calls this class private; the alternative is to load the S3 model to ask a client.
        provider = ConfiguredEndpointProvider(self.aws.full_config, self.aws.get_scoped_config(), "s3")
        found: str | None = provider.provide()
        return found

    def _dns_suffix(self, region: str) -> str:
        data = self.aws.get_component("data_loader").load_data_with_path("partitions")[0]
        for partition in data["partitions"]:
            if region in partition["regions"] or re.match(partition["regionRegex"], region):
                return str(partition["outputs"]["dnsSuffix"])
        return "amazonaws.com"

    def _read(self, read: Callable[[], T]) -> T:
        try:
            return read()
        except BotoCoreError as error:
            raise resolution_error(error) from error


def host_header(url: str) -> str:
    """The host of `url` as it stands in the request's header: a default port does not."""
    parts = urlsplit(url)
    return parts.netloc.lower().removesuffix(f":{DEFAULT_PORTS[parts.scheme]}")


def bad_ca_bundle(session: S3Session) -> ConfigurationError:
    """For the `OSError` (an `ssl.SSLError`, too) with which a TLS context refuses its certificates."""
    return ConfigurationError(
        f"The CA bundle {str(session.ca_bundle)!r} cannot be read as certificates in PEM.",
        hint="Correct --ca-bundle or AWS_CA_BUNDLE.",
    )


def _split_url(url: str) -> Any:  # noqa: ANN401 - SplitResult, or None
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises for a port that is no number
    except ValueError:
        return None
    return parts
