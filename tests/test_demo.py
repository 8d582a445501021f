"""The demo: its files and its checks, and all of it as a user runs it, small, through the real kernel."""

import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import pytest

from bench.s3server import DirectoryObjects, LoopbackServer
from fastfuse.demo import DataFile, DemoSettings, _served, make_files, read_files, require_space
from fastfuse.errors import ConfigurationError
from fastfuse.filesystem.mounting.mountpoint import fastfuse_mounts
from fastfuse.index.listing.page import parse_page
from tests.bench.s3server.clients import http_get
from tests.forked import Forked
from tests.mounting import ENVIRONMENT
from tests.terminals import finished_on_terminal, lines_on_screen

SMALL = ("--shards", "2", "--shard-size", "9MiB", "--small-files", "5", "--small-file-size", "10KiB")
PATIENCE_S = 60.0


@pytest.fixture
def files(tmp_path: Path) -> list[DataFile]:
    return make_files(tmp_path, "some", 20, 3_000_000)


@pytest.mark.parametrize("readers", [1, 3, 50])
def test_every_file_is_read_once_and_matches(tmp_path: Path, files: list[DataFile], readers: int) -> None:
    done = read_files(tmp_path, files, readers)
    assert (done.size_bytes, done.failures) == (60_000_000, [])
    assert 0 < done.first_byte_s < done.elapsed_s


def test_files_that_are_changed_short_or_missing_are_named(tmp_path: Path, files: list[DataFile]) -> None:
    changed, short, missing = (tmp_path / file.name for file in files[:3])
    changed.write_bytes(changed.read_bytes()[:-1] + b"?")
    short.write_bytes(b"short")
    missing.unlink()
    assert read_files(tmp_path, files, 2).failures == [
        f"{files[0].name}: 3,000,000 bytes of 3,000,000, or other bytes, were read",
        f"{files[1].name}: 5 bytes of 3,000,000, or other bytes, were read",
        f"{files[2].name}: No such file or directory",
    ]


@pytest.mark.parametrize(("count", "size_bytes"), [(1001, 10), (1, 0), (1, 20_000_000)])
def test_files_have_their_size_and_lie_in_folders_of_a_thousand(tmp_path: Path, count: int, size_bytes: int) -> None:
    made = make_files(tmp_path, "small", count, size_bytes)
    assert {(tmp_path / file.name).stat().st_size for file in made} == {size_bytes}
    assert len({file.name.rpartition("/")[0] for file in made}) == -(-count // 1000)
    assert len({file.digest for file in made}) == (count if size_bytes else 1)


def test_a_data_set_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    settings = DemoSettings(shard_count=1, shard_bytes=1 << 50, small_file_count=0, small_file_bytes=0, reader_count=1)
    with pytest.raises(ConfigurationError, match="the demo's data set takes 1048576 GiB"):
        require_space(tmp_path, settings)


QUERIES = (
    *("", "max-keys=3", "prefix=small/", "prefix=small/000", "prefix=small/1", "delimiter=/"),
    *("delimiter=/&max-keys=1", "delimiter=/&prefix=small/&max-keys=2", "start-after=b%20%26%3C", "start-after=z"),
    *("delimiter=/&prefix=sm", "start-after=small/0001/5", "prefix=b%20&start-after=small/"),
)


@pytest.fixture
def bucket(tmp_path: Path) -> Path:
    """A directory with files in folders and beside them, and one that is outside it."""
    names = ["a", "b &<", "small.txt", "small0", *(f"small/{number // 9:04}/{number:02}" for number in range(30))]
    for name in names:
        path = tmp_path / "bucket" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"bytes of {name}")
    (tmp_path / "outside").touch()
    return tmp_path / "bucket"


def pages_of(endpoint_url: str, query: str) -> list[tuple[object, ...]]:
    pages: list[tuple[object, ...]] = []
    token = ""
    while not pages or token:
        _, body = http_get(endpoint_url, f"/bucket?list-type=2&encoding-type=url&{query}{token}")
        page = parse_page(body)
        pages.append((page.keys, page.columns.sizes, page.common_prefixes, page.is_truncated))
        token = page.next_token and f"&continuation-token={quote(page.next_token)}"
    return pages


def test_the_server_lists_pages_as_the_server_of_the_tests_does(bucket: Path) -> None:
    with _served(bucket) as url, LoopbackServer({"bucket": DirectoryObjects(bucket)}) as server:
        found = {query: pages_of(url, query) for query in QUERIES}
        assert found == {query: pages_of(server.endpoint_url, query) for query in QUERIES}


def test_the_server_sends_the_listed_version_of_files_and_ranges(bucket: Path) -> None:
    text, path = b"bytes of b &<", "/bucket/b%20%26%3C"
    with _served(bucket) as url:
        page = parse_page(http_get(url, "/bucket?prefix=b")[1])
        whole, body = http_get(url, path, {"If-Match": page.columns.etags[0]})
        assert (whole.status, whole.headers["ETag"], body) == (200, page.columns.etags[0], text)
        for asked, end in (("bytes=2-5", 6), ("bytes=2-99", 13)):
            part, body = http_get(url, path, {"Range": asked})
            assert (part.status, part.headers["Content-Range"]) == (206, f"bytes 2-{end - 1}/13")
            assert body == text[2:end]
        refusals = [
            http_get(url, "/bucket/absent"), http_get(url, "/bucket/../outside"), http_get(url, path, method="PUT")
        ]  # fmt: skip
        assert [reply.status for reply, _ in refusals] == [404, 404, 501]
    with pytest.raises(ConnectionRefusedError):
        http_get(url, path)


def test_the_server_ends_when_the_process_that_started_it_does(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        command = [sys.executable, "-m", "fastfuse.demo_server", str(tmp_path), str(listener.fileno())]
        with subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[listener.fileno()]) as server:
            http_get(f"http://127.0.0.1:{listener.getsockname()[1]}", "/bucket")
            assert server.poll() is None
            assert server.stdin is not None
            server.stdin.close()
            assert server.wait(PATIENCE_S) == 0


@contextmanager
def demo(tmp_path: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    with Forked(
        [sys.executable, "-m", "fastfuse", "demo", *options],
        env={**ENVIRONMENT, "TMPDIR": str(tmp_path)}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            process.terminate()


def assert_nothing_is_left(tmp_path: Path) -> None:
    assert list(tmp_path.iterdir()) == []
    assert not [path for path in fastfuse_mounts() if path.is_relative_to(tmp_path)]


@pytest.mark.fuse
@pytest.mark.parametrize(
    ("options", "reads"),
    [(SMALL, 14), (("--shards", "1", "--shard-size", "1MiB", "--small-files", "0"), 2)],
)
def test_the_made_data_set_is_read_checked_and_taken_away(tmp_path: Path, options: tuple[str, ...], reads: int) -> None:
    if options == SMALL:
        code, text = finished_on_terminal("demo", *options, settings={"TMPDIR": str(tmp_path)})
        output = "\n".join(lines_on_screen(text))
        [head] = re.findall("^.*readers.*GETs.*$", output, re.MULTILINE)
        assert len(head) <= 80
    else:
        with demo(tmp_path, *options) as process:
            output, _ = process.communicate(timeout=PATIENCE_S)
        code = process.returncode
        # A pipe has no columns at which to wrap.
        assert re.search(r"^readers waited in .* a read took .* a GET's first byte .*\)$", output, re.MULTILINE)
    assert code == 0, output
    assert f"{reads // 2} objects listed" in output
    assert f"every checksum matched: {reads} reads of whole files" in output
    assert re.search(r"^ *one shard +1 +1 +\d+ ", output, re.MULTILINE)
    assert re.search(r"^ *all again .* 0 *$", output, re.MULTILINE), "the page cache has all of it"
    assert re.search(r"^\d+ files?, [^:]+: read .* fetched .* in \d+ GETs", output, re.MULTILINE)
    assert_nothing_is_left(tmp_path)


@pytest.mark.fuse
@pytest.mark.parametrize(
    ("step", "number", "options"),
    [
        ("==> reading one shard", signal.SIGINT, ("--shards", "2", "--shard-size", "40MiB")),
        ("==> fastfuse mount", signal.SIGTERM, SMALL),
    ],
)
def test_an_interrupted_demo_leaves_nothing_behind(
    tmp_path: Path, step: str, number: signal.Signals, options: tuple[str, ...]
) -> None:
    with demo(tmp_path, *options) as process:
        assert process.stdout is not None
        while not (line := process.stdout.readline()).startswith(step):
            assert line
        process.send_signal(number)
        output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130, output
    assert "interrupted; everything is cleaned up" in output
    assert_nothing_is_left(tmp_path)
