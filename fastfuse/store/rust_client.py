"""The client of obstore: where its requests go, what it trusts, how long it tries, and what it signs with."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import obstore
import trio
from obstore.exceptions import BaseError
from obstore.store import S3Store

from fastfuse.errors import StoreUnsuitableError
from fastfuse.store.credentials import CredentialSource
from fastfuse.store.retries import FIRST_PAUSE_S, LONGEST_PAUSE_S
from fastfuse.store.session import S3Session, stall_timeout_s

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig, S3Credential

__all__ = ["BAD_CERTIFICATE", "no_panic", "open_store", "unsuitable_certificate"]

# What obstore says of a certificate that it does not accept.
BAD_CERTIFICATE = "InvalidCertificate("
# obstore gives up this part of the deadline before it, so that the reader hears why and not only that it took long.
_RETRY_SHARE = 0.8
_PANIC = "RustPanic"


@contextmanager
def no_panic(*, whole_server: bool) -> Iterator[None]:
    """A panic in Rust arrives as pyo3's `PanicException`, which cannot be imported and which is no `Exception`; that of
    a call for asyncio as a `RustPanic`, which cannot be imported either.

    It ends one request and not the worker: the kernel would ask the next worker for the same.
    """
    try:
        yield
    except (Exception, KeyboardInterrupt, SystemExit, GeneratorExit, trio.Cancelled) as error:
        if type(error).__name__ == _PANIC:
            raise StoreUnsuitableError("obstore panicked.", whole_server=whole_server) from None
        raise
    except BaseException:  # noqa: BLE001 - and nothing but a panic is left
        # Not "from": its text may quote a header.
        raise StoreUnsuitableError("obstore panicked.", whole_server=whole_server) from None


def open_store(session: S3Session, bucket: str, region: str) -> S3Store:
    """The client for `bucket`; blocks for as long as it takes to see the server's certificate.

    Raises:
        StoreUnsuitableError: obstore cannot be set up for it, or does not accept the certificate.
    """
    try:
        with no_panic(whole_server=True):
            if session.config.verify_ssl and (session.endpoint_url or "").startswith("https:"):
                _check_certificate(session, bucket, region)
            return _new_store(session, bucket, region, _retry_config(session), timeout_s=session.config.deadline_s)
    except ValueError as error:
        raise StoreUnsuitableError(
            f"obstore cannot be set up for {bucket!r} (is the CA bundle in PEM?).", whole_server=True
        ) from error


def _check_certificate(session: S3Session, bucket: str, region: str) -> None:
    """Finds out at once what obstore would take most of a read's deadline to say.

    rustls refuses what OpenSSL takes, above all the self-signed certificate that `openssl req -x509` makes. The
    certificate comes with the connection, so a server that is slow to answer has shown it by then.
    """
    store = _new_store(session, bucket, region, {"max_retries": 0}, timeout_s=session.config.connect_timeout_s)
    try:
        obstore.head(store, "fastfuse-asks-for-the-certificate")
    except (BaseError, OSError) as error:
        if BAD_CERTIFICATE in str(error):
            raise unsuitable_certificate() from None


def unsuitable_certificate() -> StoreUnsuitableError:
    """To be raised for an error that names `BAD_CERTIFICATE`."""
    return StoreUnsuitableError("obstore does not accept this server's certificate.", whole_server=True)


def _new_store(session: S3Session, bucket: str, region: str, retries: "RetryConfig", *, timeout_s: float) -> S3Store:
    """Every setting that decides where a request goes is given: obstore reads the rest from AWS_* itself."""
    config = session.config
    path_style = session.uses_path_style(bucket)
    endpoint = session.service_url(region) if path_style else session.bucket_url(bucket, region)
    settings: dict[str, Any] = {
        "endpoint": endpoint,
        "aws_endpoint_url_s3": endpoint,
        "region": region,
        "virtual_hosted_style_request": not path_style,
        "skip_signature": not config.sign_request,
        "request_payer": config.request_payer,
        "s3_express": False,
        "unsigned_payload": False,
    }
    return S3Store(
        bucket,
        config=settings,  # type: ignore[arg-type]
        client_options=_client_options(session, timeout_s),
        retry_config=retries,
        credential_provider=None if session.credentials is None else partial(_signing_keys, session.credentials),
    )


def _client_options(session: S3Session, timeout_s: float) -> "ClientConfig":
    config = session.config
    options: ClientConfig = {
        "allow_http": (session.endpoint_url or "").startswith("http:"),
        "timeout": timedelta(seconds=timeout_s),
        "read_timeout": timedelta(seconds=stall_timeout_s(config)),
        "connect_timeout": timedelta(seconds=config.connect_timeout_s),
        "pool_max_idle_per_host": str(config.max_connections),
    }
    if not config.verify_ssl:
        options["allow_invalid_certificates"] = True
    elif session.ca_bundle is not None:
        options["root_certificate"] = session.ca_bundle.read_bytes()
    return options


def _retry_config(session: S3Session) -> "RetryConfig":
    deadline_s = session.config.deadline_s
    return {
        "max_retries": 100,  # the time is the limit
        "retry_timeout": timedelta(seconds=deadline_s * _RETRY_SHARE),
        "backoff": {
            "init_backoff": timedelta(seconds=FIRST_PAUSE_S),
            # obstore panics where it is less than half of the first.
            "max_backoff": timedelta(seconds=max(FIRST_PAUSE_S, min(LONGEST_PAUSE_S, deadline_s / 10))),
            "base": 2,
        },
    }


def _signing_keys(source: CredentialSource) -> "S3Credential":
    """Called by obstore in whichever thread needs a signature; every read has passed `source.current` before."""
    latest = source.latest
    assert latest is not None
    return {
        "access_key_id": latest.access_key,
        "secret_access_key": latest.secret_key,
        "token": latest.token,
        # Over already, so obstore asks before each signature (10 µs) and never signs with older keys than these.
        "expires_at": datetime.now(UTC),
    }
