"""Each fault of a mount has a verdict of its own, and the one fault does not look like another."""

import json
from dataclasses import replace

import pytest

from fastfuse.filesystem.figures.status import as_json, summary_lines
from fastfuse.filesystem.figures.verdict import RULES, Figures, figures_of, judge
from fastfuse.metrics import Counters

GB = 10**9
# Eight readers of 100 shards of 1 GB that wait for nothing for an hour.
WELL = Figures(
    elapsed_s=3600, in_use_s=3600, active_s=3000,
    served_bytes=80 * GB, fetched_bytes=80 * GB, wasted_bytes=0, gets=10_000, refused=0, whole_gets=0,
    reads=2_000_000,
    stalled_s=20, blocked_s=160, unserved_s=0,
    throttled=0, retried=0, failed_reads=0, cpu_s=300, loop_cpu_s=200, loop_wait_s=20, cpus=8,
    demanded=200, ahead=9_800, prefetched=0, hits=1_940_000, misses=60_000, hints=0, unknown_hints=0,
    files=100, total_bytes=100 * GB, readahead_kib=4096, memory_target_bytes=4 * GB, memory_bytes=64 * GB,
    cache_size_bytes=0, kept_bytes=0,
    first_byte_p50_s=0.02, first_byte_p99_s=0.1, read_p50_s=0.0001, read_p99_s=0.005,
)  # fmt: skip
# The same, waiting half of the time.
SLOW = replace(WELL, stalled_s=1800, blocked_s=8 * 1800)
SMALL = replace(
    SLOW, files=1_000_000, total_bytes=39_000 * 1_000_000, served_bytes=30 * GB, fetched_bytes=30 * GB,
    gets=900_000, whole_gets=900_000, demanded=18_000, ahead=0, prefetched=882_000,
)  # fmt: skip
# The local tier had half of them, which their readers read from there.
HALF_KEPT = replace(
    SMALL, gets=450_000, whole_gets=450_000, fetched_bytes=15 * GB, demanded=450_000, prefetched=450_000,
    cache_size_bytes=200 * GB, kept_bytes=15 * GB,
)  # fmt: skip
SHUFFLED = replace(SMALL, demanded=900_000, prefetched=0)
# A million small files, and a few shards, of which the shards were read.
SHARDS = replace(SMALL, gets=5_000, whole_gets=0, demanded=200, ahead=4_800, prefetched=0)
FAULTS = {
    "not waiting": WELL,
    "reads failed": replace(SLOW, failed_reads=40_001),
    "workers died": replace(SLOW, unserved_s=181),
    "too little to judge": replace(SLOW, demanded=0, ahead=19),
    "throttled": replace(SLOW, throttled=201),
    "requests failed": replace(SLOW, retried=201),
    "CPU limit": replace(SLOW, loop_cpu_s=2800),
    "memory target too small": replace(SLOW, memory_target_bytes=100_000_000),
    "readahead not permitted": replace(SLOW, readahead_kib=128),
    "local tier limit": replace(SLOW, gets=0, fetched_bytes=0, cache_size_bytes=200 * GB),
    "wrong hints": replace(SHUFFLED, hints=9, unknown_hints=10),
    "small files without hints": SHUFFLED,
    "local tier too small": replace(SLOW, served_bytes=200 * GB, fetched_bytes=200 * GB, cache_size_bytes=50 * GB),
    "page cache too small": replace(SLOW, served_bytes=200 * GB, fetched_bytes=200 * GB),
    "random reads": replace(SLOW, demanded=9_000, ahead=1_000),
    "too few readers": replace(SLOW, blocked_s=1900),
    "request limit": SMALL,
    "network limit": SLOW,
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_has_its_verdict(name: str) -> None:
    verdict = judge(FAULTS[name])
    assert verdict.name == name
    assert verdict.text
    assert verdict.advice


def test_there_is_a_fault_for_each_rule() -> None:
    met = {next(rule.name for rule in RULES if rule.holds(figures)) for figures in FAULTS.values()}
    assert met == {rule.name for rule in RULES}


@pytest.mark.parametrize(("name", "field"), [("throttled", "throttled"), ("requests failed", "retried")])
def test_a_service_that_delivers_nothing_is_judged_at_once(name: str, field: str) -> None:
    assert judge(replace(SLOW, gets=5, demanded=0, ahead=0, **{field: 5})).name == name
    assert judge(replace(SLOW, gets=5, demanded=0, ahead=0, **{field: 1})).name == "too little to judge"


def test_a_moment_of_waiting_in_an_hour_is_no_fault() -> None:
    short = replace(SLOW, in_use_s=1, stalled_s=0.24, blocked_s=0.3)
    assert judge(short).text == "readers waited for 0.2 s in all"
    assert judge(replace(short, stalled_s=0.25)).name == "too few readers"


@pytest.mark.parametrize("name", [name for name in FAULTS if name not in ("reads failed", "workers died")])
def test_a_fault_that_makes_nobody_wait_is_none(name: str) -> None:
    assert judge(replace(FAULTS[name], stalled_s=100, blocked_s=100)).name == "not waiting"


def test_small_files_are_as_large_as_those_that_were_read() -> None:
    read = {"served_bytes": 900_000 * 4096, "fetched_bytes": 900_000 * 4096}
    assert judge(replace(SMALL, **read)).text.startswith("files of 4 KiB take a GET each")
    early = judge(replace(SHUFFLED, **read))
    assert early.text == "files of 4 KiB were fetched one by one, 100% of them when they were opened"


@pytest.mark.parametrize("figures", [SMALL, SHUFFLED])
def test_large_files_that_nobody_reads_hide_no_small_ones(figures: Figures) -> None:
    assert judge(replace(figures, total_bytes=100_000 * GB)) == judge(figures)


def test_small_files_of_a_shuffled_epoch_are_without_hints_although_guesses_found_most() -> None:
    guessed = replace(SMALL, demanded=113_000, prefetched=787_000)
    assert judge(guessed).text == "files of 32.6 KiB were fetched one by one, 13% of them when they were opened"
    # Most guesses are never read where only a part of the files is.
    part = replace(SMALL, served_bytes=3 * GB, demanded=80_000, prefetched=820_000)
    assert judge(part).name == "small files without hints"
    assert judge(replace(part, unknown_hints=100_000)).name == "wrong hints"
    assert judge(replace(guessed, hints=1_000_000)).name == "request limit"


@pytest.mark.parametrize("mode", ["", "File", "Pipe"])
def test_small_files_are_bound_by_requests_and_not_by_the_network(mode: str) -> None:
    assert judge(SMALL, mode).text == "files of 32.6 KiB take a GET each, 250 a second on average"
    # Nobody knows which files were read where GETs have parts of files.
    for kib, name in ((256, "request limit"), (257, "network limit")):
        large = replace(SMALL, total_bytes=(kib << 10) * SMALL.files, whole_gets=450_000)
        assert judge(large, mode).name == name
    assert judge(replace(SMALL, files=0), mode).name == "network limit"  # unknown


AGAIN = FAULTS["page cache too small"]
FITTING = replace(
    FAULTS["memory target too small"],
    files=2, total_bytes=50_000_000, served_bytes=50_000_000, fetched_bytes=50_000_000,
)  # fmt: skip


@pytest.mark.parametrize(
    ("figures", "name"),
    [
        # Small files that are announced, or foreseen, are no fault.
        (replace(SHUFFLED, hints=1_000_000), "request limit"),
        (replace(FAULTS["wrong hints"], hints=10), "request limit"),
        # A host that reads a shard may announce the files of all, and finds its own fetched.
        (replace(SMALL, hints=100_000, unknown_hints=900_000), "request limit"),
        (SMALL, "request limit"),
        (HALF_KEPT, "request limit"),
        (replace(HALF_KEPT, hints=100_000, unknown_hints=900_000), "request limit"),
        (replace(HALF_KEPT, demanded=900_000, prefetched=0), "small files without hints"),
        # Large files among many small ones are none of them.
        (SHARDS, "network limit"),
        (replace(SHARDS, demanded=5_000, ahead=0), "random reads"),
        # Files of 6 MB that one GET fetches each are not read here and there, unless most of them is dropped unread.
        (replace(SHARDS, demanded=5_000, ahead=0, whole_gets=5_000), "small files without hints"),
        (replace(SHARDS, demanded=500, prefetched=4_500, ahead=0, whole_gets=5_000), "network limit"),
        (replace(SHARDS, demanded=5_000, ahead=0, whole_gets=5_000, hints=1), "network limit"),
        (replace(SHARDS, demanded=5_000, ahead=0, whole_gets=5_000, wasted_bytes=20 * GB), "random reads"),
        # CPUs limit a mount that has no more of them. 0: unknown, as of memory below.
        (replace(SLOW, cpu_s=1400, cpus=0.5), "CPU limit"),
        (replace(SLOW, cpu_s=1400, cpus=2), "network limit"),
        (replace(SLOW, cpu_s=1400, cpus=0), "network limit"),
        # Others have the CPUs, or the rest of each period.
        (replace(SLOW, loop_wait_s=1501), "CPU limit"),
        (replace(SLOW, loop_wait_s=1500), "network limit"),
        # Two mounts with as many small requests are no better than one.
        (replace(FAULTS["CPU limit"], readahead_kib=128), "readahead not permitted"),
        # What is fetched and not read yet is no waste.
        (replace(SLOW, fetched_bytes=120 * GB), "network limit"),
        # A source that fits into the memory is not short of it.
        (FITTING, "network limit"),
        (replace(FITTING, memory_target_bytes=99_000_000), "memory target too small"),
        (replace(FITTING, memory_target_bytes=0), "network limit"),
        # Readers of a few pages here and there need no part each.
        (replace(FAULTS["random reads"], blocked_s=10_000 * 1800), "random reads"),
        (replace(FAULTS["random reads"], blocked_s=10_000 * 1800, reads=300_000), "memory target too small"),
        # One that fits into the page cache was dropped from it by somebody.
        (replace(AGAIN, memory_bytes=200 * GB), "network limit"),
        (replace(AGAIN, memory_bytes=199 * GB), "page cache too small"),
        (replace(AGAIN, memory_bytes=0), "page cache too small"),
        # Files of which little is read are read here and there.
        (replace(SLOW, fetched_bytes=160 * GB, wasted_bytes=80 * GB), "random reads"),
    ],
)
def test_what_is_near_to_a_fault_has_the_right_verdict(figures: Figures, name: str) -> None:
    assert judge(figures).name == name


def test_retries_and_failed_reads_are_figures_by_their_causes() -> None:
    counters = Counters()
    for metric, cause, count in (("retries", "throttled", 1), ("retries", "broken", 2), ("errors", "EACCES", 3)):
        counters.count(f"fastfuse_{metric}", count, cause)
    figures = figures_of(counters, elapsed_s=0.0)
    assert (figures.throttled, figures.retried, figures.failed_reads) == (1, 2, 3)


def test_a_mount_that_did_nothing_is_judged() -> None:
    figures = figures_of(Counters(), elapsed_s=0.0)
    assert json.loads(json.dumps(as_json(figures)))["verdict"]["name"] == "not waiting"
    assert len(summary_lines(as_json(figures))) == 3


def test_the_requests_of_one_reader_are_one_reader() -> None:
    """The kernel asks for 4 MiB of a large file at once, in requests of 1 MiB."""
    alone = replace(SLOW, blocked_s=4.5 * SLOW.stalled_s, reads=SLOW.served_bytes // (1 << 20))
    assert alone.readers == pytest.approx(1.125, rel=0.01)
    assert judge(alone).name == "too few readers"
    # Some of what the kernel reads ahead is there.
    assert replace(alone, blocked_s=SLOW.stalled_s).readers == 1
    # Each of these readers asks for a page at a time.
    assert replace(alone, reads=SLOW.served_bytes // 4096).readers == 4.5


def test_refused_gets_cost_nothing_and_are_told() -> None:
    figures = replace(SLOW, gets=11_000, refused=1_000)
    assert figures.cost_usd == pytest.approx(0.004)
    assert "in 10,000 GETs ($0.004000), 1,000 more refused, 98%" in summary_lines(as_json(figures))[0]


@pytest.mark.parametrize("mode", ["File", "Pipe"])
def test_a_stream_and_a_download_are_not_told_how_to_read(mode: str) -> None:
    names = {name: judge(figures, mode).name for name, figures in FAULTS.items()}
    kept = {"not waiting", "too little to judge", "throttled", "requests failed", "request limit"}
    small = dict.fromkeys(("wrong hints", "small files without hints"), "request limit")
    assert names == {name: name if name in kept else small.get(name, "network limit") for name in FAULTS}
    lines = summary_lines(as_json(replace(SLOW, served_bytes=0, read_p50_s=0, read_p99_s=0), mode))
    assert lines[0].startswith("100 files, 93.1 GiB: fetched 74.5 GiB in ")
    assert " s in use; a GET's first byte 20 ms" in lines[1]
    silent = replace(SLOW, reads=0, fetched_bytes=30_000_000)
    assert judge(silent, mode).text == "readers waited for what S3 and the network deliver, 0.00833 MB/s on average"


def test_reads_that_failed_are_counted_however_few_they_are() -> None:
    few = replace(SLOW, failed_reads=3)
    assert judge(few).name == "network limit"
    assert summary_lines(as_json(few))[1].endswith("; 3 of 2,000,000 reads failed")
    assert judge(replace(WELL, reads=0, failed_reads=1)).name == "not waiting"  # a stat of a file that is gone
    refused = replace(WELL, served_bytes=0, fetched_bytes=0, gets=14, refused=14, reads=10, failed_reads=10)
    lines = summary_lines(as_json(refused))
    assert "parts ahead" not in lines[0]
    assert lines[2].startswith("reads failed: 10 of 10 reads ended with an error; ")


def test_idle_hours_hide_no_waiting() -> None:
    night = replace(SLOW, elapsed_s=36_000)
    assert night.stalled_share == SLOW.stalled_share
    assert judge(night) == judge(SLOW)


def test_the_lines_have_the_figures() -> None:
    lines = summary_lines(as_json(SLOW))
    assert lines[0] == (
        "100 files, 93.1 GiB: read 74.5 GiB, fetched 74.5 GiB in 10,000 GETs ($0.004000), "
        "98% of the parts ahead, 97% of the reads hit"
    )
    wasted = summary_lines(as_json(replace(SLOW, wasted_bytes=3 << 30)))[0]
    assert "($0.004000), 3 GiB dropped unread, 98% of the parts ahead" in wasted
    assert lines[1] == (
        "readers waited in 50.0% of 3,600 s in use; a read took 0.1 ms (p99 5 ms), "
        "a GET's first byte 20 ms (p99 100 ms)"
    )
    assert lines[2].startswith("network limit: readers waited, 8 at a time, for what S3")
    assert "raise --max-connections" in lines[2]
    lines = summary_lines(as_json(replace(SLOW, first_byte_p99_s=2.351)))
    assert lines[1].endswith("a GET's first byte 20 ms (p99 2,351 ms)")
    # What the local tier served is no little reading.
    lines = summary_lines(as_json(replace(SLOW, gets=0, fetched_bytes=0, first_byte_p50_s=0, first_byte_p99_s=0)))
    assert lines[1] == "readers waited in 50.0% of 3,600 s in use; a read took 0.1 ms (p99 5 ms)"
    assert lines[2].startswith("too little to judge: hardly anything was fetched from S3")
