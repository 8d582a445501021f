from pathlib import Path

import pytest

from fastfuse.store.base import ConnectionConfig
from fastfuse.store.preload import preload_lister
from fastfuse.store.session import S3Session


def test_after_it_a_session_of_the_same_settings_reads_no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(path: str) -> None:
        raise AssertionError(f"{path} was read")

    preload_lister(ConnectionConfig())
    loader = S3Session(ConnectionConfig()).aws.get_component("data_loader")
    monkeypatch.setattr(loader.file_loader, "load_file", read)
    assert loader.load_service_model("s3", "service-2", api_version=None)["metadata"]["serviceId"] == "S3"
    assert loader.load_data("endpoints")


def test_a_profile_that_is_not_there_is_not_its_business(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    preload_lister(ConnectionConfig(profile="nobody"))
