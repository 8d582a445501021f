"""The handshake with the kernel, seen from the kernel's side, and the lock that pyfuse3 gets in place of trio's."""

import errno
import os
import struct
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest
import trio
import trio.testing

from bench.s3server import LoopbackServer, MemoryObjects
from fastfuse.errors import MountError
from fastfuse.filesystem.kernel import session
from fastfuse.filesystem.kernel.fuse import pyfuse3
from fastfuse.filesystem.kernel.session import Session
from fastfuse.filesystem.mounting.mount_places import Place
from fastfuse.filesystem.mounting.mountpoint import find_mount
from fastfuse.filesystem.mounting.preflight import CONTAINER
from tests.descriptors import open_descriptors
from tests.filesystem.test_mountpoint import fuse_mount
from tests.filesystem.waiting import wait_until
from tests.forked import run_forked
from tests.mounting import ENVIRONMENT, Mount, changed, fuse_connections, mount_command, mounted

pytestmark = pytest.mark.fuse

# A source with everything that an option string could take for its own, and what is not ASCII.
_KEY = "data, with=odd,ro/ü 日"


@pytest.fixture(scope="module")
def mount() -> Iterator[Mount]:
    with (
        LoopbackServer({"bucket": MemoryObjects({f"{_KEY}/a": b"data"})}) as server,
        mounted(f"s3://bucket/{_KEY}/", server.endpoint_url) as mount,
    ):
        yield mount


def test_the_kernel_may_have_256_requests_waiting_in_the_background(mount: Mount) -> None:
    with fuse_connections() as connections:
        connection = connections / str(os.minor(mount.path.stat().st_dev))
        assert (connection / "max_background").read_text() == "256\n"
        assert (connection / "congestion_threshold").read_text() == "192\n"


def test_the_mount_is_read_only_of_our_type_and_names_its_source(mount: Mount) -> None:
    entry = find_mount(mount.path)
    assert entry is not None
    assert entry.is_ours
    assert entry.source == "s3://bucket/data%2C with=odd%2Cro/%C3%BC %E6%97%A5/"
    assert os.statvfs(mount.path).f_flag & os.ST_RDONLY
    assert (mount.path / "a").read_bytes() == b"data"


def test_no_worker_waits_for_a_request_that_is_gone_because_its_caller_was_killed(mount: Mount) -> None:
    """One may be there when the worker looks, and gone when it reads."""
    (device,) = (fd for fd, target in open_descriptors(mount.worker()).items() if target == "/dev/fuse")
    told = Path(f"/proc/{mount.worker()}/fdinfo/{device}").read_text()
    assert int(told.partition("flags:")[2].split()[0], 8) & os.O_NONBLOCK


def test_nothing_of_the_handshake_is_left_open(mount: Mount) -> None:
    def targets() -> list[str]:
        return [*open_descriptors(mount.process.pid).values()]

    # Of the socket pair of INIT nothing: the four that are there are two ways to the worker, and those on which
    # refreshes are asked for and orders announced. More are open while the supervisor loads what renews credentials.
    wait_until(lambda: sum(target.startswith("socket:") for target in targets()) == 4)
    assert targets().count("/dev/fuse") == 1
    # The file that libfuse's complaints were captured in.
    assert not [target for target in targets() if "fastfuse-stderr" in target]


def test_the_descriptor_of_the_mount_is_found_below_others_of_the_device(tmp_path: Path) -> None:
    program = """
    import os, sys
    from pathlib import Path
    from fastfuse.filesystem.mounting.mount_places import Place
    from fastfuse.filesystem.kernel.session import Session
    from fastfuse.filesystem.kernel.fuse import pyfuse3

    os.dup2(os.open("/dev/fuse", os.O_RDWR), 200)
    session = Session.mount(pyfuse3.Operations(), Place(Path(sys.argv[1])), source="s3://bucket/", allow_other=False)
    try:
        assert session.fd < 200
        assert session.is_connected
    finally:
        session.unmount()
    assert not session.is_connected
    """
    done = run_forked([sys.executable, "-c", textwrap.dedent(program), str(tmp_path)], ENVIRONMENT)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_link_that_takes_the_place_of_the_directory_is_not_followed_to_another_mount(tmp_path: Path) -> None:
    program = """
    import sys
    from pathlib import Path
    from fastfuse.errors import MountError
    from fastfuse.filesystem.kernel import session
    from fastfuse.filesystem.mounting.mount_places import Place
    from fastfuse.filesystem.mounting.mountpoint import fastfuse_mounts, unmount

    place, aside, victim = places = [Path(sys.argv[1], name) for name in ("place", "aside", "victim")]
    init = session.pyfuse3.init

    def init_after_swap(*arguments):
        place.rename(aside)
        place.symlink_to(victim)
        init(*arguments)

    session.pyfuse3.init = init_after_swap
    try:
        session.Session.mount(session.pyfuse3.Operations(), Place(place), source="s3://b", allow_other=False)
    except MountError as error:
        print(error)
    print(*(path.name for path in places if path in fastfuse_mounts()))
    unmount(aside, lazy=True)
    """
    for name in ("place", "victim"):
        (tmp_path / name).mkdir()
    with fuse_mount(tmp_path / "victim"):
        done = run_forked([sys.executable, "-c", textwrap.dedent(program), str(tmp_path)], ENVIRONMENT)
    said = f"{tmp_path}/place was moved or unmounted by somebody else right away\naside victim\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, said, "")


# Begins a program that has a socket in the place of the kernel, which offers the flags that are the first argument.
_WITH_ANOTHER_KERNEL = """
import os, socket, struct, sys
from pathlib import Path
import trio
from fastfuse.filesystem.kernel.fuse import interposed, replies
from fastfuse.filesystem.kernel.loop import serve
from fastfuse.filesystem.mounting.mount_places import Place, Ready
from fastfuse.filesystem.serving.operations import MountOperations
from fastfuse.filesystem.kernel.session import Session
from fastfuse.index.inodes.builder import TableBuilder
from fastfuse.metrics import Counters

ROOT, OPEN, READ, INIT = 1, 14, 15, 26
kernel, device = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

class Given(Place):
    def mount(self, name):
        return Ready(device.fileno(), "")

def ask(opcode, number, inode, body):
    sender = os.geteuid(), os.getegid(), os.getpid()
    kernel.send(struct.pack("=IIQQIIIHH", 40 + len(body), opcode, number, inode, *sender, 0, 0) + body)

def serve_files(*names):
    builder = TableBuilder("bucket", "")
    count = len(names)
    builder.add([*names], [5] * count, [1] * count, ['"' + "0" * 32 + '"'] * count, ["STANDARD"] * count)
    operations.serve(builder.build()[0], None)
    return [operations.table.lookup(ROOT, name) for name in names]

operations = MountOperations(Counters(), uid=0, gid=0)
ask(INIT, 1, 0, struct.pack("=IIIII44x", 7, 38, 1 << 20, int(sys.argv[1]), 0))
session = Session.mount(operations, Given(Path("/nowhere")), source="s3://bucket/", allow_other=False)
kernel.recv(4096)
"""
# READDIRPLUS, which pyfuse3 requires, and to open files and directories without asking.
_OFFERED = 1 << 13 | 1 << 17 | 1 << 24


def talk_to(*programs: str) -> list[str]:
    """Run `programs` beside another kernel, as one; return the lines that it prints."""
    program = "".join(map(textwrap.dedent, (_WITH_ANOTHER_KERNEL, *programs)))
    done = run_forked([sys.executable, "-c", program, str(_OFFERED)], ENVIRONMENT)
    assert not done.stderr
    return done.stdout.splitlines()


def test_a_kernel_that_opens_no_directories_by_itself_is_refused() -> None:
    done = run_forked([sys.executable, "-c", _WITH_ANOTHER_KERNEL, str(_OFFERED & ~(1 << 24))], ENVIRONMENT)
    assert "MountError: this kernel cannot serve a mount of fastfuse (it lacks FUSE_NO_OPENDIR_SUPPORT)" in done.stderr


def test_a_mount_goes_on_after_more_reads_than_are_kept_once_those_are_answered() -> None:
    """L3"""
    program = """
    KEPT = 8192

    async def read_more_than_are_kept():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve)
            for number in range(1, KEPT + 3):
                ask(READ, 2 * number, 2, bytes(40))
                while len(taken) < number:
                    await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()

    taken = []
    interposed.take_reads(lambda number, *_: taken.append(number))
    replies.keep(session.requests)
    replies.start(session.fd, 0)
    trio.run(read_more_than_are_kept)
    for number in reversed(taken[-3:]):
        print(session.can_go_on)
        replies.answer(number, b"")
        kernel.recv(4096)
    """
    assert talk_to(program) == ["False", "False", "True"]


# Serves as a worker does, and talks to it as the kernel would, from a thread: nothing else ever wakes the loop.
_AS_A_WORKER = """
import threading, time
from fastfuse.filesystem.kernel.loop import Requests

async def talking():
    async with trio.open_nursery() as nursery:
        nursery.start_soon(requests.serve)
        nursery.start_soon(trio.sleep_forever)
        nursery.start_soon(ended, nursery.cancel_scope)
        nursery.start_soon(work, nursery)
        threading.Thread(target=talk).start()

async def ended(scope):
    await trio.lowlevel.wait_readable(over)
    scope.cancel()

async def work(all_tasks):
    pass

def talk():
    pass

def answer_later(number, inode, offset, size_bytes, process, is_direct):
    nursery.start_soon(answer, number)

over, end = os.pipe()
serve_files(b"file")
replies.keep(session.requests)
replies.start(session.fd, 0)
requests = Requests()
"""


def test_a_loop_that_waits_for_nothing_else_is_woken_for_what_requests_begin_and_what_libfuse_answers() -> None:
    program = """
    async def work(all_tasks):
        global nursery
        nursery = all_tasks

    async def answer(number):
        await trio.lowlevel.checkpoint()
        replies.answer(number, b"bytes")

    def talk():
        for number in range(2, 20, 4):
            ask(READ, number, 2, bytes(40))
            print(kernel.recv(4096)[16:].decode())
            ask(OPEN, number + 2, 2, bytes(24))
            print(-struct.unpack_from("=Ii", kernel.recv(4096))[1])
        os.write(end, b".")

    interposed.take_reads(answer_later)
    with kernel, device:
        trio.run(talking, instruments=[requests])
    """
    assert talk_to(_AS_A_WORKER, program) == ["bytes", str(errno.ENOSYS)] * 5


def test_a_loop_has_its_turns_while_the_kernel_asks_without_end() -> None:
    program = """
    async def work(all_tasks):
        for turn in range(5):
            await trio.sleep(0.001)
            await trio.lowlevel.wait_writable(end)
        os.write(end, b".")

    def flood():
        device.close()
        message = struct.pack("=IIQQIIIHH", 80, READ, 2, 2, 0, 0, 0, 0, 0) + bytes(40)
        try:
            while True:
                kernel.send(message)
        except OSError:
            os._exit(0)  # the other end is closed

    if not os.fork():
        flood()
    interposed.take_reads(lambda *_: time.sleep(0.0005))  # slower than they come
    with kernel, device:
        trio.run(talking, instruments=[requests])
    print("over")
    """
    assert talk_to(_AS_A_WORKER, program) == ["over"]


def test_a_worker_that_cannot_take_requests_ends_so_that_another_does() -> None:
    program = """
    async def work(all_tasks):
        interposed.take_requests = fail

    def fail(*_):
        raise MemoryError("in the place of the loop")

    try:
        trio.run(talking, instruments=[requests])
    except* MemoryError:
        print("ended")
    """
    assert talk_to(_AS_A_WORKER, program) == ["ended"]


def test_no_request_is_blamed_for_a_crash_before_anybody_has_begun_it() -> None:
    """L3"""
    program = """
    class Crashing(Requests):
        def before_task_step(self, task):
            if interposed.is_left():
                os._exit(1)  # some task of this turn, before the one that serves

    ask(OPEN, 6, 2, bytes(24))
    for _ in range(2):
        if not os.fork():
            replies.keep(session.requests)
            trio.run(talking, instruments=[requests := Crashing()])
        os.wait()
        print(session.refuse_deadly_request(is_blameless=False), session.can_go_on)
    """
    assert talk_to(_AS_A_WORKER, program) == ["None True", "None True"]


# A server of two files, one of which it holds back until Python has heard of something.
_TWO_FILES = """
from fastfuse.filesystem.kernel.fuse import direct_reads
from fastfuse.filesystem.serving.direct_files import _packed

GETATTR, ETAG = 3, '"' + "0" * 32 + '"'

def serve_one(connection):
    while request := connection.recv(4096):
        if b"slow" in request:
            is_told.wait()
        connection.sendall(b"HTTP/1.1 200 OK\\r\\nETag: %b\\r\\nContent-Length: 5\\r\\n\\r\\nbytes" % ETAG.encode())

def serve_all():
    while True:
        threading.Thread(target=serve_one, args=(listener.accept()[0],), daemon=True).start()

def read(inode):
    ask(READ, inode << 40, inode, struct.pack("=QQIIQII", 0, 0, 4096, 0, 0, 0, 0))

def poke():
    for number in range(2, 1 << 40, 2):
        ask(GETATTR, number, fast, bytes(16))
        while struct.unpack_from("=Q", kernel.recv(4096), 8)[0] in (slow << 40, fast << 40):
            pass
        if is_told.is_set():
            break
        time.sleep(0.0005)  # so that the loop waits again and again, each time shortly
    os.write(end, b".")

fast, slow = serve_files(b"fast", b"slow")
is_told = threading.Event()
listener = socket.create_server(("127.0.0.1", 0))
threading.Thread(target=serve_all, daemon=True).start()
direct_reads.start(session.fd, os.eventfd(0), 8)
direct_reads.arm(
    addresses=[_packed(socket.AF_INET, *listener.getsockname())], host=b"127.0.0.1", port=listener.getsockname()[1],
    is_address=True, tls=0, texts=(b"GET /", b" HTTP/1.1\\r\\nhost: x\\r\\n", b"", b"", b"", b""), for_s=3600.0,
    patience_s=3600.0, part_patience_s=3600.0, part_limit_s=3600.0, identity_begin=b"",
)
interposed.take_reads(lambda *_: print("left to Python", flush=True))
"""
_TALK = """
interposed.tell_of_reads(tell)
with kernel, device:
    trio.run(talking, instruments=[requests])
    os._exit(0)
"""


def test_python_hears_of_a_file_while_another_takes_long_and_the_kernel_asks_on() -> None:
    program = """
    def tell():
        for _, (inode, *_) in direct_reads.served():
            if not is_told.is_set():
                print("told of", operations.table.key(inode), flush=True)
            is_told.set()

    def talk():
        read(slow)
        read(fast)
        poke()
    """
    assert talk_to(_AS_A_WORKER, _TWO_FILES, program, _TALK) == ["told of fast"]


_TELL_OF_BOTH = """
may_tell = threading.Event()

def tell():
    if may_tell.is_set():
        for what, (inode, *_) in direct_reads.served():
            if what != direct_reads.GOT_AHEAD:
                print(direct_reads.is_read(fast) + direct_reads.is_read(slow))
        print(direct_reads.is_read(fast) + direct_reads.is_read(slow), flush=True)
        is_told.set()

def talk():
    for inode in (slow, fast):
        read(inode)
        kernel.recv(4096)
    may_tell.set()
    poke()

"""
_GET_AHEAD = """
for inode in (slow, fast):
    assert interposed.fetch_ahead(inode, memoryview(bytearray(5)))
"""


@pytest.mark.parametrize("ahead", ["", _GET_AHEAD], ids=["", "ahead"])
def test_a_file_that_was_read_is_not_fetched_ahead_for_what_python_hears_of_another(ahead: str) -> None:
    """It hears of many at a time, in any order, and the first may end a run of the listing before the second."""
    program = _AS_A_WORKER + _TWO_FILES + _TELL_OF_BOTH + ahead + _TALK
    assert talk_to(program.replace("is_told.wait()", "pass")) == ["2", "2", "0"]


def test_where_the_system_has_no_room_for_a_thread_no_small_file_is_queued_for_one() -> None:
    program = """
    import resource
    resource.setrlimit(resource.RLIMIT_NPROC, (0, resource.getrlimit(resource.RLIMIT_NPROC)[1]))
    if not os.getuid():
        os.setresuid(64321, 64321, 64321)  # root has no such limit
    data = bytearray(5)
    print(interposed.fetch_ahead(slow, memoryview(data)), direct_reads.held_ahead(), direct_reads.is_read(slow))
    data.append(0)  # nobody refers to it any more
    print(os.strerror(direct_reads.refused()), direct_reads.refused())
    """
    program = _WITH_ANOTHER_KERNEL + _AS_A_WORKER + _TWO_FILES + textwrap.dedent(program)
    done = run_forked([sys.executable, "-c", program, str(_OFFERED)], ENVIRONMENT)
    assert done.stdout.splitlines() == ["False (0, 0) False", "Resource temporarily unavailable 0"], done.stderr


@pytest.mark.parametrize(("page_bytes", "pages"), [(4 << 10, 256), (16 << 10, 64), (64 << 10, 16)])
def test_the_kernel_may_read_a_mib_at_once_whatever_its_pages_are(page_bytes: int, pages: int) -> None:
    # <linux/fuse.h>, fuse_init_out, behind the 16 bytes of fuse_out_header: libfuse offers 256 pages.
    init = struct.Struct("=IIIIHHIIH")
    reply = bytearray(16) + init.pack(7, 38, 1 << 20, 1 << 22, 12, 9, 256 * page_bytes, 1, 256)
    session._complete(reply, page_bytes=page_bytes)
    assert init.unpack_from(reply, 16)[6:] == (4096, 1, pages)


def test_a_live_mount_is_not_taken_for_one_without_a_connection_that_had_its_number(mount: Mount) -> None:
    entry = find_mount(mount.path)
    assert entry is not None
    disconnected = os.open("/dev/fuse", os.O_RDWR)
    try:
        earlier = Session(Place(mount.path), entry.device, disconnected)
        earlier.place.mounted(entry)
        assert not earlier.is_connected
        assert not earlier.is_mounted()
        assert not earlier.can_go_on
        earlier.unmount()
        assert find_mount(mount.path) == entry
    finally:
        os.close(disconnected)


@pytest.mark.parametrize(
    ("printed", "message", "hint"),
    [
        ("fusermount3: mount failed: Operation not permitted\n", "mount failed: Operation not permitted", "SYS_ADMIN"),
        ("fuse: failed to open /dev/fuse: Permission denied\n", "failed to open /dev/fuse", "--device /dev/fuse"),
        ("warning first\nfuse: unknown option(s): `-o nonsense'\n", "unknown option(s): `-o nonsense'", ""),
        ("", "libfuse gives no reason", ""),
    ],
)  # fmt: skip
def test_what_libfuse_printed_becomes_one_sentence_and_a_hint(printed: str, message: str, hint: str) -> None:
    error = session._mount_error(Path("/place"), printed)
    assert isinstance(error, MountError)
    assert message in str(error)
    assert "\n" not in str(error)
    assert hint in error.hint


@pytest.mark.parametrize(("is_confined", "hint"), [(True, "AppArmor confines fusermount3 to home"), (False, CONTAINER)])
def test_a_refusal_of_apparmor_is_told_from_one_of_a_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_confined: bool, hint: str
) -> None:
    """Docker's profile, too, refuses to mount with EACCES, but its images have no profile of fusermount3."""
    monkeypatch.setattr(session, "_PROFILE", tmp_path / "fusermount3")
    if is_confined:
        (tmp_path / "fusermount3").touch()
    error = session._mount_error(Path("/data"), "fusermount3: mount failed: Permission denied\n")
    assert error.hint.startswith(hint)


def test_where_pyfuse3_was_imported_first_nothing_is_mounted(tmp_path: Path) -> None:
    """Then the handles of READ and READDIRPLUS do not name inode and process."""
    with LoopbackServer({"bucket": MemoryObjects({"a": b"a"})}) as server:
        command = changed(mount_command("s3://bucket", tmp_path, server.endpoint_url), "import pyfuse3")
        done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 5, done.stderr
    assert "libfuse does not say which inode is read" in done.stderr
    assert "import no pyfuse3 before it" in done.stderr
    assert "Traceback" not in done.stderr
    assert find_mount(tmp_path) is None


def test_other_modules_are_loaded_as_before() -> None:
    program = """
    import os, sys
    before = sys.getdlopenflags()
    import fastfuse.filesystem.kernel.fuse
    assert sys.getdlopenflags() == before
    assert not before & os.RTLD_GLOBAL
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], env=dict(ENVIRONMENT), check=True)


# Where `replies` keeps the number of the request that was begun last: after the message and the count of lost reads.
_BEGUN = (8 << 10) + 8


@contextmanager
def crashing(device: str) -> Iterator[tuple[Session, Callable[[], None]]]:
    """A session over `device`, and what leaves its memory as a worker does that dies under request 12, a STATFS."""
    fd = os.open(device, os.O_RDWR)
    crashed = Session(Place(Path("/nowhere")), "", fd)

    def die() -> None:
        crashed.requests[:40] = struct.pack("=IIQQIIIHH", 40, 17, 12, 1, 0, 0, 0, 0, 0)
        crashed.requests[_BEGUN : _BEGUN + 8] = (12).to_bytes(8, sys.byteorder)

    try:
        yield crashed, die
    finally:
        os.close(fd)


def test_a_kill_leaves_no_mark_that_the_crash_after_it_is_taken_for_one_under_the_same_request() -> None:
    """L3"""
    with crashing("/dev/null") as (session, die):
        die()
        assert session.refuse_deadly_request(is_blameless=True) is None
        assert session.refuse_deadly_request(is_blameless=False) is None  # this one began nothing
        die()
        assert session.refuse_deadly_request(is_blameless=False) is None
        assert session.owed == {12}
        die()
        assert session.refuse_deadly_request(is_blameless=False) == (12, 17, 1)
        assert session.owed == set()


def test_a_request_that_cannot_be_failed_stays_for_the_next_worker() -> None:
    """L3"""
    with crashing("/dev/full") as (session, die):
        for _ in range(3):
            die()
            assert session.refuse_deadly_request(is_blameless=False) is None
            assert session.owed == {12}
            assert session.is_waited_for


def test_a_request_that_nobody_waits_for_any_more_is_dropped(tmp_path: Path) -> None:
    with fuse_mount(tmp_path) as device, crashing("/dev/null") as (session, die):
        session.fd = device.fileno()
        for expected in (None, (12, 17, 1)):
            die()
            assert session.refuse_deadly_request(is_blameless=False) == expected
        assert session.owed == set()
        assert session.is_waited_for  # INIT is to be read
        os.read(session.fd, 1 << 17)
        assert not session.is_waited_for


async def test_the_lock_takes_no_turn() -> None:
    with trio.testing.assert_no_checkpoints():
        async with nullcontext():
            pass


@pytest.mark.fuse
def test_the_lock_that_serves_init_is_what_workers_inherit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: list[object] = []

    def init(*_: object) -> None:
        seen.append(pyfuse3.trio.Lock)  # type: ignore[attr-defined]
        raise RuntimeError("far enough")

    monkeypatch.setattr(pyfuse3, "trio", trio, raising=False)
    monkeypatch.setattr(pyfuse3, "init", init)
    with pytest.raises(MountError):
        Session.mount(pyfuse3.Operations(), Place(tmp_path), source="s3://b", allow_other=False)
    assert seen == [nullcontext]
