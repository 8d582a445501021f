"""The page of a record, as a browser would parse it, and the command that writes it."""

import html.parser
import json
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from fastfuse.report.layout import page
from fastfuse.report.records import read_record
from tests.mounting import ENVIRONMENT, run_fastfuse
from tests.report.records import HOSTILE, job, mount
from tests.semantics.places import place


class Page(html.parser.HTMLParser):
    """The text of each kind of element, and every attribute."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.texts: list[tuple[str, str]] = []
        self._open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in {"meta", "br"}:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.texts.append((self._open[-1], data))

    def of(self, tag: str) -> list[str]:
        return [text for one, text in self.texts if one == tag]

    def figures(self) -> dict[str, str]:
        return dict(zip(self.of("dt"), self.of("dd"), strict=True))


def test_a_page_has_the_figures_in_words_and_each_point_of_a_chart_in_a_table() -> None:
    found = Page(page(read_record(mount())))
    assert found.of("h1") == ["/mnt/train"]
    assert "in trouble" in found.of("b")
    figures = found.figures()
    assert figures["Read"] == figures["Fetched"] == "335.3 GiB"
    assert figures["GETs"] == "36,000"
    assert figures["GETs cost"] == "$0.0144"
    assert figures["Readers waited"] == "11.5% of 1 h in use"
    assert figures["Failed reads"] == "6"
    # Estimated from the bucket of 1 to 2.5 s, and written out.
    assert figures["Read, p50 and p99"] == "1,750 ms, 2,485 ms"
    assert found.of("h3")[0] == "too few readers"
    rows = found.of("td")
    assert (len(rows), rows[:7], rows[-7:]) == (
        120 * 9,
        ["100", "100", "0.1", "64", "256", "17.5", "24.9"],
        ["3", "64", "256", "17.5", "24.9", "3", "0"],
    )
    assert "read: at most 100 MB/s" in found.of("span")
    assert len([tag for tag in found.tags if tag == "svg"]) == 2 * 5


def test_a_page_loads_nothing_runs_nothing_and_shows_hostile_names_as_they_are() -> None:
    for record in (mount(), job()):
        text = page(read_record(record))
        found = Page(text)
        assert not {"script", "img", "link", "iframe", "object"} & {*found.tags}
        assert not [name for name, _ in found.attributes if name in {"src", "href"} or name.startswith("on")]
        assert HOSTILE in "".join(text for _, text in found.texts)
        assert "default-src 'none'" in text
        for svg in re.findall(r"<svg.*?</svg>", text, re.DOTALL):
            assert ElementTree.fromstring(svg).get("role") == "img"


def test_the_page_of_a_job_has_its_phases_and_channels() -> None:
    found = Page(page(read_record(job())))
    assert found.of("h1") == ["mine"]
    assert ("data-channel", "train") in found.attributes
    assert ("data-channel", "test") in found.attributes
    assert found.of("h2")[:3] == ["Phases", "train (FastFile) ", "test (File) "]
    assert [text for text in found.of("td") if text.endswith((" s", " min"))] == ["10 min", "49 min 50 s", "10 s"]
    # A download is not told to use more readers.
    assert [text for text in found.of("h3") if text in {"too few readers", "network limit"}] == [
        "too few readers",
        "network limit",
    ]


def test_a_record_of_one_moment_is_a_page_without_charts() -> None:
    record = mount()
    channel = record["channels"][0]
    channel["numbers"] = {
        name: column[0] if isinstance(column, list) else column for name, column in channel["numbers"].items()
    }
    channel["at"] = channel["at"][:1]
    found = Page(page(read_record(record)))
    assert found.figures()["Read"] == "0 B"
    assert "svg" not in found.tags


@pytest.mark.fuse
def test_a_mount_is_reported_and_its_record_makes_the_same_page_later(tmp_path: Path) -> None:
    with place({f"{number:02}": bytes(50_000) for number in range(10)}) as here:
        for number in range(10):
            assert len((here.path / f"{number:02}").read_bytes()) == 50_000
        assert not (here.path / "absent").exists()  # what threads have read is counted before the next request
        kept, written = tmp_path / "record.json", tmp_path / "page.html"
        kept.write_text(run_fastfuse("report", str(here.path), "--json").stdout)
        done = run_fastfuse("report", str(here.path), "-o", str(written))
        assert (done.returncode, done.stdout, done.stderr) == (0, f"wrote {written}\n", "")
    again = tmp_path / "again.json"
    done = run_fastfuse("report", str(kept), "--json", "-o", str(again))
    assert (done.returncode, done.stdout) == (0, f"wrote {again}\n")
    assert json.loads(again.read_text()) == json.loads(kept.read_text())
    later = run_fastfuse("report", str(kept), "-o", "-")
    assert later.returncode == 0
    for found in (Page(written.read_text()), Page(later.stdout)):
        assert found.of("h1") == [str(here.path)]
        assert found.figures()["Read"] == found.figures()["Files of the source"].partition(", ")[2] == "488.3 KiB"


def test_a_page_is_utf8_in_every_locale_and_of_every_path(tmp_path: Path) -> None:
    kept, written = tmp_path / "record.json", tmp_path / "page.html"
    kept.write_text(json.dumps(mount() | {"mountpoint": "/mnt/\u00e9\udcff"}))
    # Without its UTF-8 mode, Python takes this locale for ASCII.
    command = [sys.executable, "-X", "utf8=0", "-m", "fastfuse", "report", str(kept), "-o"]
    environment = {**ENVIRONMENT, "LC_ALL": "C"}
    for target in (str(written), "-"):
        done = subprocess.run([*command, target], env=environment, capture_output=True, check=False)
        assert (done.returncode, done.stderr) == (0, b"")
        data = done.stdout if target == "-" else written.read_bytes()
        assert Page(data.decode()).of("h1") == ["/mnt/\u00e9\\udcff"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "there is no mount and no record at"),
        ("{", "is no record of fastfuse"),
        ("[" * 100_000, "is no record of fastfuse"),
        (json.dumps({"channels": [{}]}), "it is no record of fastfuse: channels.0.source: Field required"),
    ],
)
def test_what_is_no_record_is_refused_in_one_line(tmp_path: Path, content: str | None, said: str) -> None:
    path = tmp_path / "record"
    if content is not None:
        path.write_text(content)
    done = run_fastfuse("report", str(path))
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 2
    assert "Traceback" not in done.stderr
