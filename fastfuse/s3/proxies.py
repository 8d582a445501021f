"""Finds the HTTP proxy that the environment names for a URL.

`urllib` reads ``http_proxy``, ``https_proxy``, ``all_proxy`` and ``no_proxy`` as it does for botocore, so that
credentials and objects take the same way. ``no_proxy`` may hold networks as well (``10.0.0.0/8``), which match hosts
that are addresses.
"""

import base64
import ipaddress
import re
from contextlib import suppress
from dataclasses import dataclass, field
from urllib.parse import SplitResult, unquote, urlsplit
from urllib.request import getproxies

from botocore.utils import should_bypass_proxies

from fastfuse.errors import ConfigurationError

DEFAULT_PORTS = {"http": 80, "https": 443}
# A name or an address that a request's head may hold. Private names have underscores, too.
_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*|[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*(%[A-Za-z0-9._-]+)?", re.ASCII)


class ProxyRefusalError(OSError):
    """The proxy cannot be reached, or did not open a tunnel; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proxy:
    """An HTTP proxy."""

    host: str
    port: int
    # The value of Proxy-Authorization; empty if the proxy is to get none.
    authorization: str = field(repr=False)


def is_host(host: str) -> bool:
    """Return whether `host` is a host name or an address, without brackets."""
    try:
        host.encode("idna")  # as a look-up does, which takes no label that is empty or too long
    except UnicodeError:
        return False
    return _HOST.fullmatch(host) is not None


def proxy_for(url: str) -> Proxy | None:
    """Return the proxy that requests for `url` go through, or None if they go straight to its host.

    Raises:
        ConfigurationError: the environment names a proxy that is none, or one that does not speak HTTP.
    """
    target, proxies = urlsplit(url), getproxies()
    name = target.scheme if proxies.get(target.scheme) else "all"
    given = proxies.get(name)
    if not given or should_bypass_proxies(url) or _is_in_network(target.hostname or "", proxies.get("no", "")):
        return None
    return _parse(f"{name}_proxy", given)


def _is_in_network(host: str, no_proxy: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    for entry in no_proxy.split(","):
        with suppress(ValueError):  # most entries are names
            if address in ipaddress.ip_network(entry.strip().strip("[]"), strict=False):
                return True
    return False


def _parse(variable: str, given: str) -> Proxy:
    # No message shows the value: it may hold a password.
    shown = f"{variable} (or {variable.upper()})"
    parts = split_url(given if "//" in given else f"//{given}")
    scheme = parts.scheme or "http" if parts else ""
    if parts is None or not is_host(parts.hostname or ""):
        raise ConfigurationError(
            f"The environment variable {shown} is not the URL of a proxy such as http://proxy.example.com:3128.",
            hint="Correct it. In a user name or password, write special characters as %40 and the like.",
        )
    if scheme != "http":
        raise ConfigurationError(
            f"The environment variable {shown} names a proxy of the kind {scheme!r}, which is not supported.",
            hint="Name an HTTP proxy (http://: requests to https endpoints are encrypted all the same), or except the "
            "S3 endpoint with no_proxy.",
        )
    assert parts.hostname is not None
    authorization = ""
    if parts.username:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        authorization = f"Basic {base64.b64encode(pair.encode()).decode()}"
    return Proxy(host=parts.hostname, port=parts.port or DEFAULT_PORTS[scheme], authorization=authorization)


def split_url(url: str) -> SplitResult | None:
    """Return the parts of `url`, or None if it is none."""
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises for a port that is no number
    except ValueError:
        return None
    return parts
