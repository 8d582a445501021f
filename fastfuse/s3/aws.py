"""One AWS session: endpoint, TLS trust, credentials and region, as configuration, environment and profile name them.

Nothing here loads botocore's S3 model (16 MB), which only uploads need.
"""

import copy
import io
import logging
import os
import re
import ssl
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, ClassVar, TypeAlias, TypeVar

import anyio
import httpx2
from aiobotocore.config import AioConfig
from aiobotocore.httpxsession import HttpxSession
from aiobotocore.session import AioSession
from aiobotocore.utils import AnyioIMDSRegionProvider
from botocore.configprovider import ConfiguredEndpointProvider
from botocore.exceptions import BotoCoreError, ConnectTimeoutError, ReadTimeoutError
from botocore.httpsession import get_cert_path
from botocore.loaders import Loader, create_loader

from fastfuse.errors import AccessError, ConfigurationError, FastfuseError, raise_alone
from fastfuse.s3.base import ConnectionConfig
from fastfuse.s3.clock import ServiceClock
from fastfuse.s3.credentials import Credentials, CredentialSource, resolve_credentials
from fastfuse.s3.failures import Failure, Kind, object_error, resolution_error, start_error
from fastfuse.s3.proxies import split_url
from fastfuse.s3.sse import customer_key_headers
from fastfuse.s3.tls import TlsContext

_log = logging.getLogger(__name__)

# S3-compatible servers that name no region sign with this one.
DEFAULT_REGION = "us-east-1"
# With these botocore makes a client without a search for credentials.
PLACEHOLDER_CREDENTIALS = dict.fromkeys(("aws_access_key_id", "aws_secret_access_key"), "-")
# AWS's own regions; those of other services may have any name.
_AWS_REGION = re.compile(r"[a-z]{2,}(-[a-z]+)+-\d{1,2}", re.ASCII)

# Each chunk of an upload has a deadline of its own, so that a slow network is no broken one.
_CHUNK_BYTES = 1 << 18
# A reply has the checksum of the object only if this asks for it. Signed with the others, it costs nothing more.
_CHECKSUMS = {"x-amz-checksum-mode": "ENABLED"}

T = TypeVar("T")
# The inode and the time of change of a file of authorities; zeros where there is none to read.
Version: TypeAlias = tuple[int, int]
_NO_FILE: Version = (0, 0)


def stall_timeout_s(config: ConnectionConfig) -> float:
    """Return how long a connection may be silent before the rest is fetched over another one.

    A third of the deadline leaves room for two more attempts. 20 s is what GCS's client waits before it calls a read
    stalled.
    """
    return min(20.0, config.deadline_s / 3)


class _Session(AioSession):  # type: ignore[misc]  # aiobotocore has no types
    """A session that shares models with the other sessions of this process."""

    def _create_credential_resolver(self) -> Any:  # noqa: ANN401 - botocore has no types
        resolver = super()._create_credential_resolver()
        # botocore's own asks at the terminal at each renewal, and blocks until somebody types.
        resolver.get_provider("assume-role")._prompter = _refuse_mfa  # noqa: SLF001 - no argument reaches it
        return resolver

    async def load_client(self, *arguments: Any, **options: Any) -> None:  # noqa: ANN401 - as `create_client`
        """Read and load all that the client of these `arguments` needs, and start no thread."""
        await self._create_client(*arguments, **options)
        await anyio.lowlevel.checkpoint()  # which loads what anyio needs for trio

    def _register_data_loader(self) -> None:
        self._components.lazy_register_component("data_loader", lambda: _loader(self.get_config_variable("data_path")))


def _refuse_mfa(_: str) -> str:
    raise AccessError(
        "The profile asks for an MFA code, which nobody can type for a mount.",
        hint="Take a profile without mfa_serial, or a credential_process or keys that outlast the job.",
    )


@cache
def _loader(data_path: str | None) -> Loader:
    return create_loader(data_path)


class S3Session:
    """Knows how to reach the S3 service of `config`. Constructing it does no I/O."""

    def __init__(self, config: ConnectionConfig) -> None:
        self.config = config
        self.clock = ServiceClock()
        # The authorities that `tls` trusts.
        self._trusted = _CaBundle(None)
        self.aws = self._new_session()
        # Resolves the credentials. A new session takes its place after the service has refused them.
        self._chain = self.aws
        self.credentials = (
            CredentialSource(self._resolve, start_over=self._forget_credentials) if config.sign_request else None
        )

    def _new_session(self) -> _Session:
        session = _Session(profile=self.config.profile)
        session.set_default_client_config(AioConfig(http_session_cls=_HttpSession))
        if self.config.ca_bundle is not None:
            # Bundle and region hold for the services that issue credentials, too, as in the AWS CLI.
            session.set_config_variable("ca_bundle", self.config.ca_bundle)
        if self.config.region:
            session.set_config_variable("region", self.config.region)
        return session

    async def _resolve(self) -> Credentials:
        return await resolve_credentials(self._chain)

    def _forget_credentials(self) -> None:
        self._chain = self._new_session()

    def beside(self) -> "S3Session":
        """Return a session for another thread: it has the files of this one, and the credentials that it has last."""

        async def latest() -> Credentials:
            assert self.credentials is not None
            assert self.credentials.latest is not None
            return self.credentials.latest

        other = copy.copy(self)
        other.credentials = self.credentials and CredentialSource(latest)
        return other

    def without_key(self) -> "S3Session":
        """Return this session without the key for SSE-C, for what fastfuse or S3 itself has written."""
        other = copy.copy(self)
        other.config = replace(self.config, sse_c_key_file=None)
        vars(other).pop("object_headers", None)
        return other

    async def load_renewal(self) -> None:
        """Load the code and the data with which other processes will find or renew the credentials, and ask nobody.

        The files may be replaced or removed under a mount or job that lives for weeks: `pip install`, a new Python.
        """
        if self.credentials is None:
            return
        try:
            await self._load_renewal(self.credentials.latest)
        except Exception as error:  # noqa: BLE001 - credentials are here, and may last
            _log.warning("what renews credentials cannot be loaded; mount or begin again before they end: %r", error)

    async def _load_renewal(self, latest: Credentials | None) -> None:
        # Each is loaded when it is first used.
        _ = anyio.run_process, anyio.to_thread, get_cert_path(True), "host".encode("idna"), time.strptime("1", "%d")
        if latest is not None and latest.expires_at is None:
            await anyio.lowlevel.checkpoint()
            return
        settings = {name for profile in self._profiles.values() for name in profile}
        # The second renews the sign-in of a profile with `sso_session`, on which a role may stand.
        of_sign_in = ["sso", "sso-oidc"] if any(name.startswith("sso_") for name in settings) else []
        if "login_session" in settings:  # of `aws login`
            of_sign_in.append("signin")
        for service in ("sts", *of_sign_in):
            await self._new_session().load_client(service, DEFAULT_REGION, **PLACEHOLDER_CREDENTIALS)

    @cached_property
    def endpoint_url(self) -> str | None:
        """The endpoint of the configuration, environment or profile, in that order; None for AWS itself.

        Raises `ConfigurationError` for one that is no URL.
        """
        given = self.config.endpoint_url or self._read(self._configured_endpoint)
        if given is None:
            return None
        parts = split_url(given)
        is_plain = parts and parts.hostname and not (parts.query or parts.username or parts.password)
        if not (parts and is_plain and parts.scheme in ("http", "https")):
            raise ConfigurationError(
                "The S3 endpoint is not a plain URL: https://HOST:PORT, without user name, password or query.",
                hint="Correct --endpoint-url. Credentials are configured apart from it.",
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
        if not os.path.isfile(bundle):
            hint = "Name a file of certificates in PEM with --ca-bundle or AWS_CA_BUNDLE."
            raise ConfigurationError(f"The CA bundle {given!r} is not a file.", hint=hint)
        return bundle

    @property
    def authorities(self) -> str | None:
        """The file of the certificate authorities to trust, botocore's own where none is named; None for no check."""
        if not self.config.verify_ssl:
            return None
        return str(get_cert_path(str(self.ca_bundle) if self.ca_bundle else True))

    @cached_property
    def tls(self) -> TlsContext:
        """What the connections over TLS share. Its first use reads the authorities, which takes 20 ms.

        Raises `ConfigurationError` where they cannot be read.
        """
        try:
            self._trusted = _CaBundle(self.authorities)
            return TlsContext(authorities=self.authorities)
        except OSError as error:
            raise bad_ca_bundle(self) from error

    @property
    def trusted_version(self) -> Version:
        """The version of the authorities that `tls` trusts."""
        return self._trusted.version

    def trust_again(self) -> Version:
        """Have `tls` trust the authorities in their file of today, too; return the version that it trusts now."""
        self._trusted.trust_again(self.tls.trust, is_refused=True)
        return self.trusted_version

    @property
    def names_program(self) -> bool:
        """Whether a profile names a ``credential_process``, which runs with the rights of this process.

        Raises `ConfigurationError` for an unreadable profile.
        """
        profiles = self._profiles.values()
        return self.config.sign_request and any("credential_process" in profile for profile in profiles)

    @property
    def _profiles(self) -> dict[str, dict[str, Any]]:
        profiles: dict[str, dict[str, Any]] = self._read(lambda: self.aws.full_config)["profiles"]
        return profiles

    @property
    def s3_settings(self) -> dict[str, Any]:
        """The profile's ``s3 =`` section."""
        return dict(self.setting("s3") or {})

    def setting(self, name: str) -> Any:  # noqa: ANN401 - botocore's settings have no common type
        """Return one of botocore's configuration variables. Raises `ConfigurationError` for an unreadable profile."""
        return self._read(lambda: self.aws.get_config_variable(name))

    @property
    def extra_headers(self) -> dict[str, str]:
        """The headers that every request for a bucket carries and signs."""
        return {"x-amz-request-payer": "requester"} if self.config.request_payer else {}

    @cached_property
    def object_headers(self) -> dict[str, str]:
        """The headers that every request for an object carries and signs.

        Raises `ConfigurationError` where the file of the key for SSE-C cannot be read.
        """
        key_file = self.config.sse_c_key_file
        return _CHECKSUMS | self.extra_headers | (customer_key_headers(Path(key_file)) if key_file else {})

    @property
    def configured_region(self) -> str:
        """The region that the configuration, environment or profile names; empty where none does.

        Raises `ConfigurationError` for a `--region` that is no AWS region where no endpoint is named;
        `resolve_endpoint` checks the others.
        """
        given: str = self.config.region or self.setting("region") or ""
        # botocore has names of its own for a profile, such as aws-global.
        if self.config.region and self.endpoint_url is None and not _AWS_REGION.fullmatch(given):
            raise ConfigurationError(
                f"--region {given!r} is not the name of an AWS region",
                hint="AWS regions look like eu-west-1; for another service give its --endpoint-url too",
            )
        return given

    async def instance_region(self) -> str:
        """Return the region of the EC2 instance that gives the credentials; empty if no instance gives them."""
        found = self.credentials.latest if self.credentials is not None and self.endpoint_url is None else None
        if found is None or found.provider != "iam-role":
            return ""
        # It cuts one letter off the zone, which leaves us-west-2-lax-1 of a Local Zone.
        region = _AWS_REGION.match(await AnyioIMDSRegionProvider(self.aws).provide() or "")
        return region[0] if region else ""

    async def mend(
        self, kind: Kind, date: str, credentials: Credentials | None, *, is_head: bool
    ) -> tuple[bool, Failure | None]:
        """Correct the clock, or resolve credentials anew, if that is why the service refused a request at `date`.

        Return whether the next request may succeed, and what keeps credentials from being looked for, if it may pass.
        """
        # A HEAD has no error code: that for a wrong time looks like any other.
        is_of_time = kind is Kind.SKEWED or (is_head and kind in (Kind.DENIED, Kind.BAD_CREDENTIALS))
        if is_of_time and self.clock.correct(date):
            return True, None
        if kind not in (Kind.EXPIRED, Kind.BAD_CREDENTIALS) or self.credentials is None or credentials is None:
            return False, None
        return await self.credentials.replace(credentials), self.credentials.trouble

    def command_error(
        self, failure: Failure, bucket: str, key: str, region: str, *, operation: str = "read"
    ) -> FastfuseError:
        """Return the error of a command whose request failed, for the object `key` or, without one, for `bucket`.

        `operation` is "read" or "write".
        """
        error = object_error(failure, bucket=bucket, key=key, operation=operation) if key else None
        is_signed = self.credentials is not None
        where = self.endpoint_url or ""
        return error or start_error(failure, bucket=bucket, endpoint=where, region=region, is_signed=is_signed)

    def _configured_endpoint(self) -> str | None:
        if self.aws.get_config_variable("ignore_configured_endpoint_urls"):
            return None
        # botocore calls this class private; the alternative is to load the S3 model to ask a client.
        provider = ConfiguredEndpointProvider(self.aws.full_config, self.aws.get_scoped_config(), "s3")
        found: str | None = provider.provide()
        return found

    def _read(self, read: Callable[[], T]) -> T:
        try:
            return read()
        except BotoCoreError as error:
            raise resolution_error(error) from error


def bad_ca_bundle(session: S3Session) -> ConfigurationError:
    """Return the error for the `OSError` or `ssl.SSLError` with which a TLS context refuses its certificates."""
    return ConfigurationError(
        f"The CA bundle {str(session.ca_bundle)!r} cannot be read as certificates in PEM.",
        hint="Correct --ca-bundle or AWS_CA_BUNDLE.",
    )


def _version(authorities: str | None) -> Version:
    try:
        there = os.stat(authorities or "")
    except OSError:
        return _NO_FILE
    return there.st_ino, there.st_mtime_ns


class _CaBundle:
    """A file of authorities: a private one may be renewed under a mount or job that lives for longer."""

    def __init__(self, path: str | None) -> None:
        self._path = path
        # The version that is trusted, and the last one that was read, perhaps in vain.
        self.version = self._read = _version(path)

    def trust_again(self, trust: Callable[[str], object], *, is_refused: bool = False) -> None:
        """Have `trust` read the file if it is another version now. Warn if it is needed (`is_refused`) and not seen."""
        found = _version(self._path)
        if self._path is None or found == self._read or (found == _NO_FILE and not is_refused):
            return
        self._read = found
        if found == _NO_FILE:
            _log.warning("the CA bundle %s is gone, or in a directory that this process may not enter", self._path)
            return
        try:
            trust(self._path)
        except OSError as error:
            _log.warning("the CA bundle %s has changed and cannot be read: %s", self._path, error)
        else:
            self.version = found
            _log.info("the CA bundle %s has changed, and is trusted as it is now", self._path)


class _HttpSession(HttpxSession):  # type: ignore[misc]  # aiobotocore has no types
    """Sends ``PUT /bucket/key``, where `HttpxSession` sends ``PUT https://host/bucket/key``.

    HTTP/1.1 servers must accept the second form too, but only proxies ever get it, so not every server does.
    """

    # The contexts by file of certificates, which a process reads once: it may not be able to later.
    _contexts: ClassVar[dict[object, tuple[ssl.SSLContext, _CaBundle]]] = {}

    def __init__(self, *arguments: Any, **options: Any) -> None:  # noqa: ANN401 - aiobotocore has no types
        """Read and load now what `HttpxSession` would later, and in another thread."""
        super().__init__(*arguments, **options)
        bundle = options.get("verify")
        if bundle not in self._contexts:
            trusted = _CaBundle(get_cert_path(bundle) if bundle else None)
            context = self._build_ssl_context()
            self._contexts[bundle] = context, trusted
            httpx2.AsyncHTTPTransport(verify=context)
        self._verify, self._trusted = self._contexts[bundle]

    async def send(self, request: Any) -> Any:  # noqa: ANN401 - aiobotocore has no types
        """Send the body in large chunks; `HttpxSession` ends one at every byte that is a newline.

        Raises `ReadTimeoutError` for a body that stalls, too: `HttpxSession` tells of a connection that is not made.
        """
        self._trusted.trust_again(self._verify.load_verify_locations)
        if isinstance(request.body, io.BytesIO):
            request.body = _chunks(request.body)
        try:
            return await super().send(request)
        except ConnectTimeoutError as error:
            if isinstance(error.__context__, httpx2.WriteTimeout):
                raise ReadTimeoutError(endpoint_url=request.url) from error
            raise
        except BaseExceptionGroup as error:
            # A cancellation while it connects comes as a group, as in `routes`.
            raise_alone(error.exceptions[0])

    def _make_async_client(self) -> httpx2.AsyncClient:
        client: httpx2.AsyncClient = super()._make_async_client()
        client.event_hooks = {"request": [_use_origin_form]}
        return client


async def _chunks(body: io.BytesIO) -> AsyncIterator[bytes]:
    while chunk := body.read(_CHUNK_BYTES):
        yield chunk


async def _use_origin_form(request: httpx2.Request) -> None:
    # It is absent behind a proxy, where the absolute form is right; aiobotocore keeps that under another name.
    target: bytes = request.extensions.get("target", b"")
    if target.startswith((b"http://", b"https://")):
        _scheme, _, _authority, path = target.split(b"/", 3)
        request.extensions["target"] = b"/" + path
