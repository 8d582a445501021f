"""The page in a real browser: ``make report-test``. It reads figures off the page, measures it, and takes pictures.

A page around it, which may run scripts as the report may not, holds it in frames of two widths and writes down what it
finds there.
"""

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from fastfuse.report.layout import page
from fastfuse.report.records import read_record
from tests.report.records import HOSTILE, job, mount

CHROMIUM = shutil.which("chromium")
pytestmark = [
    pytest.mark.chromium,
    pytest.mark.skipif(CHROMIUM is None, reason="takes Debian's chromium"),
]
# Pictures stay here, to be looked at.
PICTURES = Path(__file__).parents[2] / "build" / "report"
AROUND = """<!DOCTYPE html><meta charset="utf-8"><body>
<iframe id="phone" src="report.html" width="390" height="800"></iframe>
<iframe id="desk" src="report.html" width="1100" height="800"></iframe>
<script>
const width = (element) => element.getBoundingClientRect().width;
const all = (element, selector) => [...element.querySelectorAll(selector)];
addEventListener("load", () => {
  const found = {};
  for (const frame of document.querySelectorAll("iframe")) {
    const page = frame.contentDocument;
    const shown = all(page, "svg").filter((svg) => svg.getClientRects().length);
    const style = (element, name) => frame.contentWindow.getComputedStyle(element)[name];
    found[frame.id] = {
      title: page.title,
      figures: Object.fromEntries(all(page, "dl div").map((one) => [...one.children].map((it) => it.textContent))),
      verdict: page.querySelector(".verdict h3").textContent,
      page_px: page.documentElement.scrollWidth,
      charts: shown.map((svg) => [svg.getAttribute("class"), width(svg)]),
      letters_px: shown.map((svg) => width(svg) / svg.viewBox.baseVal.width * 14),
      lines_px: shown.flatMap((svg) => all(svg, ".series path").map(width)),
      colours: [style(page.body, "backgroundColor"), style(page.body, "color")],
      strokes: all(shown[0], ".series path").map((path) => style(path, "stroke")),
      errors: page.querySelector(".errors").textContent,
    };
  }
  const pre = document.createElement("pre");
  pre.textContent = JSON.stringify(found);
  document.body.replaceChildren(pre);
});
</script>"""


def chromium(*words: str, profile: Path) -> str:
    assert CHROMIUM is not None
    switches = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--allow-file-access-from-files")
    done = subprocess.run(
        [CHROMIUM, *switches, f"--user-data-dir={profile}", *words],
        capture_output=True, text=True, timeout=150, check=True,
    )  # fmt: skip
    return done.stdout


def measured(place: Path, *switches: str) -> dict[str, Any]:
    (place / "around.html").write_text(AROUND)
    dom = chromium(*switches, "--dump-dom", f"file://{place}/around.html", profile=place / "profile")
    text = re.search(r"<pre>(.*)</pre>", dom, re.DOTALL)
    assert text is not None, dom
    found: dict[str, Any] = json.loads(unescape(text[1]))
    return found


# Chromium numbers the schemes so.
@pytest.mark.parametrize(("scheme", "number"), [("dark", 0), ("light", 1)])
def test_a_page_is_readable_on_desk_and_phone_by_day_and_by_night(tmp_path: Path, scheme: str, number: int) -> None:
    (tmp_path / "report.html").write_text(page(read_record(mount())))
    switch = f"--blink-settings=preferredColorScheme={number}"
    found = measured(tmp_path, switch)
    for name, width_px in (("phone", 390), ("desk", 1100)):
        frame = found[name]
        assert frame["title"] == "/mnt/train – fastfuse"  # no script of a key has run
        assert frame["verdict"] == "too few readers"
        assert frame["figures"]["GETs"] == "36,000"
        assert frame["figures"]["Readers waited"] == "11.5% of 1 h in use"
        assert frame["page_px"] <= width_px
        assert {kind for kind, _ in frame["charts"]} == {"plot narrow" if name == "phone" else "plot wide"}
        assert len(frame["charts"]) == 5
        assert all(width_px * 0.8 < chart_px <= width_px for _, chart_px in frame["charts"])
        assert all(12 <= px <= 20 for px in frame["letters_px"])
        assert min(frame["lines_px"]) > width_px / 2
        background, text = (sum(map(int, re.findall(r"\d+", colour)[:3])) for colour in frame["colours"])
        assert (background < 150 and text > 600) if scheme == "dark" else (background > 700 and text < 200)
        assert len({*frame["strokes"]}) == 2
        assert HOSTILE in frame["errors"]
    PICTURES.mkdir(parents=True, exist_ok=True)
    for width_px in (390, 1100):
        picture = PICTURES / f"{scheme}-{width_px}.png"
        picture.unlink(missing_ok=True)
        # A window is never as narrow as a phone; a frame is.
        frame = (
            f'<body style="margin:0"><iframe src="report.html" width={width_px} height=2600 style="border:0"></iframe>'
        )
        (tmp_path / "picture.html").write_text(frame)
        size = f"--window-size={max(width_px, 500)},2600"
        chromium(
            switch, size, f"--screenshot={picture}", f"file://{tmp_path}/picture.html", profile=tmp_path / "profile"
        )
        assert picture.read_bytes().startswith(b"\x89PNG")
        assert picture.stat().st_size > 30_000


def test_the_page_of_a_job_is_no_wider_than_a_phone(tmp_path: Path) -> None:
    (tmp_path / "report.html").write_text(page(read_record(job())))
    found = measured(tmp_path)
    assert found["phone"]["page_px"] <= 390
    assert len(found["phone"]["charts"]) == 10
