"""Figures that pages give as computed are what the code computes."""

import pytest

from fastfuse.advise.model import Job, Mode, Network, Shape, estimates
from fastfuse.prices import Item, dollars
from fastfuse.sizes import GIB
from tests.advise.shapes import many
from tests.docs.blocks import ROOT

TEXT = (ROOT / "docs/CACHE.md").read_text().partition("### Compared on paper")[2].partition("\n## ")[0]
ROWS = [line.split(" | ") for line in TEXT.splitlines() if line.startswith("| ")][1:]
LARGE, SMALL = many(10_000, 100_000_000), many(20_000_000, 50_000)
JOB = Job(hosts=8, epochs=10, hours=24, memory_bytes=256 * GIB, disk_bytes_per_s=2e9)


@pytest.mark.parametrize(("column", "shape"), [(1, LARGE), (2, SMALL)])
def test_the_tier_compared_on_paper_is_what_the_model_computes(column: int, shape: Shape) -> None:
    found = {each.mode: each for each in estimates(shape, Network(total_bytes_per_s=2.5e9), JOB)}
    fast, tier, lustre = found[Mode.FAST_FILE], found[Mode.TIERED], found[Mode.FSX]
    cells = [
        f"{_gets(fast.job_gets)}, {_paid(fast.job_dollars)}",
        f"{_gets(tier.job_gets)}, {_paid(_requests(tier.job_gets, tier.job_lists))}",
        _paid(tier.job_dollars),
        f"{_gets(shape.mounted_gets)}, {_paid(_requests(shape.mounted_gets, tier.job_lists))}",
        _paid(lustre.job_dollars),
        f"{_gets(shape.mounted_gets)}, {_paid(_requests(shape.mounted_gets, tier.job_lists))}",
    ]
    if shape is LARGE:
        cells[0] += f"; {fast.epoch_s:.0f} s an epoch"
        cells[1] += f"; {tier.epoch_s:.0f} s, later {tier.later_epoch_s:.0f} s"
        cells[4] += f": 200 MB/s for each TB, so the job takes {lustre.job_s / 3600:.0f} h"
    else:
        cells[4] += f", and names are imported in {lustre.prepare_s / 3600:.0f} h"
    assert [row[column] for row in ROWS] == cells


def test_the_gets_that_peers_save_are_those_of_seven_of_eight_hosts() -> None:
    large, small = (_paid(_requests(7 * shape.mounted_gets, 0)) for shape in (LARGE, SMALL))
    assert f"{large} of the large objects, {small} of the small ones" in TEXT
    mounted, whole = LARGE.mounted_gets // LARGE.objects, LARGE.gets // LARGE.objects
    assert f"[{mounted} GETs](ADVICE.md#gets); `fastfuse warm` takes {whole}." in TEXT


def _requests(gets: int, lists: int) -> float:
    return dollars(Item.GET, gets) + dollars(Item.LIST, lists)


def _gets(count: int) -> str:
    return f"{count / 1e6:,g} million GETs"


def _paid(paid: float) -> str:
    return f"${paid:,.2f}"
