import base64
from dataclasses import replace

import pytest

from fastfuse.errors import ConfigurationError
from fastfuse.s3.proxies import Proxy, proxy_for

HTTPS = "https://bucket.s3.eu-west-1.amazonaws.com/bucket"
PROXY = Proxy(host="proxy.local", port=3128, authorization="")


def basic(pair: str) -> str:
    return f"Basic {base64.b64encode(pair.encode()).decode()}"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("http://proxy.local:3128", PROXY),
        ("proxy.local:3128", PROXY),
        ("//proxy.local:3128", PROXY),
        ("HTTP://Proxy.Local:3128/", PROXY),
        ("http://proxy.local", replace(PROXY, port=80)),
        ("http://[::1]:3128", replace(PROXY, host="::1")),
        ("http://me:p%40ss%C3%BC%3A@proxy.local:3128", replace(PROXY, authorization=basic("me:p@ssü:"))),
        ("http://me@proxy.local:3128", replace(PROXY, authorization=basic("me:"))),
    ],
)
def test_a_proxy_is_written_in_the_usual_ways(monkeypatch: pytest.MonkeyPatch, value: str, expected: Proxy) -> None:
    monkeypatch.setenv("https_proxy", value)
    assert proxy_for(HTTPS) == expected


def test_each_scheme_has_its_variable_and_all_proxy_is_for_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://proxy.local:3128")
    assert proxy_for(HTTPS) is None
    monkeypatch.setenv("all_proxy", "socks5://socks.local:1080")
    assert proxy_for("http://s3.local/") == PROXY
    with pytest.raises(ConfigurationError, match="all_proxy"):
        proxy_for(HTTPS)


@pytest.mark.parametrize(
    ("no_proxy", "url", "expected"),
    [
        *((name, HTTPS, None) for name in ("*", "amazonaws.com", ".amazonaws.com")),
        ("notamazonaws.com", HTTPS, PROXY),
        *((names, "https://s3.local:9000/", None) for names in ("a.example, s3.local", "s3.local:9000")),
        ("s3.local:9001", "https://s3.local:9000/", PROXY),
        *((network, "https://10.1.2.3:9000/", None) for network in ("10.1.2.3", "a.example,10.0.0.0/8")),
        ("10.0.0.0/16", "https://10.1.2.3:9000/", PROXY),
        ("10.0.0.0/8", "https://10.example.com/", PROXY),
        ("::1", "https://[::1]:9000/", None),
        ("fd00::/8", "https://[fd00::1]/", None),
    ],
)
def test_no_proxy_names_hosts(monkeypatch: pytest.MonkeyPatch, no_proxy: str, url: str, expected: Proxy | None) -> None:
    monkeypatch.setenv("https_proxy", "http://proxy.local:3128")
    assert proxy_for(url) == PROXY
    monkeypatch.setenv("no_proxy", no_proxy)
    assert proxy_for(url) == expected


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("https://me:hunter2@proxy.local", "names a proxy of the kind 'https'"),
        ("socks5://me:hunter2@proxy.local:1080", "https_proxy (or HTTPS_PROXY) names a proxy of the kind 'socks5'"),
        *(
            (url, "is not the URL of a proxy")
            for url in (
                *("http://me:hun#ter2@proxy.local:3128", "http://me:hunter2@proxy.local:port", "http://me:hunter2@"),
                *("http://me:hunter2@a b", "http://me:hunter2@[proxy", "me:hunter2", "http://me:hunter2@a..b"),
            )
        ),
    ],
)
def test_a_wrong_proxy_is_named_without_its_password(monkeypatch: pytest.MonkeyPatch, value: str, message: str) -> None:
    monkeypatch.setenv("https_proxy", value)
    with pytest.raises(ConfigurationError) as caught:
        proxy_for(HTTPS)
    assert message in str(caught.value)
    assert caught.value.hint
    assert "ter2" not in str(caught.value) + caught.value.hint


def test_a_password_is_not_in_the_representation() -> None:
    assert "secret" not in repr(replace(PROXY, authorization="secret"))
