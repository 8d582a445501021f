"""From rows to directories and jobs; a name that is none leads nowhere."""

import os
from pathlib import Path

import numpy as np
import pytest

from fastfuse.errors import ConfigurationError, DiskError
from fastfuse.index.inodes.table import InodeTable
from fastfuse.objects import ObjectRef
from fastfuse.sagemaker.download.disk import open_root
from fastfuse.sagemaker.download.landing import Places, jobs
from tests.sagemaker.download.channels import table_of


def table_with(*keys: str) -> InodeTable:
    return table_of([ObjectRef("bucket", key, 1, '"etag"', 10**18) for key in keys])


@pytest.mark.parametrize("name", [b"..", b"./", b"x/", b"x\0"])
def test_a_name_that_leads_elsewhere_is_refused(tmp_path: Path, name: bytes) -> None:
    table = table_with("ab/c")
    names = table.columns["names"].copy()
    names[:2] = np.frombuffer(name, "uint8")
    damaged = InodeTable(table.metadata, {**table.columns, "names": names})
    channel = tmp_path / "channel"
    with pytest.raises(ConfigurationError, match="the index is damaged"):
        list(jobs(Places(damaged, open_root(channel, channel.parent)), bytearray(len(table))))
    assert os.listdir(channel) == []


def test_a_link_that_takes_a_directorys_place_meanwhile_is_not_followed(tmp_path: Path) -> None:
    outside, channel = tmp_path / "outside", tmp_path / "channel"
    outside.mkdir()
    table = table_with("a", "b/c", "z")
    walk = jobs(Places(table, open_root(channel, channel.parent)), bytearray(len(table)))
    assert [next(walk).name, next(walk).name] == [b"a", b"z"]
    (channel / "b").rmdir()
    (channel / "b").symlink_to(outside)
    with pytest.raises(DiskError, match="something else is in its place"):
        next(walk)
