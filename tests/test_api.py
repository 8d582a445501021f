"""The Python API, from the places where it is used: a script, a running event loop, worker processes."""

import asyncio
import importlib.metadata
import logging
import multiprocessing
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

import fastfuse
from bench.s3server import FaultRule, LoopbackServer, MemoryObjects, Stall
from fastfuse import errors
from fastfuse.filesystem.mounting.mountpoint import find_mount
from tests.filesystem.waiting import wait_until
from tests.mounting import ENVIRONMENT

pytestmark = pytest.mark.fuse

OBJECTS = {f"train/{number}": b"%d" % number * 1000 for number in range(8)}


@pytest.fixture
def options(server: LoopbackServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    access = {"endpoint_url": server.endpoint_url, "region": "us-east-1", "force_path_style": True}
    return {**access, "memory_target": "256MiB", "log_file": tmp_path / "log"}


def contents(path: Path) -> dict[str, bytes]:
    return {f"train/{file.name}": file.read_bytes() for file in path.iterdir()}


def read(path: str) -> bytes:
    return Path(path).read_bytes()


def processes_naming(word: str) -> Iterator[str]:
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has ended
            if word in (command := file.read_text()):
                yield command


def has_pending(pid: int, number: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    return bool(int(re.findall(r"ShdPnd:\s*(\w+)", status)[0], 16) >> number - 1 & 1)


def test_a_block_mounts_at_a_new_directory_tells_its_statistics_and_leaves_nothing(options: dict[str, Any]) -> None:
    with fastfuse.mount("s3://bucket/train/", **options) as mnt:
        assert contents(mnt.path) == OBJECTS
        assert Path(mnt) == mnt.path
        found = fastfuse.stats(mnt)
        assert (found["source"], found["state"]) == ("s3://bucket/train/", "ok")
        assert found.keys() == fastfuse.stats(str(mnt.path)).keys()
        file = (mnt.path / "3").open("rb")
    assert not mnt.path.exists()
    with file:  # which is open at the end
        assert file.read() == OBJECTS["train/3"]
    mnt.unmount()
    with pytest.raises(errors.MountError, match="nothing of fastfuse is mounted"):
        fastfuse.stats(mnt)


def test_a_named_directory_stays(options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mnt = fastfuse.mount("s3://bucket/train/", tmp_path / "data", **options)
    assert find_mount(mnt.path) is not None
    assert f"{mnt}/1" == os.path.join(mnt, "1") == str(mnt.path / "1")
    monkeypatch.setattr(sys, "executable", "/nonexistent")  # fastfuse's own files may be gone by then
    mnt.unmount()
    assert [*mnt.path.iterdir()] == []
    assert repr(mnt) == f"<former mount of s3://bucket/train/ at {tmp_path / 'data'}>"


def test_a_mount_that_could_not_be_taken_away_can_be_later(options: dict[str, Any]) -> None:
    mnt = fastfuse.mount("s3://bucket/train/", **options)
    subprocess.run(["mount", "-t", "tmpfs", "none", mnt.path], check=True)
    try:
        with pytest.raises(errors.MountError, match="is covered by another mount, of type tmpfs"):
            mnt.unmount()
    finally:
        subprocess.run(["umount", mnt.path], check=True)
    assert contents(mnt.path) == OBJECTS
    mnt.unmount()
    assert not mnt.path.exists()


def test_a_mount_that_stays_without_an_error_is_told(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """As where `fusermount3` fails and the program ignores SIGCHLD."""
    mnt = fastfuse.mount("s3://bucket/train/", **options)
    with monkeypatch.context() as changed:
        changed.setattr(fastfuse.api, "unmount", lambda *_, **__: [])
        with pytest.raises(errors.MountError, match="is still mounted"):
            mnt.unmount()
    mnt.unmount()
    assert not mnt.path.exists()


def test_the_mount_of_somebody_else_that_came_to_its_place_stays(options: dict[str, Any], tmp_path: Path) -> None:
    mine = fastfuse.mount("s3://bucket/train/", tmp_path / "data", **options)
    subprocess.run(["umount", mine.path], check=True)
    with fastfuse.mount("s3://bucket/train/", mine.path, **options) as other:
        mine._device = other._device  # the kernel gives it again, but not at once on a busy machine
        mine.unmount()
        assert contents(other.path) == OBJECTS


@pytest.mark.parametrize(
    ("program", "said"), [("/nonexistent", "cannot be started: .*No such file"), ("false", "ended with exit code 1")]
)
def test_a_program_that_cannot_be_started_is_told(monkeypatch: pytest.MonkeyPatch, program: str, said: str) -> None:
    monkeypatch.setattr(sys, "executable", program)
    with pytest.raises(errors.FastfuseError, match=said):
        fastfuse.mount("s3://bucket/train/")


def test_a_refusal_that_is_not_utf8_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\nprintf 'fastfuse: error: no \\377\\n' >&2; exit 5\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    with pytest.raises(errors.MountError, match=r"^no \\xff$"):
        fastfuse.mount("s3://bucket/train/")


def test_a_directory_in_which_somebody_has_put_a_file_stays(options: dict[str, Any]) -> None:
    mnt = fastfuse.mount("s3://bucket/train/", **options)
    subprocess.run(["umount", mnt.path], check=True)
    (mnt.path / "note").touch()
    mnt.unmount()
    assert os.listdir(mnt) == ["note"]
    shutil.rmtree(mnt)


@pytest.mark.parametrize(
    ("source", "more", "kind", "said"),
    [
        ("s3://bucket/nothing/", {}, errors.SourceError, "nothing"),
        ("s3://nowhere/train/", {}, errors.SourceError, "no bucket 'nowhere'"),
        ("train/", {}, errors.ConfigurationError, "is not an S3 URI"),
        ("s3://bucket/train/", {"frobnicate": True}, errors.ConfigurationError, "No such option: --frobnicate"),
        ("s3://bucket/train/", {"daemon": True}, errors.ConfigurationError, "no option 'daemon'"),
        ("s3://bucket/train/", {"channel": "a"}, errors.ConfigurationError, "no option 'channel'"),
        ("s3://bucket/train/", {"help": True}, errors.ConfigurationError, "no option 'help'"),
        ("s3://bucket/train/", {"umask": 0o077}, errors.ConfigurationError, "not written in octal"),
        ("s3://bucket/train/", {"Memory-Target": "1"}, errors.ConfigurationError, "no option 'Memory-Target'"),
        ("s3://bucket/train/", {"memory_target": "much"}, errors.ConfigurationError, "--memory-target 'much'"),
    ],
)
def test_what_cannot_be_mounted_is_an_error_of_its_kind(
    source: str, more: dict[str, Any], kind: type[Exception], said: str, options: dict[str, Any]
) -> None:
    with pytest.raises(kind, match=said):
        fastfuse.mount(source, **{**options, **more})


@pytest.mark.parametrize("log_format", ["human", "json"])
def test_an_error_shows_message_and_hint_be_it_of_the_daemon(options: dict[str, Any], log_format: str) -> None:
    with pytest.raises(errors.ConfigurationError) as raised:
        fastfuse.mount("s3://bucket/train/", **options, index_max_age="soon", log_format=log_format)
    assert str(raised.value) == "--index-max-age 'soon' is not a time"
    assert raised.value.hint
    assert raised.value.__notes__ == [f"hint: {raised.value.hint}"]
    with pytest.raises(errors.SourceError, match=r"^[^{]*nothing") as refused:
        fastfuse.mount("s3://bucket/nothing/", **options, log_format=log_format, verbose=True)
    assert refused.value.hint


def test_variables_that_would_put_the_mount_elsewhere_or_that_are_left_out_are_not_its(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (
        ("CHANNEL", "a"),
        ("FUSE_SOCKET", "/nonexistent"),
        ("FUSE_FD", "9"),
        ("MOUNTPOINT", "/nowhere"),
        ("CACHE", "/nonexistent/cache"),
        ("CACHE_SIZE", "1GiB"),
        ("VERIFY", "maybe"),
    ):
        monkeypatch.setenv(f"FASTFUSE_{name}", value)
    monkeypatch.setenv("PYTHONINSPECT", "1")
    with fastfuse.mount("s3://bucket/train/", **options, cache=None, verify=False) as mnt:
        assert contents(mnt.path) == OBJECTS


@pytest.mark.parametrize("log_format", ["human", "json"])
def test_warnings_of_the_mount_are_those_of_the_program(
    options: dict[str, Any],
    log_format: str,
    server: LoopbackServer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("FASTFUSE_FROBNICATE", "1")
    monkeypatch.setitem(server.buckets, "odd", MemoryObjects({"a": b"", "b//c": b""}))
    del options["log_file"]
    fastfuse.mount("s3://odd/", **options, log_format=log_format).unmount()
    variable, *others, key = caplog.messages
    assert variable.startswith("the environment has FASTFUSE_FROBNICATE, which fastfuse does not read (hint: ")
    assert key.startswith("left out: key b'b//c' has an empty path segment")
    assert [*filter(re.compile("(?!there is no syslog here)").match, others)] == []


def test_a_mount_of_a_forked_process_goes_with_it_once_its_children_have_ended(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    context = multiprocessing.get_context("fork")
    is_ending = context.Event()
    monkeypatch.setenv("FASTFUSE_FROBNICATE", "1")
    monkeypatch.setattr(logging.Logger, "warning", Mock(side_effect=RuntimeError))

    def made() -> None:
        Finalize(None, is_ending.set, exitpriority=0)
        with pytest.raises(RuntimeError):  # of a warning, which comes with the mount
            fastfuse.mount("s3://bucket/train/", tmp_path / "data", **options)
        context.Process(target=lambda: (is_ending.wait(60), shutil.copy(tmp_path / "data/1", tmp_path))).start()

    process = context.Process(target=made)
    process.start()
    process.join()
    assert process.exitcode == 0
    assert (tmp_path / "1").read_bytes() == OBJECTS["train/1"]
    assert find_mount(tmp_path / "data") is None


def test_it_mounts_within_a_running_event_loop_as_in_a_notebook_cell(options: dict[str, Any]) -> None:
    async def cell() -> dict[str, bytes]:
        with fastfuse.mount("s3://bucket/train/", **options) as mnt:
            return await asyncio.to_thread(contents, mnt.path)

    assert asyncio.run(cell()) == OBJECTS


def test_worker_processes_read_and_leave_the_mount_and_a_forked_one_does_not_unmount(options: dict[str, Any]) -> None:
    with fastfuse.mount("s3://bucket/train/", **options) as mnt:
        paths = [str(mnt.path / str(number)) for number in range(8)]
        for method in ("fork", "fork", "spawn", "spawn"):  # an epoch each: workers end in between
            with multiprocessing.get_context(method).Pool(2) as pool:
                assert pool.map(read, paths) == [*OBJECTS.values()]
                pool.close()
                pool.join()
        child = os.fork()
        if not child:
            mnt.unmount()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert find_mount(mnt.path) is not None
        assert contents(mnt.path) == OBJECTS


def test_a_script_that_ends_leaves_no_mount_and_loads_no_event_loop(options: dict[str, Any]) -> None:
    script = (
        "import sys, threading, fastfuse\n"
        f"mnt = fastfuse.mount('s3://bucket/train/', **{ {**options, 'log_file': str(options['log_file'])}!r})\n"
        "print(mnt.path, {'trio', 'asyncio', 'pyfuse3', 'botocore'} & sys.modules.keys(), threading.active_count())\n"
        "sys.exit(3)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    path, _, loaded = done.stdout.strip().partition(" ")
    assert (done.returncode, done.stderr, loaded) == (3, "", "set() 1")
    assert not Path(path).exists()


def test_a_program_that_ignores_sigchld_hears_of_each_failure(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        with pytest.raises(errors.FastfuseError, match="nothing"):
            fastfuse.mount("s3://bucket/nothing/", tmp_path / "nothing", **options)
        mnt = fastfuse.mount("s3://bucket/train/", tmp_path / "data", **options)
        with pytest.raises(errors.FastfuseError, match="is mounted already"):
            fastfuse.mount("s3://bucket/train/", mnt.path, **options)
        with monkeypatch.context() as changed:
            changed.setattr(sys, "executable", "false")
            with pytest.raises(errors.FastfuseError):
                fastfuse.mount("s3://bucket/train/", tmp_path / "nothing", **options)
        mnt.unmount()
        assert find_mount(mnt.path) is None
        assert signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGCHLD, before)


# Before the mount is there, and after.
@pytest.mark.parametrize("called", ["fastfuse.api.subprocess.Popen", "fastfuse.api.entry_of"])
def test_an_interrupted_mount_leaves_nothing(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, called: str
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(called, Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        fastfuse.mount("s3://bucket/train/", **options)
    assert [path for path in tmp_path.iterdir() if path.is_dir()] == []


def test_a_signal_whose_handler_raises_ends_a_mount_that_is_being_made(
    options: dict[str, Any], server: LoopbackServer, tmp_path: Path
) -> None:
    """Only the program gets the signal, and not the processes of its group."""
    stalled = server.faults.add(FaultRule(action=Stall(0), operation="ListObjectsV2"))
    before = server.statistics().requests.get("ListObjectsV2", 0)

    def end() -> None:
        server.wait_until(lambda now: now.requests.get("ListObjectsV2", 0) > before)
        os.kill(os.getpid(), signal.SIGTERM)

    handler = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    thread = threading.Thread(target=end)
    try:
        thread.start()
        with pytest.raises(SystemExit):
            fastfuse.mount("s3://bucket/train/", tmp_path / "data", **options)
        assert [*processes_naming(str(tmp_path / "data"))] == []
    finally:
        thread.join()
        signal.signal(signal.SIGTERM, handler)
        server.faults.remove(stalled)
    assert not (tmp_path / "data").exists()


def test_a_mount_that_is_being_made_ends_with_a_killed_program_that_ignores_sigterm(
    options: dict[str, Any], server: LoopbackServer, tmp_path: Path
) -> None:
    """The daemon inherits the ignored signal, by which the kernel tells it that the program is gone."""
    place = str(tmp_path / "data")
    script = (
        "import signal, fastfuse\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"fastfuse.mount('s3://bucket/train/', {place!r}, **{ {**options, 'log_file': str(options['log_file'])}!r})\n"
    )
    stalled = server.faults.add(FaultRule(action=Stall(0), operation="ListObjectsV2"))
    before = server.statistics().requests.get("ListObjectsV2", 0)
    try:
        with subprocess.Popen([sys.executable, "-c", script]) as program:
            server.wait_until(lambda now: now.requests.get("ListObjectsV2", 0) > before)
            program.kill()
        wait_until(lambda: not [*processes_naming(place)], lambda: "the daemon goes on")
    finally:
        server.faults.remove(stalled)
    assert not Path(place).exists()


@pytest.mark.parametrize("end", ["os.kill(os.getpid(), 9)", "os._exit(0)", "os.execvp('cat', ['cat'])"])
def test_a_mount_ends_with_what_the_program_has_become_however_that_ends(options: dict[str, Any], end: str) -> None:
    script = (
        "import os, resource, fastfuse\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (2000, 2000))\n"
        "held = [os.open('/', 0) for _ in range(1024)]\n"  # more than select(2) knows
        "output = os.dup(1); os.close(1)\n"  # as of a program that has closed its standard streams
        f"mnt = fastfuse.mount('s3://bucket/train/', **{ {**options, 'log_file': str(options['log_file'])}!r})\n"
        "os.dup2(output, 1)\n"
        "print(mnt, fastfuse.stats(mnt)['pid'], flush=True)\n"
        f"os.read(0, 1); {end}\n"
    )
    program = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
    with program:
        assert program.stdin is not None
        assert program.stdout is not None
        path, pid = program.stdout.readline().decode().split()
        with open(os.pidfd_open(int(pid)), "rb", buffering=0) as daemon:
            program.stdin.write(b"1")
            if "cat" in end:
                program.stdin.write(b"2")
                assert program.stdout.read(1) == b"2"
                assert contents(Path(path)) == OBJECTS
            program.stdin.close()
            assert select.select([daemon], [], [], 60)[0]
    assert not Path(path).exists()


def test_a_file_that_is_open_is_read_to_its_end_after_unmount(options: dict[str, Any]) -> None:
    mnt = fastfuse.mount("s3://bucket/train/", **options)
    pid = fastfuse.stats(mnt)["pid"]
    with open(os.pidfd_open(pid), "rb", buffering=0) as daemon:
        with (mnt.path / "0").open("rb") as file:
            mnt.unmount()
            wait_until(lambda: not has_pending(pid, signal.SIGTERM))
            assert file.read() == OBJECTS["train/0"]
        assert select.select([daemon], [], [], 60)[0]
    assert "stopping" not in options["log_file"].read_text()


def test_unmount_closes_no_file_of_a_program_that_has_closed_its_descriptors(options: dict[str, Any]) -> None:
    mnt = fastfuse.mount("s3://bucket/train/", **options)
    with open(os.devnull, "rb") as file:
        os.dup2(file.fileno(), mnt._program_fd)  # which closes the pipe, too
        mnt.unmount()
        assert os.path.samestat(os.fstat(mnt._program_fd), os.fstat(file.fileno()))
        os.close(mnt._program_fd)


def test_a_machine_without_a_place_for_temporary_files(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    with pytest.raises(errors.MountError, match="no temporary directory can be made: No such file") as caught:
        fastfuse.mount("s3://bucket/train/", **options)
    assert "TMPDIR" in caught.value.hint


def test_a_new_interpreter_knows_the_names_before_one_of_them_was_used() -> None:
    program = (
        "import fastfuse, pydoc; assert fastfuse.errors.MountError; print(pydoc.plain(pydoc.render_doc(fastfuse)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "\n    mount(source: str" in done.stdout


def test_the_package_names_what_it_has_and_its_one_version() -> None:
    assert fastfuse.hints.__name__ == "fastfuse.hints"
    with pytest.raises(AttributeError, match="frobnicate"):
        _ = fastfuse.frobnicate
    assert importlib.metadata.version("fastfuse") == fastfuse.__version__
