"""The lock that pyfuse3 gets in the place of trio's."""

from pathlib import Path

import pytest
import trio
import trio.testing

from fastfuse.errors import MountError
from fastfuse.filesystem.fuse import pyfuse3
from fastfuse.filesystem.loop import _NoLock
from fastfuse.filesystem.mount_places import Place
from fastfuse.filesystem.session import InitialisedOperations, Session


async def test_the_lock_takes_no_turn() -> None:
    with trio.testing.assert_no_checkpoints():
        async with _NoLock():
            pass


@pytest.mark.fuse
def test_the_lock_that_serves_init_is_what_workers_inherit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: list[object] = []

    def init(*_: object) -> None:
        seen.append(pyfuse3.trio.Lock)  # type: ignore[attr-defined]
        raise RuntimeError("far enough")

    monkeypatch.setattr(pyfuse3, "trio", trio, raising=False)
    monkeypatch.setattr(pyfuse3, "init", init)
    with pytest.raises(MountError):
        Session.mount(InitialisedOperations(), Place(tmp_path), source="s3://b", allow_other=False)
    assert seen == [_NoLock]
