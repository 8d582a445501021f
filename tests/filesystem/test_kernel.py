import logging
from pathlib import Path

import pytest

from fastfuse.filesystem.kernel_readahead import raise_readahead


@pytest.fixture
def bdi(tmp_path: Path) -> Path:
    """What ``/sys/class/bdi`` looks like with one mount."""
    setting = tmp_path / "0:42" / "read_ahead_kb"
    setting.parent.mkdir()
    setting.write_text("128\n")
    return tmp_path


def test_readahead_is_raised_for_the_mounts_own_device(bdi: Path, caplog: pytest.LogCaptureFixture) -> None:
    (bdi / "8:0").mkdir()
    (bdi / "8:0" / "read_ahead_kb").write_text("128\n")
    assert raise_readahead("0:42", directory=bdi)
    assert (bdi / "0:42" / "read_ahead_kb").read_text() == "1024"
    assert (bdi / "8:0" / "read_ahead_kb").read_text() == "128\n"
    assert not caplog.records


@pytest.mark.parametrize(("device", "reason"), [("0:43", "No such file or directory"), ("0:44", "Is a directory")])
def test_where_sysfs_cannot_be_written_the_mount_goes_on_and_says_what_it_costs(
    bdi: Path, device: str, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    (bdi / "0:44" / "read_ahead_kb").mkdir(parents=True)
    assert not raise_readahead(device, directory=bdi)
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert (
        f"{bdi}/{device}/read_ahead_kb cannot be written ({reason}); let root write 1024 there" in record.getMessage()
    )


def test_whoever_has_chosen_is_told_and_not_warned(bdi: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    assert not raise_readahead("0:43", level=logging.INFO, directory=bdi)
    [record] = caplog.records
    assert record.levelno == logging.INFO
    assert "mount with --io direct" in record.getMessage()
