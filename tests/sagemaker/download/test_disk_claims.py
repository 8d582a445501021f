"""What the channels of a job still have to write, as each of them sees it."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from bench.s3server import MemoryObjects
from fastfuse.errors import DiskError
from fastfuse.objects import ObjectRef
from fastfuse.sagemaker.download.disk import disk_claims
from tests.sagemaker.download.channels import Source, files_below, table_of
from tests.sagemaker.download.test_accidents import small_disk

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
    with small_disk(tmp_path / "disk", size_bytes=4 * MIB) as place:
        other = claims[0]
        other.put(place.stat().st_dev, 3 * MIB)
        with pytest.raises(DiskError, match=r"needs 2 MiB in '.*', the job's other channels 3 MiB, and .* are"):
            s3.run(place / "channel", claim=claims[1])
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
