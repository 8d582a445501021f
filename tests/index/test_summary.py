"""What an index holds, at a glance: every figure against a plain sum."""

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from fastfuse.cli.source_output import shown, summarise
from fastfuse.index.inodes.tree import Reason, Refusals
from fastfuse.index.snapshot import Snapshot
from tests.index.indexes import MD5, index_of, table_of

_sizes = st.one_of(st.sampled_from([0, 1, 4095, 4096, 2**30, 5 * 2**30]), st.integers(0, (1 << 63) - 1))
_keys = st.lists(st.sampled_from("abcd"), min_size=1, max_size=3).map(lambda names: "/".join(names) + ".x")


@settings(max_examples=25)
@given(st.dictionaries(_keys, _sizes, max_size=30))
def test_the_figures_are_those_of_the_objects(objects: dict[str, int]) -> None:
    summary = summarise(index_of(objects))
    assert summary["objects"] == len(objects)
    assert summary["total_bytes"] == sum(objects.values())
    sizes = summary["sizes"]
    assert sum(size["files"] for size in sizes) == len(objects)
    for size, lower in zip(sizes, [0, *(size["below_bytes"] or 0 for size in sizes)], strict=False):
        mine = [value for value in objects.values() if lower <= value < (size["below_bytes"] or 1 << 63)]
        assert (size["files"], size["total_bytes"]) == (len(mine), sum(mine))
    folders = {key.rpartition("/")[0] for key in objects}
    expected = {
        f"/{folder}/" if folder else "/": [v for k, v in objects.items() if k.rpartition("/")[0] == folder]
        for folder in folders
    }
    found = summary["largest_directories"]
    assert len(found) == min(len(expected), 10)
    assert [one["total_bytes"] for one in found] == sorted((sum(v) for v in expected.values()), reverse=True)[:10]
    for directory in found:
        values = expected[directory["path"]]
        assert (directory["files"], directory["total_bytes"]) == (len(values), sum(values))


def test_two_objects_of_8_eib_are_16_eib() -> None:
    summary = summarise(index_of(dict.fromkeys(["a", "b"], (1 << 63) - 1)))
    assert "18,446,744,073,709,551,614 (17179869184 GiB)" in rendered(summary)


def rendered(summary: dict[str, Any]) -> str:
    console = Console(width=120, record=True, file=None, quiet=False)
    with console.capture() as capture:
        console.print(shown(summary))
    return capture.get()


def test_it_is_printed_as_a_table_and_as_json() -> None:
    rows = {"a/[bold]x": (0, "STANDARD"), "a/b": (5000, "GLACIER"), "c": (3 << 30, "GLACIER")}
    table = table_of({key: (size_bytes, 10**18, MD5, name) for key, (size_bytes, name) in rows.items()})
    refusals = Refusals()
    refusals.add(b"x//\x1b[31m", Reason.EMPTY_SEGMENT)
    snapshot = Snapshot(source="s3://bucket/[red]", listed_at_ns=10**18, table=table, refusals=refusals)
    summary = summarise(snapshot)
    text = rendered(summary)
    for words in ("s3://bucket/[red]", "2001-09-09T01:46:40+00:00", "GLACIER", "empty", "< 64 KiB", "/a/"):
        assert words in text
    assert "an empty path segment" in text
    assert r"'x//\x1b[31m'" in text
    assert "\x1b" not in text
    again = json.loads(json.dumps(summary))
    assert again["storage_classes"] == {"GLACIER": 2, "STANDARD": 1}
    assert again["refused"] == {"an empty path segment": 1}
    assert [directory["path"] for directory in again["largest_directories"]] == ["/", "/a/"]


def test_an_empty_index_has_figures_too() -> None:
    summary = summarise(index_of({}))
    assert [summary[name] for name in ("objects", "directories", "sizes", "largest_directories")] == [0, 1, [], []]
    assert "s3://bucket/" in rendered(summary)
