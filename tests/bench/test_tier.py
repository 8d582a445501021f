from pathlib import Path

import pytest

from bench import tier
from bench.candidates import Limits
from bench.server import Server
from bench.workloads import WORKLOADS, Scale


def test_a_later_epoch_of_a_peer_comes_from_its_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tier, "drop_caches", lambda: None)
    monkeypatch.setattr(tier, "touch_memory", lambda _: None)
    scale = Scale(shard_bytes=8 << 20)
    with Server(WORKLOADS["sequential-1"].data_set(scale, tmp_path).source) as server:
        cold, later = tier._peer_epochs(server, "sequential-1", scale, "rclone", tmp_path / "cache", Limits())
    assert cold.fetched_bytes >= scale.shard_bytes
    assert later.fetched_bytes == 0
