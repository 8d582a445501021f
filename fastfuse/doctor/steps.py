"""Ask the S3 service of a source, step by step. Each step tells a finding, and the first that fails is the last."""

import socket
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime

import trio

from fastfuse.advise.probe import measure_network
from fastfuse.doctor.rules import Finding, Level, certificate, clock, network, region
from fastfuse.errors import FastfuseError, ServiceError
from fastfuse.index.listing.acceptance import check_readable, has_readable_bytes, samples
from fastfuse.index.listing.page import Pager
from fastfuse.index.sources.uri import S3Uri
from fastfuse.objects import ObjectRef
from fastfuse.s3.aws import DEFAULT_REGION, S3Session
from fastfuse.s3.base import ConnectionConfig
from fastfuse.s3.checks import parse_date
from fastfuse.s3.client import S3Client
from fastfuse.s3.connection import Patience
from fastfuse.s3.http1 import BadReplyHeadError, ReplyHead
from fastfuse.s3.regions import named_region
from fastfuse.s3.retries import Retries
from fastfuse.s3.routes import NotConnectedError, Route, Routes, failure_of_connection

# Nobody waits longer for a step.
_PATIENCE_S = 20.0
_EMPTY_SAMPLES = 3


def ask_service(source: S3Uri, config: ConnectionConfig, tell: Callable[[Finding], None]) -> None:
    """Call `tell` with each finding as it is known.

    The last step measures the network, for up to 5 s and with up to `advise.probe.MOST_BYTES`.
    """
    trio.run(_ask, source, replace(config, deadline_s=min(config.deadline_s, _PATIENCE_S)), tell)


async def _ask(source: S3Uri, config: ConnectionConfig, tell: Callable[[Finding], None]) -> None:
    steps = _Steps(source, S3Session(config))
    try:
        for name, step in steps.in_order():
            try:
                with trio.fail_after(_PATIENCE_S):
                    found = await step()
            except FastfuseError as error:
                found = [Finding(name, Level.FAIL, str(error).rstrip("."), error.hint.rstrip("."))]
            except trio.TooSlowError:
                found = [Finding(name, Level.FAIL, f"no answer within {_PATIENCE_S:.0f} s", "check the network")]
            for one in found:
                tell(one)
            if found and found[-1].level is Level.FAIL:
                return
    finally:
        await steps.aclose()


class _Steps:
    """The steps, and what each leaves to those after it."""

    def __init__(self, source: S3Uri, session: S3Session) -> None:
        self._source = source
        self._session = session
        self._client = S3Client(session)
        self._patience = Patience(_PATIENCE_S / 2, _PATIENCE_S)
        self._routes = Routes(session, self._patience)
        self._head: ReplyHead | None = None
        self._refs: list[ObjectRef] = []

    def in_order(self) -> list[tuple[str, Callable[[], Awaitable[list[Finding]]]]]:
        return [
            ("credentials", self._credentials),
            ("address", self._address),
            ("connection", self._connection),
            ("clock", self._clock),
            ("region", self._region),
            ("list", self._list),
            ("get", self._get),
            ("empty objects", self._empty),
            ("network", self._network),
        ]

    async def aclose(self) -> None:
        self._routes.close()
        await self._client.aclose()

    async def _credentials(self) -> list[Finding]:
        if self._session.credentials is None:
            return [Finding("credentials", Level.OK, "none: requests are not signed")]
        found = await self._session.credentials.current()
        left_s = (found.expires_at - datetime.now(UTC)).total_seconds() if found.expires_at else None
        until = "do not expire" if left_s is None else f"expire in {left_s / 60:.0f} min and are renewed before"
        # The end of an access key tells keys apart and is no secret.
        return [Finding("credentials", Level.OK, f"...{found.access_key[-4:]} from {found.provider}, {until}")]

    async def _address(self) -> list[Finding]:
        endpoint = self._route().endpoint
        proxy = endpoint.proxy
        host, port = (endpoint.host, endpoint.port) if proxy is None else (proxy.host, proxy.port)
        try:
            addresses = {row[4][0] for row in await trio.socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)}
        except (OSError, UnicodeError) as error:
            told = getattr(error, "strerror", None) or "not a host name"
            raise ServiceError(
                f"the name {host!r} has no address: {told}", hint="check --endpoint-url, --region and /etc/resolv.conf"
            ) from error
        through = f"{endpoint.host} through the proxy {host}:{port}" if proxy else f"{host}:{port}"
        noun = "address" if len(addresses) == 1 else "addresses"
        return [Finding("address", Level.OK, f"{through}, {len(addresses)} {noun}")]

    async def _connection(self) -> list[Finding]:
        route = self._route()
        began_s = trio.current_time()
        try:
            try:
                connection = await self._routes.connect(route)
            except OSError as error:
                raise NotConnectedError(error) from error
            took_ms = (trio.current_time() - began_s) * 1000
            try:
                self._head = await connection.ask(route.request("HEAD", None), self._patience, has_body=False)
            finally:
                connection.close()
        except BadReplyHeadError as error:
            hint = "check --endpoint-url, its port, and whether it begins with http:// or https://"
            raise ServiceError(f"what answers is not HTTP/1.1: {error}", hint=hint) from error
        except OSError as error:
            failure = failure_of_connection(error)
            raise self._session.command_error(failure, self._source.bucket, "", route.endpoint.region) from error
        days_left = connection.certificate_days
        secured = "TLS" if days_left is not None else "no TLS"
        connected = Finding("connection", Level.OK, f"{secured}, {took_ms:.0f} ms to connect")
        return [connected] if days_left is None else [connected, certificate(days_left)]

    async def _clock(self) -> list[Finding]:
        date = parse_date(self._head.headers.get("date", "")) if self._head else None
        return [clock(time.time() - date.timestamp() if date else None)]

    async def _region(self) -> list[Finding]:
        used = await self._client.region(self._source.bucket)
        told = self._head.headers.get("x-amz-bucket-region", "") if self._head else ""
        return [region(used, told)]

    async def _list(self) -> list[Finding]:
        began_s = trio.current_time()
        pager, source = Pager(self._client, self._source.bucket, Retries()), self._source
        # A mount lists the folder first, too: the right to list may end there.
        page = await pager.page(source.folder)
        if source.folder != source.path and not page.keys:
            page = await pager.page(source.path)
        self._refs = page.columns.refs(source.bucket)
        more = " and more" if page.is_truncated else ""
        took_ms = (trio.current_time() - began_s) * 1000
        if not self._refs:
            remedy = "check the prefix: fastfuse mounts an empty one with --allow-empty only"
            return [Finding("list", Level.WARN, "permitted, but nothing is below the prefix", remedy)]
        noun = "object" if len(self._refs) == 1 else "objects"
        return [Finding("list", Level.OK, f"{len(self._refs):,} {noun}{more}, the first page in {took_ms:.0f} ms")]

    async def _get(self) -> list[Finding]:
        asked = samples(self._refs)
        if failed := await check_readable(self._client, asked):
            return [Finding("get", Level.WARN, str(failed).rstrip("."), failed.hint or "see whether it passes")]
        return [Finding("get", Level.OK, f"permitted: a byte of {asked[0].key!r}" if asked else "nothing to read")]

    async def _empty(self) -> list[Finding]:
        """Compare what is listed as empty with its HEAD: the mount shows the listed size."""
        empty = [ref for ref in self._refs if not ref.size_bytes and not ref.key.endswith("/")]
        for ref in empty[:_EMPTY_SAMPLES]:
            with suppress(FastfuseError):
                now = await self._client.head(ref.bucket, ref.key)
                if now.size_bytes:
                    told = f"{ref.key!r} is listed as empty, as the mount shows it, and has {now.size_bytes:,} bytes"
                    remedy = "Swift lists dynamic large objects and symlinks so: upload them anew through S3"
                    return [Finding("empty objects", Level.WARN, told, remedy)]
        return []

    async def _network(self) -> list[Finding]:
        usable = list(filter(has_readable_bytes, self._refs))
        if not usable:
            return [Finding("network", Level.OK, "not measured: nothing to read")]
        found = await measure_network(self._client, sorted(usable, key=lambda ref: -ref.size_bytes), usable)
        return network(found.network, found.note, found.measured)

    def _route(self) -> Route:
        """Return a route that will do for the first steps; a later step asks for the right region."""
        bucket = self._source.bucket
        known = self._routes.known(bucket)
        return known or self._routes.add(bucket, named_region(self._session, bucket) or DEFAULT_REGION)
