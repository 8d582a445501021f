"""From rows to directories and jobs; a name that is none leads nowhere."""

import os
from pathlib import Path

import numpy as np
import pytest

from fastfuse.errors import ConfigurationError, DiskError
from fastfuse.index.inodes.table import InodeTable
from fastfuse.objects import ObjectRef
from fastfuse.sagemaker.download.disk import open_root
from fastfuse.sagemaker.download.landing import Job, Places, jobs
from tests.sagemaker.download.channels import table_of


def table_with(*keys: str) -> InodeTable:
    return table_of([ObjectRef("bucket", key, 1, '"etag"', 10**18) for key in keys])


def paths_of(found: list[Job], root: Path) -> list[str]:
    return [os.path.relpath(os.fsdecode(job.path), root) for job in found]


def test_jobs_come_directory_by_directory_and_directories_are_made(tmp_path: Path) -> None:
    table = table_with("a", "b/c", "b/d/e", "f/g", "z")
    places = Places(table, open_root(tmp_path))
    found = list(jobs(places, bytearray(len(table))))
    assert paths_of(found, tmp_path) == ["a", "z", "b/c", "f/g", "b/d/e"]
    assert [job.ref.key for job in found] == ["a", "z", "b/c", "f/g", "b/d/e"]
    assert (tmp_path / "b/d").is_dir()
    assert found[2].directory is not found[3].directory


def test_what_is_there_is_no_job(tmp_path: Path) -> None:
    table = table_with("a", "b/c", "z")
    is_there = bytearray(len(table))
    is_there[table.row(table.lookup(1, b"a") or 0)] = 1
    places = Places(table, open_root(tmp_path))
    assert paths_of(list(jobs(places, is_there)), tmp_path) == ["z", "b/c"]


@pytest.mark.parametrize("name", [b"..", b"./", b"x/", b"x\0"])
def test_a_name_that_leads_elsewhere_is_refused(tmp_path: Path, name: bytes) -> None:
    table = table_with("ab/c")
    names = table.columns["names"].copy()
    names[:2] = np.frombuffer(name, "uint8")
    damaged = InodeTable(table.metadata, {**table.columns, "names": names})
    channel = tmp_path / "channel"
    with pytest.raises(ConfigurationError, match="the index is damaged"):
        list(jobs(Places(damaged, open_root(channel)), bytearray(len(table))))
    assert os.listdir(channel) == []


def test_a_link_that_takes_a_directorys_place_meanwhile_is_not_followed(tmp_path: Path) -> None:
    outside, channel = tmp_path / "outside", tmp_path / "channel"
    outside.mkdir()
    table = table_with("a", "b/c", "z")
    walk = jobs(Places(table, open_root(channel)), bytearray(len(table)))
    assert [next(walk).name, next(walk).name] == [b"a", b"z"]
    (channel / "b").rmdir()
    (channel / "b").symlink_to(outside)
    with pytest.raises(DiskError, match="something else is in its place"):
        next(walk)
