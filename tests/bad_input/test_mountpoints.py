"""Places and machines on which nothing can be mounted: exit code 5, and what to do about it."""

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.s3server import LoopbackServer
from fastfuse.filesystem.mounting.mountpoint import find_mount
from tests.bad_input.checks import NOBODY, as_nobody, assert_refused, in_namespace, refused, run
from tests.mounting import mount_command

pytestmark = pytest.mark.fuse

URI = "s3://bucket/data"
OBJECTS = {"data/a": b"data of a"}

# An ordinary user may open /dev/fuse (udev's default); the machine's own node is not touched.
DEV_FUSE_FOR_ALL = """
mount -t tmpfs none /mnt
mknod -m 666 /mnt/fuse c 10 229
mount --bind /mnt/fuse /dev/fuse
"""


@pytest.fixture
def unasked(server: LoopbackServer) -> Iterator[LoopbackServer]:
    """The server, of which a command that is refused must not have requested anything."""
    server.clear_requests()
    yield server
    assert not server.requests


@pytest.fixture
def place() -> Iterator[Path]:
    """An empty directory that anybody may look at and `NOBODY` owns: pytest keeps others out of its own."""
    with tempfile.TemporaryDirectory(prefix="fastfuse-test-") as folder:
        os.chmod(folder, 0o755)
        place = Path(folder, "place")
        place.mkdir()
        os.chown(place, NOBODY, NOBODY)
        yield place


def command(server: LoopbackServer, place: Path, *options: str) -> list[str]:
    return mount_command(URI, place, server.endpoint_url, *options)


def test_a_missing_mountpoint_that_the_user_may_not_create(server: LoopbackServer, place: Path) -> None:
    missing = place.parent / "missing"
    done = run(in_namespace(as_nobody(command(server, missing)), DEV_FUSE_FOR_ALL))
    assert_refused(done, 5, "cannot be created: Permission denied", f"a user who may write to {place.parent}")
    assert not missing.exists()


def test_a_mountpoint_that_is_not_empty_is_told_before_anything_is_listed(unasked: LoopbackServer, place: Path) -> None:
    """L8"""
    (place / "file").touch()
    arguments = command(unasked, place)
    refused(place, 5, f"{place} is not empty", arguments=arguments[arguments.index("mount") :])


@pytest.mark.parametrize(
    ("preparation", "message"),
    [
        ("mount -t tmpfs none /dev", "/dev/fuse is missing"),
        ("mount --bind /dev/null /dev/fuse", "/dev/fuse is not the FUSE device"),
        ("mount -t tmpfs -o nodev none /mnt; mknod -m 666 /mnt/fuse c 10 229; mount --bind /mnt/fuse /dev/fuse",
         "/dev/fuse may not be opened: Permission denied"),
    ],
    ids=["missing", "another device", "not permitted"],
)  # fmt: skip
def test_dev_fuse_that_cannot_be_used(unasked: LoopbackServer, place: Path, preparation: str, message: str) -> None:
    done = run(in_namespace(command(unasked, place), preparation))
    assert_refused(done, 5, message, "hint: in a container: --device /dev/fuse --cap-add SYS_ADMIN")
    assert find_mount(place) is None


def test_a_container_without_the_right_to_mount(unasked: LoopbackServer, place: Path) -> None:
    done = run(["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin", "--", *command(unasked, place)])
    assert_refused(done, 5, "Operation not permitted", "hint: in a container: --device /dev/fuse --cap-add SYS_ADMIN")
    assert find_mount(place) is None


FUSERMOUNT3 = Path(shutil.which("fusermount3") or "/usr/bin/fusermount3")
# All else of its directory is still found there: the interpreter may be, too.
HIDE = f"""
mkdir /mnt/programs
mount --bind {FUSERMOUNT3.parent} /mnt/programs
mount -t tmpfs none {FUSERMOUNT3.parent}
/mnt/programs/ln -s /mnt/programs/* {FUSERMOUNT3.parent}/
/mnt/programs/rm {FUSERMOUNT3}
"""
# systemd's module would name this user without a line.
UNNAMED = f"""
grep -v :{NOBODY}: /etc/passwd > /mnt/passwd
echo passwd: files > /mnt/nsswitch.conf
mount --bind /mnt/passwd /etc/passwd
mount --bind /mnt/nsswitch.conf /etc/nsswitch.conf
"""
COPY = f"cp {FUSERMOUNT3} /mnt/copy; chmod {{}} /mnt/copy; mount --bind /mnt/copy {FUSERMOUNT3}"


@pytest.mark.parametrize(
    ("preparation", "options", "messages"),
    [
        ("chmod 600 /mnt/fuse", (), ["/dev/fuse may not be opened: Permission denied",
         "hint: chmod a+rw /dev/fuse as root, or in a container: --device /dev/fuse"]),
        (HIDE, (), ["fusermount3 is not installed", "hint: install the package fuse3"]),
        (COPY.format(755), (), [f"{FUSERMOUNT3} is not set-uid root", "hint: chmod u+s "]),
        (COPY.format(4700), (), [f"{FUSERMOUNT3} may not be executed", "hint: chmod u+s,a+x "]),
        ("touch /mnt/fuse.conf; mount --bind /mnt/fuse.conf /etc/fuse.conf", ("--allow-other",),
         ["user_allow_other", "hint: add the line user_allow_other to /etc/fuse.conf"]),
        (UNNAMED, (),
         ["fusermount3 mounts for no user without a name", "hint: add a line for it to /etc/passwd"]),
    ],
    ids=["no right to the device", "not installed", "not set-uid", "not executable", "no user_allow_other", "no name"],
)  # fmt: skip
def test_an_ordinary_user_who_cannot_mount(
    unasked: LoopbackServer, place: Path, preparation: str, options: tuple[str, ...], messages: list[str]
) -> None:
    confined = in_namespace(as_nobody(command(unasked, place, *options)), f"{DEV_FUSE_FOR_ALL}\n{preparation}")
    assert_refused(run(confined), 5, *messages)


def test_an_ordinary_user_and_a_place_of_somebody_else(unasked: LoopbackServer, place: Path) -> None:
    os.chown(place, 0, 0)
    place.chmod(0o755)
    done = run(in_namespace(as_nobody(command(unasked, place)), DEV_FUSE_FOR_ALL))
    assert_refused(done, 5, f"{place} cannot be mounted on", "no write access")


def test_an_ordinary_user_mounts_reads_and_unmounts_with_fusermount3(server: LoopbackServer, place: Path) -> None:
    mount = " ".join(command(server, place, "--daemon", "--allow-other", "--log-file", str(place.parent / "log")))
    script = f"""
    {mount}
    kill -9 $({sys.executable} -m fastfuse status {place} | sed -n 's/.*, process //p')
    while stat -f {place} > /dev/null 2>&1; do :; done
    {mount}
    cat {place}/a
    stat -c ' %u %a' {place}/a
    {sys.executable} -m fastfuse unmount {place}
    """
    (place.parent / "log").touch()
    os.chown(place.parent / "log", NOBODY, NOBODY)
    permission = "echo 'user_allow_other  # for all' > /mnt/fuse.conf; mount --bind /mnt/fuse.conf /etc/fuse.conf"
    done = run(in_namespace(as_nobody(["sh", "-e", "-c", script]), f"{DEV_FUSE_FOR_ALL}\n{permission}"))
    log = (place.parent / "log").read_text()
    assert (done.returncode, done.stdout) == (0, f"data of a {NOBODY} 444\nunmounted {place}\n"), done.stderr + log
    assert "Traceback" not in log
    assert "was unmounted" in log
