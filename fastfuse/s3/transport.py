"""aiobotocore's HTTP session with the request line that every other client sends.

It carries the requests that this package leaves to aiobotocore: uploads, and requests for credentials.
"""

import httpx2
from aiobotocore.httpxsession import HttpxSession

__all__ = ["OriginFormSession"]


class OriginFormSession(HttpxSession):  # type: ignore[misc]  # aiobotocore has no types
    """Sends ``PUT /bucket/key``, where `HttpxSession` sends ``PUT https://host/bucket/key``.

    HTTP/1.1 servers must accept the second form too, but only proxies ever get it, so not every server does.
    """

    def _make_async_client(self) -> httpx2.AsyncClient:
        client: httpx2.AsyncClient = super()._make_async_client()
        client.event_hooks = {"request": [_use_origin_form]}
        return client


async def _use_origin_form(request: httpx2.Request) -> None:
    # It is absent behind a proxy, where the absolute form is right; aiobotocore keeps that under another name.
    target: bytes = request.extensions.get("target", b"")
    if target.startswith((b"http://", b"https://")):
        _scheme, _, _authority, path = target.split(b"/", 3)
        request.extensions["target"] = b"/" + path
