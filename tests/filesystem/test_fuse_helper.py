"""A mount without rights: the helper that mounts for it, and the descriptor that it serves.

The processes are those of a pod: a helper with rights, a mount of another user without any, and readers, each in a
mount namespace of its own. Only the helper's and the readers' share the place.
"""

import ctypes
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bench.s3server import LoopbackServer
from fastfuse.errors import MountError
from fastfuse.filesystem.mounting import mount_places, mountpoint
from fastfuse.filesystem.mounting.fuse_helper import MAX_PACKET_BYTES, Helper, listen_at
from fastfuse.filesystem.mounting.mount_places import GivenPlace, HelperPlace
from fastfuse.filesystem.mounting.mountpoint import find_mount, is_dead
from tests.filesystem.test_mountpoint import fuse_mount
from tests.filesystem.waiting import PATIENCE_S, wait_until
from tests.forked import Forked
from tests.mounting import (
    ENVIRONMENT,
    Mount,
    abort_connection,
    mount_command,
    mounted,
    run_fastfuse,
)
from tests.semantics.test_metrics import Scrape, health

pytestmark = pytest.mark.fuse

USER = 61234
_MS_RDONLY, _MS_REMOUNT = 1, 32  # <sys/mount.h>
_DATA = os.urandom(3 << 20)
OBJECTS = {"data/a": b"first", "data/large": _DATA}
# What Kubernetes gives a container with `drop: [ALL]`, `runAsUser` and `allowPrivilegeEscalation: false`.
WITHOUT_RIGHTS = (
    "setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", "--bounding-set=-all", "--no-new-privs", "--",
)  # fmt: skip


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mountpoint, "_ANSWER_WITHIN_S", 1.0)


@dataclass
class Pod:
    """A volume at `root`, which mounts made in one container's namespace are seen in another's through."""

    root: Path
    helper: subprocess.Popen[bytes]
    reader: subprocess.Popen[str]

    @property
    def socket_path(self) -> Path:
        return self.root / "socket"

    @property
    def place(self) -> Path:
        return self.root / "data"

    def read(self, name: str) -> str:
        """What the training container's user reads in a file below the mount: its size and a sum, or the error."""
        return self.said(f"{{ cksum < {self.place}/{name}; }} 2>&1")

    def said(self, command: str) -> str:
        assert self.reader.stdin is not None
        assert self.reader.stdout is not None
        self.reader.stdin.write(f"{command}; echo .\n")
        self.reader.stdin.flush()
        return "".join(iter(self.reader.stdout.readline, ".\n"))


def _in_namespace(propagation: str, *command: str) -> list[str]:
    """Return a command of a container, whose root file system is read-only."""
    read_only = ["sh", "-c", 'mount -o remount,bind,ro / && exec "$@"', "sh"]
    return ["unshare", "--mount", "--propagation", propagation, *read_only, *command]


@contextmanager
def _pod() -> Iterator[Pod]:
    with tempfile.TemporaryDirectory(prefix="fastfuse-pod-") as directory:
        root = Path(directory)
        root.chmod(0o755)
        (root / "data").mkdir()
        subprocess.run(["mount", "--bind", root, root], check=True)
        subprocess.run(["mount", "--make-shared", root], check=True)
        helper = subprocess.Popen(
            _in_namespace(
                "unchanged",
                *(sys.executable, "-m", "fastfuse", "fuse-helper", "--socket", str(root / "socket")),
                *("--user", str(USER), str(root / "data")),
            ),
            env=dict(ENVIRONMENT), stderr=subprocess.PIPE,
        )  # fmt: skip
        reader = subprocess.Popen(
            _in_namespace("slave", "setpriv", "--reuid=61235", "--regid=61235", "--clear-groups", "sh"),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            wait_until((root / "socket").is_socket)
            yield Pod(root, helper, reader)
        finally:
            helper.terminate()
            reader.communicate(timeout=PATIENCE_S)
            helper.communicate(timeout=PATIENCE_S)
            subprocess.run(["umount", "--recursive", "--lazy", root], check=True)


@pytest.fixture(scope="module")
def pod() -> Iterator[Pod]:
    """For tests that leave the helper as it was."""
    with _pod() as pod:
        yield pod


@contextmanager
def _served(pod: Pod, server: LoopbackServer, *options: str) -> Iterator[Mount]:
    """A mount of the pod's container without rights, in whose namespace nothing is mounted at the place."""
    run_by = _in_namespace("private", *WITHOUT_RIGHTS)
    options = ("--fuse-socket", str(pod.socket_path), *options)
    with mounted("s3://bucket/data", server.endpoint_url, *options, path=pod.place, run_by=run_by) as mount:
        yield mount


def _sum(data: bytes) -> str:
    return subprocess.run(["cksum"], input=data, capture_output=True, check=True).stdout.decode()


def test_a_process_without_rights_serves_readers_in_another_container(pod: Pod, server: LoopbackServer) -> None:
    with _served(pod, server) as mount:
        status = Path(f"/proc/{mount.process.pid}/status").read_text()
        assert f"\nUid:\t{USER}\t" in status
        assert "\nCapEff:\t0000000000000000\n" in status
        assert "\nCapBnd:\t0000000000000000\n" in status
        seen_by_mount = Path(f"/proc/{mount.process.pid}/mountinfo").read_text()
        assert f" {pod.place} " not in seen_by_mount  # others may have mounted the same source elsewhere
        assert pod.read("a") == _sum(b"first")
        assert pod.read("large") == _sum(_DATA)
        assert pod.said(f"stat -c '%u %g %A' {pod.place}/a") == f"{USER} {USER} -r--r--r--\n"
        assert pod.said(f"touch {pod.place}/b 2>&1").endswith("Read-only file system\n")
        entry = find_mount(pod.place)
        assert entry is not None
        assert entry.owner_uid == USER
        assert Path("/sys/class/bdi", entry.device, "read_ahead_kb").read_text() == "1024\n"
        assert run_fastfuse("status", str(pod.place)).stdout.startswith(
            f"{pod.place}  s3://bucket/data\n  state     ok"
        )
        assert run_fastfuse("refresh", str(pod.place)).returncode == 0
        assert mount.stop() == 0
    assert find_mount(pod.place) is None
    assert "No such file" in pod.read("a")


def test_until_the_next_process_serves_readers_get_an_error_and_find_no_empty_directory(server: LoopbackServer) -> None:
    with _pod() as pod:
        with _served(pod, server) as mount:
            mount.stop(signal.SIGKILL)
            wait_until(lambda: is_dead(pod.place))
            assert run_fastfuse("mount", "s3://none/", "--fuse-socket", str(pod.socket_path)).returncode
            assert "not connected" in pod.said(f"ls {pod.place} 2>&1")
            with _served(pod, server) as mount:
                assert pod.read("a") == _sum(b"first")
                assert "/dev/fuse" not in map(os.readlink, Path(f"/proc/{pod.helper.pid}/fd").iterdir())
                mount.stop(signal.SIGKILL)
        pod.helper.terminate()
        assert pod.helper.wait(PATIENCE_S) == 0
        assert find_mount(pod.place) is None


def test_a_served_place_is_nobody_elses_and_survives_a_death_and_an_abort(pod: Pod, server: LoopbackServer) -> None:
    stranger = ["setpriv", "--reuid=61236", "--clear-groups", "--", sys.executable, "-m", "fastfuse"]
    words = ["mount", "s3://bucket/data", "--fuse-socket", str(pod.socket_path)]
    with _served(pod, server) as mount:
        requests = len(server.requests)
        # Refused before its listing.
        done = run_fastfuse(*words)
        assert (done.returncode, f"{pod.place} is served by another process" in done.stderr) == (5, True)
        done = subprocess.run(
            [*stranger, *words], env=dict(ENVIRONMENT), capture_output=True, text=True, check=False, timeout=PATIENCE_S
        )
        assert done.returncode == 5
        assert f"no helper can be reached at --fuse-socket {pod.socket_path}: Permission denied" in done.stderr
        assert len(server.requests) == requests
        os.kill(mount.worker(), signal.SIGKILL)
        assert pod.read("large") == _sum(_DATA)
        abort_connection(pod.place)
        wait_until(lambda: pod.read("a") == _sum(b"first"))
        assert "mounting" in mount.log
        assert mount.stop() == 0


def test_a_helper_that_is_stopped_takes_the_mount_with_it(server: LoopbackServer) -> None:
    with _pod() as pod:
        with _served(pod, server) as mount:
            pod.helper.terminate()
            assert pod.helper.wait(PATIENCE_S) == 0
            assert mount.wait() == 0
            assert "was unmounted" in mount.log
        assert find_mount(pod.place) is None
        assert not pod.socket_path.exists()


def test_a_helper_that_was_killed_leaves_the_mount_to_its_successor(server: LoopbackServer) -> None:
    with _pod() as pod, _served(pod, server) as mount:
        pod.helper.kill()
        pod.helper.wait(PATIENCE_S)
        assert pod.read("a") == _sum(b"first")
        assert mount.stop() == 5
        assert "the helper has ended" in mount.log
        assert "not connected" in pod.said(f"stat -f {pod.place} 2>&1")
        helper = Helper(pod.place, USER)
        answer, fd = helper.answer(_packet("mount", source="s3://bucket/other"))
        assert fd is not None
        os.close(fd)
        assert json.loads(answer)["mountpoint"] == str(pod.place)
        # A helper that nobody asks to mount before it ends leaves nothing mounted, either.
        Helper(pod.place, USER).close()
        assert find_mount(pod.place) is None


def _packet(request: str, **more: Any) -> bytes:  # noqa: ANN401
    return json.dumps({"fastfuse": 1, "request": request, **more}).encode()


@pytest.mark.parametrize(
    "packet",
    [
        b"\0", b"[" * 60_000, b"[]", b'"mount"', b"{}", _packet("umount"), _packet("close"),
        json.dumps({"fastfuse": 2, "request": "mount"}).encode(),
        _packet("mount", source="s3://b/\n"), _packet("mount", source="s3://b/\0"), _packet("mount", source="s" * 8193),
        _packet("mount", source=7), _packet("mount", source=["s3://b"]),
        json.dumps({"fastfuse": 1, "request": ["mount"]}).encode(), b'{"fastfuse": 1}',
    ],
)  # fmt: skip
def test_what_is_no_request_does_nothing(packet: bytes, tmp_path: Path) -> None:
    answer, fd = Helper(tmp_path, USER).answer(packet)
    assert fd is None
    assert json.loads(answer)["error"]["message"] == "the helper was asked what is no request of its version"
    assert find_mount(tmp_path) is None


@pytest.mark.parametrize("request_", ["unmount", "abort", "is_mounted"])
def test_what_is_mounted_there_is_touched_only_if_the_client_had_it_mounted(request_: str, tmp_path: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "none", tmp_path], check=True)
    try:
        helper = Helper(tmp_path, USER)
        answer, _ = helper.answer(_packet(request_))
        assert json.loads(answer) in (
            {"fastfuse": 1},
            {"fastfuse": 1, "is_mounted": False, "mountpoint": str(tmp_path)},
        )
        helper.close()
        assert "is a mountpoint already" in json.loads(helper.answer(_packet("mount"))[0])["error"]["message"]
        assert find_mount(tmp_path) is not None
    finally:
        subprocess.run(["umount", tmp_path], check=True)


def test_a_link_in_the_place_of_the_mountpoint_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    helper = Helper(tmp_path / "there", USER)
    (tmp_path / "there").rmdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "there").symlink_to("elsewhere")
    fd = os.open("/dev/fuse", os.O_RDWR)
    try:
        with pytest.raises(MountError, match="cannot be mounted on"):
            helper._attach(fd, "s3://bucket")
    finally:
        os.close(fd)
    assert find_mount(tmp_path / "elsewhere") is None


def test_a_socket_is_taken_over_only_if_nobody_serves_it(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    listen_at(path, USER).close()
    with listen_at(path, USER):
        assert (path.stat().st_mode & 0o777, path.stat().st_uid) == (0o600, USER)
        with pytest.raises(MountError, match="in use"):
            listen_at(path, USER)
    path.unlink()
    path.write_text("something else")
    with pytest.raises(MountError, match="in use"):
        listen_at(path, USER)
    assert path.read_text() == "something else"
    with pytest.raises(MountError, match="too long"):
        listen_at(tmp_path / ("long" * 40), USER)
    words = ("fuse-helper", "--socket", str(tmp_path / "s"), "--user", str(USER), str(tmp_path))
    command = ["setpriv", "--bounding-set=-chown", sys.executable, "-m", "fastfuse", *words]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert (refused.returncode, "it takes CAP_CHOWN to give the socket to user" in refused.stderr) == (5, True)


def test_a_helper_that_sends_no_descriptor_or_no_answer_is_told(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(os.fspath(path))
        listener.listen()
        answers = (b'{"fastfuse": 1}', b'{"fastfuse": 1}', b"")
        child = os.fork()
        if not child:
            with listener.accept()[0] as connection:
                for answer in answers:
                    connection.recv(MAX_PACKET_BYTES)
                    if answer:
                        connection.send(answer)
            os._exit(0)
        place = HelperPlace(path)
        with pytest.raises(MountError, match="sent no descriptor"):
            place.mount("s3://bucket")
        with pytest.raises(MountError, match="the helper has ended"):
            place.unmount("0:42")
        place.close()
        os.waitpid(child, 0)


def test_a_mount_that_is_listed_and_not_yet_made_is_not_healthy(server: LoopbackServer, tmp_path: Path) -> None:
    """Whoever waits for /healthz, as Kubernetes does, must find the data."""
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(os.fspath(path))
        listener.listen()
        options = ("--fuse-socket", str(path), "--metrics-listen", "0", "--cache", str(tmp_path / "cache"))
        process = Forked[str](
            mount_command("s3://bucket/data", None, server.endpoint_url, *options),
            env=ENVIRONMENT, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        with process, listener.accept()[0] as connection:
            connection.recv(MAX_PACKET_BYTES)
            connection.send(b'{"fastfuse": 1, "is_mounted": false, "mountpoint": "/data"}')
            assert json.loads(connection.recv(MAX_PACKET_BYTES))["request"] == "mount"
            assert process.stderr is not None
            [port] = re.findall(r"127\.0\.0\.1:(\d+)/metrics", process.stderr.readline())
            assert health(int(port)) == (503, "listing\n")
            scrape = Scrape(int(port))
            assert (scrape.mounts, scrape["draining",]) == ({("/data", "bucket")}, 0)
            assert scrape["cache_wanted",] == 0, "an alert would take a long listing for a cache that is not used"
            connection.send(b'{"error": {"kinds": ["MountError"], "message": "no", "hint": ""}}')
            assert process.wait(PATIENCE_S) == 5


@contextmanager
def _given(place: Path) -> Iterator[tuple[int, Path]]:
    """A mount as a stranger makes it: (descriptor, mountpoint)."""
    with fuse_mount(place, options=",allow_other", flags=_MS_RDONLY) as connection:
        yield connection.fileno(), place


@contextmanager
def _served_by(fd: int, server: LoopbackServer, place: Path, change: str = "") -> Iterator[Mount]:
    options, url = ("--fuse-fd", str(fd)), server.endpoint_url
    with mounted("s3://bucket/data", url, *options, path=place, pass_fds=[fd], change=change) as mount:
        yield mount


def test_a_descriptor_is_served_and_left_to_who_mounted(server: LoopbackServer, tmp_path: Path) -> None:
    with _given(tmp_path) as (fd, place), _served_by(fd, server, place) as mount:
        assert (place / "large").read_bytes() == _DATA
        os.kill(mount.worker(), signal.SIGKILL)
        assert (place / "a").read_bytes() == b"first"
        assert ctypes.CDLL(None).mount(None, os.fsencode(place), None, _MS_REMOUNT, None) == 0  # writable
        assert [os.access(place / "a", mode) for mode in (os.R_OK, os.W_OK)] == [True, False]
        assert run_fastfuse("status", str(place)).returncode == 0
        assert mount.stop() == 0
        assert find_mount(place) is not None


_UNTOLD = """
from fastfuse.filesystem.mounting import mount_places, mountpoint
mount_places._device_of = lambda _: ""
mountpoint._ANSWER_WITHIN_S = 1.0
"""
# Linux 6.16 tells which connection a descriptor is of.
_TELLS_CONNECTION = pytest.mark.skipif(
    tuple(map(int, os.uname().release.split(".")[:2])) < (6, 16), reason="Linux before 6.16"
)


@_TELLS_CONNECTION
def test_readers_get_an_error_once_nobody_serves_a_descriptor_that_its_owner_still_holds(
    tmp_path: Path, has_fusectl: bool
) -> None:
    with _given(tmp_path) as (fd, place):
        given = GivenPlace(os.dup(fd), place)
        device = given.mount("s3://bucket").device
        os.read(fd, 1 << 20)  # INIT
        given.unmount(device)
        assert is_dead(place)
        entry = find_mount(place)
        assert entry is not None
        assert entry.device == device


@pytest.mark.parametrize("is_covered", [False, True])
def test_where_the_kernel_does_not_tell_whose_a_descriptor_is_its_readahead_does(
    server: LoopbackServer, tmp_path: Path, is_covered: bool
) -> None:
    with ExitStack() as stack:
        fd, place = stack.enter_context(_given(tmp_path))
        above = stack.enter_context(_given(tmp_path))[0] if is_covered else -1
        with _served_by(fd, server, place, _UNTOLD) as mount:
            assert mount.stop() == 0
            assert _has_ended(fd) != is_covered
            assert (f"programs that still read from {place} may hang" in mount.log) == is_covered
            assert not is_covered or not _has_ended(above)


@pytest.mark.parametrize("is_told", [False, pytest.param(True, marks=_TELLS_CONNECTION)])
def test_another_mount_at_the_place_of_a_descriptor_is_not_aborted(
    tmp_path: Path, has_fusectl: bool, is_told: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if not is_told:
        monkeypatch.setattr(mount_places, "_device_of", lambda _: "")
    with _given(tmp_path) as (fd, place), _given(tmp_path) as (above, _):
        given = GivenPlace(os.dup(fd), place)
        device = given.mount("s3://bucket").device
        for end in (fd, above):
            os.read(end, 1 << 20)  # INIT
        given.unmount(device)
        assert not _has_ended(above)
        assert _has_ended(fd) == (is_told and has_fusectl)
        assert f"programs that still read from {place} may hang" in caplog.text or _has_ended(fd)


def _has_ended(fd: int) -> bool:
    poll = select.poll()
    poll.register(fd, 0)
    return bool(poll.poll(0))


@pytest.mark.parametrize("is_told", [False, pytest.param(True, marks=_TELLS_CONNECTION)])
def test_a_descriptor_of_a_mount_that_is_not_seen_is_served_too(
    server: LoopbackServer, tmp_path: Path, is_told: bool
) -> None:
    place, elsewhere = tmp_path / "place", tmp_path / "elsewhere"
    place.mkdir()
    elsewhere.mkdir()
    with _given(place) as (fd, _), _served_by(fd, server, elsewhere, "" if is_told else _UNTOLD) as mount:
        assert (place / "large").read_bytes() == _DATA
        assert (f"no FUSE mount is seen at {elsewhere} from here" in mount.log) != is_told
        assert run_fastfuse("status", str(place)).returncode == (not is_told)
        assert mount.stop() == 0
        assert "was moved" not in mount.log


def test_what_is_no_descriptor_of_a_mount_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "file").open("w") as file:
        for fd in (file.fileno(), 999):
            with pytest.raises(MountError, match=f"--fuse-fd {fd} is not open on /dev/fuse"):
                GivenPlace(fd, tmp_path)


@pytest.mark.parametrize("is_mounted", [True, False], ids=["served by another process", "not mounted"])
def test_a_descriptor_from_which_nothing_comes_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_mounted: bool
) -> None:
    monkeypatch.setattr(mount_places, "_INIT_WITHIN_S", 0)
    with ExitStack() as stack:
        device = stack.enter_context(open("/dev/fuse", "r+b", buffering=0))
        fd = device.fileno()
        if is_mounted:
            fd, _ = stack.enter_context(_given(tmp_path))
            os.read(fd, 1 << 20)  # INIT
        with pytest.raises(MountError, match=f"the kernel asks nothing on --fuse-fd {fd}"):
            GivenPlace(fd, tmp_path).mount("s3://bucket")
