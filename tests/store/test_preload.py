from collections.abc import Callable
from pathlib import Path

import pytest
import trio
from botocore.loaders import JSONFileLoader

from fastfuse.store import session as sessions
from fastfuse.store.base import ConnectionConfig
from fastfuse.store.pages import open_pages
from fastfuse.store.preload import preload_lister
from fastfuse.store.session import S3Session
from fastfuse.store.transport import tls_context
from fastfuse.testing import LoopbackServer, MemoryObjects


@pytest.fixture(autouse=True)
def nothing_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    sessions._loader.cache_clear()


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths of botocore's data that were read."""
    paths: list[str] = []
    load: Callable[[JSONFileLoader, str], object] = JSONFileLoader.load_file

    def recorded(self: JSONFileLoader, path: str) -> object:
        data = load(self, path)
        if data is not None:
            paths.append(path)
        return data

    monkeypatch.setattr(JSONFileLoader, "load_file", recorded)
    return paths


def test_after_it_a_session_of_the_same_settings_reads_no_model(read: list[str]) -> None:
    preload_lister(ConnectionConfig(), is_for_prefixes=False)
    assert any("service-2" in path for path in read)
    read.clear()
    loader = S3Session(ConnectionConfig()).aws.get_component("data_loader")
    assert loader.load_service_model("s3", "service-2", api_version=None)["metadata"]["serviceId"] == "S3"
    assert loader.load_data("endpoints")
    assert not read


def test_prefixes_take_no_model_before_or_while_they_are_listed(read: list[str]) -> None:
    async def list_one() -> bytes:
        pages = open_pages(S3Session(config), "bucket")
        try:
            return await pages.list_page(prefix="")
        finally:
            await pages.aclose()

    with LoopbackServer({"bucket": MemoryObjects({"key": b""})}) as server:
        config = ConnectionConfig(endpoint_url=server.endpoint_url, region="us-east-1")
        preload_lister(config, is_for_prefixes=True)
        assert b"<Key>key</Key>" in trio.run(list_one)
    assert not [path for path in read if "/s3/" in path]


def test_a_special_endpoint_takes_the_model_for_prefixes_too(read: list[str], aws_environment: Path) -> None:
    aws_environment.write_text("[profile own]\nuse_fips_endpoint = true\n")
    preload_lister(ConnectionConfig(profile="own"), is_for_prefixes=True)
    assert any("service-2" in path for path in read)


def test_the_authorities_are_read_where_certificates_are_met(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []
    monkeypatch.setattr("fastfuse.store.preload.tls_context", lambda verify: made.append(tls_context(verify)))
    preload_lister(ConnectionConfig(endpoint_url="http://s3.test"), is_for_prefixes=True)
    assert not made
    preload_lister(ConnectionConfig(), is_for_prefixes=True)
    assert made == [tls_context(True)]


@pytest.mark.parametrize(
    "config",
    [ConnectionConfig(profile="nobody"), ConnectionConfig(ca_bundle="/none"), ConnectionConfig(endpoint_url="x")],
)
def test_settings_that_are_wrong_are_not_its_business(
    config: ConnectionConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    preload_lister(config, is_for_prefixes=False)
