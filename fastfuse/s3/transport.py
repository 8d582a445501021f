"""aiobotocore's HTTP session with the request line that every other client sends.

It carries the requests that this package leaves to aiobotocore: uploads, and requests for credentials.
"""

import io
from collections.abc import AsyncIterator
from typing import Any

import httpx2
from aiobotocore.httpxsession import HttpxSession

__all__ = ["OriginFormSession"]

# Each has a deadline of its own, so that a slow network is no broken one.
_CHUNK_BYTES = 1 << 18


class OriginFormSession(HttpxSession):  # type: ignore[misc]  # aiobotocore has no types
    """Sends ``PUT /bucket/key``, where `HttpxSession` sends ``PUT https://host/bucket/key``.

    HTTP/1.1 servers must accept the second form too, but only proxies ever get it, so not every server does.
    """

    async def send(self, request: Any) -> Any:  # noqa: ANN401 - aiobotocore has no types
        """Send the body in large chunks; `HttpxSession` ends one at every byte that is a newline."""
        if isinstance(request.body, io.BytesIO):
            request.body = _chunks(request.body)
        return await super().send(request)

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
