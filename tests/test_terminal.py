"""Every command on a terminal, from its start to its end: what it draws, at which width, and its exit code."""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from bench.s3server import LoopbackServer, MemoryObjects, ServerConfig
from bench.s3server.server_config import Pace
from fastfuse.filesystem.mounting.mountpoint import find_mount
from tests.mounting import ENVIRONMENT, access, run_fastfuse
from tests.terminals import finished_on_terminal, lines_on_screen, terminal

URI = "s3://bucket/train"
OBJECTS = {f"train/d/{at}": b"x" for at in range(2000)} | {"train/bad//name": b"", "train/:dog:[bold]/ü": bytes(3000)}
PLAIN: Mapping[str, str] = {}
NO_COLOR = {"NO_COLOR": "1"}
FORCE_COLOR = {"FORCE_COLOR": "1"}
DUMB = {"TERM": "dumb"}
_HIDE_CURSOR, _SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"
# As the log has it: at the beginning of a line.
_WARNING = re.compile(r"^\S+Z WARNING fastfuse\.index\.[a-z.]+: left out: key b'train/bad//name' has .* segment$")


def assert_sane(output: str, settings: Mapping[str, str]) -> None:
    assert "Traceback" not in output
    if settings.get("TERM") == "dumb":
        assert "\x1b" not in output
    if "NO_COLOR" in settings:
        # Bold (1), dim (2) and their end (0) are no colours.
        assert {each for found in re.findall(r"\x1b\[([0-9;]*)m", output) for each in found.split(";")} <= {
            "0",
            "1",
            "2",
        }
    assert output.count(_HIDE_CURSOR) <= output.count(_SHOW_CURSOR)


@pytest.mark.parametrize(
    ("columns", "settings"),
    [(80, PLAIN), (200, FORCE_COLOR), (80, NO_COLOR), (80, DUMB)],
    ids=["80", "200-FORCE_COLOR", "80-NO_COLOR", "80-dumb"],
)
def test_an_index_is_summed_up(
    server: LoopbackServer, tmp_path: Path, columns: int, settings: Mapping[str, str]
) -> None:
    output = tmp_path / ":dog:"
    words = ["index", URI, "-o", str(output), "--summary", *access(server.endpoint_url)]
    code, text = finished_on_terminal(*words, columns=columns, settings=settings)
    assert code == 0, text
    assert_sane(text, settings)
    lines = lines_on_screen(text)
    [warning] = [line for line in lines if "WARNING" in line]
    assert _WARNING.match(warning)
    assert sum(line.startswith(f"wrote {output}: 2,001 objects") for line in lines) == 1
    assert any(line.startswith(" /:dog:[bold]/ ") for line in lines)
    # Nothing is wrapped but the log and the one line that names a file of any length.
    assert max(len(line) for line in lines if line != warning and "wrote" not in line) <= columns


def test_a_name_that_the_terminal_has_no_letters_for_is_escaped() -> None:
    settings = {"PYTHONIOENCODING": "ascii"}
    with LoopbackServer({"bucket": MemoryObjects({"train/ü/a": b"a"})}) as server:
        words = ["index", URI, "--summary", *access(server.endpoint_url)]
        code, text = finished_on_terminal(*words, settings=settings)
        assert code == 0, text
        assert " /\\xfc/ " in text
        done = run_fastfuse(*words, "--json", environment={**ENVIRONMENT, **settings})
    assert json.loads(done.stdout)["largest_directories"][0]["path"] == "/ü/"


def test_where_there_is_no_terminal_colours_are_written_and_no_bar(server: LoopbackServer) -> None:
    environment = {**ENVIRONMENT, "TERM": "xterm", **FORCE_COLOR}
    done = run_fastfuse("index", URI, "--summary", *access(server.endpoint_url), environment=environment)
    assert done.returncode == 0
    assert "\x1b[1m" in done.stdout
    assert "\x1b" not in done.stderr


def test_an_interrupted_index_leaves_no_traceback_and_a_cursor(server: LoopbackServer) -> None:
    # The first page comes at once, and no other.
    objects = MemoryObjects({f"train/{at}": b"" for at in range(3000)})
    with (
        LoopbackServer({"bucket": objects}, ServerConfig(pace=Pace(list_delay_s=0.5))) as slow,
        terminal("index", URI, "--summary", *access(slow.endpoint_url)) as index,
    ):
        slow.wait_until(lambda now: now.requests.get("ListObjectsV2", 0) > 1)
        index.interrupt()
        assert index.finished() == 130
    assert_sane(index.output, PLAIN)
    assert "CRITICAL" not in index.output


@pytest.mark.fuse
@pytest.mark.parametrize("settings", [PLAIN, DUMB | NO_COLOR], ids=["plain", "dumb"])
def test_a_mount_is_served_refreshed_hinted_and_unmounted(
    server: LoopbackServer, tmp_path: Path, settings: Mapping[str, str]
) -> None:
    place = tmp_path / "mount"
    place.mkdir()
    (tmp_path / "paths").write_text("d/1\n")
    with terminal("mount", URI, str(place), *access(server.endpoint_url), settings=settings) as mount:
        mount.read_until(f"mounted {URI} at {place}")
        assert len(os.listdir(place / "d")) == 2000
        for words, told in (
            (["refresh", str(place)], "0 added, 0 removed, 0 replaced; 2,001 objects now, "),
            (["hint", str(place), "--file", str(tmp_path / "paths")], ""),
            (["unmount", str(place)], f"unmounted {place}\r\n"),
        ):
            code, text = finished_on_terminal(*words, settings=settings)
            assert (code, text[: len(told)]) == (0, told)
            assert "\x1b" not in text
        assert mount.finished() == 0, mount.output
    assert find_mount(place) is None
    assert_sane(mount.output, settings)
    lines = lines_on_screen(mount.output)
    assert any(_WARNING.match(line) for line in lines)
    assert "\x1b" not in mount.output


@pytest.mark.fuse
def test_a_daemon_returns_to_its_terminal(server: LoopbackServer, tmp_path: Path) -> None:
    code, text = finished_on_terminal("mount", URI, str(tmp_path), "--daemon", *access(server.endpoint_url))
    assert code == 0, text
    assert_sane(text, PLAIN)
    assert "\x1b" not in text
    assert finished_on_terminal("unmount", str(tmp_path)) == (0, f"unmounted {tmp_path}\r\n")


@pytest.mark.parametrize("settings", [PLAIN, DUMB | NO_COLOR], ids=["plain", "dumb"])
def test_a_job_runs_its_command(server: LoopbackServer, tmp_path: Path, settings: Mapping[str, str]) -> None:
    words = ["run", "--base-dir", str(tmp_path), "--channel", f"train={URI},mode=File"]
    code, text = finished_on_terminal(*words, *access(server.endpoint_url), "--", "tty", settings=settings)
    assert code == 0, text
    assert_sane(text, settings)
    assert "\x1b" not in text
    assert any(line.startswith("/dev/pts/") for line in lines_on_screen(text))
