"""What a download notes on the disk, what it claims of it, and that no name leads elsewhere."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bench.s3server import MemoryObjects
from fastfuse.errors import ConfigurationError, DiskError
from fastfuse.index.inodes.table import InodeTable
from fastfuse.objects import ObjectRef
from fastfuse.sagemaker.download.disk import disk_claims, open_root, version_of
from fastfuse.sagemaker.download.landing import Places, jobs
from tests.mounting import tmpfs
from tests.sagemaker.download.channels import Source, files_below, table_of

MIB = 1 << 20
OBJECTS = {"large": os.urandom(2 * MIB), "small": b"s"}


@pytest.fixture(scope="module")
def objects() -> MemoryObjects:
    return MemoryObjects(OBJECTS)


def test_a_channel_sees_what_others_claim_on_its_own_device() -> None:
    first, second, elsewhere, silent = disk_claims(4)
    first.put(7, 1000)
    second.put(7, 200)
    elsewhere.put(8, 30)
    assert [one.others_bytes for one in (first, second, elsewhere, silent)] == [200, 1000, 0, 0]
    first.shrink(0.25)
    assert second.others_bytes == 250
    first.shrink(0.0)
    assert second.others_bytes == 0


def test_a_channel_that_fits_alone_only_is_refused_before_the_first_byte(s3: Source, tmp_path: Path) -> None:
    claims = disk_claims(2)
    with tmpfs(tmp_path / "disk", f"size={4 * MIB}") as place:
        other = claims[0]
        other.put(place.stat().st_dev, 3 * MIB)
        with pytest.raises(DiskError, match=r"needs 2 MiB in '.*', the job's other channels 3 MiB, and") as refused:
            s3.run(place / "channel", claim=claims[1])
        assert "cache clear" in refused.value.hint
        assert s3.server.requests == ()
        other.shrink(0.5)
        s3.run(place / "channel", claim=claims[1])
        assert files_below(place / "channel") == OBJECTS


def test_objects_of_16_eib_in_all_are_refused_with_their_sum(s3: Source, tmp_path: Path) -> None:
    ref = ObjectRef("bucket", "a", (1 << 63) - 1, '"e"', 0)
    with pytest.raises(DiskError, match=r"the channel needs 17179869184 GiB in "):
        s3.run(tmp_path, table=table_of([ref, replace(ref, key="b")]))


def test_what_is_written_is_claimed_no_more(s3: Source, tmp_path: Path) -> None:
    claims = disk_claims(2)
    watching = claims[1]
    watching.put(tmp_path.stat().st_dev, 0)
    seen: list[int] = []
    s3.run(tmp_path, claim=claims[0], tell=lambda _: seen.append(watching.others_bytes))
    assert seen[0] > 2 * MIB
    assert seen[-1] == 0
    assert seen == sorted(seen, reverse=True)


def test_who_needs_nothing_is_not_refused_for_what_others_need(s3: Source, tmp_path: Path) -> None:
    claims = disk_claims(2)
    s3.run(tmp_path)
    claims[1].put(tmp_path.stat().st_dev, 1 << 60)
    assert s3.run(tmp_path, claim=claims[0]).requests == 0


REF = ObjectRef("bucket", "key", 3, '"etag"', 10**18)


@pytest.mark.parametrize(
    "change",
    [{"bucket": "b"}, {"key": "k"}, {"size_bytes": 4}, {"etag": '"other"'}, {"etag": ""}, {"modified_ns": 10**18 + 1}],
)
def test_whatever_changes_of_an_object_makes_it_another_version(change: dict[str, object]) -> None:
    assert version_of(replace(REF, **change)) != version_of(REF)  # type: ignore[arg-type]
    assert version_of(replace(REF)) == version_of(REF)


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
