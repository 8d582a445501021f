import base64

import pytest

from fastfuse.errors import ConfigurationError
from fastfuse.s3.proxies import Proxy, proxy_for

HTTPS = "https://bucket.s3.eu-west-1.amazonaws.com/bucket"
PROXY = Proxy(host="proxy.local", port=3128, uses_tls=False, authorization="")


def basic(pair: str) -> str:
    return f"Basic {base64.b64encode(pair.encode()).decode()}"


def test_without_a_proxy_in_the_environment_there_is_none() -> None:
    assert proxy_for(HTTPS) is None


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("http://proxy.local:3128", PROXY),
        ("proxy.local:3128", PROXY),
        ("//proxy.local:3128", PROXY),
        ("HTTP://Proxy.Local:3128/", PROXY),
        ("http://proxy.local", Proxy(host="proxy.local", port=80, uses_tls=False, authorization="")),
        ("https://proxy.local", Proxy(host="proxy.local", port=443, uses_tls=True, authorization="")),
        ("http://[::1]:3128", Proxy(host="::1", port=3128, uses_tls=False, authorization="")),
        (
            "http://me:p%40ss%C3%BC%3A@proxy.local:3128",
            Proxy(host="proxy.local", port=3128, uses_tls=False, authorization=basic("me:p@ssü:")),
        ),
        (
            "http://me@proxy.local:3128",
            Proxy(host="proxy.local", port=3128, uses_tls=False, authorization=basic("me:")),
        ),
    ],
)
def test_a_proxy_is_written_in_any_of_the_usual_ways(
    monkeypatch: pytest.MonkeyPatch, value: str, expected: Proxy
) -> None:
    monkeypatch.setenv("https_proxy", value)
    assert proxy_for(HTTPS) == expected


def test_the_scheme_of_the_url_chooses_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://proxy.local:3128")
    assert proxy_for("http://s3.local/") == PROXY
    assert proxy_for(HTTPS) is None


def test_all_proxy_is_for_urls_without_a_proxy_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("all_proxy", "socks5://socks.local:1080")
    monkeypatch.setenv("https_proxy", "http://proxy.local:3128")
    assert proxy_for(HTTPS) == PROXY
    with pytest.raises(ConfigurationError, match="all_proxy"):
        proxy_for("http://s3.local/")


@pytest.mark.parametrize(
    ("no_proxy", "url"),
    [
        ("*", HTTPS),
        ("amazonaws.com", HTTPS),
        (".amazonaws.com", HTTPS),
        ("a.example, s3.local", "https://s3.local:9000/"),
        ("s3.local:9000", "https://s3.local:9000/"),
        ("10.1.2.3", "https://10.1.2.3:9000/"),
        ("a.example,10.0.0.0/8", "https://10.1.2.3:9000/"),
        ("::1", "https://[::1]:9000/"),
        ("fd00::/8", "https://[fd00::1]/"),
    ],
)
def test_no_proxy_names_hosts_domains_and_networks(monkeypatch: pytest.MonkeyPatch, no_proxy: str, url: str) -> None:
    monkeypatch.setenv("https_proxy", "http://proxy.local:3128")
    assert proxy_for(url) == PROXY
    monkeypatch.setenv("no_proxy", no_proxy)
    assert proxy_for(url) is None


@pytest.mark.parametrize(
    ("no_proxy", "url"),
    [
        ("notamazonaws.com", HTTPS),
        ("s3.local:9001", "https://s3.local:9000/"),
        ("10.0.0.0/16", "https://10.1.2.3:9000/"),
        ("10.0.0.0/8", "https://10.example.com/"),
    ],
)
def test_other_hosts_than_those_of_no_proxy_go_through_it(
    monkeypatch: pytest.MonkeyPatch, no_proxy: str, url: str
) -> None:
    monkeypatch.setenv("https_proxy", "http://proxy.local:3128")
    monkeypatch.setenv("no_proxy", no_proxy)
    assert proxy_for(url) == PROXY


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("socks5://me:hunter2@proxy.local:1080", "https_proxy (or HTTPS_PROXY) names a proxy of the kind 'socks5'"),
        ("http://me:hun#ter2@proxy.local:3128", "is not the URL of a proxy"),
        ("http://me:hunter2@proxy.local:port", "is not the URL of a proxy"),
        ("http://me:hunter2@", "is not the URL of a proxy"),
        ("http://me:hunter2@a b", "is not the URL of a proxy"),
        ("http://me:hunter2@[proxy", "is not the URL of a proxy"),
        ("me:hunter2", "is not the URL of a proxy"),
    ],
)
def test_a_proxy_that_is_none_is_named_without_its_password(
    monkeypatch: pytest.MonkeyPatch, value: str, message: str
) -> None:
    monkeypatch.setenv("https_proxy", value)
    with pytest.raises(ConfigurationError) as caught:
        proxy_for(HTTPS)
    assert message in str(caught.value)
    assert caught.value.hint
    assert "ter2" not in str(caught.value) + caught.value.hint


def test_a_password_is_not_in_the_representation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "http://me:hunter2@proxy.local:3128")
    proxy = proxy_for(HTTPS)
    assert proxy is not None
    assert proxy.authorization
    assert proxy.authorization not in repr(proxy)
