"""What several modules set up: a clock that stands, signals of connections, and where FUSE connections are shown."""

import signal
from collections.abc import Iterator

import pytest

from fastfuse.filesystem.mounting import mountpoint
from tests.mounting import fuse_connections


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    clock = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    return clock


@pytest.fixture
def no_sigio() -> Iterator[None]:
    """Ignore what tells a supervisor of connections."""
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGIO, before)


@pytest.fixture(params=[False, True], ids=["no fusectl", "fusectl"])
def has_fusectl(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[bool]:
    with fuse_connections() as connections:
        monkeypatch.setattr(mountpoint, "_CONNECTIONS", connections if request.param else connections / "nothing")
        yield request.param
