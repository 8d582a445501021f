"""The rights of every process of a running mount, as /proc shows them, and whom the kernel kills first."""

import ctypes
import hashlib
import json
import os
import re
import signal
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from subprocess import DEVNULL
from typing import Any

import pytest

from bench.s3server import FaultRule, LoopbackServer, MemoryObjects, ServerConfig, Stall
from bench.s3server.faults import EXPIRED_TOKEN, INTERNAL_ERROR, SLOW_DOWN, Action, Flip, Reset, Truncate, WrongEtag
from fastfuse.filesystem.processes import privileges
from fastfuse.filesystem.processes.children import fork_child, wait_child
from fastfuse.filesystem.processes.privileges import become_nobody, become_supervisor
from tests.bad_input.checks import as_nobody, in_namespace
from tests.bad_input.test_mountpoints import DEV_FUSE_FOR_ALL
from tests.filesystem.test_supervisor import kill
from tests.filesystem.waiting import wait_for_end, wait_until
from tests.forked import Forked
from tests.index.sources.reports import Row, manifest, parquet_file
from tests.mounting import ENVIRONMENT, Mount, children_of, mount_command, mounted, run_fastfuse

_NOBODY = 65534
_READ_SEARCH = 1 << 2
_KILL = 1 << 5
_CONFINED_TO = 1 << 1 | _READ_SEARCH | _KILL
_SECURITY = Path(__file__).parents[2] / "docs" / "SECURITY.md"
_GET_ROBUST_LIST = {"x86_64": 274, "aarch64": 100}[os.uname().machine]


@dataclass(frozen=True)
class Rights:
    """What /proc shows of one process. `is_dumpable` is read from the owner of its files there."""

    uid: int
    gid: int
    groups: tuple[int, ...]
    capabilities: tuple[int, int, int, int, int]  # effective, permitted, bounding, inheritable, ambient
    no_new_privs: bool
    is_dumpable: bool
    core_limit: str
    umask: int
    oom_score_adjustment: int


def rights_of(pid: int) -> Rights:
    text = Path(f"/proc/{pid}/status").read_text()
    fields = dict(line.split(":", 1) for line in text.splitlines())
    limits = Path(f"/proc/{pid}/limits").read_text()
    core = re.search(r"^Max core file size +(\S+) +(\S+)", limits, re.MULTILINE)
    assert core is not None
    (uid,), (gid,) = set(map(int, fields["Uid"].split())), set(map(int, fields["Gid"].split()))
    cap_eff, cap_prm, cap_bnd, cap_inh, cap_amb = (
        int(fields[name], 16) for name in ("CapEff", "CapPrm", "CapBnd", "CapInh", "CapAmb")
    )
    return Rights(
        uid=uid, gid=gid, groups=tuple(map(int, fields["Groups"].split())), umask=int(fields["Umask"], 8),
        capabilities=(cap_eff, cap_prm, cap_bnd, cap_inh, cap_amb), core_limit="/".join(core.groups()),
        no_new_privs=fields["NoNewPrivs"].strip() == "1", is_dumpable=is_dumpable(pid, uid),
        oom_score_adjustment=int(Path(f"/proc/{pid}/oom_score_adj").read_text()),
    )  # fmt: skip


def rights_of_children(mount: Mount) -> list[Rights]:
    found = []
    for pid in mount.children():
        # It has ended, or is about to: then it has no umask any more.
        with suppress(FileNotFoundError, ProcessLookupError, KeyError):
            found.append(rights_of(pid))
    return found


def is_dumpable(pid: int, uid: int) -> bool:
    """Return whether a process of the same user may look into the process `pid`."""
    if uid:  # the files of a process that is not dumpable are root's (proc(5))
        return os.stat(f"/proc/{pid}/stat").st_uid == uid
    return wait_child(fork_child(lambda: os._exit(_look_into(pid)))) == 0


def _look_into(pid: int) -> int:
    """Return 0 if root without CAP_SYS_PTRACE may look into `pid`, else the error's number."""
    libc = ctypes.CDLL(None, use_errno=True)
    header, words = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    assert libc.capget(header, words) == 0
    words[0] &= ~(1 << 19)  # effective
    assert libc.capset(header, words) == 0
    head, size = ctypes.c_void_p(), ctypes.c_size_t()
    done = libc.syscall(_GET_ROBUST_LIST, pid, ctypes.byref(head), ctypes.byref(size))
    return ctypes.get_errno() if done else 0


# The table of docs/SECURITY.md, for a mount that root makes. The supervisor keeps what it has, to unmount.
_OWN = rights_of(os.getpid())
_FIRST = _OWN.oom_score_adjustment
_MAY_OUTLIVE = _OWN.capabilities[0] >> 24 & 1  # CAP_SYS_RESOURCE
_SUPERVISOR = replace(
    _OWN, is_dumpable=False, core_limit="0/0", oom_score_adjustment=max(_FIRST - 900 * _MAY_OUTLIVE, -1000)
)
CONFINED = replace(
    _SUPERVISOR,
    oom_score_adjustment=_FIRST,
    capabilities=(_CONFINED_TO, _CONFINED_TO, _CONFINED_TO, 0, 0),
    no_new_privs=True,
    umask=0o077,
)
RUNS_PROGRAM = replace(_SUPERVISOR, oom_score_adjustment=_FIRST, umask=0o077)
NOBODYS = replace(
    _SUPERVISOR, uid=_NOBODY, gid=_NOBODY, groups=(), capabilities=(0, 0, 0, 0, 0), no_new_privs=True, umask=0o077,
    oom_score_adjustment=min(_FIRST + 100, 1000),
)  # fmt: skip


_DOCUMENTED = {
    "supervisor": _SUPERVISOR,
    "worker, lister, sends notices, metrics endpoint": NOBODYS,
    "finds credentials": CONFINED,
    "the same, where a profile names a `credential_process`": RUNS_PROGRAM,
}


def cells(rights: Rights) -> list[str]:
    """What the table of docs/SECURITY.md says of `rights`, without reasons."""
    names = [f"`{name}`" for bit, name in ((1, "CAP_DAC_OVERRIDE"), (2, "CAP_DAC_READ_SEARCH"), (5, "CAP_KILL"))
             if rights.capabilities[0] >> bit & 1]  # fmt: skip
    is_as_started = rights.capabilities == _OWN.capabilities
    return [
        f"{rights.uid} (nobody), no groups" if rights.uid else "root",
        "all that it was started with" if is_as_started else f"{', '.join(names) or 'none'}; none can be gained",
        "yes" if rights.no_new_privs else "no",
        "as started" if rights.umask == _OWN.umask else f"{rights.umask:03o}",
    ]


def test_the_security_page_says_what_each_process_may_do() -> None:
    _, _, table = _SECURITY.read_text().partition("| process | user and groups | capabilities | no_new_privs | umask |")
    rows = {}
    for line in table.splitlines()[2:]:
        if not line.startswith("|"):
            break
        process, *said = (cell.strip() for cell in line.strip("|").split("|"))
        rows[process] = [cell.partition(":")[0] for cell in said]
    assert rows == {process: cells(rights) for process, rights in _DOCUMENTED.items()}


OBJECTS = {"data/a": b"a"}


def test_a_process_that_gave_up_nothing_may_be_looked_into() -> None:
    assert _OWN.is_dumpable


@contextmanager
def listing_with_rights(
    mount: Mount, server: LoopbackServer, supervisor: Rights, confined: Rights, nobodys: Rights
) -> Iterator[tuple[int, int]]:
    """Expect these rights of a mount's processes; yield the finder and the lister of a stalled refresh."""
    assert rights_of(mount.process.pid) == supervisor
    before = mount.children()
    assert [rights_of(pid) for pid in before] == [nobodys, nobodys]  # endpoint and worker
    with urllib.request.urlopen(f"http://127.0.0.1:{mount.metrics_port()}/metrics") as metrics:
        assert metrics.status == 200
    rule = server.faults.add(FaultRule(action=Stall(0), operation="ListObjectsV2"))
    asked = server.statistics().requests["ListObjectsV2"]
    mount.process.send_signal(signal.SIGHUP)
    server.wait_until(lambda now: now.requests["ListObjectsV2"] > asked, 60)
    finder = mount.worker()
    (lister,) = children_of(finder)
    assert finder not in before
    wait_until(lambda: rights_of(finder) == confined)  # it lets the lister begin before
    assert rights_of(lister) == nobodys
    yield finder, lister
    server.faults.remove(rule)


# Who sends notices stays.
_NOTICES_PAUSE = """
import signal
from fastfuse.filesystem import refresh
refresh.Refresher._send = lambda self, fd: (refresh.become_nobody(), signal.pause())
"""


@pytest.mark.fuse
def test_each_process_of_a_mount_has_its_rights(server: LoopbackServer) -> None:
    with mounted("s3://bucket/data", server.endpoint_url, "--metrics-listen", "0", change=_NOTICES_PAUSE) as mount:
        endpoint, worker = mount.children()
        assert (mount.path / "a").read_bytes() == b"a"
        with listing_with_rights(mount, server, _SUPERVISOR, CONFINED, NOBODYS) as (finder, lister):
            kill(worker)
            wait_until(lambda: worker not in mount.children())
            assert (mount.path / "a").read_bytes() == b"a"
            wait_until(lambda: NOBODYS in map(rights_of, set(mount.children()) - {endpoint, finder}))
            lister_fd = os.pidfd_open(lister)
            kill(finder)
            wait_for_end(lister_fd)
        mount.process.send_signal(signal.SIGHUP)
        wait_until(lambda: rights_of_children(mount).count(NOBODYS) == 3)  # endpoint, worker, and who sends notices


@pytest.mark.fuse
@pytest.mark.parametrize("operation", ["HeadObject", "ListObjectsV2"])
def test_the_lister_of_an_index_that_hosts_share_has_the_rights_of_any_lister(operation: str, tmp_path: Path) -> None:
    """The first HEAD asks for the index; the listing begins with the claim in place."""
    buckets = {"bucket": MemoryObjects({"data/a": b"a"}), "lists": MemoryObjects({})}
    with LoopbackServer(buckets, ServerConfig(writes="conditional")) as server:
        server.faults.add(FaultRule(action=Stall(0), operation=operation))
        words = ("--index", "s3://lists/index", "--index-max-age", "1h")
        mount = Forked[bytes](
            mount_command("s3://bucket/data", tmp_path, server.endpoint_url, *words), env=ENVIRONMENT, stderr=DEVNULL
        )
        try:
            server.wait_until(lambda now: now.requests.get(operation, 0) > 0, 60)
            (finder,) = children_of(mount.pid)
            (lister,) = children_of(finder)
            wait_until(lambda: rights_of(finder) == CONFINED)
            assert os.listdir(f"/proc/{finder}/task") == [str(finder)]  # no thread kept the rights
            assert rights_of(lister) == NOBODYS
        finally:
            mount.terminate()
            assert mount.wait(60) == -signal.SIGTERM


@pytest.mark.fuse
def test_the_process_that_renews_credentials_has_the_rights_that_it_needs(
    server: LoopbackServer, tmp_path: Path
) -> None:
    waits = tmp_path / "waits"
    change = f"""
    import os, signal
    from fastfuse.filesystem.processes import credential_finder
    plain = credential_finder._found
    def found(session, *more):
        return signal.pause() if os.path.exists({str(waits)!r}) else plain(session, *more)
    credential_finder._found = found
    """
    with mounted("s3://bucket/data", server.endpoint_url, change=change) as mount, ThreadPoolExecutor(1) as threads:
        (worker,) = mount.children()
        waits.touch()
        server.faults.add(FaultRule(action=EXPIRED_TOKEN, operation="GetObject", times=2))
        reading = threads.submit((mount.path / "a").read_bytes)
        wait_until(lambda: len(mount.children()) == 2)
        (finder,) = set(mount.children()) - {worker}
        wait_until(lambda: rights_of(finder) == CONFINED)
        waits.unlink()
        kill(finder)
        assert reading.result(60) == b"a"
        server.faults.clear()


@pytest.fixture
def ordinary_place() -> Iterator[Path]:
    """A directory of an ordinary user, who may also write to the sockets that the test makes."""
    umask = os.umask(0)
    with tempfile.TemporaryDirectory(prefix="fastfuse-test-") as place:
        os.chown(place, _NOBODY, _NOBODY)
        yield Path(place)
    os.umask(umask)


@pytest.mark.fuse
def test_every_process_of_an_ordinary_users_mount_has_the_rights_that_it_needs(
    server: LoopbackServer, ordinary_place: Path
) -> None:
    """It is started with one capability, to read files, so that it has something to give up."""
    bounding = _OWN.capabilities[2]
    supervisor = replace(
        _SUPERVISOR, uid=_NOBODY, gid=_NOBODY, groups=(), umask=0, oom_score_adjustment=_FIRST,
        capabilities=(_READ_SEARCH, _READ_SEARCH, bounding, _READ_SEARCH, _READ_SEARCH),
    )  # fmt: skip
    confined = replace(
        supervisor, capabilities=(_READ_SEARCH, _READ_SEARCH, bounding, 0, 0), no_new_privs=True, umask=0o077
    )
    nobodys = replace(
        supervisor, capabilities=(0, 0, bounding, 0, 0), no_new_privs=True, umask=0o077,
        oom_score_adjustment=NOBODYS.oom_score_adjustment,
    )  # fmt: skip
    options: dict[str, Any] = {"path": ordinary_place, "run_by": in_namespace(as_nobody([]), DEV_FUSE_FOR_ALL)}
    words = (server.endpoint_url, "--metrics-listen", "0")
    with mounted("s3://bucket/data", *words, change=_NOTICES_PAUSE, **options) as mount:
        in_its_namespace = ["nsenter", "--mount", f"--target={mount.process.pid}", "--"]
        file = str(mount.path / "a")
        assert subprocess.check_output([*in_its_namespace, *as_nobody(["cat", file])]) == b"a"
        with listing_with_rights(mount, server, supervisor, confined, nobodys) as (finder, _):
            pass
        kill(finder)
        wait_until(lambda: finder not in mount.children())

        mount.process.send_signal(signal.SIGHUP)
        wait_until(lambda: rights_of_children(mount).count(nobodys) == 3)  # endpoint, worker, and who sends notices


def test_root_that_may_not_end_other_users_processes_stays_root_without_capabilities() -> None:
    def stay() -> None:
        header, words = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
        libc = ctypes.CDLL(None)
        libc.capget(header, words)
        for word in range(3):
            words[word] &= ~_KILL
        assert libc.capset(header, words) == 0
        become_nobody()
        rights = rights_of(os.getpid())
        assert (rights.uid, rights.capabilities, rights.no_new_privs) == (0, (0,) * 5, True)

    assert wait_child(fork_child(stay)) == 0


# In an interpreter of its own, which has loaded no more than a mount loads: a fork of the tests' has.
_AUDITED: dict[str, Any] = {"run_by": ["env"], "change": """
import os, sys
from fastfuse.filesystem.processes import credential_finder
from fastfuse.filesystem.serving import worker
real = worker.become_nobody
def audited():
    real()
    def note(event, arguments):
        is_file = event == "open" and isinstance(arguments[0], str) and not arguments[0].startswith("/proc/self/")
        if event == "import" or is_file:
            os.write(2, f"nobody wants {event} {arguments[0]}\\n".encode())
    sys.addaudithook(note)
worker.become_nobody = credential_finder.become_nobody = audited
"""}  # fmt: skip


@pytest.mark.fuse
def test_nobody_loads_and_opens_nothing_any_more() -> None:
    """Python may lie in root's home directory."""
    objects = {f"data/{at:03}": bytes(at) for at in range(120)}
    fates: list[Action] = [EXPIRED_TOKEN, INTERNAL_ERROR, SLOW_DOWN, Reset(None), Truncate(1), WrongEtag('"x"')]
    fates.append(Flip(lambda *_: [1]))
    with LoopbackServer({"bucket": MemoryObjects(objects)}, ServerConfig(page_keys_max=40)) as server:
        url = server.endpoint_url.replace("127.0.0.1", "localhost")
        with mounted("s3://bucket/data", url, "--verify", **_AUDITED) as mount:
            for at, fate in enumerate(fates):
                server.faults.add(FaultRule(action=fate, operation="GetObject", key=f"data/{at + 50:03}", times=1))
                with suppress(OSError):
                    (mount.path / f"{at + 50:03}").read_bytes()
            assert run_fastfuse("refresh", str(mount.path)).returncode == 0
            kill(mount.worker())
            assert (mount.path / "001").read_bytes() == bytes(1)
            assert mount.stop() == 0
            assert "nobody wants" not in mount.log, mount.log


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoopbackServer]:
    """One object, and each kind of list that names it."""
    lists = MemoryObjects({})
    lists.put("m", json.dumps([{"prefix": "s3://bucket/data/"}, "a"]).encode())
    lists.put("m.jsonl", b'{"source-ref": "s3://bucket/data/a", "label": "\xc3\xa4"}\n')
    rows = [Row("data/a", 1, 1_700_000_000_000, hashlib.md5(b"a").hexdigest())]
    report = parquet_file(rows)
    lists.put("report", report)
    lists.put("manifest.json", manifest({"report": report}, "Parquet"))
    buckets = {"bucket": MemoryObjects({"data/a": b"a"}), "lists": lists}
    index = tmp_path_factory.mktemp("index") / "index"
    with LoopbackServer(buckets, ServerConfig(writes="conditional", clock_s=time.time)) as server:
        where = ("--endpoint-url", server.endpoint_url, "--region", "us-east-1", "--force-path-style")
        assert run_fastfuse("index", "s3://bucket/data", "-o", str(index), *where).returncode == 0
        lists.put("index", index.read_bytes())
        yield server


@pytest.mark.fuse
@pytest.mark.parametrize(
    ("source", "options"),
    [
        ("lists/m", ("--source-type", "ManifestFile")),
        ("lists/m.jsonl", ("--source-type", "AugmentedManifestFile", "--shard", "1/2")),
        ("bucket/data", ("--inventory", "s3://lists/manifest.json")),
        ("bucket/data", ("--index", "s3://lists/index")),
        ("bucket/data", ("--index", "s3://lists/shared", "--index-max-age", "1h")),
    ],
)
def test_nobody_loads_nothing_for_any_kind_of_source(
    source: str, options: tuple[str, ...], sources: LoopbackServer
) -> None:
    with mounted(f"s3://{source}", sources.endpoint_url, *options, **_AUDITED) as mount:
        names = {path.name for path in mount.path.rglob("a")}
        assert run_fastfuse("refresh", str(mount.path)).returncode == 0
        assert mount.stop() == 0
        assert names == {"a"}
        assert "nobody wants" not in mount.log, mount.log


def test_a_supervisor_that_may_outlives_others_and_its_children_begin_as_it_did(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A file stands for the kernel's: lowering it takes CAP_SYS_RESOURCE."""
    adjustment = tmp_path / "oom_score_adj"
    adjustment.write_text("-300")
    adjustment.chmod(0o666)
    monkeypatch.setattr(privileges, "_OOM_SCORE_ADJUSTMENT", adjustment)

    def supervise() -> None:
        become_supervisor()
        assert adjustment.read_text() == "-1000"
        assert wait_child(fork_child(become_nobody)) == 0

    assert wait_child(fork_child(supervise)) == 0
    assert adjustment.read_text() == "-200"
