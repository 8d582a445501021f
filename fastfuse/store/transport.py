"""aiobotocore's HTTP session with the request line that every other client sends."""

import os
import ssl
from functools import cache

import httpx2
from aiobotocore.httpxsession import HttpxSession
from botocore.httpsession import create_urllib3_context, get_cert_path

__all__ = ["OriginFormSession", "tls_context"]


class OriginFormSession(HttpxSession):  # type: ignore[misc]  # aiobotocore has no types
    """Sends ``GET /bucket/key``, where `HttpxSession` sends ``GET https://host/bucket/key``.

    HTTP/1.1 servers have to take the second form too, but only proxies ever get it, so not every server does.
    """

    def _make_async_client(self) -> httpx2.AsyncClient:
        client: httpx2.AsyncClient = super()._make_async_client()
        client.event_hooks = {"request": [_use_origin_form]}
        return client

    def _build_ssl_context(self) -> ssl.SSLContext:
        if self._cert_file is None and isinstance(self._verify, bool | str):
            return tls_context(self._verify)
        context: ssl.SSLContext = super()._build_ssl_context()
        return context


def tls_context(verify: bool | str) -> ssl.SSLContext:
    """As `HttpxSession` makes it, once for all sessions of this process, and of those that it forks then (`preload`).

    To read the authorities takes 20 ms.

    Raises:
        OSError: they cannot be read (`ssl.SSLError`, too).
    """
    if not verify:
        return _context("", 0)
    authorities = get_cert_path(verify)
    # A listing may be refreshed after days: read again what was replaced meanwhile.
    return _context(authorities, os.stat(authorities).st_mtime_ns)


@cache
def _context(authorities: str, _modified_ns: int) -> ssl.SSLContext:
    context: ssl.SSLContext = create_urllib3_context()
    context.check_hostname = bool(authorities)
    if authorities:
        context.load_verify_locations(authorities)
    else:
        context.verify_mode = ssl.CERT_NONE
    return context


async def _use_origin_form(request: httpx2.Request) -> None:
    # Absent behind a proxy: there the absolute form is right, and aiobotocore keeps it under another name.
    target: bytes = request.extensions.get("target", b"")
    if target.startswith((b"http://", b"https://")):
        _scheme, _, _authority, path = target.split(b"/", 3)
        request.extensions["target"] = b"/" + path
