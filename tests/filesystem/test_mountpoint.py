"""The place of a mount: what mountinfo says of it, what may be mounted on, what may be cleared, how it is unmounted."""

import ctypes
import errno
import fcntl
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from io import FileIO
from pathlib import Path

import pytest

from bench.s3server import LoopbackServer, MemoryObjects
from fastfuse.cli.main import main
from fastfuse.errors import MountError
from fastfuse.filesystem.mounting import mount_places, mountpoint
from fastfuse.filesystem.mounting.mount_places import Place
from fastfuse.filesystem.mounting.mountpoint import (
    fastfuse_file_systems,
    fastfuse_mounts,
    find_mount,
    is_mounted,
    mount_holding,
    prepare_mountpoint,
    unmount,
)
from fastfuse.filesystem.mounting.preflight import may_mount
from fastfuse.filesystem.processes.sockets import control_prefix, hint_prefix, listen
from tests.forked import run_forked
from tests.mounting import ENVIRONMENT, Mount, mount_command, mounted, run_fastfuse

_libc = ctypes.CDLL(None, use_errno=True)
_MNT_DETACH, _MS_BIND, _MS_SHARED = 2, 4096, 1 << 20  # <sys/mount.h>
_OPEN_TREE, _OPEN_TREE_CLONE = 428, 1  # <asm-generic/unistd.h>, <linux/mount.h>
_AUTOFS_IOC_READY, _AUTOFS_IOC_CATATONIC = 0x9360, 0x9362  # <linux/auto_fs.h>


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of what does not answer at all: on a busy machine, what answers may take longer than this."""
    monkeypatch.setattr(mountpoint, "_ANSWER_WITHIN_S", 0.2)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory to mount on, in one that a test may use."""
    (tmp_path / "place").mkdir()
    return tmp_path / "place"


@contextmanager
def descriptor(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_RDONLY)
    try:
        yield fd
    finally:
        os.close(fd)


@contextmanager
def kernel_mount(path: Path, kind: str, options: str = "", *, source: str = "none", flags: int = 0) -> Iterator[None]:
    """A mount made without fastfuse, detached at the end of the block if it is still there."""
    if _libc.mount(source.encode(), os.fsencode(path), kind.encode(), flags, options.encode()) != 0:
        raise OSError(ctypes.get_errno(), f"mount: {os.strerror(ctypes.get_errno())}")
    try:
        yield
    finally:
        _libc.umount2(os.fsencode(path), _MNT_DETACH)


@contextmanager
def fuse_mount(
    path: Path, kind: str = "fuse.fastfuse", *, uid: int = 0, source: str = "s3://b", options: str = "", flags: int = 0
) -> Iterator[FileIO]:
    """A FUSE mount that nobody serves; yields its connection, whose closing makes it a dead one."""
    with open("/dev/fuse", "r+b", buffering=0) as connection:
        own = f"fd={connection.fileno()},rootmode=40000,user_id={uid},group_id=0"
        with kernel_mount(path, kind, own + options, source=source, flags=flags):
            yield connection


@pytest.mark.fuse
@pytest.mark.parametrize(
    "name", ["plain", "a - b", "tab\there", "line\nfeed", "carriage\rreturn", "back\\040slash", "ü#"]
)
def test_a_real_mount_is_found_by_its_name_and_in_the_list_of_ours(tmp_path: Path, name: str) -> None:
    place = tmp_path / name
    place.mkdir()
    with fuse_mount(place, source="s3://b/a b#c\\"):
        entry = find_mount(place)
        assert entry is not None
        assert (entry.path, entry.source, entry.owner_uid, entry.is_ours) == (place, "s3://b/a b#c\\", 0, True)
        assert place in fastfuse_mounts()
        assert find_mount(tmp_path) is None
    assert find_mount(place) is None


@pytest.mark.fuse
def test_a_file_system_is_listed_once_where_it_was_mounted_however_often_it_is_bound(place: Path) -> None:
    bound = place.with_name("bound")
    bound.mkdir()
    with fuse_mount(place), kernel_mount(bound, "", source=str(place), flags=_MS_BIND):
        assert {place, bound} <= set(fastfuse_mounts())
        assert {place, bound} & {entry.path for entry in fastfuse_file_systems()} == {place}


def test_an_empty_directory_is_returned_without_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "link-to-link").symlink_to(tmp_path / "link")
    monkeypatch.chdir(tmp_path)
    for name in ("real", "link", "link-to-link", "real/../link"):
        assert prepare_mountpoint(Path(name), create_parents=False) == (tmp_path / "real").resolve()


@pytest.mark.fuse
def test_of_processes_that_mount_at_one_place_at_once_one_does(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of a launcher's tasks may begin with a mount."""
    with Place(place).target(), descriptor(place) as fd, pytest.raises(BlockingIOError):
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    monkeypatch.setattr(mount_places, "_CLAIM_WITHIN_S", 0)
    with descriptor(place) as fd:
        fcntl.flock(fd, fcntl.LOCK_EX)  # as flock(1), which may have started us
        with Place(place).target():
            pass
    with ExitStack() as mounts:
        monkeypatch.setattr(fcntl, "flock", lambda *_: mounts.enter_context(kernel_mount(place, "tmpfs")))
        with pytest.raises(MountError, match="is a mountpoint already, of type tmpfs"), Place(place).target():
            pass


def test_what_takes_the_place_of_the_directory_that_was_prepared_is_not_mounted_on(tmp_path: Path) -> None:
    def refused(why: str) -> None:
        with pytest.raises(MountError, match=why), Place(tmp_path / "eve" / "mnt").target():
            pass

    for name in ("eve/mnt", "victim/mnt"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "eve" / "mnt" / "file").touch()
    refused("is no longer an empty directory")
    (tmp_path / "eve").rename(tmp_path / "aside")
    (tmp_path / "eve").symlink_to("victim")
    refused("is no longer an empty directory")
    (tmp_path / "victim" / "mnt").rmdir()
    (tmp_path / "victim" / "mnt").symlink_to("../aside")
    refused("cannot be mounted on: Not a directory")


@pytest.mark.fuse
@pytest.mark.parametrize("is_renamed", [False, True])
def test_what_takes_the_place_of_a_directory_with_a_mount_does_not_lead_to_another(
    tmp_path: Path, is_renamed: bool
) -> None:
    eve, other = tmp_path / "eve", tmp_path / "other"
    for parent in (eve, other):
        (parent / "mnt").mkdir(parents=True)
    with kernel_mount(eve / "mnt", "tmpfs"), kernel_mount(other / "mnt", "tmpfs"):
        entry = find_mount(eve / "mnt")
        assert entry is not None
        eve.rename(tmp_path / "aside")
        if is_renamed:
            other.rename(eve)
        else:
            eve.symlink_to(other)
        with pytest.raises(MountError, match="cannot be unmounted: another directory has taken its place"):
            mountpoint.unmount_as_root(entry, lazy=True)
        assert find_mount(eve / "mnt") is not None
        mountpoint.unmount_as_root(replace(entry, path=tmp_path / "aside" / "mnt"), lazy=False)
        _libc.umount2(os.fsencode(eve / "mnt"), _MNT_DETACH)


def test_a_missing_directory_is_created_and_its_parents_where_that_was_asked_for(tmp_path: Path) -> None:
    """L7"""
    alone = tmp_path / "alone"
    assert prepare_mountpoint(alone, create_parents=False) == alone.resolve()
    alone.rmdir()
    place, created = tmp_path / "missing" / "parent" / "place", list[Path]()
    with pytest.raises(MountError, match=f"{place} cannot be created: {place.parent} does not exist") as caught:
        prepare_mountpoint(place, create_parents=False)
    assert caught.value.hint == f"mkdir -p {place}"
    assert prepare_mountpoint(place, create_parents=True, created=created) == place.resolve()
    assert place.is_dir()
    assert created == [place, place.parent, place.parent.parent]
    assert prepare_mountpoint(place, create_parents=True, created=created) == place.resolve()
    assert len(created) == 3
    kept = tmp_path / "missing" / "kept"
    kept.touch()
    other = Place(place)
    Place(place, created).abandon()
    assert [*tmp_path.rglob("*")] == [kept.parent, kept]
    kept.unlink()
    kept.parent.rmdir()
    other.mount("source")
    assert place.is_dir()
    other.abandon()
    assert not [*tmp_path.rglob("*")]


@pytest.mark.parametrize("create_parents", [False, True])
@pytest.mark.parametrize("name", ["file", "file/below", "link", "link-to-nothing"])
def test_a_file_is_no_mountpoint(tmp_path: Path, name: str, create_parents: bool) -> None:
    (tmp_path / "file").write_text("keep")
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "link-to-nothing").symlink_to("nothing")
    with pytest.raises(MountError, match="is not a directory"):
        prepare_mountpoint(tmp_path / name, create_parents=create_parents)
    assert (tmp_path / "file").read_text() == "keep"


def test_below_what_cannot_be_looked_at_nothing_is_mounted(tmp_path: Path) -> None:
    (tmp_path / "circle").symlink_to("circle")
    for name, reason in (("circle", "Too many levels of symbolic links"), ("x" * 256, "File name too long")):
        for place in (tmp_path / name, tmp_path / name / "below"):
            assert find_mount(place) is None
            with pytest.raises(MountError, match=f"cannot be used: {reason}"):
                prepare_mountpoint(place, create_parents=False)


def test_another_file_system_is_refused_and_left_alone(tmp_path: Path) -> None:
    with kernel_mount(tmp_path, "tmpfs"):
        with pytest.raises(MountError, match="is a mountpoint already, of type tmpfs"):
            prepare_mountpoint(tmp_path, create_parents=False)
        with pytest.raises(MountError, match="is a mount of type tmpfs, not of fastfuse"):
            unmount(tmp_path)
        assert find_mount(tmp_path) is not None


def test_the_descriptor_of_a_mount_is_no_place_but_can_be_served() -> None:
    with open("/dev/fuse", "rb") as device:
        with pytest.raises(MountError, match="is not a directory") as refused:
            prepare_mountpoint(Path(f"/dev/fd/{device.fileno()}"), create_parents=False)
        assert refused.value.hint == f"serve it with --fuse-fd {device.fileno()}"


def test_a_root_without_proc_or_without_a_mount_of_its_own_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mountpoint, "_OWN", tmp_path)
    for ask in (fastfuse_mounts, may_mount):
        with pytest.raises(MountError, match="/proc is not mounted here"):
            ask()
    assert main(["s3://b/ü", "/mnt"]) == MountError.exit_code
    (tmp_path / "mountinfo").write_text("22 1 0:20 / /proc rw - proc proc rw\n")
    assert mount_holding(tmp_path) is None


@pytest.mark.fuse
def test_an_automount_is_mounted_on_by_the_process_group_that_autofs_asks(tmp_path: Path, place: Path) -> None:
    told, tells = os.pipe()
    options = f"fd={tells},pgrp={os.getpgrp()},minproto=5,maxproto=5,direct"
    with LoopbackServer({"b": MemoryObjects({"a": b"abc"})}) as server, kernel_mount(place, "autofs", options):
        trigger = os.open(place, os.O_RDONLY)
        command = mount_command("s3://b", place, server.endpoint_url)
        by_hand = subprocess.Popen(command, stderr=subprocess.PIPE, env=ENVIRONMENT, start_new_session=True)
        try:
            *_, token = struct.unpack_from("iiI", os.read(told, 512))
            log = ("--log-file", str(tmp_path / "log"))
            done = run_forked([*command, "--daemon", *log], ENVIRONMENT)
            assert done.returncode == 0, done.stderr
            fcntl.ioctl(trigger, _AUTOFS_IOC_READY, token)
            assert b"is mounted already, with s3://b" in by_hand.communicate(timeout=60)[1]
            assert (place / "a").read_bytes() == b"abc"
            assert find_mount(place) in fastfuse_file_systems()
            unmount(place)
            assert find_mount(place) is None
        finally:
            fcntl.ioctl(trigger, _AUTOFS_IOC_CATATONIC, 0)
            for fd in (trigger, told, tells):
                os.close(fd)
            by_hand.kill()
            by_hand.communicate()


@pytest.mark.parametrize("through_link", [False, True])
def test_a_dead_mount_of_ours_is_cleared_l4(place: Path, through_link: bool) -> None:
    link = place.with_name("link")
    link.symlink_to(place)
    with fuse_mount(place) as connection:
        connection.close()
        assert prepare_mountpoint(link if through_link else place, create_parents=False) == place
        assert find_mount(place) is None


def test_a_dead_mount_is_not_taken_for_an_earlier_one_that_had_its_id_and_device(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, earlier = Place(place), Place(place.with_name("earlier"))
    with fuse_mount(place) as connection:
        entry = find_mount(place)
        assert entry is not None
        ours.mounted(entry)
        with monkeypatch.context() as patch:
            patch.setattr(mount_places, "bdi_number", lambda _device: 1)
            earlier.mounted(entry)
        connection.close()
        assert ours.is_mounted(entry.device, is_connected=False)
        assert not earlier.is_mounted(entry.device, is_connected=False)


@pytest.mark.fuse
@pytest.mark.parametrize(
    ("options", "is_dead", "message", "hint"),
    [
        (",allow_other", True, "holds a dead mount of user 65534", "fastfuse unmount {} as"),
        # Without allow_other the kernel answers statvfs for it, dead or alive, and even root learns nothing.
        ("", True, "is mounted already", ""),
        ("", False, "is mounted already", ""),
    ],
)
def test_a_mount_of_another_user_is_left_alone_l4(
    tmp_path: Path, options: str, is_dead: bool, message: str, hint: str
) -> None:
    with fuse_mount(tmp_path, uid=65534, options=options) as connection:
        if is_dead:
            connection.close()
        with pytest.raises(MountError, match=message) as caught:
            prepare_mountpoint(tmp_path, create_parents=False)
        assert hint.format(tmp_path) in caught.value.hint
        assert find_mount(tmp_path) is not None


@contextmanager
def stopped(mount: Mount) -> Iterator[None]:
    """A mount that does not answer. Its supervisor is stopped, too: it would replace the worker after 6 s."""
    pids = mount.process.pid, mount.worker()
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in reversed(pids):
            os.kill(pid, signal.SIGCONT)


@pytest.mark.fuse
def test_a_live_mount_that_does_not_answer_is_left_alone_but_by_unmount(impatient: None, tmp_path: Path) -> None:
    """L4"""
    with (
        LoopbackServer({"bucket": MemoryObjects({"ü/a": b"a"})}) as server,
        mounted("s3://bucket/ü/", server.endpoint_url, path=tmp_path) as mount,
    ):
        with stopped(mount):
            error = r"is mounted already, with s3://bucket/%C3%BC/, and does not answer"
            with pytest.raises(MountError, match=error) as caught:
                prepare_mountpoint(tmp_path, create_parents=False)
            assert caught.value.hint == f"fastfuse unmount --lazy {tmp_path} takes it away"
            # Where its sockets are not seen, as from another container.
            elsewhere = (
                "from pathlib import Path; from fastfuse.filesystem.mounting import mountpoint as m;"
                f"m._ANSWER_WITHIN_S = 0.2; m.prepare_mountpoint(Path({str(tmp_path)!r}), create_parents=False)"
            )
            asked = ["unshare", "--net", sys.executable, "-c", elsewhere]
            assert "and does not answer" in subprocess.run(asked, capture_output=True, text=True, check=False).stderr
            program = (
                "import sys; from fastfuse.filesystem.mounting import mountpoint; mountpoint._ANSWER_WITHIN_S = 0.2;"
                "from fastfuse.cli.main import main; sys.exit(main())"
            )
            # As `mount -a` does.
            again = [sys.executable, "-c", program, "s3://bucket/ü/", str(tmp_path)]
            done = run_forked(again, ENVIRONMENT)
            assert done.returncode == 5
            assert "and does not answer" in done.stderr
        done = run_forked(again, ENVIRONMENT)  # it answers: nothing is left to do
        assert (done.returncode, done.stderr) == (0, "")
        assert (mount.path / "a").read_bytes() == b"a"
        with stopped(mount):
            assert run_fastfuse("unmount", str(tmp_path)).returncode == 0
            assert find_mount(tmp_path) is None
        assert mount.wait() == 0


@pytest.fixture
def hanging(impatient: None, place: Path) -> Iterator[Path]:
    """A mount whose daemon is not there any more, but a process that holds its connection, and the hint socket."""
    with fuse_mount(place, uid=os.geteuid()) as connection:
        os.read(connection.fileno(), 1 << 17)  # INIT, or nobody is asked
        entry = find_mount(place)
        assert entry is not None
        with listen(hint_prefix(entry.device), backlog=1):
            yield place


@contextmanager
def asking(place: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that the kernel has asked the daemon for."""
    program = "import os, sys; print(flush=True); os.statvfs(sys.argv[1])"
    with subprocess.Popen(
        [sys.executable, "-c", program, place], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.fuse
@pytest.mark.parametrize("how", ["prepare", "unmount"])
def test_a_mount_that_nobody_serves_and_that_does_not_answer_is_cleared_and_its_readers_get_an_error_l4(
    hanging: Path, has_fusectl: bool, how: str
) -> None:
    with asking(hanging) as reader:
        if how == "prepare":
            assert prepare_mountpoint(hanging, create_parents=False) == hanging
        else:
            unmount(hanging, lazy=True)
        assert find_mount(hanging) is None
        _, stderr = reader.communicate(timeout=60)
        assert reader.returncode == 1
        assert "OSError" in stderr or "ConnectionAbortedError" in stderr


@pytest.mark.fuse
def test_a_mount_that_does_not_answer_is_left_alone_where_somebody_may_serve_it_or_it_is_another_users_l4(
    hanging: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = find_mount(hanging)
    assert entry is not None
    with listen(control_prefix(entry.device), backlog=1), pytest.raises(MountError, match="does not answer"):
        prepare_mountpoint(hanging, create_parents=False)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(MountError, match="does not answer"):
        prepare_mountpoint(hanging, create_parents=False)
    assert find_mount(hanging) == entry


@pytest.mark.fuse
@pytest.mark.parametrize(
    ("uid", "is_there", "number", "is_told"),
    [
        (1000, True, 0, True),
        (0, True, errno.EPERM, True),
        (0, True, errno.EBUSY, False),
        (0, False, errno.EINVAL, False),
    ],
)
def test_a_connection_that_is_not_ended_is_complained_of_unless_it_is_gone_or_still_used(
    hanging: Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    uid: int,
    is_there: bool,
    number: int,
    is_told: bool,
) -> None:
    entry = find_mount(hanging)
    assert entry is not None

    class Refusing:
        def umount2(self, path: bytes, flags: int) -> int:
            if not is_there:
                _libc.umount2(path, _MNT_DETACH)
            ctypes.set_errno(number)
            return -1

    monkeypatch.setattr(mountpoint, "_CONNECTIONS", tmp_path / "nothing")
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    with monkeypatch.context() as patch:
        patch.setattr(ctypes, "CDLL", lambda *_, **__: Refusing())
        mountpoint.abort(hanging, entry.device)
    told = f"programs that still read from {hanging} may hang: its connection cannot be ended"
    told += " ([Errno 1] Operation not" if number else ""
    assert (told in caplog.text, bool(caplog.records)) == (is_told, is_told)
    assert (find_mount(hanging) == entry) == is_there


@pytest.mark.fuse
def test_where_a_mount_is_bound_to_is_told_when_it_is_unmounted(place: Path) -> None:
    bound = place.with_name("bound")
    bound.mkdir()
    with fuse_mount(place), kernel_mount(bound, "", source=str(place), flags=_MS_BIND):
        done = run_fastfuse("unmount", str(place))
        assert (done.returncode, done.stdout) == (0, f"unmounted {place}; it is still used at {bound}\n")
        done = run_fastfuse("unmount", str(bound))
        assert (done.returncode, done.stdout) == (0, f"unmounted {bound}\n")


@pytest.mark.fuse
def test_what_keeps_an_unmounted_mount_out_of_sight_is_told_of(place: Path) -> None:
    with fuse_mount(place):
        clone_fd = _libc.syscall(_OPEN_TREE, -1, os.fsencode(place), _OPEN_TREE_CLONE)
        assert clone_fd >= 0
        done = run_fastfuse("unmount", str(place))
        os.close(clone_fd)
    told = "; it is still used at a place that is not seen from here, such as an overlay above it, or a container\n"
    assert (done.returncode, done.stdout) == (0, f"unmounted {place}{told}")


@pytest.mark.fuse
def test_a_bound_place_that_loses_the_mount_with_it_is_not_named(tmp_path: Path) -> None:
    whole, bound = tmp_path / "whole", tmp_path / "bound"
    for directory in (whole, bound):
        directory.mkdir()
    with kernel_mount(whole, "tmpfs"):
        _libc.mount(None, os.fsencode(whole), None, _MS_SHARED, None)
        with kernel_mount(bound, "", source=str(whole), flags=_MS_BIND):
            (whole / "mount").mkdir()
            with fuse_mount(whole / "mount"):
                assert find_mount(bound / "mount") is not None
                done = run_fastfuse("unmount", str(whole / "mount"))
                assert (done.returncode, done.stdout) == (0, f"unmounted {whole / 'mount'}\n")
                assert find_mount(bound / "mount") is None


@pytest.mark.fuse
def test_a_mount_that_a_bind_of_its_parent_shows_twice_is_unmounted(tmp_path: Path) -> None:
    with kernel_mount(tmp_path, "tmpfs"), kernel_mount(tmp_path, "", flags=_MS_SHARED):
        place = tmp_path / "parent/place"
        place.mkdir(parents=True)
        bind = kernel_mount(place.parent, "", source=str(place.parent), flags=_MS_BIND)
        with bind, fuse_mount(place):
            assert fastfuse_mounts().count(place) == 2
            unmount(place)
            assert find_mount(place) is None


@pytest.mark.fuse
@pytest.mark.parametrize("lazy", [False, True])
def test_of_two_mounts_at_one_place_only_the_one_that_is_meant_is_unmounted_l4(tmp_path: Path, lazy: bool) -> None:
    with fuse_mount(tmp_path):
        below = find_mount(tmp_path)
        assert below is not None
        with fuse_mount(tmp_path):
            above = find_mount(tmp_path)
            assert above is not None
            assert is_mounted(tmp_path, below.device)
            with pytest.raises(MountError, match="is covered by another mount") as caught:
                unmount(tmp_path, device=below.device, lazy=lazy)
            assert caught.value.hint == f"umount {tmp_path} first"
            assert find_mount(tmp_path) == above
            unmount(tmp_path, device=above.device, lazy=lazy)
            assert not is_mounted(tmp_path, above.device)
            assert find_mount(tmp_path) == below


def test_where_nothing_is_mounted_there_is_nothing_to_unmount(tmp_path: Path) -> None:
    with pytest.raises(MountError, match=f"nothing is mounted at {tmp_path}"):
        unmount(tmp_path)


@pytest.mark.fuse
@pytest.mark.usefixtures("impatient")
def test_a_busy_mount_is_told_apart_and_can_be_detached(tmp_path: Path) -> None:
    with fuse_mount(tmp_path):
        held = os.open(tmp_path, os.O_PATH)
        try:
            with pytest.raises(MountError, match="Device or resource busy") as caught:
                unmount(tmp_path)
            assert "--lazy" in caught.value.hint
            unmount(tmp_path, lazy=True)
            assert find_mount(tmp_path) is None
        finally:
            os.close(held)


@pytest.mark.fuse
@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("lazy", [False, True])
def test_a_mount_is_unmounted_through_a_link_too(place: Path, lazy: bool) -> None:
    link = place.with_name("link")
    link.symlink_to(place)
    with fuse_mount(place):
        unmount(link, lazy=lazy)
        assert find_mount(place) is None


@pytest.fixture
def as_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], Path]:
    """As an ordinary user, with a script in the place of fusermount3; returns where it notes its arguments."""

    def prepare(script: str) -> Path:
        tools, words = tmp_path / "tools", tmp_path / "words"
        tools.mkdir()
        (tools / "fusermount3").write_text(f'#!/bin/sh\necho "$@" > {words}\n{script}\n')
        (tools / "fusermount3").chmod(0o755)
        monkeypatch.setattr(os, "geteuid", lambda: 1000)
        monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
        return words

    return prepare


@pytest.mark.fuse
@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(("lazy", "words"), [(False, "-u -- {place}\n"), (True, "-u -z -- {place}\n")])
def test_a_user_unmounts_by_fusermount3(tmp_path: Path, as_user: Callable[[str], Path], lazy: bool, words: str) -> None:
    place = tmp_path / "-u"
    place.mkdir()
    with fuse_mount(place):
        noted = as_user("exit 0")
        unmount(place, lazy=lazy)
        assert noted.read_text() == words.format(place=place)


@pytest.mark.fuse
@pytest.mark.parametrize(
    ("complaint", "hint"),
    [
        ("failed to unmount /x: Device or resource busy", "close its files, or detach it with --lazy"),
        ("entry for /x not found in /etc/mtab", "umount --lazy {place}, as root on the host"),
        (r"failed to unmount /\377: Text file busy", "umount --lazy {place}, as root on the host"),
    ],
)
def test_a_complaint_is_told(place: Path, as_user: Callable[[str], Path], complaint: str, hint: str) -> None:
    with fuse_mount(place):
        as_user(rf"printf 'fusermount3: {complaint}\n' >&2; exit 1")
        with pytest.raises(MountError) as caught:
            unmount(place)
        told = complaint.replace(r"\377", r"\xff")  # what is not UTF-8
        assert (str(caught.value), caught.value.hint) == (
            f"{place} cannot be unmounted: {told}", hint.format(place=place),
        )  # fmt: skip


@pytest.mark.fuse
def test_a_fusermount3_for_which_there_is_no_process_is_an_error_that_can_be_told(
    place: Path, as_user: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    with fuse_mount(place):
        as_user("exit 0")
        monkeypatch.setattr(subprocess, "run", refuse)
        with pytest.raises(MountError, match="fusermount3 cannot be run: Resource temporarily unavailable"):
            unmount(place)


@pytest.mark.fuse
def test_a_user_without_fusermount3_is_told_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with fuse_mount(tmp_path):
        monkeypatch.setattr(os, "geteuid", lambda: 1000)
        monkeypatch.setenv("PATH", str(tmp_path.parent / "nowhere"))
        with pytest.raises(MountError, match="fusermount3 is not installed") as caught:
            unmount(tmp_path)
        assert "fuse3" in caught.value.hint


@pytest.mark.fuse
@pytest.mark.parametrize(("kind", "lists"), [("fuse.fastfuse", [True, False, True]), ("fuse.sshfs", [False] * 3)])
def test_our_mounts_are_told_apart_by_their_users(place: Path, kind: str, lists: list[bool]) -> None:
    with fuse_mount(place, kind, uid=65534):
        assert [place in fastfuse_mounts(uid) for uid in (65534, 0, None)] == lists
